"""All hints, forms and controls at one size: which of them make a transformer sort lists longer than it was trained on?

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). It compares hinting with a curriculum, a scratchpad and standard
training, and finds that a trained temperature of attention helps with and without hints.

Deviations: as in task_hinting.py. The curriculum stays within the training lengths, as the paper's does. Its scratchpad and its tempered softmax are not known
in detail; ours are :class:`trimtab.tasks.Scratchpad` and the "logn" form of :class:`trimtab.nn.Tempered` over the length of the prompt. Settings are those that
the standard arm of task-hinting had at this size. All arms have the marks of the hints that are made without knowledge of the task in their vocabulary.

Beside its scores a hint's arm has its proxy, a run of a ninth of the steps judged on lengths up to twice the training length; and the standard arm has the
gradient scores of every hint, means over three checkpoints of such a short run. A search for hints can be judged by them, and by what the hints did in the end.
"""

import hashlib
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch

from trimtab.claims import Claim, Mastery, PairRun, Size, superior
from trimtab.core import derive, generator
from trimtab.nn import Tempered, Transformer
from trimtab.tasks import (
    MARKS,
    Count,
    Curriculum,
    Fill,
    Parity,
    Predecessor,
    PrefixDrop,
    PromptCopy,
    RandomLabels,
    Scratchpad,
    SeqTask,
    Sorting,
    Successor,
    TaskMixture,
    WithSpecials,
    cost,
)
from trimtab.train import NextToken, beyond, evaluate_lengths, fit_with_hints, gradient_scores

MULTIPLES = (1, 1.5, 2, 2.5, 3, 4, 5, 10)
HINTS = ("successor", "successor-packed", "count", "count-number", "predecessor", "parity", "fill", "prefix-drop", "copy", "random-label")


def hint(name: str, sort: SeqTask, base: Sorting) -> Any:
    """A hint by its arm's name; None for an arm that is none."""
    known: dict[str, SeqTask] = {
        "successor": Successor(base), "successor-packed": Successor(base, queries=max(2, base.lengths[1] // 2)), "count": Count(base),
        "count-number": Count(base, answer="number"), "predecessor": Predecessor(base), "parity": Parity(base), "fill": Fill(base),
    }  # fmt: skip
    if name in known:
        return WithSpecials(known[name], MARKS)
    if name == "random-label":
        return RandomLabels(WithSpecials(Successor(base), MARKS))
    generic = {"prefix-drop": PrefixDrop, "copy": PromptCopy}
    return generic[name](sort) if name in generic else None


def tasks(size: Size) -> tuple[SeqTask, Sorting]:
    """Sorting with the marks of all arms, and the bare one that the hints of its family are made of."""
    base = Sorting(vocab=size.vocab, lengths=(1, size.longest))
    return WithSpecials(base, MARKS), base


def model(arm: str, seed: int, size: Size, device: str) -> Transformer:
    """The arms of a seed start from the same weights, and as plain attention."""
    sort, _ = tasks(size)
    marks = tuple(range(sort.vocab.eos + 1, sort.vocab.size))
    tempered = (lambda layer, heads: Tempered(length="prompt", delimiters=marks, device=device)) if arm.startswith("tempered") else None
    return Transformer(sort.vocab.size, dim=size.dim, layers=2, heads=4, score_scale=tempered, generator=generator(seed, "weights"), device=device)


def data(arm: str, size: Size, steps: int) -> tuple[SeqTask, Mapping[Any, float], Any]:
    """What an arm is judged on, its hint, and its source of batches where it is not the mixture of the two."""
    sort, base = tasks(size)
    main = WithSpecials(Scratchpad(base), MARKS) if arm == "scratchpad" else sort
    found = hint("successor" if arm == "tempered-successor" else arm, sort, base)
    mix = {found: 0.5} if found is not None else {}
    if arm == "curriculum":  # four stages of a quarter each, as the paper's 5, 10, 15, 20
        return main, mix, Curriculum(TaskMixture(main, mix), {steps * k // 4: max(1, size.longest * (k + 1) // 4) for k in range(4)})
    return main, mix, None


class Scores:
    """A hook that takes the gradient scores of every hint at some steps."""

    def __init__(self, seed: int, size: Size, at: tuple[int, ...]):
        self.seed, self.size, self.at = seed, size, at
        self.rows: list[dict[str, float]] = []

    def __call__(self, moment: Any) -> None:
        if moment.step in self.at:
            sort, base = tasks(self.size)
            found = {name: gradient_scores(moment.model, sort, hint(name, sort, base), seed=derive(self.seed, "gradient")) for name in HINTS}
            self.rows.append({f"{what} {name}": value for name, scores in found.items() for what, value in scores.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]

    def means(self) -> dict[str, float]:
        return {what: fmean(row[what] for row in self.rows) for what in (self.rows[0] if self.rows else ())}


def measure(arm: str, seed: int, size: Size, run: PairRun) -> dict[str, float]:
    values: dict[str, float] = {}
    brief = size.steps // 9
    main, mix, source = data(arm, size, size.steps)
    how: dict[str, Any] = {"seed": derive(seed, "training"), "lr": size.rate, "device": run.device, "source": source}
    if arm in HINTS or arm == "standard":
        scores = Scores(seed, size, (brief // 3, 2 * brief // 3, brief) if arm == "standard" else ())
        short = fit_with_hints(model(arm, seed, size, run.device), main, mix, folder=run.folder / "proxy", steps=brief, hooks=[scores], progress=_silent, **how)
        judged = evaluate_lengths(short.averaged, main, beyond(main), examples=size.examples // 4, seed=derive(seed, "validation"))
        values["proxy edit"] = fmean(row["edit"] for row in judged)
        values |= scores.means()

    full = fit_with_hints(model(arm, seed, size, run.device), main, mix, folder=run.folder / "full", steps=size.steps, progress=run.progress, **how)
    multiples = {f"{multiple:g}x": round(multiple * size.longest) for multiple in MULTIPLES}
    rows = evaluate_lengths(full.averaged, main, multiples.values(), examples=size.examples, seed=derive(seed, "test"))
    values |= {f"{name}@{label}": row[name] for label, row in zip(multiples, rows, strict=True) for name in ("exact", "edit", "token", "early", "late")}
    judged = evaluate_lengths(full.averaged, main, beyond(main), examples=size.examples // 4, seed=derive(seed, "validation"))
    values["validation edit"] = fmean(row["edit"] for row in judged)
    stream = TaskMixture(main, mix) if source is None else source
    costs = [cost(stream.batch(derive(seed, "training"), step, 64)) for step in range(0, size.steps, -(-size.steps // 100))]
    values["positions a step"] = fmean(found["positions"] for found in costs)
    values["supervised tokens a step"] = fmean(found["supervised"] for found in costs)
    return values


def _silent(step: int, steps: int, line: Mapping[str, Any]) -> None:
    """The short run of a pair is not worth a bar of its own."""


def fingerprint() -> dict[str, str | float]:
    """Initial weights, first batch, and the loss at step 10 of the smoke size."""
    size = CLAIM.sizes["smoke"]
    arm = "tempered-successor"
    main, mix, _ = data(arm, size, size.steps)
    started, source = model(arm, 0, size, "cpu"), TaskMixture(main, mix)
    first = source.batch(derive(0, "training"), 0, 64)["input_ids"]
    optimizer = torch.optim.AdamW(started.parameters(), lr=size.rate)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in started.parameters())).hexdigest()
    loss = torch.zeros(())
    for step in range(10):
        sums = NextToken()(started, source.batch(derive(0, "training"), step, 64), generator(0))
        loss = sums.total / sums.count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"weights": weights, "first batch": hashlib.sha256(first.numpy().tobytes()).hexdigest(), "loss at step 10": float(loss.detach())}


_MARGIN = {"margin": 0.05, "why": "one token in twenty: less would not change what anyone trains"}

CLAIM = Claim(
    slug="task-hinting-hints",
    title="Which hints, forms of training and controls make a transformer sort longer lists than it was trained on?",
    about="The setting of task-hinting at its smallest size, with the hints of the sorting family, one that can be made of any task "
    "without knowing it (prefix drop), and two controls, an irrelevant hint (copy the prompt) and random labels. Beside them a curriculum of growing lengths, "
    "which sees fewer positions a step, a scratchpad, which sees more, and attention with a trained temperature that grows with the length of the list.",
    measure=measure,
    arms=("standard", "curriculum", "scratchpad", "tempered", "tempered-successor", *HINTS),
    primary=(
        superior("edit@5x", "successor", over="curriculum", paper="exact match 92.6 % against 1.2 %", name="H1 successor over curriculum", **_MARGIN),
        superior("edit@5x", "successor", over="scratchpad", paper="exact match 92.6 % against 0 %", name="H2 successor over scratchpad", **_MARGIN),
        superior("edit@5x", "tempered", over="standard", paper="helps without hints too", name="H3 tempered softmax over standard", **_MARGIN),
    ),
    secondary=(
        superior("edit@5x", "successor", over="standard", name="successor over standard", **_MARGIN),
        superior("edit@5x", "successor", over="fill", paper="successor far ahead", name="successor over fill", **_MARGIN),
        superior("edit@5x", "successor", over="count", paper="successor far ahead", name="successor over count", **_MARGIN),
        superior("edit@5x", "successor", over="random-label", name="successor over random labels", **_MARGIN),
        superior("edit@5x", "count", over="standard", name="count over standard", **_MARGIN),
        superior("edit@5x", "count-number", over="standard", name="count as a number over standard", **_MARGIN),
        superior("edit@5x", "successor-packed", over="standard", name="packed successor over standard", **_MARGIN),
        superior("edit@5x", "prefix-drop", over="standard", name="prefix drop over standard", **_MARGIN),
        superior("edit@5x", "random-label", over="standard", name="random labels over standard", **_MARGIN),
        superior("edit@5x", "copy", over="standard", name="copying the prompt over standard", **_MARGIN),
        superior("edit@5x", "tempered-successor", over="successor", name="tempered softmax over plain, both with successor", **_MARGIN),
    ),
    mastery=Mastery("exact@1x", threshold=0.98),
    paper={
        "standard": {"exact@2.5x": 0.98, "exact@5x": 0.0},
        "curriculum": {"exact@2.5x": 0.984, "exact@5x": 0.012},
        "scratchpad": {"exact@2.5x": 0.982, "exact@5x": 0.0},
        "successor": {"exact@2.5x": 0.998, "exact@5x": 0.926},
    },
    fingerprint=fingerprint,
    sizes={
        "smoke": Size(seeds=1, core_minutes=0.5, longest=2, vocab=6, dim=16, steps=9, rate=1e-3, examples=16),
        # Rate and steps by the standard arm of task-hinting at this size, on seeds 1000 to 1002; see there.
        "small": Size(seeds=5, core_minutes=90, longest=8, vocab=16, dim=64, steps=5000, rate=1e-3, examples=2000),
    },
)
