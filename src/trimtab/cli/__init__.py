"""The ``trimtab`` command. Thin: each command is a typed function in the module of its name, imported when it is called."""

import io
import sys
from collections.abc import Sequence

import click

from trimtab.cli.typed import Commands
from trimtab.core.errors import TrimtabError, UsageError

__all__ = ["main"]

# name -> (module, one line): `trimtab --help` reads this table and imports none of the modules
COMMANDS = {
    "list": ("trimtab.cli.list", "All methods: built or planned, and what was measured."),
    "show": ("trimtab.cli.show", "One method: paper, when to use it, knobs, claims."),
    "run": ("trimtab.cli.run", "Measure a claim and print it beside the paper's numbers."),
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


def _run(args: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a sign such as "−" shows "?", and the job goes on
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
        click.echo(f"Error: {error}", err=True)
        return 2 if isinstance(error, UsageError) else 1
