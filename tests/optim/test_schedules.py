import math

import pytest

from trimtab.core import UsageError
from trimtab.optim import warmup_cosine


@pytest.mark.parametrize(("steps", "warmup", "floor"), [(1, 0, 0), (10, 0, 0.1), (100, 7, 0.05), (5, 5, 0), (50, 1, 1)])
def test_equals_the_definition(steps, warmup, floor):
    rate = warmup_cosine(steps, warmup=warmup, floor=floor)
    for t in range(steps):
        expected = (t + 1) / warmup if t < warmup else floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup)))
        assert rate(t) == pytest.approx(expected)


def test_rises_falls_and_stays_at_the_floor():
    values = [warmup_cosine(100, warmup=10, floor=0.1)(t) for t in range(120)]
    assert values[:10] == sorted(values[:10])
    assert values[10:] == sorted(values[10:], reverse=True)
    assert max(values) == values[9] == values[10] == 1
    assert values[0] > 0  # no step is wasted on a rate of zero
    assert values[100:] == [0.1] * 20


def test_is_a_function_of_the_step_and_says_what_it_is():
    rate = warmup_cosine(30, warmup=3)
    assert [rate(t) for t in (20, 1, 20)] == [rate(20), rate(1), rate(20)]
    assert "steps=30, warmup=3, floor=0" in repr(rate)
    assert "0x" not in repr(rate)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: warmup_cosine(0), "steps must be >= 1, got 0"),
        (lambda: warmup_cosine(5, warmup=6), "warmup must lie in 0 .. steps = 5, got 6"),
        (lambda: warmup_cosine(5, warmup=-1), "got -1"),
        (lambda: warmup_cosine(5, floor=1.5), "floor must lie in 0 .. 1, got 1.5"),
        (lambda: warmup_cosine(5, floor=math.nan), "got nan"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UsageError, match=message):
        call()
