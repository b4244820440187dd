"""Arithmetic on digits: increment with hints at it, and addition with the answer written backwards.

Papers: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) for increment; Teaching Arithmetic to Small Transformers
(arXiv 2307.03381) for addition. Formats, most significant digit first where nothing else is said, supervised part after =>:

    increment       d_1 .. d_m <inc>            => e_1 .. e_m' <eos>   e = d + 1, m' = m, or m + 1 where all digits are nines
    carry mask      d_1 .. d_m <carry>          => c_1 .. c_m <eos>    c_i = 1 where the digit changes in d + 1, else 0
    trailing nines  d_1 .. d_m <nines>          => 9 .. 9 <eos>        the nines that d ends in; or their number, in digits, and <eos>
    digit at        d_1 .. d_m <at> j_1 .. j_l  => d_j <eos>           j counts from the left, from 1, and is written in digits
    digit copy      d_1 .. d_m <copy>           => d_1 .. d_m <eos>
    addition        a_1 .. a_n + b_1 .. b_n =   => s_1 .. s_n' <eos>   s = a + b, least significant digit first

"Nine" is the largest digit, base - 1. The length of a problem is its number of digits. A number of several digits does not begin with 0, as numbers are
written: then one number has one prompt and one length, and a longer problem really is a larger number. Deviation: the paper's format and hints for increment
are not known; all that is said of them here is ours.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import unknown, whole
from trimtab.tasks.base import SeqTask, Vocab, checked_lengths
from trimtab.tasks.ragged import below, joined

SPECIALS = ("<inc>", "<carry>", "<nines>", "<at>", "<copy>")


def _number(digits: list[int], base: int) -> int:
    return sum(digit * base**k for k, digit in enumerate(reversed(digits)))


def _digits(number: int, base: int) -> list[int]:
    """Of a number, most significant first."""
    written = [number % base]
    while number := number // base:
        written.append(number % base)
    return written[::-1]


def _all_digits(numbers: Int[Tensor, "rows"], base: int, pad: int) -> Int[Tensor, "rows width"]:
    """As :func:`_digits` for each number, with ``pad`` in place of zeros in front."""
    place = torch.tensor([base**k for k in reversed(range(len(_digits(int(numbers.max()), base))))])
    written = numbers[:, None] // place % base
    return written.masked_fill((numbers[:, None] < place) & (place > 1), pad)


class Increment(SeqTask):
    """Add one to a number.

    Args:
        base: of the digits, >= 2; they are the values 0 .. base - 1.
        lengths: (shortest, longest) number of digits in training, both included, >= 1.
        carries: "uniform": how many nines a number ends in is uniform in 0 .. m; "digits": the digits are uniform, and then a carry over t digits has
            probability base ** -t, so that long ones, and answers one digit longer than the number, are as good as never seen.

    Raises:
        UsageError: a base below 2, bad lengths, or no such way to draw carries.

    Example:
        >>> task = Increment()
        >>> task.vocab.show(task.batch(seed=5, step=0, size=1, length=4)["input_ids"][0])
        '8 4 9 9 <inc> 8 5 0 0 <eos>'
        >>> task.vocab.show(task.answer([9, 9, task.vocab.id("<inc>")]))
        '1 0 0 <eos>'

    When not to use it: to compare with numbers of others, whose carries may be drawn in another way; that decides how hard it is.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "increment"

    def __init__(self, base: int = 10, lengths: tuple[int, int] = (1, 20), carries: str = "uniform"):
        if carries not in ("uniform", "digits"):
            raise unknown("carries", carries, ("uniform", "digits"))
        self.base, self.carries = whole("base", base, 2), carries
        self.vocab, self.lengths = Vocab(base, SPECIALS), checked_lengths(lengths, self.shortest)

    def inputs(self, size: int, length: int, generator: torch.Generator) -> Int[Tensor, "rows length"]:
        """Numbers; the hint tasks draw theirs from here too."""
        first = 1 if length > 1 else 0
        lead = torch.randint(first, self.base, (size, 1), generator=generator)
        digits = torch.cat([lead, torch.randint(self.base, (size, length - 1), generator=generator)], dim=1)
        if self.carries == "digits":
            return digits
        nines = torch.randint(length + 1, (size, 1), generator=generator)
        stop = length - 1 - nines  # the digit that ends the run of nines; -1 where there is none
        least = torch.where(stop == 0, first, 0)
        # with two digits, 1 is the nine and the only one to begin with: then the run goes on to the front
        other = least + below((self.base - 1 - least)[:, 0], generator)[:, None]
        column = torch.arange(length)
        return torch.where(column > stop, self.base - 1, torch.where(column == stop, other, digits))

    def changed(self, digits: Int[Tensor, "rows length"]) -> Int[Tensor, "rows above"]:
        """1 where a digit changes in d + 1, which is where all on its right are nines; first for a digit in front of the number, then for each of it."""
        run = (digits == self.base - 1).long().flip(1).cumprod(1).flip(1)
        return torch.cat([run, torch.ones_like(run[:, :1])], dim=1)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        digits = self.inputs(size, length, generator)
        mark, end = (digits.new_full((size, 1), self.vocab.id(name)) for name in ("<inc>", "<eos>"))
        changed = self.changed(digits)
        more = torch.where(changed[:, :1] == 1, 1, self.vocab.pad)
        return joined(torch.cat([digits, mark], dim=1), torch.cat([more, (digits + changed[:, 1:]) % self.base, end], dim=1), self.vocab.pad)

    def answer(self, prompt: list[int]) -> list[int]:
        return [*_digits(_number(prompt[: prompt.index(self.vocab.id("<inc>"))], self.base) + 1, self.base), self.vocab.eos]


class _OnDigits(SeqTask):
    """A question about a number to be incremented."""

    mark: str

    def __init__(self, task: Increment):
        self.task, self.vocab, self.lengths = task, task.vocab, task.lengths

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        digits = self.task.inputs(size, length, generator)
        query, reply = self.asked(digits, generator)
        mark, end = (digits.new_full((size, 1), self.vocab.id(name)) for name in (self.mark, "<eos>"))
        return joined(torch.cat([digits, mark, query], dim=1), torch.cat([reply, end], dim=1), self.vocab.pad)

    def asked(self, digits: Int[Tensor, "rows length"], generator: torch.Generator) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        """What follows the mark, and what is to be answered before <eos>; pads are left out of both."""
        return digits[:, :0], self.reply(digits)

    def reply(self, digits: Int[Tensor, "rows length"]) -> Int[Tensor, "rows reply"]:
        """The answer where the mark alone asks."""
        return digits

    def answer(self, prompt: list[int]) -> list[int]:
        at = prompt.index(self.vocab.id(self.mark))
        return [*self.said(prompt[:at], prompt[at + 1 :]), self.vocab.eos]

    def said(self, digits: list[int], query: list[int]) -> list[int]:
        """As :meth:`asked` for one number, by brute force."""
        return digits


class CarryMask(_OnDigits):
    """Say of each digit whether it changes when one is added: the decision that increment takes at every place.

    Args:
        task: whose numbers, vocabulary and training lengths are used.

    Example:
        >>> task = CarryMask(Increment())
        >>> task.vocab.show(task.answer([4, 5, 9, 9, task.vocab.id("<carry>")]))
        '0 1 1 1 <eos>'

    When not to use it: for another task than increment.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark = "carry-mask", "<carry>"

    def reply(self, digits: Int[Tensor, "rows length"]) -> Int[Tensor, "rows reply"]:
        return self.task.changed(digits)[:, 1:]

    def said(self, digits: list[int], query: list[int]) -> list[int]:
        after = _digits(_number(digits, self.task.base) + 1, self.task.base)[-len(digits) :]
        return [int(old != new) for old, new in zip(digits, after, strict=True)]


class TrailingNines(_OnDigits):
    """Say how many nines a number ends in.

    Args:
        task: whose numbers, vocabulary and training lengths are used.
        answer: "unary" writes the nines, "number" how many they are, in digits.

    Raises:
        UsageError: another answer form.

    Example:
        >>> for form in ("unary", "number"):
        ...     task = TrailingNines(Increment(), answer=form)
        ...     print(task.vocab.show(task.answer([4, 5, 9, 9, task.vocab.id("<nines>")])))
        9 9 <eos>
        2 <eos>

    When not to use it: with ``carries="digits"``, where nearly all answers are 0.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    mark = "<nines>"

    def __init__(self, task: Increment, answer: str = "unary"):
        super().__init__(task)
        if answer not in ("unary", "number"):
            raise unknown("answer form", answer, ("unary", "number"))
        self.form = answer
        self.name = f"trailing-nines-{answer}"

    def reply(self, digits: Int[Tensor, "rows length"]) -> Int[Tensor, "rows reply"]:
        run = self.task.changed(digits)[:, :-1]
        if self.form == "number":
            return _all_digits(run.sum(1), self.task.base, self.vocab.pad)
        return torch.where(run == 1, digits, self.vocab.pad)

    def said(self, digits: list[int], query: list[int]) -> list[int]:
        nine = self.task.base - 1
        count = next((k for k, digit in enumerate(reversed(digits)) if digit != nine), len(digits))
        return [nine] * count if self.form == "unary" else _digits(count, self.task.base)


class DigitAt(_OnDigits):
    """Name the digit at a place: to find a place is what every task on digits has to do.

    Args:
        task: whose numbers, vocabulary and training lengths are used; the place is uniform.

    Example:
        >>> task = DigitAt(Increment())
        >>> task.vocab.show(task.answer([4, 5, 9, 7, task.vocab.id("<at>"), 2]))
        '5 <eos>'

    When not to use it: expecting it to reach further than training: places beyond the longest number there are numerals that were never asked for.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark = "digit-at", "<at>"

    def asked(self, digits: Int[Tensor, "rows length"], generator: torch.Generator) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        place = torch.randint(digits.shape[1], (len(digits), 1), generator=generator)
        return _all_digits(place[:, 0] + 1, self.task.base, self.vocab.pad), digits.gather(1, place)

    def said(self, digits: list[int], query: list[int]) -> list[int]:
        return [digits[_number(query, self.task.base) - 1]]


class DigitCopy(_OnDigits):
    """Write a number again, which is what increment does with all digits that do not change.

    Args:
        task: whose numbers, vocabulary and training lengths are used.

    Example:
        >>> task = DigitCopy(Increment())
        >>> task.vocab.show(task.answer([4, 5, 9, 9, task.vocab.id("<copy>")]))
        '4 5 9 9 <eos>'

    When not to use it: as an irrelevant hint; it is a good part of increment.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark = "digit-copy", "<copy>"


class ReversedAddition(SeqTask):
    """Add two numbers of equal length; the sum is written from its least significant digit on, so that a carry is known when its digit is due.

    Args:
        base: of the digits, >= 2; they are the values 0 .. base - 1.
        lengths: (shortest, longest) number of digits of each operand in training, both included, >= 1.

    Raises:
        UsageError: a base below 2, or bad lengths.

    Example:
        >>> task = ReversedAddition()
        >>> task.vocab.show(task.batch(seed=0, step=0, size=1, length=3)["input_ids"][0])
        '9 4 9 + 2 8 9 = 8 3 2 1 <eos>'

    When not to use it: for operands of unequal length, or a sum written forwards, which is a harder task.

    References:
        Teaching Arithmetic to Small Transformers, 2023, arXiv 2307.03381.
    """

    name = "reversed-addition"

    def __init__(self, base: int = 10, lengths: tuple[int, int] = (1, 20)):
        self.base = whole("base", base, 2)
        self.vocab, self.lengths = Vocab(base, ("+", "=")), checked_lengths(lengths, self.shortest)

    def added(self, a: Int[Tensor, "rows length"], b: Int[Tensor, "rows length"]) -> Int[Tensor, "rows above"]:
        """Digits of the sum, the least significant first, and a pad last where it is no longer than the operands."""
        total = (a + b).flip(1)
        # A place that sums to base - 1 hands on the carry it gets; any other decides by itself. So the last that did not hand on decides.
        last = torch.where(total != self.base - 1, torch.arange(total.shape[1]), -1).cummax(1).values
        out = total.gather(1, last.clamp(min=0)) >= self.base  # where none has decided, the first, which hands on nothing
        written = (total + torch.nn.functional.pad(out[:, :-1], (1, 0))) % self.base
        return torch.cat([written, torch.where(out[:, -1:], 1, self.vocab.pad)], dim=1)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        lead = torch.randint(1 if length > 1 else 0, self.base, (size, 2, 1), generator=generator)
        a, b = torch.cat([lead, torch.randint(self.base, (size, 2, length - 1), generator=generator)], dim=2).unbind(1)
        plus, equal, end = (a.new_full((size, 1), self.vocab.id(name)) for name in ("+", "=", "<eos>"))
        return joined(torch.cat([a, plus, b, equal], dim=1), torch.cat([self.added(a, b), end], dim=1), self.vocab.pad)

    def answer(self, prompt: list[int]) -> list[int]:
        plus, equal = (prompt.index(self.vocab.id(name)) for name in ("+", "="))
        return [*_digits(_number(prompt[:plus], self.base) + _number(prompt[plus + 1 : equal], self.base), self.base)[::-1], self.vocab.eos]
