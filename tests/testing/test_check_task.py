"""Each task here breaks one rule; the check must name that rule and no other."""

import itertools
import pickle
import random

import numpy as np
import pytest
import torch

from trimtab.core import UsageError
from trimtab.tasks import SeqTask, Sorting, Successor, Vocab
from trimtab.testing import CheckFailed, check_task


class Reverse(SeqTask):
    """A sound task to plant bugs in. Short lists are padded to the longest, so that there are pads."""

    name, vocab, lengths = "reverse", Vocab(9, ("<go>",)), (1, 6)

    def sample(self, size, length, generator):
        x = torch.randint(self.vocab.values, (size, length), generator=generator)
        mark, end, pad = (torch.full((size, 1), self.vocab.id(name)) for name in ("<go>", "<eos>", "<pad>"))
        ids = torch.cat([x, mark, x.flip(1), end, pad], dim=1)
        place = torch.arange(ids.shape[1]).expand_as(ids)
        return ids, (place > length) & (place < 2 * length + 2)

    def answer(self, prompt):
        return [*reversed(prompt[: prompt.index(self.vocab.id("<go>"))]), self.vocab.eos]


def planted(rule):
    """A task with a bug and the rule that must find it."""

    def mark(task):
        BUGS[task.__name__] = (task, rule)
        return task

    return mark


BUGS = {}


@planted("shape and type")
class FloatLabels(Reverse):
    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        return batch | {"labels": batch["labels"].float()}


@planted("shape and type")
class ShiftedLabels(Reverse):
    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        return batch | {"labels": batch["labels"][:, 1:].clone()}


@planted("a batch is a dict of tensors")
class Pair(Reverse):
    def batch(self, *args, **kwargs):
        return tuple(super().batch(*args, **kwargs).values())


@planted("batches can be made")
class Crashing(Reverse):
    def sample(self, size, length, generator):
        return super().sample(size, length, generator)[0].reshape(7, 11, 13)


@planted("size")
class OneRowTooMany(Reverse):
    def batch(self, seed, step, size, length=None):
        return super().batch(seed, step, size + 1, length)


@planted("ids are in the vocabulary")
class IdTooLarge(Reverse):
    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        batch["input_ids"][0, 0] = self.vocab.size
        return batch


@planted("ids are in the vocabulary")
class NegativeId(Reverse):
    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        batch["input_ids"][0, 0] = -1
        return batch


@planted("labels are ids")
class LabelsAlreadyShifted(Reverse):
    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        return batch | {"labels": batch["labels"].roll(-1, 1)}


@planted("every row is supervised")
class RowWithoutLabels(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        answer[-1] = False
        return ids, answer


@planted("the first token is not supervised")
class AllSupervised(Reverse):
    def sample(self, size, length, generator):
        ids, _ = super().sample(size, length, generator)
        return ids, ids != self.vocab.pad


@planted("pads are not supervised")
class PadSupervised(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        return ids, answer | (ids == self.vocab.pad)


@planted("padding is on the right")
class PadOnTheLeft(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        return ids.roll(1, 1), answer.roll(1, 1)


@planted("the prompt is not supervised")
class MarkSupervised(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        return ids, answer | (ids == self.vocab.id("<go>"))


@planted("the whole answer is supervised")
class FirstOfAnswerNotSupervised(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        answer[:, length + 1] = False
        return ids, answer


@planted("the whole answer is supervised")
class EosNotSupervised(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        return ids, answer & (ids != self.vocab.eos)


@planted("supervised ids are the answer")
class NotReversed(Reverse):
    def sample(self, size, length, generator):
        ids, answer = super().sample(size, length, generator)
        ids[:, length + 1 : -2] = ids[:, :length]
        return ids, answer


@planted("supervised ids are the answer")
class SuccessorOrEqual(Successor):
    """Off by one comparison: the least element that is not smaller."""

    def __init__(self):
        super().__init__(Sorting(5, lengths=(1, 6)))

    def answer(self, prompt):
        x, a = prompt[: prompt.index(self.vocab.id("<succ>"))], prompt[-1]
        return [min(y for y in x if y >= a), self.vocab.eos]


@planted("supervised ids are the answer")
class OracleCrashes(Reverse):
    def answer(self, prompt):
        return [self.vocab.values / 0]


@planted("the same arguments give the same batch")
class CountsCalls(Reverse):
    calls = itertools.count()

    def sample(self, size, length, generator):
        return super().sample(size, length, generator.manual_seed(next(self.calls)))


@planted("the same arguments give the same batch")
class EntropyOfTheSystem(Reverse):
    def sample(self, size, length, generator):
        generator.seed()
        return super().sample(size, length, generator)


@planted("no global random state")
class DrawsFromTorch(Reverse):
    def sample(self, size, length, generator):
        return super().sample(size, length, None)


@planted("no global random state")
class SeedsTorch(Reverse):
    def sample(self, size, length, generator):
        torch.manual_seed(generator.initial_seed())
        return super().sample(size, length, None)


@planted("no global random state")
class DrawsFromNumPy(Reverse):
    def sample(self, size, length, generator):
        return super().sample(size, length, generator.manual_seed(np.random.randint(1000)))


@planted("no global random state")
class DrawsFromRandom(Reverse):
    def sample(self, size, length, generator):
        return super().sample(size, length, generator.manual_seed(random.randrange(2**60)))


@planted("no global random state")
class SeedsRandom(Reverse):
    def sample(self, size, length, generator):
        random.seed(generator.initial_seed())
        return super().sample(size, length, generator.manual_seed(random.randrange(2**60)))


@planted("no global random state")
class ReadsTheSeedOfTorch(Reverse):
    """Draws from no global stream, and depends on it all the same."""

    def sample(self, size, length, generator):
        return super().sample(size, length, generator.manual_seed(torch.initial_seed() + generator.initial_seed() % 1000))


@planted("other seeds give other examples")
class IgnoresSeed(Reverse):
    def batch(self, seed, step, size, length=None):
        return super().batch(0, step, size, length or self.draw_length(seed, step))


@planted("other steps give other examples")
class IgnoresStep(Reverse):
    def batch(self, seed, step, size, length=None):
        return super().batch(seed, 0, size, length or self.draw_length(seed, step))


@planted("a batch belongs to its caller")
class OneBuffer(Reverse):
    """Saves an allocation by writing every batch into the same memory."""

    def __init__(self):
        self.buffers = {}

    def batch(self, *args, **kwargs):
        batch = super().batch(*args, **kwargs)
        return {name: self.buffers.setdefault((name, values.shape), values.clone()).copy_(values) for name, values in batch.items()}


@planted("a batch belongs to its caller")
class Remembers(Reverse):
    """Hands out the batch it made before for the same arguments, with what the caller has done to it since."""

    def __init__(self):
        self.made = {}

    def batch(self, *args, **kwargs):
        key = (args, *kwargs.items())
        if key not in self.made:
            self.made[key] = super().batch(*args, **kwargs)
        return self.made[key]


@planted("a batch belongs to its caller")
class InferenceTensors(Reverse):
    """Such tensors can be neither written to nor used in training."""

    def batch(self, *args, **kwargs):
        with torch.inference_mode():
            return super().batch(*args, **kwargs)


@planted("training lengths")
class LengthsBackwards(Reverse):
    lengths = (6, 1)


@planted("training lengths")
class OneLengthOnly(Reverse):
    lengths = 6


@planted("training lengths")
class LengthsInWords(Reverse):
    lengths = ("1", "6")


@planted("it has what a task has")
class NoVocabulary(Reverse):
    vocab = 10


def without(name, base=SeqTask):
    """A sound task that has lost an attribute."""
    kept = {key: value for key, value in vars(Reverse).items() if key != name and not key.startswith("_")}
    return type(f"Without_{name}", (base,), kept)


for name in ("name", "vocab", "lengths"):
    planted("it has what a task has")(without(name))
for name in ("name", "batch", "score"):
    planted("it has what a task has")(type(f"NoTaskWithout_{name}", (), {key: getattr(Reverse, key) for key in {"name", "batch", "score"} - {name}}))


@planted("training lengths")
class DrawsOneTooLong(Reverse):
    def draw_length(self, seed, step):
        return super().draw_length(seed, step) + 1


@planted("training lengths")
class AlwaysTheLongest(Reverse):
    def draw_length(self, seed, step):
        return self.lengths[1]


@planted("training lengths")
class AnotherDrawByDefault(Reverse):
    def batch(self, seed, step, size, length=None):
        return super().batch(seed, step, size, length or self.draw_length(seed + 1, step))


@planted("score")
class Generous(Reverse):
    def score(self, output, batch):
        return {"exact": 1.0, "edit": 1.0}


@planted("score")
class Stingy(Reverse):
    def score(self, output, batch):
        return {"exact": 0.0, "edit": 0.0}


@planted("score")
class CountsRightOnes(Reverse):
    def score(self, output, batch):
        return {"exact": (output == self.targets(batch)).all(1).sum()}


@planted("score")
class ScoreEmptiesTheBatch(Reverse):
    def score(self, output, batch):
        values = super().score(output, batch)
        batch["labels"].fill_(-100)
        batch["labels"][:, 1] = batch["input_ids"][:, 1]
        return values


def test_the_sound_task_passes():
    check_task(Reverse())
    check_task(Reverse(), lengths=(12, 1), seeds=(5, 2**40))


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_found_by_its_rule(name):
    task, rule = BUGS[name]
    with pytest.raises(CheckFailed) as failed:
        check_task(task())
    assert failed.value.rule == rule, str(failed.value)
    assert str(failed.value).startswith(f"{rule}: expected ")
    assert ", saw " in str(failed.value)


@pytest.mark.parametrize("task", [Reverse, DrawsFromTorch, SeedsRandom, DrawsFromNumPy])
def test_the_callers_random_state_stays_as_it_was(task):
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    try:
        check_task(task())
    except CheckFailed:
        assert task is not Reverse
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_a_failure_shows_the_row_in_words():
    with pytest.raises(CheckFailed, match=r"expected label -100 on <go>, which stands before the answer, saw [0-8 ]+ => <go> [0-8 ]+ <eos> in row 0 of seed 0"):
        check_task(MarkSupervised())


def test_a_refusal_in_words_stays_one():
    with pytest.raises(UsageError, match="length must be <= vocab = 9"):
        check_task(Sorting(9, unique=True, lengths=(1, 5)), lengths=(10,))

    class IdTooLarge(Reverse):
        def sample(self, size, length, generator):
            ids, answer = super().sample(size, length, generator)
            return ids + 1, answer

    with pytest.raises(UsageError, match=r"reverse\.sample must return ids in 0 \.\. 11, got 12 at position"):
        check_task(IdTooLarge())


def test_calls_that_make_no_sense():
    with pytest.raises(UsageError, match="seeds must be at least two different ones"):
        check_task(Reverse(), seeds=(1, 1))

    class Plain:
        name, vocab_size = "plain", 4
        batch, score = Reverse().batch, None

    with pytest.raises(UsageError, match="lengths must be left out for plain"):
        check_task(Plain(), lengths=(1,))


def test_a_task_without_vocabulary_is_checked_by_what_it_has():
    class Plain:
        name = "plain"

        def __init__(self, size=None):
            if size:
                self.vocab_size = size

        def batch(self, seed, step, size):
            return Reverse().batch(seed, step, size, 3)

        def score(self, output, batch):
            return {}

    check_task(Plain())
    check_task(Plain(12))
    with pytest.raises(CheckFailed, match=r"ids in 0 \.\. 10"):
        check_task(Plain(11))


def test_the_error_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(CheckFailed("rule", 1, 2)))
    assert (error.rule, str(error)) == ("rule", "rule: expected 1, saw 2")
    assert isinstance(error, AssertionError)
