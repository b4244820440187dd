"""Other forms of a task: more special tokens, random answers, a scratchpad, a curriculum. They are what arms of a comparison differ in.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) compares hints with a scratchpad and a curriculum. Deviation: the
paper's scratchpad is only known to be about as long as the plain answer; ours writes each element with how many copies of it are still to come.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError, derive, generator
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch, SeqTask, Vocab
from trimtab.tasks.mixture import TaskMixture
from trimtab.tasks.ragged import packed
from trimtab.tasks.sorting import Sorting


class WithSpecials(SeqTask):
    """The same task, bit for bit, in a vocabulary with more special tokens.

    Ids stay as they are, for the new ones come last. Wrap the main task and the hints of its family alike: then generic hints have their marks, and the model
    is the same in all arms.

    Args:
        task: to wrap.
        names: of the tokens to append, such as ``trimtab.tasks.MARKS``.

    Raises:
        UsageError: a name that the vocabulary has already.

    Example:
        >>> from trimtab.tasks import MARKS, PrefixDrop, Successor, TaskMixture
        >>> sort = Sorting(vocab=10)
        >>> main = WithSpecials(sort, MARKS)
        >>> arms = [TaskMixture(main, {hint: 0.5}) for hint in (WithSpecials(Successor(sort), MARKS), PrefixDrop(main))]
        >>> len({arm.vocab for arm in arms})
        1

    When not to use it: in some arms only.
    """

    def __init__(self, task: SeqTask, names: Sequence[str]):
        if taken := [name for name in names if name in task.vocab.names]:
            raise UsageError(f"names must be new to the vocabulary, got {', '.join(taken)}, which {task.name} has already; leave out what it has")
        self.task, self.names = task, tuple(names)
        self.vocab = Vocab(task.vocab.values, (*task.vocab.specials, *names))
        self.name, self.lengths, self.shortest = task.name, task.lengths, task.shortest

    def check_length(self, length: int) -> None:
        self.task.check_length(length)

    def draw_length(self, seed: int, step: int) -> int:
        return self.task.draw_length(seed, step)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        return self.task.sample(size, length, generator)

    def answer(self, prompt: list[int]) -> list[int]:
        return self.task.answer(prompt)

    def score(self, output: Int[Tensor, "rows out"], batch: Batch) -> dict[str, float]:
        return self.task.score(output, batch)


class RandomLabels:
    """A control: the prompts of a task with answers of random values, drawn anew each time and whatever the prompt is.

    Only values are replaced: an answer keeps its length, and <eos> and other special tokens their places, so that much can still be learnt. It is a
    :class:`trimtab.tasks.Task` and no SeqTask, for no ``answer`` follows from a prompt.

    Args:
        task: whose prompts, vocabulary and lengths are used.

    Example:
        >>> from trimtab.tasks import Successor
        >>> task = RandomLabels(Successor(Sorting(vocab=10)))
        >>> task.vocab.show(task.batch(seed=2, step=0, size=1, length=5)["input_ids"][0])
        '2 7 0 6 0 <succ> 0 7 <eos>'

    When not to use it: as a hint with the mark of the main task; the two would then contradict each other.
    """

    def __init__(self, task: SeqTask):
        self.task, self.vocab, self.lengths = task, task.vocab, task.lengths
        self.name = f"random labels of {task.name}"

    def __repr__(self) -> str:
        return f"RandomLabels({self.task!r})"

    def draw_length(self, seed: int, step: int) -> int:
        """The length of a training batch, as the task draws it."""
        return self.task.draw_length(seed, step)

    def check_length(self, length: int) -> None:
        """Raise UsageError for a length the task has no examples of."""
        self.task.check_length(length)

    def batch(self, seed: int, step: int, size: int, length: int | None = None) -> Batch:
        """The task's batch, with other values where labels are."""
        length = self.task.draw_length(seed, step) if length is None else length
        batch = self.task.batch(seed, step, size, length)
        ids, labels = batch["input_ids"], batch["labels"]
        random = torch.randint(self.vocab.values, ids.shape, generator=generator(seed, "random labels", step, length))
        ids = torch.where((labels != IGNORE) & (labels < self.vocab.values), random, ids)
        return {"input_ids": ids, "labels": ids.masked_fill(labels == IGNORE, IGNORE)}

    def score(self, output: Int[Tensor, "rows out"], batch: Batch) -> dict[str, float]:
        """As the task's, against the random answers; at best chance."""
        return self.task.score(output, batch)


class Scratchpad(SeqTask):
    """Sorting with its state written out: each element with how many copies of it are still to come.

    ``x_1 .. x_n <sort> => y_1 r_1 .. y_n r_n <eos>``, r_t the copies of y_t after place t, or the largest value if they are more, so that lists may be
    of any length. Its prompts are sorting's, so it stands in place of sorting and not beside it.

    Args:
        base: whose lists, vocabulary and training lengths are used.

    Example:
        >>> task = Scratchpad(Sorting(vocab=10))
        >>> task.vocab.show(task.batch(seed=0, step=0, size=1, length=5)["input_ids"][0])
        '5 4 5 2 5 <sort> 2 0 4 0 5 2 5 1 5 0 <eos>'

    When not to use it: to compare supervised tokens with plain sorting; there are twice as many.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "sorting-scratchpad"

    def __init__(self, base: Sorting):
        self.base, self.vocab, self.lengths, self.shortest = base, base.vocab, base.lengths, base.shortest

    def check_length(self, length: int) -> None:
        super().check_length(length)
        self.base.check_length(length)

    def sample(self, size: int, length: int, generator: torch.Generator) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        x = self.base.inputs(size, length, generator)
        y = x.sort(dim=1).values
        left = (torch.searchsorted(y, y, right=True) - torch.arange(length) - 1).clamp(max=self.vocab.values - 1)
        mark, end = (x.new_full((size, 1), self.vocab.id(name)) for name in ("<sort>", "<eos>"))
        ids = torch.cat([x, mark, torch.stack([y, left], dim=2).flatten(1), end], dim=1)
        return ids, (torch.arange(ids.shape[1]) > length).repeat(size, 1)

    def answer(self, prompt: list[int]) -> list[int]:
        y = sorted(prompt[: prompt.index(self.vocab.id("<sort>"))])
        pairs = [(value, min(y[t + 1 :].count(value), self.vocab.values - 1)) for t, value in enumerate(y)]
        return [*(token for pair in pairs for token in pair), self.vocab.eos]

    def score(self, output: Int[Tensor, "rows out"], batch: Batch) -> dict[str, float]:
        """Judge the list alone, whatever is said of copies: the same numbers as sorting's for the same lists."""
        prompt = batch["input_ids"].masked_fill(batch["labels"] != IGNORE, self.vocab.pad)
        target = self._plain(self.targets(batch))
        ids = torch.cat([prompt, target], dim=1)
        labels = torch.cat([torch.full_like(prompt, IGNORE), target.masked_fill(target == self.vocab.pad, IGNORE)], dim=1)
        return self.base.score(self._plain(output), {"input_ids": ids, "labels": labels})

    def _plain(self, written: Int[Tensor, "rows out"]) -> Int[Tensor, "rows plain"]:
        """Every other token up to the first <eos>, and that one."""
        ended = (written == self.vocab.eos).cumsum(1)
        closing = (ended == 1) & (written == self.vocab.eos)
        return packed(written, closing | ((ended == 0) & (torch.arange(written.shape[1], device=written.device) % 2 == 0)), self.vocab.pad)


class Curriculum:
    """A source whose training lengths grow: what a task draws, capped by the step.

    A batch whose length is under the cap is the very one that the task gives, so that arms with and without a curriculum share those examples; a longer one is
    drawn anew, uniformly up to the cap. So lengths are uniform up to the cap at every step.

    Args:
        task: or a mixture, whose main task then draws the lengths.
        stages: first step -> longest training length from there on; step 0 among them. All within the task's training lengths: a curriculum does not bring
            longer examples than the other arms have.

    Raises:
        UsageError: no stage for step 0, a step below 0, or a length that is not among the task's training lengths.

    Example:
        >>> task = Curriculum(Sorting(vocab=10, lengths=(1, 8)), {0: 2, 1000: 4, 2000: 8})
        >>> [max(task.draw_length(0, step) for step in range(start, start + 50)) for start in (0, 1000, 2000)]
        [2, 4, 8]

    When not to use it: for evaluation, or where a stage must depend on how well the model does; this is a function of the step.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    def __init__(self, task: SeqTask | TaskMixture, stages: Mapping[int, int]):
        low, high = task.lengths
        if 0 not in stages or not all(isinstance(step, int) and step >= 0 for step in stages):
            raise UsageError(f"stages must map steps >= 0, 0 among them, to lengths, got steps {list(stages)}")
        if wrong := [longest for longest in stages.values() if not isinstance(longest, int) or not low <= longest <= high]:
            raise UsageError(f"stages must have lengths from {low} to {high}, the training lengths of {task.name}, got {wrong[0]}")
        self.task, self.stages = task, dict(sorted(stages.items()))
        self.vocab, self.lengths = task.vocab, task.lengths
        self.name = f"{task.name}, lengths up to {', '.join(map(str, self.stages.values()))}"

    def __repr__(self) -> str:
        return f"Curriculum({self.task!r}, {self.stages!r})"

    def longest(self, step: int) -> int:
        """The cap at a step."""
        return [longest for start, longest in self.stages.items() if start <= step][-1]

    def rows(self, size: int) -> int:
        """Rows of a batch: ``size``, and those of a mixture's hints."""
        return self.task.rows(size) if isinstance(self.task, TaskMixture) else size

    def draw_length(self, seed: int, step: int) -> int:
        """The length of a training batch."""
        main = self.task.main if isinstance(self.task, TaskMixture) else self.task
        drawn, low, cap = main.draw_length(seed, step), self.lengths[0], self.longest(step)
        return drawn if drawn <= cap else low + derive(seed, "curriculum", step) % (cap - low + 1)

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """The task's batch of a length under the cap, as a pure function of the arguments."""
        return self.task.batch(seed, step, size, self.draw_length(seed, step))

    def score(self, output: Tensor, batch: Batch) -> dict[str, float]:
        """As the task's."""
        return self.task.score(output, batch)
