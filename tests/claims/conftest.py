from pathlib import Path

import pytest

from trimtab.claims import load_file

SOURCE = Path(__file__).with_name("toy_claim.py").read_text(encoding="utf-8")


@pytest.fixture
def altered(tmp_path):
    """Load the toy from a copy with some of its text replaced."""

    def make(*replacements: tuple[str, str]):
        text = SOURCE
        for old, new in replacements:
            assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        path = tmp_path / f"toy_{len(list(tmp_path.glob('toy_*.py')))}.py"
        path.write_text(text, encoding="utf-8")
        return load_file(path)

    return make


@pytest.fixture
def toy(altered):
    return altered()
