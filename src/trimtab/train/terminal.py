"""What a person at a terminal sees and can do: progress, and Ctrl-C."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

log = logging.getLogger("trimtab.train")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """A bar on a terminal, else a plain line on stderr every few seconds, with rate and time left; or the caller's function, at log times.

    Args:
        steps: of the whole run; start is where this process takes it up.
        callback: ``(step, steps, line)``, called in place of both whenever a line was logged.
        every: seconds between plain lines.
    """

    def __init__(self, start: int, steps: int, callback: Callable[[int, int, Mapping[str, Any]], None] | None = None, every: float = 5.0):
        self.start, self.steps, self.callback, self.every = start, steps, callback, every
        self._began = self._shown = time.monotonic()
        self._loss, self._bar, self._task = "", None, None

    def __enter__(self) -> Self:
        if self.callback is None and sys.stderr and not sys.stderr.closed and sys.stderr.isatty() and self.start < self.steps:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            # four times a second: drawing takes time from training
            self._bar = Bar(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), console=Console(stderr=True), refresh_per_second=4)
            self._task = self._bar.add_task("", total=self.steps, completed=self.start)
            self._bar.start()
            self.every = 0.25
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError, SystemExit):  # rich leaves with 1 where nobody reads any more
                self._bar.stop()

    def __call__(self, step: int, line: Mapping[str, Any]) -> None:
        """After each step; ``line`` is what was logged at it, or empty."""
        if self.callback is not None:
            if line:
                self.callback(step, self.steps, line)
            return
        if line.get("loss") is not None:
            self._loss = f", loss {line['loss']:.4g}"
        now = time.monotonic()
        if now - self._shown < self.every and not (step == self.steps and self._bar):
            return
        self._shown = now
        rate = (step - self.start) / max(now - self._began, 1e-9)
        text = f"{rate:.3g} steps/s, {_clock((self.steps - step) / rate)} left{self._loss}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif sys.stderr:
            with suppress(OSError, ValueError):  # closed, or nobody reads it any more: no reason to end a training
                print(f"step {step} of {self.steps} ({step / self.steps:.0%}), {text}", file=sys.stderr, flush=True)


@contextmanager
def ctrl_c() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event that the loop looks at between steps, where a checkpoint is true; a second one stops at once.

    Leaves alone an application that handles the signal itself, and threads, which never get it.
    """
    asked, own = threading.Event(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or own is not signal.default_int_handler:
        yield asked
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, own)
        log.warning("stopping after this step, with a checkpoint; press Ctrl-C again to stop at once and go back to the one before")

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, own)
