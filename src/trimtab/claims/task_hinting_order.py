"""Does the paper's order of hints hold: successor far ahead of count and fill?

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726).

Deviations: as in task_hinting.py, whose sizes these are. Arms that a record of that claim has measured with the same settings are read from it; the rest is
trained here, and by the same steps, so that it does not matter which of the two an arm was.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from trimtab.claims import Claim, Mastery, PairRun, Size, superior, task_hinting
from trimtab.core import derive
from trimtab.tasks import Count, Fill, Sorting, Successor, TaskMixture
from trimtab.train import beyond, evaluate_lengths, fit_with_hints


def measured_before(arm: str, seed: int, size: Size) -> dict[str, float] | None:
    """What a record of task-hinting has for an arm and seed at these settings; None where there is none that still speaks for this version."""
    from trimtab.claims import find_records, read_record, stale
    from trimtab.claims.report import packaged

    for path in reversed(find_records(packaged() / task_hinting.CLAIM.slug)):
        record = read_record(path)
        rows = record["measured"].get(arm, {})
        if record["settings"] == size.settings and str(seed) in rows and not record.get("superseded") and not stale(record):
            return dict(rows[str(seed)])
    return None


def trained(arm: str, seed: int, size: Size, run: PairRun) -> dict[str, float]:
    """Train and judge one arm, as task-hinting does it."""
    sort = Sorting(vocab=size.vocab, lengths=(1, size.longest))
    hint = {"successor": Successor, "count": Count, "fill": Fill}.get(arm)
    mix = {hint(sort): 0.5} if hint else {}
    model: Any = task_hinting.model(seed, size, run.device)
    done = fit_with_hints(
        model, sort, mix, folder=run.folder, steps=size.steps, lr=size.rate, seed=derive(seed, "training"), device=run.device, progress=run.progress
    )
    lengths = {f"{multiple:g}x": round(multiple * size.longest) for multiple in task_hinting.MULTIPLES}
    rows = evaluate_lengths(done.averaged, sort, lengths.values(), examples=size.examples, seed=derive(seed, "test"), batch_size=size.examples)
    values = {f"{name}@{label}": row[name] for label, row in zip(lengths, rows, strict=True) for name in ("exact", "edit", "token", "early", "late")}
    judged = evaluate_lengths(done.averaged, sort, beyond(sort), examples=size.examples // 4, seed=derive(seed, "validation"))
    costs = [TaskMixture(sort, mix).cost(64, n, seed=seed) for n in range(1, size.longest + 1)]
    weights = sum(p.numel() for p in model.parameters())
    values |= {"validation edit": fmean(row["edit"] for row in judged), "positions a step": fmean(cost["positions"] for cost in costs)}
    values["supervised tokens a step"] = fmean(cost["supervised"] for cost in costs)
    return values | {"training TFLOP": 6e-12 * weights * values["positions a step"] * size.steps}


def measure(arm: str, seed: int, size: Size, run: PairRun) -> Mapping[str, float]:
    return measured_before(arm, seed, size) or trained(arm, seed, size, run)


_MARGIN = {"margin": 0.05, "why": "one token in twenty: less would not change what anyone trains"}

CLAIM = Claim(
    slug="task-hinting-order",
    title="Does the hint that names the next element help more than the ones that count or fill?",
    about="The setting of task-hinting, with the fill hint beside successor and count: a number is shown k times, then r < k times, and the model writes the "
    "k - r that are missing. Arms that the record of task-hinting has are read from it.",
    measure=measure,
    arms=("standard", "successor", "count", "fill"),
    primary=(
        superior("edit@5x", "successor", over="count", paper="successor far ahead", name="O1 successor over count", **_MARGIN),
        superior("edit@5x", "successor", over="fill", paper="successor far ahead", name="O2 successor over fill", **_MARGIN),
    ),
    secondary=(
        superior("edit@5x", "count", over="standard", paper="count hardly helps", name="O3 count over standard", **_MARGIN),
        superior("edit@5x", "fill", over="standard", paper="fill hardly helps", name="O4 fill over standard", **_MARGIN),
    ),
    mastery=Mastery("exact@1x", threshold=0.98),
    paper=task_hinting.CLAIM.paper,
    fingerprint=task_hinting.fingerprint,
    sizes={
        "smoke": Size(seeds=1, core_minutes=0.2, longest=4, vocab=8, dim=16, steps=40, rate=1e-3, examples=64),
        "small": Size(seeds=5, core_minutes=8, longest=8, vocab=16, dim=64, steps=5000, rate=1e-3, examples=2000),
        "small-2": Size(seeds=5, core_minutes=18, longest=8, vocab=40, dim=64, steps=10_000, rate=1e-3, examples=2000),
    },
)
