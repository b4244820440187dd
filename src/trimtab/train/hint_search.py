"""Which hint should a task have? Short runs of all candidates, longer ones of the best, and full runs with a verdict; cheap scores beside them.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) leaves the question open; the search is ours. Budgets go by
successive halving, Non-stochastic Best Arm Identification and Hyperparameter Optimization (arXiv 1502.07943): every rung trains what is left three times as
long. Deviation: each rung starts anew, for a rate that decays to the end of a run cannot be prolonged.

What chooses is the edit similarity on lengths above the training lengths and up to twice the longest. Test lengths lie beyond, and choose nothing.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from torch import nn

from trimtab.core import UsageError, derive, paired_t, whole
from trimtab.tasks import LengthTask, SeqTask
from trimtab.train.fit import NonFiniteLoss
from trimtab.train.hint_scores import beyond, gradient_scores
from trimtab.train.hinting import fit_with_hints
from trimtab.train.lengths import evaluate_lengths

Verdict = Literal["helps", "neutral", "harms", "undecided"]
STANDARD, EQUAL = "standard", "standard-equal-tokens"
MASTERED = 0.98  # exact, at the longest training length


@dataclass(frozen=True)
class HintReport:
    """What a search found.

    Attributes:
        rows: a dict for each hint: those that came to full runs first, by their gain, then by the last rung they were in and how they did there. ``hint``;
            ``verdict`` (None without full runs); ``gain``, ``interval`` and ``gains`` (one a seed) of edit similarity on the test lengths over no hint; the
            same over as many more rows of the main task, ``gain_equal``, ``interval_equal`` and ``gains_equal``; ``seeds``; ``rung`` and ``validation``, its
            gain there (None where it diverged); and the cheap scores.
        mastery: the least share of training-length examples that the runs without a hint got right over the seeds; None without full runs.
        cost: optimiser steps of all runs of the search, rows of hints counted in; gradient scores and evaluations are not.
        exhaustive: the same for full runs of every hint on every seed.
    """

    rows: Sequence[Mapping[str, Any]]
    mastery: float | None
    cost: float
    exhaustive: float

    @property
    def best(self) -> str | None:
        """The helpful hint of the largest gain; None where none was shown to help."""
        return next((row["hint"] for row in self.rows if row["verdict"] == "helps"), None)


def verdict(gains: Sequence[float], margin: float, level: float = 0.95) -> tuple[Verdict, float, tuple[float, float] | None]:
    """What gains over several seeds say: helps or harms where their interval lies beyond the margin, neutral where it lies within, else undecided.

    Example:
        >>> verdict([0.4, 0.5, 0.45], 0.05)[0], verdict([0.01, 0.0, -0.01], 0.05)[0], verdict([0.5, -0.4, 0.1], 0.05)[0], verdict([0.9], 0.05)[0]
        ('helps', 'neutral', 'undecided', 'undecided')
    """
    mean, interval = paired_t(gains, level)
    if interval is None:
        return "undecided", mean, None
    low, high = interval
    said: Verdict = "helps" if low > margin else "harms" if high < -margin else "neutral" if -margin <= low and high <= margin else "undecided"
    return said, mean, interval


def search_hints(
    main: SeqTask,
    hints: Mapping[str, LengthTask],
    *,
    model: Callable[[int], nn.Module],
    folder: str | Path,
    steps: int,
    lengths: Iterable[int] = (),
    seeds: Iterable[int] = (0, 1, 2),
    share: float = 0.5,
    rungs: Sequence[float] = (1 / 9, 1 / 3),
    keep: int = 1,
    margin: float = 0.05,
    examples: int = 500,
    batch_size: int = 64,
    lr: float = 1e-3,
    device: str | None = None,
    tuning_seed: int = 1000,
    progress: Callable[[str], None] = lambda text: None,
) -> HintReport:
    """Rank hints for a task, and judge the best.

    A hint *helps* if its interval lies above the margin both over no hint and over as many more rows of the main task; level 1 - 0.05 / ``keep``, as so many
    are judged. Nothing is decided where a run without a hint gets under 98 % of its longest training examples right, or where all do almost nothing or all.

    Args:
        main: the task that should hold on longer examples.
        hints: name -> task, all of the main task's vocabulary; :func:`trimtab.tasks.candidate_hints` makes some for any task.
        model: seed -> an untrained model for that vocabulary, the same one for the same seed.
        folder: where the runs go; the same call takes up what is finished. One for each task and each set of settings.
        steps: of a full run, >= 1.
        lengths: test lengths of the full runs, all above twice the longest training length, up to where the choice looks.
        seeds: of the full runs, two at least for a verdict; the choice is made on ``tuning_seed``, which is none of them. None of them: no full runs.
        share: rows of a hint for each main row.
        rungs: shares of ``steps`` that the rounds of the choice train, ascending, in (0, 1); each keeps the best third. None of them: all hints are judged.
        keep: hints that come to full runs.
        margin: the least gain in edit similarity that counts, > 0.
        examples: rows a length for each evaluation.
        batch_size, lr, device: of training.
        tuning_seed: of the choice.
        progress: called with a line of text at each step of the search.

    Returns:
        The :class:`HintReport`.

    Raises:
        UsageError: before any run: no hints, names that are no file names, lengths that the choice looks at or that the task has not, seeds used twice, too few
            steps to choose by.
        NonFiniteLoss: a run without a hint diverged; a hint whose run diverges comes last.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Count, Sorting, Successor
        >>> sort = Sorting(vocab=4, lengths=(1, 2))
        >>> report = search_hints(
        ...     sort, {"count": Count(sort), "successor": Successor(sort)}, folder=tempfile.mkdtemp(), steps=9, lengths=[6], seeds=(0, 1), examples=8,
        ...     model=lambda seed: Transformer(sort.vocab.size, dim=8, layers=1, heads=1, generator=torch.Generator().manual_seed(seed)),
        ... )
        >>> [row["verdict"] for row in report.rows], report.mastery < 0.98
        (['undecided', None], True)

    When not to use it: for one or two hints and a short run; train them all, on several seeds.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
        Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2015, arXiv 1502.07943.
    """
    judged, seeds, rungs = sorted(lengths), list(seeds), list(rungs)
    steps, keep = whole("steps", steps, 1), whole("keep", keep, 1)
    chosen = _sound(main, hints, judged, seeds, tuning_seed, rungs, share, margin)
    budgets = [n for n in dict.fromkeys(max(1, round(steps * portion)) for portion in rungs) if n < steps]
    if not budgets and not seeds:
        raise UsageError(f"steps must be enough for a rung of fewer, or seeds given for full runs; got steps={steps}, rungs={rungs} and no seeds")
    mixes = {STANDARD: {}, EQUAL: {main: share}, **{name: {hint: share} for name, hint in hints.items()}}
    trained: dict[tuple[str, int, int], Any] = {}

    def run(name: str, seed: int, length: int) -> Any:
        """The averaged model of a run; None where a hint's diverged."""
        if (key := (name, seed, length)) not in trained:
            progress(f"training {name}, seed {seed}, {length} steps")
            where = {"folder": Path(folder) / f"{name}-{length}-seed{seed}", "device": device, "progress": lambda *_: None}
            try:
                done = fit_with_hints(model(seed), main, mixes[name], steps=length, batch_size=batch_size, lr=lr, seed=derive(seed, "training"), **where)
                trained[key] = done.averaged
            except NonFiniteLoss:
                if name in (STANDARD, EQUAL):
                    raise
                trained[key] = None
        return trained[key]

    def judge(name: str, seed: int, length: int, on: Iterable[int], measure: str = "edit") -> float:
        if (found := run(name, seed, length)) is None:
            return 0.0  # a model of NaN writes nothing right
        return fmean(row[measure] for row in evaluate_lengths(found, main, on, examples=examples, seed=derive(seed, "test")))

    table: dict[str, dict[str, Any]] = {name: {"hint": name, "rung": 0, "validation": None, "verdict": None, "seeds": []} for name in hints}
    alive = list(hints)
    for rung, budget in enumerate(budgets, start=1):
        if len(alive) <= keep:
            break
        base = judge(STANDARD, tuning_seed, budget, chosen)
        for name in alive:
            diverged = run(name, tuning_seed, budget) is None
            table[name] |= {"rung": rung, "validation": None if diverged else judge(name, tuning_seed, budget, chosen) - base}
            if rung == 1:
                table[name] |= gradient_scores(run(STANDARD, tuning_seed, budget), main, hints[name], seed=derive(tuning_seed, "gradient"))
        alive = sorted(alive, key=lambda name: -_place(table[name]))[: keep if rung == len(budgets) else max(keep, -(-len(alive) // 3))]

    longest = [main.lengths[1]]
    mastery = min((judge(STANDARD, seed, steps, longest, "exact") for seed in seeds), default=None)
    for name in alive if seeds else ():
        row, said = table[name], {}
        for against, suffix in ((STANDARD, ""), (EQUAL, "_equal")):
            pairs = [(judge(name, seed, steps, judged), judge(against, seed, steps, judged)) for seed in seeds]
            edge = max(map(max, pairs)) <= 0.01 or min(map(min, pairs)) >= 0.99
            gains = [ours - theirs for ours, theirs in pairs]
            said[against], mean, interval = verdict(gains, margin, 1 - 0.05 / keep)
            row |= {f"gain{suffix}": mean, f"interval{suffix}": interval, f"gains{suffix}": gains}
            if edge or mastery is None or mastery < MASTERED:
                said[against] = "undecided"
        # a gain that more rows of the main task would have brought as well is not the hint's
        row |= {"verdict": said[EQUAL] if said[STANDARD] == "helps" else said[STANDARD], "rung": len(budgets) + 1, "seeds": seeds}
    rows = sorted(table.values(), key=lambda row: (-row["rung"], -row.get("gain", _place(row))))
    cost = sum(length * (1 + share * (name != STANDARD)) for name, _, length in trained)
    exhaustive = len(seeds) * steps * (1 + (1 + len(hints)) * (1 + share))
    return HintReport(tuple(rows), mastery, cost, exhaustive)


def _place(row: Mapping[str, Any]) -> float:
    return -math.inf if row["validation"] is None else row["validation"]


def _sound(
    main: SeqTask,
    hints: Mapping[str, LengthTask],
    judged: Sequence[int],
    seeds: Sequence[int],
    tuning_seed: int,
    rungs: Sequence[float],
    share: float,
    margin: float,
) -> list[int]:
    """The lengths that choose, of a search that can run."""
    if not hints:
        raise UsageError("hints must hold one candidate at least, got none")
    if wrong := [name for name in hints if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name) or name in (STANDARD, EQUAL)]:
        raise UsageError(f"hints must have names that can be file names, and not {STANDARD} or {EQUAL}, got {wrong[0]!r}")
    for hint in hints.values():
        if hint.vocab != main.vocab:
            raise UsageError(f"hint {hint.name} must have the vocabulary of {main.name}, {main.vocab}, got {hint.vocab}; build both from one base task")
    top = 2 * main.lengths[1]
    if seeds and (not judged or judged[0] <= top):
        raise UsageError(f"lengths must be above {top}, for hints are chosen on {main.lengths[1] + 1} to {top}; got {judged or 'none'}")
    for length in judged:
        main.check_length(length)
    numbers = [whole("each of seeds", seed, 0) for seed in seeds]
    if len(set(numbers)) < len(numbers) or tuning_seed in numbers:
        raise UsageError(f"seeds must be different ones and not tuning_seed, got {numbers} and {tuning_seed}")
    if any(not 0 < portion < 1 for portion in rungs) or rungs != sorted(set(rungs)):
        raise UsageError(f"rungs must ascend within (0, 1), got {rungs}")
    for name, value in (("share", share), ("margin", margin)):
        if not 0 < value < math.inf:
            raise UsageError(f"{name} must be a finite number > 0, got {value}")
    chosen = [length for length in beyond(main) if main.has_length(length)]
    if not chosen and rungs:
        raise UsageError(f"main must have examples of a length from {main.lengths[1] + 1} to {top}, on which hints are chosen; it has none; give rungs=()")
    return chosen
