"""``trimtab report``."""

import webbrowser
from pathlib import Path
from typing import Annotated

import click

from trimtab.claims.report import write_report
from trimtab.cli.run import writable
from trimtab.cli.terminal import gathered


def report(*, out: Annotated[Path, "DIR"] = Path("trimtab-report"), open: bool = False) -> None:
    """Write every record as static HTML: an index, and a page for each claim with its figures.

    Takes the records that come with trimtab and those in ./trimtab-runs. The pages need no network and can be sent as files.

    Args:
        out: folder for the pages.
        open: show the index in a browser.

    Example:
        trimtab report --open
    """
    writable(out)
    entries, problems = gathered()
    page = write_report(entries, out, problems=problems).resolve()
    click.echo(page)
    if open:
        webbrowser.open(page.as_uri())
