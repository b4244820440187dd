from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trimtab.claims import BestOf, best_of, claim_verdict, curve_point, equal, evaluate, not_worse, superior, trend
from trimtab.claims.statements import judge, slope
from trimtab.core import UsageError

BASE = [10.0, 11.0, 12.0, 10.5, 11.5]  # not proportions, and spread between seeds that pairing takes out


def table(metric="x", **arms):
    return {arm: {str(seed): {metric: value} for seed, value in enumerate(values)} for arm, values in arms.items()}


def shifted(by, noise=0.01):
    return [value + by + noise * (-1) ** k for k, value in enumerate(BASE)]


def over(margin=1.0, **rest):
    return superior("x", "a", over="b", margin=margin, why="a whole one", **rest)


@pytest.mark.parametrize(
    ("make", "shift", "verdict", "note"),
    [
        (over, 1.5, "reproduced", None),
        (over, 0.5, "contradicted", "right sign, too small"),
        (over, -0.5, "contradicted", None),
        (over, 1.0, "undecided", None),
        (lambda: not_worse("x", "a", than="b", margin=1, why="w"), -0.5, "reproduced", None),
        (lambda: not_worse("x", "a", than="b", margin=1, why="w"), -1.5, "contradicted", None),
        (lambda: not_worse("x", "a", than="b", margin=1, why="w"), -1.0, "undecided", None),
        (lambda: equal("x", "a", to="b", tolerance=1, why="w"), 0.5, "reproduced", None),
        (lambda: equal("x", "a", to="b", tolerance=1, why="w"), -1.5, "contradicted", None),
        (lambda: equal("x", "a", to="b", tolerance=1, why="w"), 1.5, "contradicted", None),
        (lambda: equal("x", "a", to="b", tolerance=1, why="w"), 1.0, "undecided", None),
        (lambda: over(lower_is_better=True), -1.5, "reproduced", None),
        (lambda: over(lower_is_better=True), 1.5, "contradicted", None),
        (lambda: not_worse("x", "a", than="b", margin=1, why="w", lower_is_better=True), 1.5, "contradicted", None),
    ],
)
def test_verdicts(make, shift, verdict, note):
    found = evaluate(make(), table(a=shifted(shift), b=BASE))
    assert (found["verdict"], found["note"]) == (verdict, note)


@pytest.mark.parametrize(
    ("shift", "note"),
    [
        (4.1, "no spread: the difference is the same on every seed"),  # but for rounding
        (0.5, "right sign, too small; no spread: the difference is the same on every seed"),
    ],
)
def test_an_interval_without_width_is_said_to_be_one(shift, note):
    found = evaluate(over(), table(a=shifted(shift, noise=0), b=BASE))
    assert found["interval"] == pytest.approx([shift, shift])
    assert found["note"] == note
    assert evaluate(over(), table(a=shifted(shift, noise=1e-6), b=BASE))["note"] in (None, "right sign, too small")


def test_interval_is_the_paired_one():
    a = [12.1, 11.9, 13.5, 12.2, 12.4]
    found = evaluate(over(), table(a=a, b=BASE))
    expected = stats.ttest_rel(a, BASE).confidence_interval(0.95)
    assert found["interval"] == pytest.approx([expected.low, expected.high])
    assert found["estimate"] == pytest.approx(fmean(a) - fmean(BASE))
    assert found["per_seed"] == pytest.approx({str(k): a[k] - BASE[k] for k in range(5)})


values = st.lists(st.floats(-5, 5), min_size=2, max_size=6)


@given(values, values, st.floats(0.01, 3))
def test_turning_the_metric_round_changes_nothing_but_the_metric(a, b, margin):
    n = min(len(a), len(b))
    one = evaluate(over(margin, proportion=False), table(a=a[:n], b=b[:n]))
    two = evaluate(over(margin, proportion=False, lower_is_better=True), table(a=[-v for v in a[:n]], b=[-v for v in b[:n]]))
    assert {**one, "lower_is_better": None} == {**two, "lower_is_better": None}


@given(values, values)
def test_a_larger_margin_never_helps_and_the_arms_are_never_both_superior(a, b):
    n = min(len(a), len(b))
    order = ["contradicted", "undecided", "reproduced"]
    ranks = [order.index(evaluate(over(m, proportion=False), table(a=a[:n], b=b[:n]))["verdict"]) for m in (0.1, 0.5, 2)]
    assert ranks == sorted(ranks, reverse=True)
    both = [evaluate(over(0.1, proportion=False), table(a=x[:n], b=y[:n]))["verdict"] for x, y in ((a, b), (b, a))]
    assert both != ["reproduced", "reproduced"]


@given(st.floats(-3, 3), st.floats(0, 3), st.floats(0.01, 2))
def test_judge_against_the_definition(middle, half, margin):
    """Reproduced if every value of the interval satisfies the statement, contradicted if none does: tried on its ends and middle."""
    interval = (middle - half, middle + half)
    holds = {"superior": lambda v: v > margin, "not_worse": lambda v: v >= -margin, "equal": lambda v: -margin <= v <= margin}
    for kind, fits in holds.items():
        inside = [fits(interval[0] + k / 1000 * (interval[1] - interval[0])) for k in range(1001)]
        verdict = judge(kind, interval, margin)
        if verdict == "reproduced":
            assert all(inside)
        elif verdict == "contradicted":
            assert not any(inside)
    assert judge("superior", (margin, margin), margin) == "undecided"  # neither above the margin nor short of it


def test_a_single_seed_has_an_estimate_and_no_verdict():
    found = evaluate(over(), table(a=[3.0], b=[1.0]))
    assert (found["verdict"], found["estimate"], found["interval"], found["note"]) == (None, 2.0, None, "1 seed: no verdict")


def test_a_missing_arm_has_no_verdict():
    found = evaluate(over(), table(a=[3.0, 4.0]))
    assert (found["verdict"], found["estimate"], found["note"]) == (None, None, "not run: b")


def test_failed_mastery_is_invalid_for_its_own_arms_only():
    measured = table(a=shifted(1.5), b=BASE, c=BASE)
    assert evaluate(over(), measured, failed={"c": "c failed"})["verdict"] == "reproduced"
    found = evaluate(over(), measured, failed={"b": "b did not reach it"})
    assert (found["verdict"], found["note"], found["holds_at_adjusted_level"]) == ("invalid", "b did not reach it", False)


@pytest.mark.parametrize(
    ("a", "b", "extra", "verdict"),
    [
        ([0.005, 0.008], [0.0, 0.001], {}, "undecided"),
        ([0.995, 0.999], [0.992, 0.991], {}, "undecided"),
        ([0.5, 0.501], [0.0, 0.001], {}, "reproduced"),
        ([0.995, 0.999], [0.5, 0.501], {}, "reproduced"),
        ([1.005, 1.008], [0.0, 0.001], {}, "reproduced"),  # not all in [0, 1]: no proportion
        ([0.008, 0.008], [0.001, 0.001], {"proportion": False}, "reproduced"),
        ([1.5, 1.5], [1.2, 1.2], {"proportion": True}, "undecided"),
    ],
)
def test_floor_and_ceiling_decide_nothing(a, b, extra, verdict):
    assert evaluate(superior("x", "a", over="b", margin=0.004, why="w", **extra), table(a=a, b=b))["verdict"] == verdict


def test_floor_of_not_worse_and_equal():
    measured = table(a=[0.0, 0.001], b=[0.0, 0.001])
    assert evaluate(not_worse("x", "a", than="b", margin=0.1, why="w"), measured)["note"] == "floor: no arm above 0.01"
    assert evaluate(equal("x", "a", to="b", tolerance=0.1, why="w"), measured)["verdict"] == "undecided"


def test_adjusted_level_is_stricter():
    a = [value + shift for value, shift in zip(BASE, (1.2, 2.0, 1.6, 1.1, 2.2), strict=True)]
    low = evaluate(over(), table(a=a, b=BASE))["interval"][0]
    between = evaluate(over(low - 0.02), table(a=a, b=BASE), adjusted=1 - 0.05 / 3)
    assert (between["verdict"], between["holds_at_adjusted_level"]) == ("reproduced", False)
    assert evaluate(over(low - 0.5), table(a=a, b=BASE), adjusted=1 - 0.05 / 3)["holds_at_adjusted_level"]


def best_table():
    measured = table(a=shifted(2), b=BASE, c=shifted(1))
    for arm, by in {"a": 0.2, "b": 0.9, "c": 0.7}.items():
        for row in measured[arm].values():
            row["by"] = by
    return measured


def test_best_of_takes_the_best_by_the_validation_metric_and_says_which():
    statement = superior("x", best_of(("a", "c"), by="by"), over="b", margin=0.5, why="w")
    found = evaluate(statement, best_table())
    assert found["contrast"] == {"arm": "c", "against": "b", "best_of": {"arms": ["a", "c"], "by": "by", "means": pytest.approx({"a": 0.2, "c": 0.7})}}
    assert found["estimate"] == pytest.approx(1, abs=0.01)  # c's, though a is better by the metric that is judged
    worst = superior("x", BestOf(("a", "c"), "by", lower_is_better=True), over="b", margin=0.5, why="w")
    assert evaluate(worst, best_table())["contrast"]["arm"] == "a"


def test_best_of_goes_by_the_mean_over_seeds_not_by_one():
    measured = best_table()
    measured["a"]["0"]["by"] = 0.9
    assert evaluate(superior("x", best_of(("a", "c"), by="by"), over="b", margin=0.5, why="w"), measured)["contrast"]["arm"] == "c"


def test_best_of_needs_all_its_arms():
    measured = best_table()
    del measured["a"]
    found = evaluate(superior("x", best_of(("a", "c"), by="by"), over="b", margin=0.5, why="w"), measured)
    assert (found["verdict"], found["note"], found["contrast"]["arm"]) == (None, "not run: a", "best of a, c")


def test_best_of_refuses_one_arm_and_the_judged_metric():
    with pytest.raises(UsageError, match="two arms or more"):
        best_of(("a",), by="y")
    with pytest.raises(UsageError, match="choose by a validation metric"):
        superior("x", best_of(("a", "c"), by="x"), over="b", margin=0.5, why="w")


def curves(**slopes):
    return {
        arm: {str(seed): {f"exact@{x}": 5 + seed + (rate + 0.001 * (-1) ** seed) * x for x in (8, 16, 32)} | {"exact@5x": 99.0} for seed in range(4)}
        for arm, rate in slopes.items()
    }


def test_trend_against_a_flat_line_and_another_arm():
    rises = trend("exact", "a", margin=0.1, why="w")
    found = evaluate(rises, curves(a=0.3))
    assert (found["verdict"], found["estimate"]) == ("reproduced", pytest.approx(0.3))
    assert evaluate(rises, curves(a=0.05))["note"] == "right sign, too small"
    falls = trend("exact", "a", margin=0.1, why="w", lower_is_better=True)
    assert evaluate(falls, curves(a=-0.3))["verdict"] == "reproduced"
    more = trend("exact", "a", over="b", margin=0.1, why="w")
    assert evaluate(more, curves(a=0.3, b=0.25))["verdict"] == "contradicted"
    assert evaluate(more, curves(a=0.3, b=0.0))["estimate"] == pytest.approx(0.3)


def test_a_trend_along_the_floor_decides_nothing():
    flat = {"a": {str(seed): {"exact@8": 0.001, "exact@16": 0.0} for seed in range(3)}}
    assert evaluate(trend("exact", "a", margin=0.1, why="w"), flat)["verdict"] == "undecided"


def test_slope_equals_numpys_fit():
    import numpy as np

    draw = np.random.default_rng(0)
    x, y = draw.normal(size=9), draw.normal(size=9)
    assert slope(list(zip(x, y, strict=True))) == pytest.approx(np.polyfit(x, y, 1)[0])
    with pytest.raises(ValueError, match="two different x"):
        slope([(1, 2), (1, 3)])


@pytest.mark.parametrize(
    ("metric", "point"),
    [("exact@8", ("exact", 8)), ("edit@5x", ("edit@x", 5)), ("a@b@0.5", ("a@b", 0.5)), ("loss", ("loss", None)), ("at@home", ("at@home", None))],
)
def test_curve_points(metric, point):
    assert curve_point(metric) == point


def test_lacks_names_what_is_not_there():
    statement = superior("x", best_of(("a", "c"), by="by"), over="b", margin=0.5, why="w")
    assert statement.lacks("a", ["x"]) == ["'by'"]
    assert statement.lacks("b", ["by"]) == ["'x'"]
    assert statement.lacks("d", []) == []
    assert trend("exact", "a", margin=1, why="w").lacks("a", ["exact@8", "exact@5x"]) == ["two points of the curve 'exact'"]


@pytest.mark.parametrize("margin", [0, -0.1, float("nan"), float("inf")])
def test_a_margin_is_above_zero(margin):
    with pytest.raises(UsageError, match="must be above 0"):
        over(margin)


def test_a_margin_has_a_reason():
    with pytest.raises(UsageError, match="why of 'a over b: x' is empty"):
        superior("x", "a", over="b", margin=0.1, why=" ")


def entry(verdict, sure=None):
    return {"verdict": verdict, "holds_at_adjusted_level": verdict == "reproduced" if sure is None else sure}


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        ([entry("reproduced", False)] * 2, "reproduced"),
        ([entry("reproduced"), entry("undecided")], "partly"),
        ([entry("reproduced", False), entry("undecided")], "undecided"),
        ([entry("reproduced"), entry("undecided"), entry("contradicted")], "contradicted"),
        ([entry("reproduced"), entry("contradicted"), entry("invalid")], "invalid"),
        ([entry("undecided")], "undecided"),
        ([entry("reproduced"), entry(None)], None),
        ([entry("invalid"), entry(None)], None),
        ([], None),
    ],
)
def test_the_verdict_of_a_claim(entries, verdict):
    assert claim_verdict(entries) == claim_verdict(entries[::-1]) == verdict
