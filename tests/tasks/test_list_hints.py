from collections import Counter

import pytest
import torch

from tests.tasks.rows import even, rows
from trimtab.core import UsageError
from trimtab.tasks import Fill, Parity, Predecessor, Sorting
from trimtab.testing import check_task

LENGTHS = (1, 2, 20)


def parts(task, length, mark):
    """(items, what stands behind the mark, answer) of each row."""
    for prompt, answer in rows(task, length):
        at = prompt.index(task.vocab.id(mark))
        yield prompt[:at], prompt[at + 1 :], answer


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("kind", [Predecessor, Parity, Fill])
def test_contract(kind, unique):
    check_task(kind(Sorting(12, unique, (1, 8))), lengths=(8, 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_predecessor(length):
    task, ends = Predecessor(Sorting(30)), 0
    for x, (a,), answer in parts(task, length, "<pred>"):
        assert len(x) == length and a in x
        smaller = [y for y in x if y < a]
        assert answer == ([max(smaller)] if smaller else []) + [task.vocab.eos]
        ends += not smaller
    assert 0 < ends <= 200
    assert (ends == 200) == (length == 1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("vocab", [2, 20])
def test_parity(length, vocab):
    task, seen = Parity(Sorting(vocab)), set()
    for x, (a,), answer in parts(task, length, "<parity>"):
        assert len(x) == length and a in x
        assert answer == [Counter(x)[a] % 2, task.vocab.eos]
        seen.add(answer[0])
    assert seen == ({0, 1} if length > 1 else {1})


@pytest.mark.parametrize("length", LENGTHS)
def test_fill(length):
    task, seen = Fill(Sorting(vocab=3)), set()
    for x, there, answer in parts(task, length, "<fill>"):
        (a,) = set(x)
        k, r = len(x), len(there)
        assert 0 <= r < k <= length and set(there) <= {a}
        assert answer == [a] * (k - r) + [task.vocab.eos]
        seen.add((k, r))
    assert (1, 0) in seen  # r = 0 is legal
    assert max(k for k, _ in seen) > length / 2


def test_copies_asked_for_and_there_are_uniform():
    task = Fill(Sorting(vocab=5))
    ids, labels = task.batch(0, 0, 20_000, 6).values()
    k = (ids == task.vocab.id("<fill>")).long().argmax(1)
    r = (labels != -100).long().argmax(1) - k - 1
    even(k - 1, 6)
    for n in range(2, 7):
        even(r[k == n], n)
    even(ids[:, 0], 5)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parity(Sorting(vocab=1)), "vocab must be >= 2 for parity, whose answers are the values 0 and 1, got 1"),
        (lambda: Fill(Sorting(lengths=(0, 3))), "1 <= shortest"),
        (lambda: Fill(Sorting()).batch(0, 0, 1, 0), "length of fill must be a whole number >= 1, got 0"),
        (lambda: Predecessor(Sorting(5, unique=True, lengths=(1, 5))).batch(0, 0, 1, 6), "got 6"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_one_vocabulary_for_the_family():
    base = Sorting(vocab=12, lengths=(2, 9))
    assert all(kind(base).vocab == base.vocab and kind(base).lengths == (2, 9) for kind in (Predecessor, Parity, Fill))


def test_of_several_elements_below_the_largest_is_the_predecessor():
    task = Predecessor(Sorting(vocab=10))
    assert task.answer([1, 5, 3, task.vocab.id("<pred>"), 5]) == [3, task.vocab.eos]
    assert task.answer([5, 5, task.vocab.id("<pred>"), 5]) == [task.vocab.eos]
    assert torch.equal(task.batch(0, 3, 5, 4)["input_ids"], Predecessor(Sorting(vocab=10)).batch(0, 3, 5, 4)["input_ids"])
