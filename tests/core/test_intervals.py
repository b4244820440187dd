import random

import pytest
from scipy import stats

from trimtab.core import coverage, paired_t


@pytest.mark.parametrize("n", [2, 3, 5, 11])
@pytest.mark.parametrize("level", [0.9, 0.95, 1 - 0.05 / 3])
def test_equals_scipys_paired_test(n, level):
    draw = random.Random(n)
    a, b = ([draw.gauss(mean, 1) for _ in range(n)] for mean in (0.3, 0))
    expected = stats.ttest_rel(a, b).confidence_interval(level)
    mean, interval = paired_t([x - y for x, y in zip(a, b, strict=True)], level)
    assert interval == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert mean == pytest.approx(sum(interval) / 2)


def test_one_unit_has_no_interval():
    assert paired_t([0.25]) == (0.25, None)


def test_equal_differences_give_a_point():
    assert paired_t([0.5] * 5) == (0.5, (0.5, 0.5))


def test_refuses_nothing_and_a_level_in_per_cent():
    with pytest.raises(ValueError, match="at least one value"):
        paired_t([])
    with pytest.raises(ValueError, match=r"0\.95 is usual"):
        paired_t([1, 2], 95)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, -1e200])
def test_refuses_what_has_no_mean_or_spread(value):
    with pytest.raises(ValueError, match="finite and at most 2e\\+100 in size, got"):
        paired_t([0.1, value, 0.2])


def test_the_largest_values_have_an_interval():
    mean, interval = paired_t([-2e100, 2e100, 1e100])
    assert interval[0] < mean < interval[1] < float("inf")


def five(draw):
    return lambda k: [draw(random.Random(f"{k} {i}")) for i in range(5)]


def test_coverage_of_normal_differences_over_five_seeds():
    share = coverage(five(lambda g: g.gauss(0.2, 3)), 0.2, rounds=4000)
    assert share == pytest.approx(0.95, abs=0.011)  # three standard errors


def test_coverage_follows_the_level():
    assert coverage(five(lambda g: g.gauss(0, 1)), 0, rounds=4000, level=0.8) == pytest.approx(0.8, abs=0.02)


def test_coverage_of_mildly_skewed_differences():
    """The difference of two gamma draws of different shape (skewness about 0.6), as where one arm is nearer to its ceiling."""
    share = coverage(five(lambda g: g.gammavariate(8, 1) - g.gammavariate(2, 0.5)), 7, rounds=4000)
    assert 0.92 < share < 0.96


def test_coverage_sees_an_interval_that_is_too_narrow():
    """As a normal interval in the place of Student's is: 1.96 / 2.78 of the width covers 87 % over five seeds."""
    assert coverage(five(lambda g: g.gauss(0, 1)), 0, rounds=2000, level=0.878) < 0.9
