import hashlib
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core import UsageError
from trimtab.tasks import Count, Sorting, Successor
from trimtab.testing import check_task

LENGTHS = (1, 2, 7, 20)


def family(vocab=12, unique=False, lengths=(1, 8)):
    base = Sorting(vocab, unique, lengths)
    return [base, Successor(base), Successor(base, queries=3), Count(base), Count(base, answer="number")]


def rows(task, length, size=200, seed=0):
    """(items, ids after the delimiter, supervised positions after it) of each row, pads dropped; all before is checked here."""
    batch = task.batch(seed, 0, size, length)
    mark = task.vocab.id({"sorting": "<sort>", "successor": "<succ>", "count": "<count>"}[task.name.split("-")[0]])
    assert batch["input_ids"].shape[0] == size
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        assert ids[length] == mark
        assert all(0 <= v < task.vocab.values for v in ids[:length])
        assert labels[: length + 1] == [-100] * (length + 1)
        assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))
        assert all(label == -100 for i, label in zip(ids, labels, strict=True) if i == task.vocab.pad)
        end = ids.index(task.vocab.pad) if task.vocab.pad in ids else len(ids)
        assert set(ids[end:]) <= {task.vocab.pad}
        yield ids[:length], ids[length + 1 : end], [label != -100 for label in labels[length + 1 : end]]


@pytest.mark.parametrize("task", [*family(), *family(unique=True)], ids=lambda t: f"{t.name}{getattr(t, 'base', t).unique}")
def test_contract(task):
    check_task(task, lengths=(8, 5, 1))


@pytest.mark.parametrize("length", [0, *LENGTHS])
@pytest.mark.parametrize("unique", [False, True])
def test_sorting(length, unique):
    task = Sorting(20, unique)
    for x, after, asked in rows(task, length):
        assert after == [*sorted(x), task.vocab.eos]
        assert asked == [True] * (length + 1)
        assert not unique or len(set(x)) == length


@pytest.mark.parametrize("length", LENGTHS)
def test_successor(length):
    task, ends = Successor(Sorting(30)), 0
    for x, after, asked in rows(task, length):
        a = after[0]
        assert a in x
        if a == max(x):
            ends += 1
            assert (after, asked) == ([a, task.vocab.eos], [False, True])
        else:
            assert (after, asked) == ([a, min(y for y in x if y > a), task.vocab.eos], [False, True, True])
    assert 0 < ends <= 200
    assert (ends == 200) == (length == 1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("queries", [2, 5])
def test_packed_successor(length, queries):
    task = Successor(Sorting(30), queries)
    for x, after, asked in rows(task, length):
        assert len(after) == 2 * queries
        assert asked == [False, True] * queries
        for a, b in zip(after[::2], after[1::2], strict=True):
            assert a in x
            assert b == min((y for y in x if y > a), default=task.vocab.eos)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("vocab", [1, 4, 30])
def test_count(length, vocab):
    task = Count(Sorting(vocab))
    for x, (a, *answer), asked in rows(task, length):
        c = Counter(x)[a]
        assert c >= 1
        assert answer == [a] * c + [task.vocab.eos]
        assert asked == [False] + [True] * (c + 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_count_as_a_number(length):
    task = Count(Sorting(21), answer="number")
    for x, (a, *answer), asked in rows(task, length):
        assert answer == [Counter(x)[a], task.vocab.eos]
        assert asked == [False, True, True]


@pytest.mark.parametrize("vocab", [1, 2])
def test_lists_of_equal_values(vocab):
    """With one value all lists are equal; with two, some are."""
    base = Sorting(vocab)
    equal = [x for x, *_ in rows(base, 3) if len(set(x)) == 1]
    assert equal
    for task in (base, Successor(base), Count(base)):
        for x, after, asked in rows(task, 3):
            if len(set(x)) == 1:
                answer = [i for i, supervised in zip(after, asked, strict=True) if supervised]
                assert answer == ([] if task.name == "successor" else x) + [task.vocab.eos]


def test_values_and_queries_are_uniform():
    """Chi-square bounds at 1e-6, so that a shifted range or a query of the first item alone is seen."""
    task = Successor(Sorting(10))
    ids = task.batch(0, 0, 20_000, 5)["input_ids"]
    seen = torch.stack([torch.bincount(ids[:, k], minlength=10) for k in range(5)]).double()
    assert (((seen - 2000) ** 2 / 2000).sum(1) < 49).all()  # 9 degrees of freedom
    unique = Successor(Sorting(10, unique=True, lengths=(1, 10))).batch(0, 0, 20_000, 5)["input_ids"]
    place = (unique[:, :5] == unique[:, 6:7]).long().argmax(1)
    counts = torch.bincount(place, minlength=5).double()
    assert ((counts - 4000) ** 2 / 4000).sum() < 35  # 4 degrees of freedom
    order = torch.bincount(unique[:, 0] * 10 + unique[:, 1], minlength=100).double().reshape(10, 10)
    assert (order.diagonal() == 0).all()
    assert ((order[~torch.eye(10, dtype=torch.bool)] - 20_000 / 90) ** 2 / (20_000 / 90)).sum() < 165  # 89 degrees of freedom


@given(st.integers(0, 4), st.integers(0, 2**62), st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12))
def test_any_call_is_valid_and_repeatable(which, seed, step, size, length):
    task, again = family(vocab=13)[which], family(vocab=13)[which]
    first, second = task.batch(seed, step, size, length), again.batch(seed, step, size, length)
    assert first.keys() == {"input_ids", "labels"}
    for name in first:
        assert first[name].dtype == torch.int64
        assert torch.equal(first[name], second[name])


def test_no_global_random_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = [task.batch(3, 4, 16, 5) for task in family()]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    for task, batch in zip(family(), batches, strict=True):
        assert torch.equal(task.batch(3, 4, 16, 5)["input_ids"], batch["input_ids"])


GOLDEN = {
    "sorting": "5c7795eddede76d8",
    "successor": "dc78b0e6b06c6983",
    "successor-packed": "1f85b56267135983",
    "count-unary": "4fccfe774227c463",
    "count-number": "8a5ebf940f015f5e",
}


@pytest.mark.parametrize("task", family(), ids=lambda t: t.name)
def test_bytes_do_not_change_between_versions_of_this_package(task):
    """A change here makes every record of a claim on these tasks stale; then it needs a reason in the changelog."""
    batch = task.batch(seed=0, step=1, size=32, length=6)
    digest = hashlib.sha256(b"".join(batch[name].numpy().astype("<i8").tobytes() for name in ("input_ids", "labels"))).hexdigest()
    assert digest[:16] == GOLDEN[task.name]


def test_one_vocabulary_for_the_family():
    assert len({task.vocab for task in family()}) == 1
    assert family()[0].vocab.size == 12 + 8
    assert {task.lengths for task in family(lengths=(2, 9))} == {(2, 9)}


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sorting(0), "values must be a whole number >= 1, got 0"),
        (lambda: Sorting(5, unique=True), "length must be <= vocab = 5 where unique=True, got 20"),
        (lambda: Sorting(5, unique=True, lengths=(1, 5)).batch(0, 0, 1, 6), "got 6"),
        (lambda: Successor(Sorting(5, unique=True, lengths=(1, 5))).batch(0, 0, 1, 6), "got 6"),
        (lambda: Sorting(lengths=(3, 2)), "0 <= shortest <= longest; got \\(3, 2\\)"),
        (lambda: Sorting(lengths=(-1, 2)), "got \\(-1, 2\\)"),
        (lambda: Sorting(lengths=(1, 2, 3)), "got \\(1, 2, 3\\)"),
        (lambda: Sorting(lengths=(1, 2.5)), "got \\(1, 2.5\\)"),
        (lambda: Sorting().batch(0, 0, 0), "size must be a whole number >= 1, got 0"),
        (lambda: Sorting().batch(0, 0, 1, -1), "length of sorting must be a whole number >= 0, got -1"),
        (lambda: Successor(Sorting()).batch(0, 0, 1, 0), "length of successor must be a whole number >= 1, got 0"),
        (lambda: Successor(Sorting(lengths=(0, 3))), "1 <= shortest"),
        (lambda: Successor(Sorting(), queries=0), "queries must be a whole number >= 1, got 0"),
        (lambda: Count(Sorting(), answer="unari"), "did you mean 'unary'"),
        (lambda: Count(Sorting(20), answer="number"), "length must be < vocab = 20"),
        (lambda: Count(Sorting(21), answer="number").batch(0, 0, 1, 21), "got 21"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
