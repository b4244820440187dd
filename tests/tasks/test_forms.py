from collections import Counter

import pytest
import torch

from tests.tasks.rows import even, rows
from trimtab.core import UsageError
from trimtab.tasks import MARKS, Count, Curriculum, Fill, RandomLabels, Scratchpad, Sorting, Successor, Task, TaskMixture, WithSpecials
from trimtab.testing import check_task

SORT = Sorting(vocab=12, lengths=(1, 8))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("base", [SORT, Successor(SORT), Successor(SORT, 3), Scratchpad(SORT)], ids=lambda base: base.name)
def test_more_specials_change_nothing_else(base):
    task = WithSpecials(base, ("<x>", "<y>"))
    assert task.vocab.names == (*base.vocab.names, "<x>", "<y>") and task.vocab.values == base.vocab.values
    for step in range(5):
        assert same(task.batch(1, step, 9), base.batch(1, step, 9))
    batch = task.batch(0, 0, 9, 5)
    output = base.targets(batch)
    output[:, 1:2] = (output[:, 1:2] + 1) % 12  # which a scratchpad may say, and sorting may not
    assert task.score(output, batch) == base.score(output, batch)
    assert (task.score(output, batch)["exact"] == 1) == isinstance(base, Scratchpad) or base.name == "successor-packed"
    assert (task.name, task.lengths) == (base.name, base.lengths)
    check_task(task, lengths=(8,), seeds=(0, 1))


def test_specials_that_are_there_already():
    with pytest.raises(UsageError, match="names must be new to the vocabulary, got <succ>, which sorting has already"):
        WithSpecials(SORT, ("<x>", "<succ>"))
    with pytest.raises(UsageError, match="length must be <= vocab = 5"):
        WithSpecials(Sorting(5, unique=True, lengths=(1, 5)), MARKS).batch(0, 0, 1, 6)


@pytest.mark.parametrize("base", [SORT, Successor(SORT), Successor(SORT, 3), Count(SORT)], ids=lambda base: base.name)
def test_random_labels(base):
    task, eos = RandomLabels(base), base.vocab.eos
    check_task(task, seeds=(0, 1))
    assert isinstance(task, Task)
    for step in range(5):
        true, noise = base.batch(1, step, 50), task.batch(1, step, 50)
        kept = (true["labels"] == -100) | (true["labels"] == eos)
        for name in ("input_ids", "labels"):
            assert torch.equal(noise[name][kept], true[name][kept])
            assert ((noise[name][~kept] >= 0) & (noise[name][~kept] < 12)).all()
        assert torch.equal(noise["input_ids"][~kept], noise["labels"][~kept])
    assert not torch.equal(task.batch(1, 0, 50, 5)["labels"], task.batch(1, 1, 50, 5)["labels"])


def test_random_labels_tell_nothing_of_the_prompt():
    base = Sorting(vocab=4)
    true, noise = (task.batch(0, 0, 20_000, 3)["labels"] for task in (base, RandomLabels(base)))
    for k in (4, 5, 6):
        for value in range(4):
            even(noise[true[:, k] == value, k], 4)
    even(noise[:, 4] * 4 + noise[:, 5], 16)


def test_random_labels_as_a_hint():
    task = TaskMixture(SORT, {RandomLabels(Successor(SORT)): 0.5})
    assert torch.equal(task.batch(0, 0, 8, 5)["input_ids"][:8, :12], SORT.batch(0, 0, 8, 5)["input_ids"])
    check_task(task)


@pytest.mark.parametrize("length", [0, 1, 20])
@pytest.mark.parametrize("vocab", [2, 20])
def test_scratchpad(length, vocab):
    task = Scratchpad(Sorting(vocab, lengths=(0, 20)))
    for prompt, answer in rows(task, length):
        x, counts = prompt[:-1], Counter(prompt[:-1])
        written = []
        for value in sorted(x):
            counts[value] -= 1
            written += [value, min(counts[value], vocab - 1)]
        assert prompt[-1] == task.vocab.id("<sort>") and answer == [*written, task.vocab.eos]


def test_scratchpad_contract():
    check_task(Scratchpad(SORT), lengths=(8, 1), seeds=(0, 1))
    check_task(Scratchpad(Sorting(vocab=3, lengths=(0, 8))))


def test_a_scratchpad_is_judged_as_sorting_is():
    task, draw = Scratchpad(SORT), torch.Generator().manual_seed(0)
    plain, padded = SORT.batch(0, 0, 200, 5), task.batch(0, 0, 200, 5)
    assert torch.equal(plain["input_ids"][:, :5], padded["input_ids"][:, :5])
    output = torch.where(torch.rand(200, 6, generator=draw) < 0.1, torch.randint(14, (200, 6), generator=draw), SORT.targets(plain))
    output = torch.cat([output, torch.randint(14, (200, 2), generator=draw)], dim=1)
    said = torch.randint(12, (200, 8), generator=draw)  # whatever it says of copies
    both = torch.stack([output, said], dim=2).flatten(1)
    assert task.score(both, padded) == SORT.score(output, plain)
    assert 0.3 < task.score(both, padded)["exact"] < 0.8 and task.score(both, padded)["late"] > 0


def test_a_scratchpad_that_ends_between_the_two():
    task = Scratchpad(SORT)
    batch, eos = task.batch(0, 0, 1, 2), task.vocab.eos
    y = sorted(batch["input_ids"][0, :2].tolist())
    for output, exact, early in (([y[0], 0, y[1], eos], 1.0, 0.0), ([y[0], eos, y[1], 0, eos], 0.0, 1.0), ([eos, 0, y[0]], 0.0, 1.0)):
        score = task.score(torch.tensor([output]), batch)
        assert (score["exact"], score["early"]) == (exact, early)


STAGES = {0: 2, 10_000: 5, 20_000: 8}


def test_curriculum_contract():
    check_task(Curriculum(SORT, STAGES))


@pytest.mark.parametrize(("start", "cap"), STAGES.items())
def test_lengths_are_uniform_under_the_cap(start, cap):
    task, kept = Curriculum(SORT, STAGES), 0
    assert task.longest(start) == task.longest(start + 9_999) == cap
    drawn = [task.draw_length(3, step) for step in range(start, start + 2000)]
    even(torch.tensor(drawn) - 1, cap)
    for step in range(start, start + 30):
        batch, plain = task.batch(3, step, 4), SORT.batch(3, step, 4)
        assert same(batch, SORT.batch(3, step, 4, task.draw_length(3, step)))
        assert same(batch, plain) == (SORT.draw_length(3, step) <= cap)
        kept += same(batch, plain)
    assert kept == 30 if cap == 8 else 0 < kept < 30


def test_a_curriculum_of_a_mixture():
    mixture = TaskMixture(SORT, {Successor(SORT): 0.5})
    task, main = Curriculum(mixture, STAGES), Curriculum(SORT, STAGES)
    for step in (*range(5), *range(9_998, 10_003)):
        batch, alone = task.batch(3, step, 4), main.batch(3, step, 4)
        assert torch.equal(batch["labels"][:4, : alone["labels"].shape[1]], alone["labels"])
        assert len(batch["labels"]) == task.rows(4) == 6 and main.rows(4) == 4
    assert task.score(SORT.targets(alone), alone)["exact"] == 1


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({}, r"0 among them, to lengths, got steps \[\]"),
        ({5: 3}, r"got steps \[5\]"),
        ({0: 3, -1: 4}, r"got steps \[0, -1\]"),
        ({0: 0}, "stages must have lengths from 1 to 8, the training lengths of sorting, got 0"),
        ({0: 3, 9: 9}, "got 9"),
    ],
)
def test_stages_that_are_none(stages, message):
    with pytest.raises(UsageError, match=message):
        Curriculum(SORT, stages)


def test_the_repr_tells_forms_apart():
    tasks = [SORT, WithSpecials(SORT, ("<x>",)), WithSpecials(SORT, ("<y>",)), RandomLabels(SORT), RandomLabels(Fill(SORT)), Scratchpad(SORT)]
    tasks += [Curriculum(SORT, {0: 2}), Curriculum(SORT, {0: 3})]
    assert len({repr(task) for task in tasks}) == len(tasks)
