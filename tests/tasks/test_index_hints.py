import pytest
import torch

from tests.tasks.rows import even, rows
from trimtab.core import UsageError
from trimtab.tasks import MARKS, Copy, Count, Fill, Increment, IndexHints, ReversedAddition, Scratchpad, SeqTask, Sorting, Successor, WithSpecials
from trimtab.testing import check_task

COPY = Copy(vocab=10, lengths=(1, 8))
CASES = [IndexHints(COPY, 30), IndexHints(Sorting(10, lengths=(0, 8)), 30), IndexHints(Increment(lengths=(1, 8)), 30)]
CASES += [IndexHints(ReversedAddition(lengths=(1, 8)), 30, backwards=True), IndexHints(Successor(Sorting(10, lengths=(1, 8))), 30)]


class Strict(IndexHints):
    """Judged with its numbers, as the contract has it: there a wrong first token, which is a number here, makes an answer wrong."""

    score = SeqTask.score


@pytest.mark.parametrize("task", CASES, ids=lambda task: task.name)
def test_contract(task):
    check_task(Strict(task.task, task.indices, task.backwards), lengths=(8,), seeds=(0, 1))


def numbered(task, ids):
    """[(number or None, token)] of ids with index hints, and the same ids without."""
    first, pairs, number = task.task.vocab.size, [], None
    for token in ids:
        if token >= first:
            assert number is None
            number = token - first
        else:
            assert (number is None) == (token >= task.vocab.values)  # each value has one, and nothing else
            pairs.append((number, token))
            number = None
    return pairs, [token for _, token in pairs]


@pytest.mark.parametrize("task", CASES, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1, 9, 29])
def test_numbers_are_consecutive_and_the_rest_is_the_task(task, length):
    plain = list(rows(task.task, length, size=50))
    for (prompt, answer), (x, y) in zip(rows(task, length, size=50), plain, strict=True):
        (numbers, bare), (replies, reply) = numbered(task, prompt), numbered(task, answer)
        assert (bare, reply) == (x, y)
        start, last = numbers[0][0], None
        for number, _ in numbers:
            assert number is None or number == (start if last is None else last + 1)
            last = number
        longest = max(number for number, _ in numbers if number is not None)
        expected = [(longest - k if task.backwards else start + k) for k in range(len(reply))]
        assert [number for number, _ in replies] == [None if token == task.vocab.eos else n for token, n in zip(reply, expected, strict=True)]
        assert all(0 <= number < 30 for number, _ in numbers + replies if number is not None)


@pytest.mark.parametrize("backwards", [False, True])
def test_starts_are_uniform_over_all_that_leave_room(backwards):
    task = IndexHints(COPY, 12, backwards)
    start = task.batch(0, 0, 20_000, 4)["input_ids"][:, 0] - COPY.vocab.size
    even(start - int(backwards), 8)  # 0 .. 7, with 11 kept for a longer answer, or 1 .. 8, with 0 kept


def test_it_is_judged_without_numbers():
    task, draw = CASES[0], torch.Generator().manual_seed(0)
    batch, plain = task.batch(0, 0, 200, 5), COPY.batch(0, 0, 200, 5)
    output = torch.where(torch.rand(200, 6, generator=draw) < 0.1, torch.randint(13, (200, 6), generator=draw), COPY.targets(plain))
    numbers = COPY.vocab.size + torch.randint(30, (200, 6), generator=draw)
    score = task.score(torch.stack([numbers, output], dim=2).flatten(1), batch)
    assert score == COPY.score(output, plain) and 0.3 < score["exact"] < 0.8
    nothing = torch.full((200, 3), COPY.vocab.size)  # numbers alone
    assert task.score(nothing, batch)["exact"] == 0


def test_other_forms_stack():
    inner = IndexHints(Scratchpad(Sorting(10, lengths=(1, 8))), 30)
    with pytest.raises(UsageError, match="leave index hints to other tasks"):
        inner.batch(0, 0, 9, 5)  # answers twice as long as prompts
    task = WithSpecials(CASES[1], MARKS)
    batch = task.batch(0, 0, 9, 5)
    assert task.score(task.targets(batch), batch)["exact"] == 1
    assert "<29>" in task.vocab.names and len(repr(CASES[0])) < 200


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IndexHints(COPY, 8), "indices must be a whole number > 8, the longest training length of copy, got 8"),
        (lambda: IndexHints(COPY, 8.5), "got 8.5"),
        (lambda: IndexHints(COPY, 12).batch(0, 0, 1, 12), "length must be < indices = 12, got 12; raise indices"),
        (lambda: IndexHints(COPY, 12).batch(0, 0, 1, -1), "length of indexed copy must be a whole number >= 0, got -1"),
        (lambda: IndexHints(Fill(Sorting(10, lengths=(1, 8))), 9).batch(0, 0, 99, 0), "got 0"),
        (lambda: IndexHints(Count(Sorting(2, lengths=(1, 8))), 9).batch(0, 0, 1, 9), "got 9"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
