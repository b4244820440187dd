"""``trimtab show``."""

import click

from trimtab.claims import slugs
from trimtab.claims.report.collect import deciding, method
from trimtab.cli.terminal import gathered, paragraph, verdict
from trimtab.core import card


def show(method_: str, *, paper: bool = False) -> None:
    """One method: its paper, when to use it and when not, its knobs, and what was measured.

    Args:
        method_: its name in `trimtab list`; the name of one of its claims will do.
        paper: also print the ledger of deviations from the paper.

    Example:
        trimtab show task-hinting --paper
    """
    about = card(method(method_) or method_ if method_ in slugs() else method_)
    click.secho(about.name, bold=True)
    click.echo(paragraph(f"{about.paper}, {about.year}" + (f", arXiv {about.arxiv}, https://arxiv.org/abs/{about.arxiv}" if about.arxiv else "")))
    click.echo()
    click.echo(paragraph(about.line))
    for title, text in (("Use it when", about.use_when), ("Not when", about.not_when)):
        if text:
            _heading(title)
            click.echo(paragraph(text, "  "))
    if about.knobs:
        _heading("Knobs")
        for name, advice in about.knobs.items():
            click.echo(paragraph(f"{name}: {advice}", "    ", "  "))
    _heading("Patents known of")
    for line in about.patents or ("none known",):
        click.echo(paragraph(line, "    ", "  "))
    _heading("Where")
    click.echo(paragraph(f"room {about.room}; topics: {', '.join(about.topics)}; {about.status}", "  "))
    _heading("Claims")
    mine = [slug for slug in slugs() if method(slug) == about.slug]
    entries, _ = gathered()
    for slug in mine:
        found = deciding(entries, slug)
        word = verdict(found.view) + (f"; stale: {found.stale}" if found.stale else "") if found else "no verdict yet"
        click.echo(paragraph(f"{slug}: {word}", "    ", "  "))
        for s in found.view.primary if found else ():
            click.echo(paragraph(f"{s.sentence}, paper {s.paper}", "      ", "    "))
        click.echo(f"    trimtab run {slug}")
    if not mine:
        click.echo("  none yet: the method is planned")
    if paper:
        _heading("Deviations from the paper")
        for line in about.deviations or ("none recorded",):
            click.echo(paragraph(line, "    ", "  - "))


def _heading(title: str) -> None:
    click.echo()
    click.secho(title, bold=True)
