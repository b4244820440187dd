"""Index hints: every item of prompt and answer has its number written in front, so that a model can find its place by looking for a token.

Paper: What Algorithms can Transformers Learn? A Study in Length Generalization (arXiv 2310.16028). Numbers are consecutive and start at random in a larger
range, so that all of them are trained on short problems. Deviation: the paper gives its index hints to each task by hand; here a rule does, below, for any
task of prompt and answer.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch, SeqTask, Vocab
from trimtab.tasks.ragged import joined, packed, parted


class IndexHints(SeqTask):
    """A task with a numbered token before each value of prompt and answer.

    Values are numbered within each run of them, so that both operands of a sum, say, begin at the same number. The answer is numbered like a run; or
    (``backwards``) down from the last number of the longest run of the prompt, for answers written from the least significant digit on. Numbers are supervised,
    as a model has to write them by itself. Only the first answer of a row is kept.

    Args:
        task: to be given index hints; its own lengths and marks stay.
        indices: how many numbers there are, more than the longest problem ever asked for has items: tests at length n need at least n + 1.
        backwards: number the answer downwards.

    Raises:
        UsageError: fewer numbers than a problem has items, or an answer with two or more values above a prompt's longest run.

    Example:
        >>> from trimtab.tasks import Copy, ReversedAddition
        >>> for task in (IndexHints(Copy(vocab=10), indices=50), IndexHints(ReversedAddition(), indices=50, backwards=True)):
        ...     print(task.vocab.show(task.batch(seed=8, step=0, size=1, length=2)["input_ids"][0]))
        <16> 1 <17> 3 <copy> <16> 1 <17> 3 <eos>
        <20> 7 <21> 8 + <20> 6 <21> 1 = <21> 9 <20> 3 <19> 1 <eos>

    When not to use it: where items of prompt and answer do not correspond; or to compare tokens with the plain task: there are twice as many.

    References:
        What Algorithms can Transformers Learn? A Study in Length Generalization, 2023, arXiv 2310.16028.
    """

    def __init__(self, task: SeqTask, indices: int, backwards: bool = False):
        if not isinstance(indices, int) or indices <= task.lengths[1]:
            raise UsageError(f"indices must be a whole number > {task.lengths[1]}, the longest training length of {task.name}, got {indices!r}")
        self.task, self.indices, self.backwards = task, indices, backwards
        self.vocab = Vocab(task.vocab.values, (*task.vocab.specials, *(f"<{k}>" for k in range(indices))))
        self.name, self.lengths, self.shortest = f"indexed {task.name}", task.lengths, task.shortest

    def __repr__(self) -> str:
        return f"IndexHints({self.task!r}, indices={self.indices}, backwards={self.backwards})"

    def check_length(self, length: int) -> None:
        super().check_length(length)
        self.task.check_length(length)
        if length >= self.indices:
            raise UsageError(f"length must be < indices = {self.indices}, got {length}; raise indices")

    def draw_length(self, seed: int, step: int) -> int:
        return self.task.draw_length(seed, step)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x, y = parted(*self.task.sample(size, length, generator), self.vocab.pad)
        place, run = self._places(x)
        there, written = self._places(y)
        longest = int(run.max())
        if longest + 1 > self.indices or bool((written > run + 1).any()):
            raise UsageError(
                f"{self.task.name} must have runs of fewer than indices = {self.indices} values in its prompts, and answers with at most one value more, "
                f"got {longest} and {int(written.max())}; raise indices, or leave index hints to other tasks"
            )
        # one number is kept for an answer that is longer than the prompt, in every row, or the first number would tell in which
        least = int(self.backwards)
        start = torch.randint(least, self.indices - longest + least, (size, 1), generator=generator)
        there = run - 1 - there if self.backwards else there
        return joined(self._with(x, start + place), self._with(y, start + there), self.vocab.pad)

    def _places(self, ids: Int[Tensor, "rows tokens"]) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows 1"]]:
        """How many values stand before each token in its run of values, and the length of the longest run."""
        column = torch.arange(ids.shape[1])
        value = ids < self.vocab.values
        before = column - torch.where(value, -1, column).cummax(1).values - 1
        return before, (before + 1).masked_fill(~value, 0).amax(1, keepdim=True)

    def _with(self, ids: Int[Tensor, "rows tokens"], number: Int[Tensor, "rows tokens"]) -> Int[Tensor, "rows twice"]:
        """A number before each value, and a pad before anything else."""
        first = self.task.vocab.size
        return torch.stack([torch.where(ids < self.vocab.values, first + number, self.vocab.pad), ids], dim=2).flatten(1)

    def answer(self, prompt: list[int]) -> list[int]:
        first = self.task.vocab.size
        numbers = [token - first for token in prompt if token >= first]
        reply = self.task.answer([token for token in prompt if token < first])
        step, number = (-1, max(numbers, default=0)) if self.backwards else (1, min(numbers, default=0))
        answer = []
        for token in reply:
            answer += [first + number, token] if token < self.vocab.values else [token]
            number += step
        return answer

    def score(self, output: Int[Tensor, "rows out"], batch: Batch) -> dict[str, float]:
        """Judge what is written with the numbers left out, as the task does."""
        first, ids = self.task.vocab.size, batch["input_ids"]
        plain = {"input_ids": packed(ids, ids < first, self.vocab.pad), "labels": packed(batch["labels"], ids < first, IGNORE)}
        return self.task.score(packed(output, output < first, self.vocab.pad), plain)
