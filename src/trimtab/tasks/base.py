"""What a task is: a seeded world that makes batches and judges outputs.

No paper. A batch is a plain dict, ``{"input_ids": int64 [rows, tokens], "labels": int64 [rows, tokens]}``. Labels are the ids where the model is supervised and
-100 elsewhere, unshifted as Hugging Face models take them: labels[:, t] is predicted from position t - 1. Rows are padded on the right, and pads are never
supervised.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError, derive, generator, unknown, whole
from trimtab.metrics import free_running
from trimtab.metrics.sequence import IGNORE

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Vocab:
    """Ids of a small world: the values 0 .. values - 1, then "<pad>", "<eos>", then its other special tokens.

    Args:
        values: how many values there are, >= 1.
        specials: names beside "<pad>" and "<eos>", which are always there.

    Raises:
        UsageError: no value, or a special token twice.

    Example:
        >>> vocab = Vocab(10, ("<sort>",))
        >>> vocab.size, vocab.pad, vocab.eos, vocab.id("<sort>")
        (13, 10, 11, 12)
        >>> vocab.show([3, 1, 12, 1, 3, 11])
        '3 1 <sort> 1 3 <eos>'
    """

    values: int
    specials: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "values", whole("values", self.values, 1))
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"specials must differ from each other and from <pad> and <eos>, which are always there; got {', '.join(self.specials)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Special tokens in the order of their ids, from id ``values`` on."""
        return ("<pad>", "<eos>", *self.specials)

    @property
    def size(self) -> int:
        """Number of ids: what a model's vocabulary must hold."""
        return self.values + len(self.names)

    @property
    def pad(self) -> int:
        return self.values

    @property
    def eos(self) -> int:
        return self.values + 1

    def id(self, name: str) -> int:
        """Id of a special token.

        Raises:
            UsageError: there is none of that name; the nearest one is offered.
        """
        if name not in self.names:
            raise unknown("special token", name, self.names)
        return self.values + self.names.index(name)

    def show(self, ids: list[int] | Int[Tensor, "tokens"]) -> str:
        """Ids as text; an id outside the vocabulary (a label of -100, say) is shown as ``_``."""
        words = []
        for i in map(int, ids):
            words.append(str(i) if 0 <= i < self.values else self.names[i - self.values] if 0 <= i < self.size else "_")
        return " ".join(words)


@runtime_checkable
class Task(Protocol):
    """A seeded world. ``batch`` is a pure function of its arguments; ``score`` judges outputs and never sees a model."""

    name: str

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """Examples as a pure function of the arguments.

        Returns:
            A dict of two tensors, int64 [rows, tokens]: ``input_ids``, and ``labels`` with the ids where the model is supervised and -100 elsewhere, unshifted.
        """
        ...

    def score(self, output: Tensor, batch: Batch) -> dict[str, float]:
        """Judge what a model made of a batch: a value for each measure, by name."""
        ...


@runtime_checkable
class LengthTask(Task, Protocol):
    """A task with a vocabulary, training lengths, and batches of a length: what mixtures are made of. Each :class:`SeqTask` is one."""

    vocab: Vocab
    lengths: tuple[int, int]

    def draw_length(self, seed: int, step: int) -> int:
        """The length of a training batch."""
        ...

    def batch(self, seed: int, step: int, size: int, length: int | None = None) -> Batch:
        """As of any task, and of a chosen length."""
        ...


def cost(batch: Batch) -> dict[str, int]:
    """What a batch costs: its rows, the positions a model computes (pads included), and the supervised tokens.

    Example:
        >>> cost({"input_ids": torch.zeros(2, 3, dtype=torch.long), "labels": torch.tensor([[-100, 0, 0], [-100, -100, 0]])})
        {'rows': 2, 'positions': 6, 'supervised': 3}
    """
    rows, tokens = batch["input_ids"].shape
    return {"rows": rows, "positions": rows * tokens, "supervised": int((batch["labels"] != IGNORE).sum())}


def checked_lengths(lengths: Any, shortest: int) -> tuple[int, int]:
    """Training lengths as (shortest, longest), or an error that says what is wrong with them."""
    try:
        low, high = lengths
        low = whole("the shortest", low, shortest)
        return low, whole("the longest", high, low)
    except (TypeError, ValueError):  # no two, or not two such numbers
        wanted = f"whole numbers (shortest, longest), both training lengths, with {shortest} <= shortest <= longest"
        raise UsageError(f"lengths must be {wanted}; got {lengths!r}") from None


class SeqTask(ABC):
    """A task of prompt and answer over a small vocabulary, at a chosen length. A subclass gives three attributes and two methods.

    Attributes:
        name: short, for tables and files.
        vocab: the :class:`Vocab`.
        lengths: (shortest, longest) training length, both included. Test lengths belong to whoever tests: ``batch(..., length=n)`` takes any.
        shortest: the least length that makes sense; 1 unless the subclass says 0.

    Example:
        >>> class Copy(SeqTask):
        ...     name, vocab, lengths = "copy", Vocab(4, ("<copy>",)), (1, 8)
        ...
        ...     def sample(self, size, length, generator):
        ...         x = torch.randint(self.vocab.values, (size, length), generator=generator)
        ...         mark, end = (torch.full((size, 1), self.vocab.id(name)) for name in ("<copy>", "<eos>"))
        ...         ids = torch.cat([x, mark, x, end], dim=1)
        ...         return ids, torch.arange(ids.shape[1]).expand_as(ids) > length
        ...
        ...     def answer(self, prompt):
        ...         return prompt[:-1] + [self.vocab.eos]
        >>> task = Copy()
        >>> batch = task.batch(seed=0, step=0, size=2, length=3)
        >>> task.vocab.show(batch["input_ids"][0]), task.vocab.show(batch["labels"][0])
        ('3 3 2 <copy> 3 3 2 <eos>', '_ _ _ _ 3 3 2 <eos>')
        >>> task.score(task.targets(batch), batch)["exact"]
        1.0

    When not to use it: data that is not prompt and answer, such as running text; write a :class:`Task`.
    """

    name: str
    vocab: Vocab
    lengths: tuple[int, int]
    shortest: int = 1

    def __repr__(self) -> str:
        """Class and attributes: a run that is resumed knows its task by this."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items() if not name.startswith('_'))})"

    @abstractmethod
    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        """Draw examples, all of one length; every random number comes from the generator.

        Args:
            size: rows to draw, >= 1.
            length: of the problem, as the task defines it (items to sort, say).
            generator: on the CPU.

        Returns:
            ids, right-padded with ``vocab.pad``, and True where an id is part of an answer.
        """

    @abstractmethod
    def answer(self, prompt: list[int]) -> list[int]:
        """The ids that must follow a prompt, by brute force; it is what :func:`trimtab.testing.check_task` holds ``sample`` against.

        A row may hold several answers, each a run of answer positions: the prompt of one is all that stands before it.
        """

    def check_length(self, length: int) -> None:
        """Raise UsageError for a length the task has no examples of."""
        whole(f"length of {self.name}", length, self.shortest)

    def has_length(self, length: int) -> bool:
        """Whether the task has examples of a length: whether :meth:`check_length` lets it pass."""
        try:
            self.check_length(length)
        except UsageError:
            return False
        return True

    def draw_length(self, seed: int, step: int) -> int:
        """The length of a training batch, uniform over ``lengths``; one a batch, so that no position is spent on padding short rows."""
        low, high = self.lengths
        return low + derive(seed, "length", step) % (high - low + 1)

    def batch(self, seed: int, step: int, size: int, length: int | None = None) -> Batch:
        """Examples as a pure function of the arguments.

        Args:
            seed, step: name the batch; other numbers give unrelated examples.
            size: rows, >= 1.
            length: of every example; default ``draw_length(seed, step)``, and then the batch is the one asked for by that length.

        Returns:
            A dict of two tensors, int64 [size, tokens]: ``input_ids``, and ``labels`` with the ids where the model is supervised and -100 elsewhere, unshifted.

        Raises:
            UsageError: no rows asked for, a length the task has no examples of, or a ``sample`` that returned something else than ids of the vocabulary and a
                mask.
        """
        size = whole("size", size, 1)
        length = self.draw_length(seed, step) if length is None else whole(f"length of {self.name}", length, self.shortest)
        self.check_length(length)
        ids, answer = self._sound(self.sample(size, length, generator(seed, "batch", step, length)), size)
        return {"input_ids": ids, "labels": ids.masked_fill(~answer, IGNORE)}

    def _sound(self, sampled: Any, size: int) -> tuple[Tensor, Tensor]:
        """Ids and mask, of a sample that a model can be given: beyond the vocabulary its embedding would fail, far from the cause."""
        parts: tuple[Any, ...] = sampled if isinstance(sampled, tuple) else (sampled,)
        tensors = len(parts) == 2 and all(isinstance(part, Tensor) and part.ndim == 2 and len(part) == size for part in parts)
        if not tensors or parts[0].shape != parts[1].shape or (parts[0].dtype, parts[1].dtype) != (torch.int64, torch.bool):
            seen = " and ".join(f"{part.dtype} {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__ for part in parts)
            raise UsageError(f"{self.name}.sample must return ids torch.int64 [{size}, tokens] and a mask torch.bool of the same shape, got {seen}")
        ids, answer = parts
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab.size):
            row, column = ((ids < 0) | (ids >= self.vocab.size)).nonzero()[0].tolist()
            raise UsageError(f"{self.name}.sample must return ids in 0 .. {self.vocab.size - 1}, got {int(ids[row, column])} at position {column} of row {row}")
        return ids, answer

    def prompts(self, batch: Batch) -> tuple[Int[Tensor, "rows prompt"], Bool[Tensor, "rows prompt"]]:
        """What a model is given before it writes the first answer of each row.

        Returns:
            ids padded on the left, so that all answers begin in the same column, and the mask that is False on those pads.
        """
        start, _ = _first_answer(batch["labels"])
        columns = torch.arange(int(start.max()), device=start.device) - (start.max() - start)[:, None]
        ids = batch["input_ids"].gather(1, columns.clamp(min=0))
        return ids.masked_fill(columns < 0, self.vocab.pad), columns >= 0

    def targets(self, batch: Batch) -> Int[Tensor, "rows answer"]:
        """The first answer of each row, its <eos> included, right-padded: what a perfect model writes after :meth:`prompts`."""
        start, length = _first_answer(batch["labels"])
        columns = torch.arange(int(length.max()), device=start.device)
        ids = batch["input_ids"].gather(1, (start[:, None] + columns).clamp(max=batch["input_ids"].shape[1] - 1))
        return ids.masked_fill(columns >= length[:, None], self.vocab.pad)

    def score(self, output: Int[Tensor, "rows out"], batch: Batch) -> dict[str, float]:
        """Judge what a model wrote after :meth:`prompts`; :func:`trimtab.metrics.free_running` says how.

        Returns:
            Means over rows: ``exact``, ``edit`` (similarity), and the shares of outputs that end too ``early`` and too ``late``.
        """
        _, length = _first_answer(batch["labels"])
        outcome = free_running(output, self.targets(batch), length, eos=self.vocab.eos)
        return {name: float(values.double().mean()) for name, values in outcome._asdict().items()}


def _first_answer(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where the first run of supervised positions begins in each row, and how long it is."""
    asked = labels != IGNORE
    if not bool(asked.any(1).all()):
        raise UsageError(f"labels must have a supervised token in every row, got none in row {int((~asked.any(1)).nonzero()[0])}; leave such rows out")
    begun = asked.cumsum(1) > 0
    ended = (begun & ~asked).cumsum(1) > 0
    return (~begun).sum(1), (begun & ~ended).sum(1)
