"""Copying and reversing: the tasks on which the field compares how far models generalise in length.

Paper: What Algorithms can Transformers Learn? A Study in Length Generalization (arXiv 2310.16028). Formats, supervised part after =>:

    copy     x_1 .. x_n <copy>     => x_1 .. x_n <eos>
    reverse  x_1 .. x_n <reverse>  => x_n .. x_1 <eos>

Deviation: the mark stands between input and answer, as in the other tasks here, and there is no token at the start.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.tasks.base import SeqTask, Vocab
from trimtab.tasks.sorting import Sorting


class Copy(SeqTask):
    """Write a list again.

    Args:
        vocab: number of values, >= 1; they are 0 .. vocab - 1.
        unique: no value twice in a list; lists are then at most ``vocab`` long. A model can then find its place by the value it wrote last (an induction head),
            which is why unique lists generalise in length and lists with repeats, the default, do not.
        lengths: (shortest, longest) training list, both included; 0 is allowed and its answer is <eos>.

    Raises:
        UsageError: no values, bad lengths, or unique lists longer than the vocabulary.

    Example:
        >>> task = Copy(vocab=10)
        >>> task.vocab.show(task.batch(seed=0, step=0, size=1, length=5)["input_ids"][0])
        '5 4 5 2 5 <copy> 5 4 5 2 5 <eos>'

    When not to use it: as a sign that a model generalises on anything else; it is among the easiest tasks there are.

    References:
        What Algorithms can Transformers Learn? A Study in Length Generalization, 2023, arXiv 2310.16028.
    """

    name = "copy"
    shortest = 0
    mark = "<copy>"

    def __init__(self, vocab: int = 100, unique: bool = False, lengths: tuple[int, int] = (1, 20)):
        self._lists = Sorting(vocab, unique, lengths)  # whose lists these are
        self.vocab = Vocab(vocab, ("<copy>", "<reverse>"))
        self.unique, self.lengths = unique, self._lists.lengths

    def check_length(self, length: int) -> None:
        super().check_length(length)
        self._lists.check_length(length)

    def written(self, x: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
        """What is to be written for each list."""
        return x

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x = self._lists.inputs(size, length, generator)
        mark, end = (x.new_full((size, 1), self.vocab.id(name)) for name in (self.mark, "<eos>"))
        ids = torch.cat([x, mark, self.written(x), end], dim=1)
        return ids, (torch.arange(ids.shape[1]) > length).repeat(size, 1)

    def answer(self, prompt: list[int]) -> list[int]:
        return [*prompt[: prompt.index(self.vocab.id(self.mark))], self.vocab.eos]


class Reverse(Copy):
    """Write a list backwards.

    Args:
        vocab, unique, lengths: as in :class:`Copy`.

    Example:
        >>> task = Reverse(vocab=10)
        >>> task.vocab.show(task.batch(seed=0, step=0, size=1, length=5)["input_ids"][0])
        '5 4 5 2 5 <reverse> 5 2 5 4 5 <eos>'

    When not to use it: in place of :class:`Copy`, which most published results are about.

    References:
        What Algorithms can Transformers Learn? A Study in Length Generalization, 2023, arXiv 2310.16028.
    """

    name = "reverse"
    mark = "<reverse>"

    def written(self, x: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
        return x.flip(1)

    def answer(self, prompt: list[int]) -> list[int]:
        return [*prompt[: prompt.index(self.vocab.id(self.mark))][::-1], self.vocab.eos]
