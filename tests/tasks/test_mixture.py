import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core import UsageError, derive
from trimtab.tasks import Count, Sorting, Successor, TaskMixture, cost
from trimtab.testing import check_task

MAIN = Sorting(vocab=6, lengths=(1, 8))
HINTS = [{}, {MAIN: 0.5}, {Successor(MAIN): 0.5}, {Successor(MAIN, 9): 0.3}, {Count(MAIN): 1.5}, {Count(MAIN): 0.2, Successor(MAIN): 0.3, MAIN: 0.1}]


@pytest.mark.parametrize("hints", HINTS, ids=lambda hints: TaskMixture(MAIN, hints).name)
def test_main_rows_are_the_same_bits_whatever_the_hints(hints):
    mixture = TaskMixture(MAIN, hints)
    wider = 0
    for step in range(40):
        main, batch = MAIN.batch(1, step, 20), mixture.batch(1, step, 20)
        tokens = main["input_ids"].shape[1]
        for name, fill in (("input_ids", MAIN.vocab.pad), ("labels", -100)):
            assert torch.equal(batch[name][:20, :tokens], main[name])
            assert (batch[name][:20, tokens:] == fill).all()
        wider += batch["input_ids"].shape[1] > tokens
        assert len(batch["labels"]) == mixture.rows(20) == 20 + sum(round(20 * share) for share in hints.values())
    assert bool(wider) == any(not isinstance(hint, Sorting) for hint in hints)  # or the padding above was never tried


def test_no_hints_is_the_main_task():
    for step in range(10):
        a, b = TaskMixture(MAIN, {}).batch(0, step, 7), MAIN.batch(0, step, 7)
        assert all(torch.equal(a[name], b[name]) for name in ("input_ids", "labels"))


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 20))
def test_hint_rows_come_from_streams_of_their_own(seed, step, length):
    hints = {Successor(MAIN): 0.5, Count(MAIN): 0.25, MAIN: 0.5}
    batch = TaskMixture(MAIN, hints).batch(seed, step, 8, length)
    start = 8
    for k, (hint, share) in enumerate(hints.items()):
        alone = hint.batch(derive(seed, "hint", k), step, round(8 * share), length)
        stop = start + len(alone["labels"])
        for name, fill in (("input_ids", MAIN.vocab.pad), ("labels", -100)):
            assert torch.equal(batch[name][start:stop, : alone[name].shape[1]], alone[name])
            assert (batch[name][start:stop, alone[name].shape[1] :] == fill).all()
        start = stop
    assert start == len(batch["labels"])


def test_the_main_task_as_its_own_hint_brings_other_examples():
    main = Sorting(vocab=100)
    for step in range(20):
        batch = TaskMixture(main, {main: 1.0}).batch(0, step, 50, length=10)["input_ids"]
        assert not {tuple(row) for row in batch[:50].tolist()} & {tuple(row) for row in batch[50:].tolist()}


@pytest.mark.parametrize("hints", HINTS, ids=lambda hints: TaskMixture(MAIN, hints).name)
def test_contract(hints):
    check_task(TaskMixture(MAIN, hints))


def test_cost_tells_arms_apart():
    equal, successor, packed = (TaskMixture(MAIN, {hint: 0.5}) for hint in (MAIN, Successor(MAIN), Successor(MAIN, 2)))
    assert TaskMixture(MAIN, {}).cost(10, 8) == {"rows": 10, "positions": 180, "supervised": 90}
    assert equal.cost(10, 8) == {"rows": 15, "positions": 270, "supervised": 135}
    assert packed.cost(10, 8) == {"rows": 15, "positions": 270, "supervised": 100}
    assert successor.cost(10, 8)["positions"] == 270
    assert 95 <= successor.cost(10, 8)["supervised"] <= 100
    costs = [successor.cost(10, 8, seed=seed, step=4) for seed in range(6)]
    assert costs == [cost(successor.batch(seed, 4, 10, 8)) for seed in range(6)]
    assert len({c["supervised"] for c in costs}) > 1


def test_score_is_the_main_task_score():
    batch = TaskMixture(MAIN, {Count(MAIN): 0.5}).batch(0, 0, 10)
    assert TaskMixture(MAIN, {}).score(MAIN.targets(batch), batch)["exact"] == 1


@pytest.mark.parametrize("share", [0.0, -0.5, float("nan"), float("inf")])
def test_a_share_that_is_no_share(share):
    with pytest.raises(UsageError, match="share of successor must be a finite number > 0"):
        TaskMixture(MAIN, {Successor(MAIN): share})


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("main", "hints", "message"),
    [
        (MAIN, [Successor(MAIN)], r"hints must be a mapping of tasks to their shares, such as \{Successor\(main\): 0\.5\}, got \[Successor"),
        (MAIN, None, "hints must be a mapping of tasks to their shares, .* got None"),
        (MAIN, {"successor": 0.5}, "hints must be tasks with a vocabulary and lengths, such as a SeqTask, got 'successor'"),
        (MAIN, {Successor: 0.5}, "hints must be tasks with a vocabulary and lengths, such as a SeqTask, got <class"),
        (MAIN, {Successor(MAIN): "0.5"}, "share of successor must be a finite number > 0, got '0.5'"),
        (MAIN, {Successor(MAIN): True}, "share of successor must be a finite number > 0, got True"),
        ("sorting", {}, "main must be a task with a vocabulary and lengths, such as a SeqTask, got 'sorting'"),
    ],
)
def test_what_is_no_mixture(main, hints, message):
    with pytest.raises(UsageError, match=message):
        TaskMixture(main, hints)


def test_a_hint_with_another_vocabulary():
    with pytest.raises(UsageError, match="hint successor must have the vocabulary of sorting"):
        TaskMixture(MAIN, {Successor(Sorting(vocab=7)): 0.5})


def test_a_batch_too_small_for_a_hint():
    with pytest.raises(UsageError, match=r"0\.2 of 2 rows rounds to 0"):
        TaskMixture(MAIN, {Successor(MAIN): 0.2}).batch(0, 0, 2)


def test_a_length_a_hint_does_not_have():
    with pytest.raises(UsageError, match="length of successor must be a whole number >= 1, got 0"):
        TaskMixture(MAIN, {Successor(MAIN): 0.5}).batch(0, 0, 10, length=0)
