"""Importing is cheap and silent: tools that only list or check names must not wait for torch."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "transformers", "numba", "jaxtyping", "rich", "jinja2"}


def loaded_by(code):
    """The modules a fresh interpreter holds after the code, beyond those it starts with."""
    probe = f"""
import os, sys
before, environment = set(sys.modules), dict(os.environ)
{code}
assert environment == dict(os.environ)
print(*set(sys.modules) - before)
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=True)
    assert not result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import trimtab; dir(trimtab); trimtab.__version__", 5),
        ("import trimtab.core", 120),
        ("import trimtab.core; trimtab.core.cards()", 140),
    ],
)
def test_import_is_light(code, most):
    modules = loaded_by(code)
    assert not {m.split(".")[0] for m in modules} & HEAVY
    assert len(modules) <= most, sorted(modules)


def test_rooms_load_at_first_use():
    assert "trimtab.core" not in loaded_by("import trimtab")
    assert "trimtab.core" in loaded_by("import trimtab; trimtab.core")


def test_an_unknown_room_is_an_attribute_error_that_names_the_rooms():
    import trimtab

    with pytest.raises(AttributeError, match="no attribute 'nm'; rooms: claims, cli, core"):
        trimtab.nm  # noqa: B018
