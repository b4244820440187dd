"""A main task with simpler ones trained beside it.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). How the paper mixes its tasks is not known in detail; here
hint rows are added on top of the main rows of every batch, so that all arms of a comparison see the same main examples in the same order.
"""

from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor

from trimtab.core import UsageError, derive
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch, LengthTask, cost


class TaskMixture:
    """Batches of a main task with rows of hint tasks below, all of one length of problem.

    The main rows are ``main.batch(seed, step, size)``, the same bits whatever the hints are; only the padding on their right grows where a hint's rows are
    wider. Hint k draws from a stream of its own, so the main task as its own hint (the arm of equal tokens) brings other examples than the main rows.

    Args:
        main: the task to learn.
        hints: hint task -> its rows for each main row, > 0; a batch of ``size`` main rows has round(share * size) of them. Order names the streams.

    Raises:
        UsageError: main or a hint is no :class:`LengthTask`, a share that is not > 0, or a hint with another vocabulary (the model would not be the same in
            every arm).

    Example:
        >>> from trimtab.tasks import Sorting, Successor
        >>> main = Sorting(vocab=10)
        >>> task = TaskMixture(main, {Successor(main): 0.5})
        >>> batch = task.batch(seed=0, step=0, size=2, length=3)
        >>> for row in batch["input_ids"]:
        ...     print(main.vocab.show(row))
        5 3 4 <sort> 3 4 5 <eos>
        9 8 9 <sort> 8 9 9 <eos>
        4 2 8 <succ> 8 <eos> <pad> <pad>
        >>> task.cost(size=2, length=3)
        {'rows': 3, 'positions': 24, 'supervised': 9}

    When not to use it: to compare arms at equal total tokens without the main task as its own hint as one of the arms.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    def __init__(self, main: LengthTask, hints: Mapping[LengthTask, float]):
        if not isinstance(main, LengthTask):
            raise UsageError(f"main must be a task with a vocabulary and lengths, such as a SeqTask, got {main!r}")
        if not isinstance(hints, Mapping):
            raise UsageError(f"hints must be a mapping of tasks to their shares, such as {{Successor(main): 0.5}}, got {hints!r}")
        for hint, share in hints.items():
            if not isinstance(hint, LengthTask):
                raise UsageError(f"hints must be tasks with a vocabulary and lengths, such as a SeqTask, got {hint!r}")
            if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < float("inf"):
                raise UsageError(f"share of {hint.name} must be a finite number > 0, got {share!r}; leave the hint out for none")
            if hint.vocab != main.vocab:
                raise UsageError(f"hint {hint.name} must have the vocabulary of {main.name}, {main.vocab}, got {hint.vocab}; build both from one base task")
        self.main, self.hints = main, dict(hints)
        self.name = " + ".join([main.name, *(f"{share:g} {hint.name}" for hint, share in self.hints.items())])
        self.vocab, self.lengths = main.vocab, main.lengths

    def __repr__(self) -> str:
        return f"TaskMixture({self.main!r}, {self.hints!r})"

    def _hint_rows(self, size: int) -> list[int]:
        counts = [round(share * size) for share in self.hints.values()]
        if 0 in counts:
            share = list(self.hints.values())[counts.index(0)]
            raise UsageError(f"size must be large enough for one row of every hint; {share} of {size} rows rounds to 0; raise size or the share")
        return counts

    def rows(self, size: int) -> int:
        """Rows of a batch: ``size`` main ones and the hints'."""
        return size + sum(self._hint_rows(size))

    def batch(self, seed: int, step: int, size: int, length: int | None = None) -> Batch:
        """``size`` main rows, then each hint's rows, as a pure function of the arguments.

        Returns:
            A dict of two tensors, int64 [rows(size), tokens]: ``input_ids``, and ``labels`` with the ids where the model is supervised and -100 elsewhere.

        Raises:
            UsageError: as ``main.batch``; or so few rows that a hint would get none; or a length that one of the hints has no examples of.
        """
        if length is None:
            length = self.main.draw_length(seed, step)
        batches = [self.main.batch(seed, step, size, length)]
        for k, (hint, rows) in enumerate(zip(self.hints, self._hint_rows(size), strict=True)):
            batches.append(hint.batch(derive(seed, "hint", k), step, rows, length))
        fills = {"input_ids": self.vocab.pad, "labels": IGNORE}
        return {name: _stack([batch[name] for batch in batches], fill) for name, fill in fills.items()}

    def score(self, output: Tensor, batch: Batch) -> dict[str, float]:
        """The main task's score, over all rows; to judge the main task alone, score a batch of its own."""
        return self.main.score(output, batch)

    def cost(self, size: int, length: int, *, seed: int = 0, step: int = 0) -> dict[str, int]:
        """:func:`trimtab.tasks.cost` of one batch at a length. Where answers vary in length (successor, count), so do supervised tokens and, rarely, width."""
        return cost(self.batch(seed, step, size, length))


def _stack(parts: list[Tensor], fill: int) -> Tensor:
    width = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=fill) for part in parts])
