"""Training with task hints: one recipe for claims, for the search for hints, and for a task of one's own.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). Its optimiser settings are not known; these were found with models
trained without a hint.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trimtab.optim import warmup_cosine
from trimtab.tasks import LengthTask, TaskMixture
from trimtab.train.fit import fit
from trimtab.train.objective import NextToken, Objective
from trimtab.train.run import Run


def fit_with_hints(
    model: torch.nn.Module,
    main: LengthTask,
    hints: Mapping[Any, float] | None = None,
    *,
    folder: str | Path,
    steps: int,
    source: Any = None,
    objective: Objective | None = None,
    batch_size: int = 64,
    lr: float = 1e-3,
    seed: int = 0,
    device: str | None = None,
    progress: Callable[[int, int, Mapping[str, Any]], None] | None = None,
    **settings: Any,
) -> Run:
    """:func:`fit` on a main task with hint tasks beside it, by the recipe of this library's claims on length.

    AdamW (betas 0.9 and 0.98, decay 0.01), 200 steps of warm-up and a cosine to 5 %, gradients clipped at 1, every example of equal weight, and weights
    averaged with decay 0.995, which is what should be judged: ``run.averaged``. One seed gives the main examples of a step the same bits whatever the hints.

    Args:
        model: trained in place.
        main: the task to learn.
        hints: hint -> its rows for each main row, as in :class:`trimtab.tasks.TaskMixture`; 0.5 is a good first try.
        folder, steps, batch_size, lr, seed, device, progress: as of :func:`fit`; ``batch_size`` counts main rows.
        source: batches in place of those of the mixture, such as a :class:`trimtab.tasks.Curriculum` of it.
        objective: default the next-token loss, example by example.
        settings: more of :func:`fit`'s, such as ``evaluate`` or ``hooks``.

    Returns:
        The :class:`Run`.

    Raises:
        UsageError: as :class:`trimtab.tasks.TaskMixture` and :func:`fit`.

    Example:
        >>> import tempfile
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Count, Sorting
        >>> sort = Sorting(vocab=5, lengths=(1, 4))
        >>> model = Transformer(sort.vocab.size, dim=8, layers=1, heads=1)
        >>> run = fit_with_hints(model, sort, {Count(sort): 0.5}, folder=tempfile.mkdtemp(), steps=3, progress=lambda *_: None)
        >>> run.steps
        3

    When not to use it: on text or a trained model; the rate and the schedule are for small models trained from scratch.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    recipe: dict[str, Any] = {
        "betas": (0.9, 0.98), "weight_decay": 0.01, "schedule": warmup_cosine(steps, warmup=min(200, steps // 2), floor=0.05), "clip": 1.0, "average": 0.995,
    }  # fmt: skip
    return fit(
        model,
        NextToken(reduction="example") if objective is None else objective,
        TaskMixture(main, hints or {}) if source is None else source,
        folder=folder, steps=steps, batch_size=batch_size, lr=lr, seed=seed, device=device, progress=progress, **(recipe | settings),
    )  # fmt: skip
