"""The ``trimtab`` command. Thin: each command is a typed function in the module of its name, imported when it is called."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click

from trimtab.cli.typed import Commands
from trimtab.core.errors import TrimtabError, UsageError

__all__ = ["main"]

# name -> (module, one line): `trimtab --help` reads this table and imports none of the modules
COMMANDS = {
    "list": ("trimtab.cli.list", "All methods: built or planned, and what was measured."),
    "show": ("trimtab.cli.show", "One method: paper, when to use it, knobs, claims."),
    "run": ("trimtab.cli.run", "Measure a claim and print it beside the paper's numbers."),
    "length": ("trimtab.cli.length", "Train on a task of your own and judge it on longer examples."),
    "replay": ("trimtab.cli.replay", "Run a record again and compare the verdicts."),
    "report": ("trimtab.cli.report", "Write the records as static HTML pages."),
    "doctor": ("trimtab.cli.doctor", "What is installed here, and whether it is enough."),
}

HELP = """Published results as components, jobs and claims you can run.

\b
trimtab list                                 what there is
trimtab show task-hinting                    one method
trimtab run task-hinting --size smoke        its claim, in seconds
trimtab report --open                        everything measured so far
"""

EPILOG = """Exit codes: 0 it ran, 1 the job failed, 2 the call was wrong, 3 --require was not met, 130 interrupted.
Results go to stdout, progress to stderr; NO_COLOR is honoured."""

trimtab = click.version_option(package_name="trimtab", message="trimtab %(version)s")(Commands("trimtab", COMMANDS, help=HELP, epilog=EPILOG))


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; errors made on purpose are shown without a traceback.

    Args:
        args: the words after ``trimtab``; default those of the process.

    Raises:
        SystemExit: always, with the exit code.

    Example:
        >>> try:
        ...     main(["--version"])
        ... except SystemExit as end:
        ...     end.code
        trimtab 0.1.0
        0
    """
    sys.exit(_run(args))


class _Out(io.FileIO):
    """Where output goes. A reader who leaves (head, less) ends no job and changes no exit code: the rest is dropped.

    So is whatever stderr cannot take; a full disk under stdout is told.
    """

    lost = False

    def write(self, data: Any, /) -> int:
        try:
            return memoryview(data).nbytes if self.lost else super().write(data)
        except OSError as error:
            self.lost = True
            if self.name != 2 and not isinstance(error, BrokenPipeError):
                raise
            return memoryview(data).nbytes


def _output(stream: TextIO | None, number: int) -> TextIO:
    """Standard output or error, made safe: closed (None), cut off, or without a sign such as "−" ("?" takes its place), it stops no command."""
    if stream is None:
        free = -1
        while free < number:  # the numbers of what was closed are taken, here and in workers: another file that got one would be written to
            os.set_inheritable(free := os.open(os.devnull, os.O_RDWR), True)
        number = free
    elif not isinstance(stream, io.TextIOWrapper) or not isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO):
        return stream  # of a test or a notebook
    lines = stream is None or stream.line_buffering
    return io.TextIOWrapper(io.BufferedWriter(_Out(number, "w", closefd=False)), getattr(stream, "encoding", "utf-8"), "replace", line_buffering=lines)


def _run(args: Sequence[str] | None) -> int:
    sys.stdout, sys.stderr = _output(sys.stdout, 1), _output(sys.stderr, 2)
    try:
        code = trimtab.main(args, prog_name="trimtab", standalone_mode=False)
        return code or 0
    except click.Abort:  # what click makes of Ctrl-C
        click.echo("Interrupted.", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (TrimtabError, OSError) as error:
        from trimtab.claims.report.view import text

        click.echo("\n".join(map(text, f"Error: {error}".split("\n"))), err=True)
        return 2 if isinstance(error, UsageError) else 1
