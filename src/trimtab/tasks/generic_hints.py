"""Hints that can be made of any task of prompt and answer, without knowing what it is about.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) leaves open which hint to choose; these are candidates, and ours.
For a task x => y <eos>, where x is its whole prompt, its own mark included, supervised part after =>:

    prefix drop        x <hint-drop> y_t       => y_s <eos>           the next token of y that differs from y_t; only <eos> if there is none
    suffix completion  x <hint-suffix> y_1 .. y_t => y_(t+1) .. <eos> t uniform in 0 .. length of y
    answer length      x <hint-length>         => <hint-length> .. <eos>   as often as y has tokens; or their number
    membership         x <hint-member> a       => 1 <eos>             1 if a is in y, 0 if not, each in half of the rows
    reversed answer    x <hint-backwards>      => y backwards <eos>
    prompt copy        x <hint-again>          => x <eos>             as good as irrelevant: a control

All answer from the first answer of a row; a packed row's others are dropped. The vocabulary needs their marks: :class:`trimtab.tasks.WithSpecials`. Not here:
consistency under permuted input, which compares what a model says to two prompts and so is an objective, not examples with answers.
"""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError, unknown, whole
from trimtab.tasks.base import SeqTask
from trimtab.tasks.ragged import below, joined, parted

MARKS = ("<hint-drop>", "<hint-suffix>", "<hint-length>", "<hint-member>", "<hint-backwards>", "<hint-again>")


class _Generic(SeqTask):
    """A question about another task's prompt and answer."""

    mark: str

    def __init__(self, task: SeqTask):
        if self.mark not in task.vocab.names:
            raise UsageError(f"task must have {self.mark} in its vocabulary, got {task.name} without it; wrap it: WithSpecials(task, MARKS)")
        self.task, self.vocab, self.lengths, self.shortest = task, task.vocab, task.lengths, task.shortest

    def check_length(self, length: int) -> None:
        super().check_length(length)
        self.task.check_length(length)

    def draw_length(self, seed: int, step: int) -> int:
        return self.task.draw_length(seed, step)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        pad, end = self.vocab.pad, self.vocab.eos
        x, y = parted(*self.task.sample(size, length, generator), pad)
        query, reply = self.made(x, y.masked_fill(y == end, pad), generator)
        mark = x.new_full((size, 1), self.vocab.id(self.mark))
        return joined(torch.cat([x, mark, query], dim=1), torch.cat([reply, torch.full_like(mark, end)], dim=1), pad)

    def answer(self, prompt: list[int]) -> list[int]:
        at = prompt.index(self.vocab.id(self.mark))
        y = [token for token in self.task.answer(prompt[:at]) if token != self.vocab.eos]
        return [*self.said(prompt[:at], y, prompt[at + 1 :]), self.vocab.eos]

    @abstractmethod
    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        """What follows the mark, and what is to be answered before <eos>. All four are padded; y comes without its <eos>."""

    @abstractmethod
    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        """The reply to one prompt, by brute force."""


class PrefixDrop(_Generic):
    """Go on with an answer of which only the last tokens are shown: the next token that differs from them.

    On sorting, with one token, it is the successor hint. Where the shown tokens are in the answer more than once, the first time counts, so that the reply
    follows from the prompt; an answer with fewer tokens than are to be shown is shown whole.

    Args:
        task: with ``<hint-drop>`` in its vocabulary.
        keep: how many tokens of the answer are shown, >= 1; where they end is uniform.

    Raises:
        UsageError: no such mark in the vocabulary, or ``keep`` below 1.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> task = PrefixDrop(WithSpecials(Sorting(vocab=10), MARKS))
        >>> ids = [7, 1, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-drop>"), 1]
        >>> task.vocab.show(ids), task.vocab.show(task.answer(ids))
        ('7 1 1 2 <sort> <hint-drop> 1', '2 <eos>')

    When not to use it: on tasks whose answers repeat themselves, as digits do: a token says little about where in the answer it stands.
    """

    mark = "<hint-drop>"

    def __init__(self, task: SeqTask, keep: int = 1):
        super().__init__(task)
        self.keep = keep = whole("keep", keep, 1)
        self.name = f"prefix-drop-{keep} of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        pad = self.vocab.pad
        y = torch.nn.functional.pad(y, (0, max(0, self.keep - y.shape[1])), value=pad)  # wide enough for one window
        tokens = (y != pad).sum(1, keepdim=True)
        start = below((tokens - self.keep + 1).clamp(min=0)[:, 0], generator)[:, None]
        query = y.gather(1, start + torch.arange(self.keep))
        first = (y.unfold(1, self.keep, 1) == query[:, None]).all(2).long().argmax(1, keepdim=True)
        left = (torch.arange(y.shape[1]) >= first + self.keep) & (y != pad) & (y[:, :, None] != query[:, None]).all(2)
        return query, y.gather(1, left.long().argmax(1, keepdim=True)).masked_fill(~left.any(1, keepdim=True), pad)

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        end = next(end for end in range(len(query), len(y) + 1) if y[end - len(query) : end] == query)
        return [token for token in y[end:] if token not in query][:1]


class SuffixCompletion(_Generic):
    """Finish an answer of which a random beginning is there.

    Args:
        task: with ``<hint-suffix>`` in its vocabulary.

    Raises:
        UsageError: no such mark in the vocabulary.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> task = SuffixCompletion(WithSpecials(Sorting(vocab=10), MARKS))
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-suffix>"), 1]))
        '2 7 <eos>'

    When not to use it: as a new task; it is the main one with part of the answer unsupervised, and tells whether a hint's content matters at all.
    """

    mark = "<hint-suffix>"

    def __init__(self, task: SeqTask):
        super().__init__(task)
        self.name = f"suffix of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        shown = torch.arange(y.shape[1]) < below((y != self.vocab.pad).sum(1) + 1, generator)[:, None]
        return y.masked_fill(~shown, self.vocab.pad), y.masked_fill(shown, self.vocab.pad)

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        return y[len(query) :]


class AnswerLength(_Generic):
    """Say how many tokens the answer has.

    Args:
        task: with ``<hint-length>`` in its vocabulary.
        answer: "unary" writes the mark as often, "number" the value of that number.

    Raises:
        UsageError: no such mark in the vocabulary, another answer form, or (answer="number", when it is drawn) an answer whose length is no value.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> for form in ("unary", "number"):
        ...     task = AnswerLength(WithSpecials(Sorting(vocab=10), MARKS), answer=form)
        ...     print(task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-length>")])))
        <hint-length> <hint-length> <hint-length> <eos>
        3 <eos>

    When not to use it: as a number, beyond the training lengths: it then answers with values it was never asked for.
    """

    mark = "<hint-length>"

    def __init__(self, task: SeqTask, answer: str = "unary"):
        super().__init__(task)
        if answer not in ("unary", "number"):
            raise unknown("answer form", answer, ("unary", "number"))
        self.form = answer
        self.name = f"length-{answer} of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        if self.form == "unary":
            return x[:, :0], torch.where(y != self.vocab.pad, self.vocab.id(self.mark), self.vocab.pad)
        count = (y != self.vocab.pad).sum(1, keepdim=True)
        if (most := int(count.max())) >= self.vocab.values:
            raise UsageError(f"answers of {self.task.name} must have fewer than {self.vocab.values} tokens where answer='number', got {most}; use 'unary'")
        return x[:, :0], count

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        return [self.vocab.id(self.mark)] * len(y) if self.form == "unary" else [len(y)]


class Membership(_Generic):
    """Say whether a value is in the answer, or in the prompt. Half of the rows ask for one that is, drawn uniformly from those, half for one that is not.

    Args:
        task: with ``<hint-member>`` in its vocabulary.
        where: "answer" or "prompt".

    Raises:
        UsageError: no such mark in the vocabulary, fewer than the two values 0 and 1, or another place.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> task = Membership(WithSpecials(Sorting(vocab=10), MARKS))
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-member>"), 5]))
        '0 <eos>'

    When not to use it: with so few values that all of them are in every answer; then all replies are 1.
    """

    mark = "<hint-member>"

    def __init__(self, task: SeqTask, where: str = "answer"):
        super().__init__(task)
        if where not in ("answer", "prompt"):
            raise unknown("where", where, ("answer", "prompt"))
        if self.vocab.values < 2:
            raise UsageError(f"task must have the values 0 and 1, which are the answers, got {self.vocab.values} value in {task.name}")
        self.where = where
        self.name = f"member-{where} of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        values, place = self.vocab.values, y if self.where == "answer" else x
        there = torch.zeros(len(x), values + 1, dtype=torch.bool).scatter_(1, place.clamp(max=values), True)[:, :values]
        wanted = torch.rand(len(x), 1, generator=generator) < 0.5
        drawn = torch.rand(len(x), values, generator=generator)
        a = torch.where(there == wanted, drawn + 1, drawn).argmax(1, keepdim=True)  # of the other kind where there is none of the wanted one
        return a, there.gather(1, a).long()

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        return [int(query[0] in (y if self.where == "answer" else x))]


class ReversedAnswer(_Generic):
    """Write the answer backwards.

    Args:
        task: with ``<hint-backwards>`` in its vocabulary.

    Raises:
        UsageError: no such mark in the vocabulary.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> task = ReversedAnswer(WithSpecials(Sorting(vocab=10), MARKS))
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-backwards>")]))
        '7 2 1 <eos>'

    When not to use it: as a simpler task; it is as hard as the one it is made of.
    """

    mark = "<hint-backwards>"

    def __init__(self, task: SeqTask):
        super().__init__(task)
        self.name = f"backwards of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        return x[:, :0], y.flip(1)  # the pads are in front then, and are taken out like any other

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        return y[::-1]


class PromptCopy(_Generic):
    """Write the prompt again: a hint that has nothing to do with the task, for a control.

    Args:
        task: with ``<hint-again>`` in its vocabulary.

    Raises:
        UsageError: no such mark in the vocabulary.

    Example:
        >>> from trimtab.tasks import Sorting, WithSpecials
        >>> task = PromptCopy(WithSpecials(Sorting(vocab=10), MARKS))
        >>> task.vocab.show(task.answer([7, 1, 2, task.vocab.id("<sort>"), task.vocab.id("<hint-again>")]))
        '7 1 2 <sort> <eos>'

    When not to use it: as irrelevant to a task that itself copies.
    """

    mark = "<hint-again>"

    def __init__(self, task: SeqTask):
        super().__init__(task)
        self.name = f"prompt of {task.name}"

    def made(
        self, x: Int[Tensor, "rows prompt"], y: Int[Tensor, "rows answer"], generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows query"], Int[Tensor, "rows reply"]]:
        return x[:, :0], x

    def said(self, x: list[int], y: list[int], query: list[int]) -> list[int]:
        return x
