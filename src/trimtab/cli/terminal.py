"""What the commands print: tables and lines for people, on any width, with and without colour."""

from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size

import click

from trimtab.claims.report.view import Family, View, exact, shown

MARKS = {"reproduced": "●", "partly": "◐", "undecided": "○", "contradicted": "✕", "invalid": "△"}


def width() -> int:
    """Columns to write into; plenty where nobody looks, so that no table in a file is cut."""
    return get_terminal_size((200, 24)).columns


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """Text wrapped to the terminal, never wider than a book's page."""
    return click.wrap_text(text, width=min(width(), 100), initial_indent=indent if first is None else first, subsequent_indent=indent)


def near(path: Path) -> Path:
    """A path as one would type it from here."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table; what does not fit is folded, never cut.

    Args:
        columns: their heads.
        rows: a cell for each column.
        right: numbers of the columns to align to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Out(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit with 1; the command line ends quietly

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        drawn.add_column(Text(name), justify="right" if k in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row), style="bold" if not any(row[1:]) else None)  # the head of a group
    Out(width=width(), soft_wrap=False).print(drawn)


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
        click.echo()
    if scalars := [f for f in view.families if not f.points]:
        rows = [[f.name, *(_number(f, arm) for arm in view.arms)] for f in scalars]
        table(["", *view.arms], rows, right=range(1, len(view.arms) + 1))
        click.echo()


def _number(family: Family, arm: str) -> str:
    measured = shown(family.bands[arm][0.0][0]) if arm in family.bands else ""
    return f"{measured} (paper {shown(family.paper[arm][0.0])})" if family.paper.get(arm) else measured


def _rows(view: View, family: Family, points: Sequence[float]) -> list[list[str]]:
    rows = [[family.name, *[""] * len(points)]]
    for arm in view.arms:
        band = family.bands.get(arm, {})
        if band:
            rows.append([f"  {arm}", *(shown(band[x][0]) if x in band else "" for x in points)])
        if paper := family.paper.get(arm):
            rows.append([f"  {arm}, paper" if not band else "    paper", *(shown(paper[x]) if x in paper else "" for x in points)])
    return rows


def statements(view: View) -> None:
    """Each statement with estimate, interval, margin and verdict."""
    for s in view.statements:
        word = f"{MARKS[s.verdict]} {s.verdict}" if s.verdict else "– no verdict"
        click.echo(f"{word:<15}{s.name}{'' if s.primary else ' (secondary)'}")
        interval = f" [{shown(s.low, True)}, {shown(s.high, True)}]" if s.low is not None else ""
        details = [
            "not measured" if s.estimate is None else f"{s.metric} {shown(s.estimate, True)}{interval}",
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
