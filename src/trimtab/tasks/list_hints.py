"""More hints at how to sort: predecessor, parity, and fill.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). Formats, supervised part after =>:

    predecessor  x_1 .. x_n <pred> a    => b <eos>         b = the largest x_i below a; only <eos> if a is the minimum
    parity       x_1 .. x_n <parity> a  => p <eos>         p = the value 1 if x has an odd number of a, else 0
    fill         a^k <fill> a^r         => a^(k-r) <eos>   k copies of a are asked for, r < k are there; write the rest

Deviations: the paper's body was not available. What follows the minimum, and that k and r are uniform (1 <= k <= n, 0 <= r < k), are ours.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError
from trimtab.tasks.ragged import below
from trimtab.tasks.sorting import Sorting, _Query


class Predecessor(_Query):
    """Name the next smaller element of a list: the step of sorting, backwards.

    Args:
        base: whose lists, vocabulary and training lengths are used.

    Raises:
        UsageError: a base with lists of length 0, which have no element to ask about.

    Example:
        >>> task = Predecessor(Sorting(vocab=10))
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<pred>"), 7]))
        '2 <eos>'
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<pred>"), 1]))
        '<eos>'

    When not to use it: as the hint that a sorter in ascending order needs; :class:`trimtab.tasks.Successor` is that, and this its mirror image for comparison.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "predecessor"

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x, a = self.draw(size, length, 1, generator)
        b = x.masked_fill(x >= a, -1).amax(1, keepdim=True)
        more = b >= 0
        end, mark = self.vocab.eos, x.new_full((size, 1), self.vocab.id("<pred>"))
        tail = torch.cat([torch.where(more, b, end), torch.where(more, end, self.vocab.pad)], dim=1)
        ids = torch.cat([x, mark, a, tail], dim=1)
        return ids, (torch.arange(ids.shape[1]) >= length + 2) & (ids != self.vocab.pad)

    def answer(self, prompt: list[int]) -> list[int]:
        x, a = prompt[: prompt.index(self.vocab.id("<pred>"))], prompt[-1]
        return [*([max(smaller)] if (smaller := [y for y in x if y < a]) else []), self.vocab.eos]


class Parity(_Query):
    """Say whether an element occurs an odd number of times in a list.

    Args:
        base: whose lists, vocabulary and training lengths are used.

    Raises:
        UsageError: fewer than two values, which are the answers, or a base with lists of length 0.

    Example:
        >>> task = Parity(Sorting(vocab=10))
        >>> task.vocab.show(task.answer([3, 1, 3, 3, task.vocab.id("<parity>"), 3]))
        '1 <eos>'

    When not to use it: with unique lists, where every answer is 1.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "parity"

    def __init__(self, base: Sorting):
        super().__init__(base)
        if self.vocab.values < 2:
            raise UsageError(f"vocab must be >= 2 for {self.name}, whose answers are the values 0 and 1, got {self.vocab.values}; raise vocab")

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x, a = self.draw(size, length, 1, generator)
        mark, odd = x.new_full((size, 1), self.vocab.id("<parity>")), (x == a).sum(1, keepdim=True) % 2
        ids = torch.cat([x, mark, a, odd, x.new_full((size, 1), self.vocab.eos)], dim=1)
        return ids, (torch.arange(ids.shape[1]) >= length + 2).repeat(size, 1)

    def answer(self, prompt: list[int]) -> list[int]:
        x, a = prompt[: prompt.index(self.vocab.id("<parity>"))], prompt[-1]
        return [x.count(a) % 2, self.vocab.eos]


class Fill(_Query):
    """Write what is missing of a number of copies: sorting's other step, with the element given.

    Args:
        base: whose vocabulary and training lengths are used; at length n, 1 to n copies are asked for.

    Raises:
        UsageError: a base with lists of length 0.

    Example:
        >>> task = Fill(Sorting(vocab=20))
        >>> task.vocab.show(task.answer([17, 17, 17, 17, 17, task.vocab.id("<fill>"), 17, 17]))
        '17 17 17 <eos>'

    When not to use it: expecting help: in small models it did harm; it is a hint for comparison.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "fill"

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        a = torch.randint(self.vocab.values, (size, 1), generator=generator)
        k = torch.randint(1, length + 1, (size, 1), generator=generator)
        r = below(k[:, 0], generator)[:, None]
        column = torch.arange(2 * int(k.max()) + 2)
        ids = torch.where(column <= 2 * k, a, self.vocab.pad)
        ids = torch.where(column == k, self.vocab.id("<fill>"), torch.where(column == 2 * k + 1, self.vocab.eos, ids))
        return ids, (column > k + r) & (column <= 2 * k + 1)

    def answer(self, prompt: list[int]) -> list[int]:
        k = prompt.index(self.vocab.id("<fill>"))
        return [*([prompt[0]] * (k - len(prompt[k + 1 :]))), self.vocab.eos]
