"""Which hint should a task have? Cheap scores, short runs of all candidates, longer ones of the best, and full runs with a verdict.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) leaves the question open; the search is ours. Budgets go by
successive halving, Non-stochastic Best Arm Identification and Hyperparameter Optimization (arXiv 1502.07943): every rung trains what is left three times as
long. Deviation: each rung starts anew, for a rate that decays to the end of a run cannot be prolonged.

What chooses is the edit similarity on lengths above the training lengths and up to twice the longest. Test lengths lie beyond, and choose nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from torch import nn

from trimtab.core import UsageError, derive, paired_t
from trimtab.tasks import SeqTask
from trimtab.train.hint_scores import beyond, gradient_scores, rank_average
from trimtab.train.hinting import fit_with_hints
from trimtab.train.lengths import evaluate_lengths

Verdict = Literal["helps", "neutral", "harms", "undecided"]


@dataclass(frozen=True)
class HintReport:
    """What a search found.

    Attributes:
        rows: a dict for each hint, best first: ``hint``, ``verdict`` (None where it did not come to full runs), ``gain`` and ``interval`` (of edit similarity
            on the test lengths, against no hint, over seeds), ``seeds``, ``gains`` (one a seed), ``validation`` (its gain in the last rung it was in),
            ``rung``, and the cheap scores.
        cost: optimiser steps taken, rows of hints counted in.
        exhaustive: the steps that full runs of every hint on every seed would have taken.
        margin: the least gain that counts.
    """

    rows: Sequence[Mapping[str, Any]]
    cost: float
    exhaustive: float
    margin: float
    lengths: Sequence[int] = field(default=())

    @property
    def best(self) -> str | None:
        """The helpful hint of the largest gain; None where none was shown to help."""
        return next((row["hint"] for row in self.rows if row["verdict"] == "helps"), None)


def verdict(gains: Sequence[float], margin: float) -> tuple[Verdict, float, tuple[float, float] | None]:
    """What gains over several seeds say: helps or harms where the 95 % interval lies beyond the margin, neutral where it lies within, else undecided.

    Example:
        >>> verdict([0.4, 0.5, 0.45], 0.05)[0], verdict([0.01, 0.0, -0.01], 0.05)[0], verdict([0.5, -0.4, 0.1], 0.05)[0], verdict([0.9], 0.05)[0]
        ('helps', 'neutral', 'undecided', 'undecided')
    """
    mean, interval = paired_t(gains)
    if interval is None:
        return "undecided", mean, None
    low, high = interval
    said: Verdict = "helps" if low > margin else "harms" if high < -margin else "neutral" if -margin <= low and high <= margin else "undecided"
    return said, mean, interval


def search_hints(
    main: SeqTask,
    hints: Mapping[str, SeqTask],
    *,
    model: Callable[[int], nn.Module],
    folder: str | Path,
    steps: int,
    lengths: Iterable[int],
    seeds: Sequence[int] = (0, 1, 2),
    share: float = 0.5,
    rungs: Sequence[float] = (1 / 9, 1 / 3),
    keep: int = 1,
    margin: float = 0.05,
    examples: int = 500,
    batch_size: int = 64,
    lr: float = 1e-3,
    tuning_seed: int = 1000,
    progress: Callable[[str], None] = lambda text: None,
) -> HintReport:
    """Rank hints for a task, and judge the best.

    Args:
        main: the task that should hold on longer examples.
        hints: name -> task, all of the main task's vocabulary; :func:`trimtab.tasks.candidate_hints` makes some for any task.
        model: seed -> an untrained model for that vocabulary.
        folder: where the runs go; the same call takes up what is finished.
        steps: of a full run, >= 1.
        lengths: test lengths, all above twice the longest training length, which the choice looks at.
        seeds: of the full runs, two at least for a verdict; the choice is made on ``tuning_seed``, which is none of them.
        share: rows of a hint for each main row.
        rungs: shares of ``steps`` that the rounds of the choice train, ascending, in (0, 1); each keeps the best third. None of them: all hints are judged.
        keep: hints that come to full runs.
        margin: the least gain in edit similarity that counts.
        examples: rows a length for each evaluation.
        batch_size, lr: of training.
        tuning_seed: of the choice.
        progress: called with a line of text at each step of the search.

    Returns:
        The :class:`HintReport`.

    Raises:
        UsageError: no hints, test lengths that the choice looks at, or seeds that are used twice.

    Example:
        >>> import tempfile
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Count, Sorting, Successor
        >>> sort = Sorting(vocab=4, lengths=(1, 2))
        >>> report = search_hints(
        ...     sort, {"count": Count(sort), "successor": Successor(sort)}, folder=tempfile.mkdtemp(), steps=9, lengths=[6], seeds=(0, 1), examples=8,
        ...     model=lambda seed: Transformer(sort.vocab.size, dim=8, layers=1, heads=1),
        ... )
        >>> [row["verdict"] is None for row in report.rows], report.cost < report.exhaustive
        ([False, True], True)

    When not to use it: for one or two hints and a short run; train them all, on several seeds.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
        Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2015, arXiv 1502.07943.
    """
    lengths, chosen = sorted(lengths), beyond(main)
    _sound(hints, lengths, chosen, seeds, tuning_seed, rungs, keep)
    cost = 0.0

    def run(name: str | None, seed: int, share_of_steps: float, judged: Iterable[int]) -> tuple[nn.Module, float]:
        """Train with a hint, or without; the averaged model, and its mean edit similarity on some lengths."""
        nonlocal cost
        length = max(1, round(steps * share_of_steps))
        place = Path(folder) / f"{name or 'standard'}-{length}-seed{seed}"
        mix = {hints[name]: share} if name else {}
        done = fit_with_hints(
            model(seed), main, mix, folder=place, steps=length, batch_size=batch_size, lr=lr, seed=derive(seed, "training"), progress=lambda *_: None
        )
        cost += length * (1 + share * bool(name))
        trained: Any = done.averaged  # there is one, for fit_with_hints averages
        rows = evaluate_lengths(trained, main, judged, examples=examples, seed=derive(seed, "test"))
        return trained, fmean(row["edit"] for row in rows)

    table: dict[str, dict[str, Any]] = {name: {"hint": name, "rung": 0, "validation": None} for name in hints}
    alive = list(hints)
    for k, portion in enumerate(rungs, start=1):
        if len(alive) <= keep:
            break
        standard, base = run(None, tuning_seed, portion, chosen)
        for name in alive:
            table[name]["validation"], table[name]["rung"] = run(name, tuning_seed, portion, chosen)[1] - base, k
            if k == 1:
                table[name] |= gradient_scores(standard, main, hints[name], seed=derive(tuning_seed, "gradient"))
            progress(f"round {k} of {len(rungs)}: {name} {table[name]['validation']:+.3f} edit similarity on lengths {chosen[0]} to {chosen[-1]}")
        order = rank_average([table[name] for name in alive], ["validation"])
        ranked = [name for _, name in sorted(zip(order, alive, strict=True), key=lambda pair: -pair[0])]
        alive = ranked[: keep if k == len(rungs) else max(keep, -(-len(alive) // 3))]

    base_by_seed = {seed: run(None, seed, 1.0, lengths)[1] for seed in seeds}
    for name in alive:
        gains = [run(name, seed, 1.0, lengths)[1] - base_by_seed[seed] for seed in seeds]
        said, mean, interval = verdict(gains, margin)
        table[name] |= {"verdict": said, "gain": mean, "interval": interval, "gains": gains, "rung": len(rungs) + 1}
        progress(f"full runs: {name} {said}, {mean:+.3f}")
    for row in table.values():
        row.update({"seeds": list(seeds)} if "verdict" in row else {"verdict": None, "gain": None, "interval": None, "gains": [], "seeds": []})
    best_first = sorted(table.values(), key=lambda row: (row["rung"], row["gain"] if row["gain"] is not None else row["validation"] or 0.0), reverse=True)
    exhaustive = len(seeds) * steps * (1 + len(hints) * (1 + share))
    return HintReport(tuple(best_first), cost, exhaustive, margin, tuple(lengths))


def _sound(
    hints: Mapping[str, SeqTask], lengths: Sequence[int], chosen: range, seeds: Sequence[int], tuning_seed: int, rungs: Sequence[float], keep: int
) -> None:
    if not hints:
        raise UsageError("hints must hold one candidate at least, got none")
    if not lengths or lengths[0] < chosen.stop:
        raise UsageError(f"lengths must be above {chosen.stop - 1}, for hints are chosen on {chosen.start} to {chosen.stop - 1}; got {lengths or 'none'}")
    if not seeds or len(set(seeds)) < len(seeds) or tuning_seed in seeds:
        raise UsageError(f"seeds must be different ones and not tuning_seed, got {list(seeds)} and {tuning_seed}")
    if any(not 0 < portion < 1 for portion in rungs) or list(rungs) != sorted(set(rungs)):
        raise UsageError(f"rungs must ascend within (0, 1), got {list(rungs)}")
    if keep < 1:
        raise UsageError(f"keep must be at least 1, got {keep}")
