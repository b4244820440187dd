import pytest

from tests.tasks.rows import rows
from trimtab.core import UsageError
from trimtab.tasks import Copy, Reverse
from trimtab.testing import check_task

ORDERS = {Copy: lambda x: x, Reverse: lambda x: x[::-1]}


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("kind", ORDERS)
def test_contract(kind, unique):
    check_task(kind(12, unique, (0, 8)), lengths=(8, 1))


@pytest.mark.parametrize("length", [0, 1, 20])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("kind", ORDERS)
def test_what_is_written(kind, unique, length):
    task, repeats = kind(20, unique), 0
    for prompt, answer in rows(task, length):
        x, mark = prompt[:-1], prompt[-1]
        assert mark == task.vocab.id(f"<{task.name}>") and len(x) == length and all(0 <= v < 20 for v in x)
        assert answer == [*ORDERS[kind](x), task.vocab.eos]
        repeats += len(set(x)) < length
    assert bool(repeats) == (not unique and length > 1)


def test_one_vocabulary_and_the_same_lists_for_both():
    assert Copy(12).vocab == Reverse(12).vocab
    a, b = (task.batch(3, 4, 9, 5)["input_ids"] for task in (Copy(12), Reverse(12)))
    assert a[:, :5].equal(b[:, :5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Copy(0), "values must be a whole number >= 1, got 0"),
        (lambda: Copy(5, unique=True), "length must be <= vocab = 5 where unique=True, got 20"),
        (lambda: Reverse(5, unique=True, lengths=(1, 5)).batch(0, 0, 1, 6), "got 6"),
        (lambda: Copy(lengths=(3, 2)), "got \\(3, 2\\)"),
        (lambda: Copy().batch(0, 0, 1, -1), "length of copy must be a whole number >= 0, got -1"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_the_repr_tells_tasks_apart():
    assert len({repr(task) for task in (Copy(), Reverse(), Copy(unique=True), Copy(lengths=(1, 9)), Copy(vocab=9))}) == 5
