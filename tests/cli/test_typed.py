from pathlib import Path
from typing import Annotated, Literal

import click
import pytest

from trimtab.cli.typed import Commands, command


def job(
    source: Path,
    target: Annotated[str, "TO"] = "there",
    *,
    kind: Literal["a", "b"] = "a",
    times: int | None = None,
    names: Annotated[tuple[str, ...], "N"] = (),
    dry_run: bool = False,
    json_: bool = False,
) -> int:
    """Do it.

    More words.

    Args:
        source: where from.
        kind: which one,
            of two.
        names: may be
            repeated.

    Example:
        job here --kind b
    """
    calls.append((source, target, kind, times, names, dry_run, json_))
    return 3


calls: list = []


def invoke(*args):
    calls.clear()
    code = command(job).main(args, standalone_mode=False)
    return calls[0], code


def test_defaults_types_and_the_exit_code():
    assert invoke("here") == ((Path("here"), "there", "a", None, (), False, False), 3)


def test_every_kind_of_parameter():
    found, _ = invoke("here", "over", "--kind", "b", "--times", "2", "--names", "x", "--names", "y", "--dry-run", "--json")
    assert found == (Path("here"), "over", "b", 2, ("x", "y"), True, True)


@pytest.mark.parametrize("args", [(), ("here", "--kind", "c"), ("here", "--times", "two"), ("here", "there", "more"), ("here", "--nmes", "x")])
def test_a_wrong_call_is_a_usage_error(args):
    with pytest.raises(click.UsageError):
        invoke(*args)
    assert not calls


def test_help_comes_from_signature_and_docstring(capsys):
    command(job).main(["--help"], prog_name="job", standalone_mode=False)
    words = capsys.readouterr().out
    assert words.startswith("Usage: job [OPTIONS] SOURCE [TO]")
    for line in (
        "Do it.",
        "More words.",
        "SOURCE: where from.",
        "  Example:\n    job here --kind b",
        "--kind [a|b]",
        "which one, of two.",
        "--names N",
        "[default: a]",
        "may be repeated.",
    ):
        assert line in words


def test_a_command_is_imported_when_it_is_called(capsys):
    group = Commands("tool", {"here": ("no.such.module", "One line."), "there": ("no.such.module", "Another.")})
    group.main(["--help"], standalone_mode=False)
    assert "here   One line." in capsys.readouterr().out
    with pytest.raises(ModuleNotFoundError, match="no"):
        group.main(["here"], standalone_mode=False)
    with pytest.raises(click.UsageError, match="unknown command 'hre'; did you mean 'here'"):
        group.main(["hre"], standalone_mode=False)
