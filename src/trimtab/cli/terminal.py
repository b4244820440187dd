"""What the commands print: tables and lines for people, on any width, with and without colour."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click

from trimtab.claims.report.view import Family, View, exact, shown

MARKS = {"reproduced": "●", "partly": "◐", "undecided": "○", "contradicted": "✕", "invalid": "△"}
_EVERY = 5.0  # seconds between two lines of progress where there is no terminal


def width() -> int:
    """Columns to write into; plenty where nobody looks, so that no table in a file is cut."""
    return get_terminal_size((200, 24)).columns if not sys.stdout.isatty() else get_terminal_size().columns


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """Text wrapped to the terminal, never wider than a book's page."""
    return click.wrap_text(text, width=min(width(), 100), initial_indent=indent if first is None else first, subsequent_indent=indent)


def near(path: Path) -> Path:
    """A path as one would type it from here."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), lines: bool = False) -> None:
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
            "not measured" if s.estimate is None else shown(s.estimate, True) + interval,
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


class Progress:
    """Shows the events of :func:`trimtab.claims.run_claim` on stderr: bars on a terminal, else a plain line every few seconds.

    Args:
        title: what runs.
        workers: how many pairs run at once, for the time left.
    """

    def __init__(self, title: str, workers: int):
        self.title, self.workers = title, workers
        self.pairs = self.finished = self.before = 0
        self.running: dict[tuple[str, int], tuple[int, int, dict[str, float]]] = {}
        self.began = self.last = time.monotonic()
        self.bars: Any = None
        self.tasks: dict[tuple[str, int], Any] = {}

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            first, last = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[values]}", markup=False)
            self.bars = Bars(first, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), last, console=Console(stderr=True), transient=True)
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        getattr(self, f"_{event['event']}")(event)

    def _say(self, line: str) -> None:
        self.bars.console.print(line, markup=False, highlight=False) if self.bars else click.echo(line, err=True)

    def _start(self, event: dict[str, Any]) -> None:
        self.pairs, self.finished = event["pairs"], event["finished"]
        self.before, todo = self.finished, event["pairs"] - event["finished"]
        cost = event["core_minutes"]
        took = f", about {_minutes(cost)} of one core, {_minutes(cost / max(1, min(self.workers, todo)))} on {self.workers or 1}" if cost and todo else ""
        self._say(f"{self.title}: {self.pairs} runs, {self.finished} finished before{took}; in {event['folder']}")
        if self.bars and todo:
            self.tasks[("", -1)] = self.bars.add_task(self.title, total=self.pairs, completed=self.finished, values="")

    def _pair(self, event: dict[str, Any]) -> None:
        key = event["arm"], event["seed"]
        self.running[key] = (0, 0, {})
        if self.bars:
            self.tasks[key] = self.bars.add_task(f"  {key[0]}, seed {key[1]}", total=None, values="")

    def _step(self, event: dict[str, Any]) -> None:
        key = event["arm"], event["seed"]
        self.running[key] = event["step"], event["steps"], event["values"]
        if self.bars:
            self.bars.update(self.tasks[key], completed=event["step"], total=event["steps"], values=_values(event["values"]))
        elif time.monotonic() - self.last >= _EVERY:
            self.last = time.monotonic()
            at = [f"{arm}, seed {seed}: {step}/{steps} {_values(values)}".rstrip() for (arm, seed), (step, steps, values) in self.running.items() if steps]
            self._say(f"{self.finished} of {self.pairs} finished{self._left()}; {'; '.join(at)}")

    def _left(self) -> str:
        done = self.finished - self.before + sum(step / steps for step, steps, _ in self.running.values() if steps)
        left = self.pairs - self.before - done
        return f", about {_minutes((time.monotonic() - self.began) / 60 * left / done)} left" if done > 0.05 else ""

    def _ended(self, event: dict[str, Any]) -> None:
        key = event["arm"], event["seed"]
        self.running.pop(key, None)
        if self.bars and key in self.tasks:
            self.bars.remove_task(self.tasks.pop(key))

    def _done(self, event: dict[str, Any]) -> None:
        self._ended(event)
        self.finished = event["finished"]
        if self.bars:
            self.bars.update(self.tasks[("", -1)], completed=self.finished)
        self._say(f"{event['arm']}, seed {event['seed']}: done in {event['wall_time']:.0f} s ({self.finished} of {self.pairs})")

    def _failed(self, event: dict[str, Any]) -> None:
        self._ended(event)
        self._say(f"{event['arm']}, seed {event['seed']}: FAILED, {event['message']}")

    def _record(self, event: dict[str, Any]) -> None:
        """The command prints where the record is."""


def _values(values: dict[str, float]) -> str:
    return " ".join([f"{name} {value:.3g}" for name, value in values.items() if name != "step"][:2])


def _minutes(minutes: float) -> str:
    if minutes < 1.5:
        return f"{max(1, round(minutes * 60))} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
