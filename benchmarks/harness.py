"""Run contestants on the same work, in turns, and print the ratio of their speeds with its spread.

Each contestant lives in a child process of its own, so that libraries which clash never meet. Only one works at a time, and another one starts each
round, so that a machine which warms up or slows down favours nobody. The ratio of a round compares turns that lie seconds apart; its median over the
rounds is the result. The interval is the sign test's: order statistics of the rounds' ratios that hold the median with 95 % confidence whatever the
noise looks like (for 7 rounds, the smallest and the largest).

A benchmark is a module with ``main([Race(...), ...])`` at its end. What a contestant needs it imports in its setup: the module is loaded in every child.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import comb
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

Work = Callable[[], float]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_PACKAGES = (
    *("trimtab", "torch", "numpy", "scipy", "scikit-learn", "numba", "transformers"),
    *("faiss-cpu", "hnswlib", "usearch", "scann", "fastcluster", "pytorch-optimizer", "trl"),
)


@dataclass(frozen=True, kw_only=True)
class Race:
    """One piece of work and who does it.

    Attributes:
        subject: what is measured, in a few words.
        unit: what is counted: "examples", "queries".
        contestants: name -> setup; ours comes first. A setup is a function of a module's top level: it loads and prepares, and returns the work of one
            round, a callable that returns how many units it did.
        threads: cores and threads each may use; None is all of them. Figures for one thread and for all cores are separate races.
        floor: units a second that ours must reach.
    """

    subject: str
    unit: str
    contestants: dict[str, Callable[[], Work]]
    threads: int | None = 1
    floor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a race gave: the speed of each contestant in each round, and who could not run, with the reason."""

    race: Race
    rates: dict[str, list[float]]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> str:
        return next(iter(self.race.contestants))

    def ratios(self) -> dict[str, list[float]]:
        """Peer -> our speed over its speed, by round."""
        return {name: [a / b for a, b in zip(self.rates[self.ours], rates, strict=True)] for name, rates in self.rates.items() if name != self.ours}

    @property
    def held(self) -> bool:
        """Whether the median speed of ours reaches the floor."""
        return self.race.floor is None or statistics.median(self.rates[self.ours]) >= self.race.floor

    def as_dict(self) -> dict[str, Any]:
        race = self.race
        return {
            "subject": race.subject,
            "unit": f"{race.unit} a second",
            "threads": race.threads or cores(),
            "floor": race.floor,
            "held": self.held,
            "rates": {name: {**spread(rates), "rounds": rates} for name, rates in self.rates.items()},
            "ratios": {f"{self.ours} / {name}": {**spread(ratios), "rounds": ratios} for name, ratios in self.ratios().items()},
            "missing": self.missing,
        }

    def __str__(self) -> str:
        race = self.race
        threads = race.threads or cores()
        lines = [f"{race.subject}: {len(self.rates[self.ours])} rounds in turns, {threads} thread{'s' * (threads > 1)}"]
        width = max(map(len, race.contestants))
        for name, rates in self.rates.items():
            s = spread(rates)
            lines.append(f"  {name:{width}}  {s['median']:>12,.0f} {race.unit}/s   ({s['low']:,.0f} to {s['high']:,.0f})")
        lines += [f"  {name:{width}}  not run: {why}" for name, why in self.missing.items()]
        for name, ratios in self.ratios().items():
            s = spread(ratios)
            verdict = "faster" if s["low"] > 1 else "slower" if s["high"] < 1 else "no difference shown"
            lines.append(f"  {self.ours} / {name}: {s['median']:.2f} times ({s['low']:.2f} to {s['high']:.2f}): {verdict}")
        if race.floor is not None:
            lines.append(f"  floor of {race.floor:,.0f} {race.unit}/s: {'held' if self.held else 'MISSED'}")
        return "\n".join(lines)


def spread(values: Sequence[float], level: float = 0.95) -> dict[str, float]:
    """The median, and the narrowest pair of order statistics that holds it with this confidence; fewer than 6 values give the whole range, which holds less."""
    ordered, n, cut = sorted(values), len(values), 0
    # of n independent values, at most `cut` lie below the median with the binomial probability summed here
    while cut < (n - 1) // 2 and 2 * sum(comb(n, i) for i in range(cut + 2)) / 2**n <= 1 - level:
        cut += 1
    return {"median": statistics.median(ordered), "low": ordered[cut], "high": ordered[n - 1 - cut]}


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _child(setup: Callable[[], Work], threads: int, pipe: Connection) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    try:
        work = setup()
        pipe.send("ready")
        while pipe.recv():
            start = time.perf_counter()
            units = work()
            pipe.send(units / (time.perf_counter() - start))
    except ModuleNotFoundError as error:
        pipe.send(error)
    except Exception:
        pipe.send(RuntimeError(traceback.format_exc()))


def run(race: Race, *, rounds: int = 7, warmup: int = 1) -> Result:
    """Hold one race.

    Args:
        rounds: >= 7, so that the interval can reach 95 %.
        warmup: rounds before these that are not counted.

    Raises:
        ValueError: too few rounds.
        RuntimeError: a contestant failed or died; the message names it. One that is not installed is left out and named in the result, unless it is ours.
    """
    if rounds < 7:
        raise ValueError(f"rounds must be >= 7, got {rounds}; fewer cannot give a 95 % interval with room for one bad round")
    context = multiprocessing.get_context("spawn")
    threads = race.threads or cores()
    children: dict[str, tuple[multiprocessing.process.BaseProcess, Connection]] = {}
    missing: dict[str, str] = {}

    def answer(name: str) -> Any:
        process, pipe = children[name]
        try:
            got = pipe.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"{name} died with exit code {process.exitcode} in {race.subject!r}") from None
        if isinstance(got, RuntimeError):
            raise RuntimeError(f"{name} failed in {race.subject!r}:\n{got}")
        return got

    try:
        for name, setup in race.contestants.items():
            here, there = context.Pipe()
            process = context.Process(target=_child, args=(setup, threads, there), daemon=True)
            with patch.dict(os.environ, dict.fromkeys(_THREADS, str(threads))):  # read when a library loads, so the child is born with them
                process.start()
            there.close()
            children[name] = process, here
            if isinstance(error := answer(name), ModuleNotFoundError):
                missing[name] = f"{error}; pip install 'trimtab[bench]'"
                if len(missing) == len(children):
                    raise RuntimeError(f"{name}, whose speed this is about, cannot run: {error}")
        names = [name for name in children if name not in missing]
        rates: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(-warmup, rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                children[name][1].send(True)
                rate = answer(name)
                if turn >= 0:
                    rates[name].append(rate)
    finally:
        for process, _ in children.values():
            process.kill()
            process.join()
    return Result(race=race, rates=rates, missing=missing)


def facts() -> dict[str, Any]:
    """What the figures were measured on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    machine = {"processor": model, "cores": cores(), "system": platform.system(), "architecture": platform.machine()}
    return {"machine": machine, "python": platform.python_version(), "versions": found}


def main(races: Sequence[Race], argv: Sequence[str] | None = None) -> None:
    """The command line of a benchmark module; exits with 1 where a floor was missed."""
    parser = argparse.ArgumentParser(description="Speed of trimtab against its peers, as ratios.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=7, help="rounds a race, at least 7 (default %(default)s)")
    options = parser.parse_args(argv)
    results = []
    for race in races:
        results.append(run(race, rounds=options.rounds))
        if not options.json:
            print(results[-1], flush=True)
    if options.json:
        json.dump({**facts(), "races": [result.as_dict() for result in results]}, sys.stdout, indent=1, allow_nan=False)
        print()
    sys.exit(0 if all(result.held for result in results) else 1)
