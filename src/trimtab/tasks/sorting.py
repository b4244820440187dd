"""Sorting, and the simpler tasks that hint at how to sort.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). Formats, supervised part after =>:

    sort        x_1 .. x_n <sort>    => y_1 .. y_n <eos>    y = x in ascending order, repeats kept
    successor   x_1 .. x_n <succ> a  => b <eos>             b = the least x_i above a; only <eos> if a is the maximum
      packed    x_1 .. x_n <succ> a_1 => b_1  a_2 => b_2 .. only the b's are supervised; b = <eos> for the maximum
    count       x_1 .. x_n <count> a => a .. a <eos>        as many copies of a as x has; or their number and <eos>

The query a is drawn uniformly from the positions of x. Deviations: the paper's body was not available, so what follows the maximum, packing, and the form of
the count's answer are ours.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError, unknown, whole
from trimtab.tasks.base import SeqTask, Vocab, checked_lengths

# all of the family's delimiters in every arm, so that a hint changes the data and never the model
SPECIALS = ("<sort>", "<succ>", "<count>", "<fill>", "<pred>", "<parity>")


class Sorting(SeqTask):
    """Sort a list of values in ascending order.

    Args:
        vocab: number of values, >= 1; they are 0 .. vocab - 1.
        unique: no value twice in a list; lists are then at most ``vocab`` long. The paper has repeats, which are the hard part.
        lengths: (shortest, longest) training list, both included; 0 is allowed and its answer is <eos>.

    Raises:
        UsageError: no values, bad lengths, or unique lists longer than the vocabulary.

    Example:
        >>> task = Sorting(vocab=10)
        >>> task.vocab.show(task.batch(seed=0, step=0, size=1, length=5)["input_ids"][0])
        '5 4 5 2 5 <sort> 2 4 5 5 5 <eos>'

    When not to use it: to test a model's arithmetic; values are only names with an order the model must learn.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "sorting"
    shortest = 0

    def __init__(self, vocab: int = 100, unique: bool = False, lengths: tuple[int, int] = (1, 20)):
        self.vocab = Vocab(vocab, SPECIALS)
        self.unique = unique
        self.lengths = checked_lengths(lengths, self.shortest)
        self.check_length(self.lengths[1])

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if self.unique and length > self.vocab.values:
            raise UsageError(f"length must be <= vocab = {self.vocab.values} where unique=True, got {length}; raise vocab or allow repeats")

    def inputs(self, size: int, length: int, generator: torch.Generator) -> Int[Tensor, "rows length"]:
        """Unsorted lists; the hint tasks draw theirs from here too."""
        if self.unique:  # positions of the largest of independent random numbers: a uniform draw without replacement, in random order
            return torch.rand(size, self.vocab.values, generator=generator).topk(length).indices
        return torch.randint(self.vocab.values, (size, length), generator=generator)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x = self.inputs(size, length, generator)
        ids = torch.cat([x, x.new_full((size, 1), self.vocab.id("<sort>")), x.sort(dim=1).values, x.new_full((size, 1), self.vocab.eos)], dim=1)
        return ids, (torch.arange(ids.shape[1]) > length).repeat(size, 1)

    def answer(self, prompt: list[int]) -> list[int]:
        return [*sorted(prompt[: prompt.index(self.vocab.id("<sort>"))]), self.vocab.eos]


class _Query(SeqTask):
    """A question about one element of a list to be sorted."""

    def __init__(self, base: Sorting):
        self.base, self.vocab = base, base.vocab
        self.lengths = checked_lengths(base.lengths, self.shortest)

    def check_length(self, length: int) -> None:
        super().check_length(length)
        self.base.check_length(length)

    def draw(self, size: int, length: int, queries: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows queries"]]:
        """Lists, and elements of theirs, each drawn uniformly and independently from the list's positions."""
        x = self.base.inputs(size, length, generator)
        return x, x.gather(1, torch.randint(length, (size, queries), generator=generator))


class Successor(_Query):
    """Name the next larger element of a list: the step that sorting repeats.

    Args:
        base: whose lists, vocabulary and training lengths are used.
        queries: 1 is the paper's form, ``x <succ> a => b <eos>``; more are packed into one row, ``x <succ> a_1 => b_1 a_2 => b_2 ..``, only the b's supervised.

    Raises:
        UsageError: fewer than one query, or a base with lists of length 0, which have no element to ask about.

    Example:
        >>> task = Successor(Sorting(vocab=10))
        >>> task.vocab.show(task.batch(seed=2, step=0, size=1, length=5)["input_ids"][0])
        '2 7 0 6 0 <succ> 0 2 <eos>'
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<succ>"), 7]))
        '<eos>'

    When not to use it: packed, as a task to generate from. Only its first answer can be written after a prompt, and :meth:`score` judges no more than that.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    def __init__(self, base: Sorting, queries: int = 1):
        super().__init__(base)
        self.queries = whole("queries", queries, 1)
        self.name = "successor" if self.queries == 1 else "successor-packed"

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x, a = self.draw(size, length, self.queries, generator)
        larger = x[:, None, :] > a[:, :, None]
        b = x[:, None, :].masked_fill(~larger, self.vocab.eos).amin(2)  # <eos> is above every value, so it is what is left where none is larger
        pairs = torch.stack([a, b], dim=2).flatten(1)
        mark = x.new_full((size, 1), self.vocab.id("<succ>"))
        ids = torch.cat([x, mark, pairs], dim=1)
        answer = torch.zeros_like(ids, dtype=torch.bool)
        answer[:, length + 2 :: 2] = True
        if self.queries > 1:
            return ids, answer
        more = b != self.vocab.eos
        return torch.cat([ids, torch.where(more, self.vocab.eos, self.vocab.pad)], dim=1), torch.cat([answer, more], dim=1)

    def answer(self, prompt: list[int]) -> list[int]:
        x, a = prompt[: prompt.index(self.vocab.id("<succ>"))], prompt[-1]
        b = min((y for y in x if y > a), default=self.vocab.eos)
        return [b] if self.queries > 1 or b == self.vocab.eos else [b, self.vocab.eos]


class Count(_Query):
    """Count how often an element occurs in a list.

    Args:
        base: whose lists, vocabulary and training lengths are used.
        answer: "unary" writes the element as often as it occurs, the form sorting uses; "number" writes how often as the value of that number.

    Raises:
        UsageError: another answer form, a base with lists of length 0, or a list so long that its count may be no value (answer="number").

    Example:
        >>> for form in ("unary", "number"):
        ...     task = Count(Sorting(vocab=10, lengths=(1, 8)), answer=form)
        ...     print(task.vocab.show(task.answer([3, 1, 3, 3, task.vocab.id("<count>"), 3])))
        3 3 3 <eos>
        3 <eos>

    When not to use it: with unique lists, where every count is 1.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    def __init__(self, base: Sorting, answer: str = "unary"):
        super().__init__(base)
        if answer not in ("unary", "number"):
            raise unknown("answer form", answer, ("unary", "number"))
        self.form = answer
        self.name = f"count-{answer}"
        self.check_length(self.lengths[1])

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if self.form == "number" and length >= self.vocab.values:
            raise UsageError(f"length must be < vocab = {self.vocab.values} where answer='number', got {length}; raise vocab, or use 'unary'")

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x, a = self.draw(size, length, 1, generator)
        count = (x == a).sum(1, keepdim=True)
        head = torch.cat([x, x.new_full((size, 1), self.vocab.id("<count>")), a], dim=1)
        if self.form == "number":
            tail = torch.cat([count, torch.full_like(count, self.vocab.eos)], dim=1)
        else:
            column = torch.arange(int(count.max()) + 1)
            tail = torch.where(column < count, a, torch.where(column == count, self.vocab.eos, self.vocab.pad))
        ids = torch.cat([head, tail], dim=1)
        return ids, (torch.arange(ids.shape[1]) >= head.shape[1]) & (ids != self.vocab.pad)

    def answer(self, prompt: list[int]) -> list[int]:
        x, a = prompt[: prompt.index(self.vocab.id("<count>"))], prompt[-1]
        return [*([a] * x.count(a) if self.form == "unary" else [x.count(a)]), self.vocab.eos]
