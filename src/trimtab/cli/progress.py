"""Progress of a claim, on stderr."""

import sys
import time
from typing import Any

import click

_EVERY = 5.0  # seconds between two lines where there is no terminal


class Progress:
    """Shows the events of :func:`trimtab.claims.run_claim` on stderr: bars on a terminal, else a plain line every few seconds.

    Args:
        title: what runs.
        workers: how many pairs run at once, for the time left.
    """

    def __init__(self, title: str, workers: int):
        self.title, self.workers = title, workers
        self.pairs = self.finished = 0
        self.before = 0.0  # pairs, and parts of pairs, that were done before this call
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
        if not self.running[key][1]:  # its first word: what was done up to here may be an earlier call's, and says nothing of the speed of this one
            self.before += event["step"] / event["steps"]
        self.running[key] = event["step"], event["steps"], event["values"]
        if event["step"] == event["steps"] and not self.bars:
            self._say(f"{event['arm']}, seed {event['seed']}: trained, testing")
        if self.bars:
            self.bars.update(self.tasks[key], completed=event["step"], total=event["steps"], values=_values(*self.running[key]))
        elif time.monotonic() - self.last >= _EVERY:
            self.last = time.monotonic()
            where = [f"{arm}, seed {seed}: {at[0]}/{at[1]} {_values(*at)}".rstrip() for (arm, seed), at in self.running.items() if at[1]]
            self._say(f"{self.finished} of {self.pairs} finished{self._left()}; {'; '.join(where)}")

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


def _values(step: int, steps: int, values: dict[str, float]) -> str:
    if step == steps:
        return "testing"  # what comes between the last step and the end, at times for long
    return " ".join([f"{name} {value:.3g}" for name, value in values.items() if name != "step"][:2])


def _minutes(minutes: float) -> str:
    if minutes < 1.5:
        return f"{max(1, round(minutes * 60))} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
