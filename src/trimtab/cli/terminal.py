"""What the commands print: tables and lines for people, on any width, with and without colour."""

from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size

import click

from trimtab.claims.report.collect import Entry, gather, packaged
from trimtab.claims.report.view import Family, View, exact, shown

MARKS = {"reproduced": "●", "partly": "◐", "undecided": "○", "contradicted": "✕", "invalid": "△"}


def width() -> int:
    """Columns to write into; plenty where nobody looks, so that no table in a file is cut."""
    return get_terminal_size((200, 24)).columns


def gathered(folder: Path = Path("trimtab-runs")) -> tuple[list[Entry], list[str]]:
    """The records that come with trimtab and those in a folder. What could not be read is named on stderr, and a line each is returned."""
    entries, problems = gather([packaged(), folder])
    for line in problems:
        click.echo(f"Warning: {line}", err=True)
    return entries, problems


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """Text wrapped to the terminal, never wider than a book's page."""
    return click.wrap_text(text, width=min(width(), 100), initial_indent=indent if first is None else first, subsequent_indent=indent)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table that loses nothing: text that does not fit is folded, columns of numbers that do not fit follow below.

    Args:
        columns: their heads.
        rows: a cell for each column.
        right: numbers of the columns to align to the right: those of numbers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    widths = [max(len(row[k]) for row in (columns, *rows)) + 2 for k in range(len(columns))]
    fitting = next((k for k in range(2, len(columns)) if sum(widths[: k + 1]) - 2 > width()), len(columns)) if right else len(columns)
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns[:fitting]):
        drawn.add_column(Text(name), justify="right" if k in right else "left", overflow="fold")
    for row in rows:
        if any(row[1:fitting]) or not any(row[1:]):
            drawn.add_row(*map(Text, row[:fitting]), style="bold" if not any(row[1:]) else None)  # the head of a group
    Console(width=width(), soft_wrap=False).print(drawn)
    if fitting < len(columns):
        click.echo()
        table([columns[0], *columns[fitting:]], [[row[0], *row[fitting:]] for row in rows if any(row[fitting:]) or not any(row[1:])], right)


def verdict(view: View) -> str:
    """A verdict with the size and seeds it stands on."""
    word = f"{MARKS[view.verdict]} {view.verdict}" if view.verdict else view.note
    return f"{word} ({view.size}, {len(view.seeds)} seed{'s' * (len(view.seeds) != 1)}, {view.time[:10]})"


def curves(view: View) -> None:
    """Arms by lengths, the paper's values below the measured ones; then what has no length."""
    for suffix in dict.fromkeys(f.suffix for f in view.curves):
        families = [f for f in view.curves if f.suffix == suffix]
        points = sorted({x for f in families for x in f.points})
        rows = [row for f in families for row in _rows(view, f, points)]
        table(["length", *(f"{x:g}{suffix}" for x in points)], rows, right=range(1, len(points) + 1))
        click.echo("\n1x is the longest length in training.\n" if suffix else "")
    if scalars := [f for f in view.families if not f.points]:
        rows = [[f.name, *(_number(f, arm) for arm in view.arms)] for f in scalars]
        table(["", *view.arms], rows, right=range(1, len(view.arms) + 1))
        click.echo()


def _number(family: Family, arm: str) -> str:
    measured = shown(family.bands[arm][0.0][0], like=family.scale) if arm in family.bands else ""
    return f"{measured} (paper {shown(family.paper[arm][0.0], like=family.scale)})" if family.paper.get(arm) else measured


def _rows(view: View, family: Family, points: Sequence[float]) -> list[list[str]]:
    rows = [[family.name, *[""] * len(points)]]
    for arm in view.arms:
        band = family.bands.get(arm, {})
        if band:
            rows.append([f"  {arm}", *(shown(band[x][0], like=family.scale) if x in band else "" for x in points)])
        if paper := family.paper.get(arm):
            rows.append([f"  {arm}, paper" if not band else "    paper", *(shown(paper[x], like=family.scale) if x in paper else "" for x in points)])
    return rows


def statements(view: View) -> None:
    """Each statement with estimate, interval, margin and verdict."""
    for s in view.statements:
        word = f"{MARKS[s.verdict]} {s.verdict}" if s.verdict else "– no verdict"
        click.echo(f"{word:<15}{s.name}{'' if s.primary else ' (secondary)'}")
        details = [
            f"{s.metric} {s.measured}",
            f"margin {exact(s.margin)}",
            f"paper {s.paper}" if s.paper != "–" else "",
            s.note,
        ]
        click.echo(paragraph(", ".join(filter(None, details)), " " * 15))


def mastered(view: View) -> None:
    """Whether each arm learnt its training task."""
    if view.mastered:
        words = ", ".join(f"{arm} {'yes' if ok else 'NO'}" for arm, ok in view.mastered.items())
        click.echo(paragraph(f"Mastered the training task ({view.condition}): {words}", "  ", ""))
