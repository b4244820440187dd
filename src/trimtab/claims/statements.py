"""Statements: what a claim says, fixed before the run, as pure functions of the table arm -> seed -> metric -> value.

A statement is one contrast between two arms. Its estimate is the advantage of its arm: above zero is better, also where lower values of the metric are better.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from trimtab.core import UsageError, paired_t

Kind = Literal["superior", "not_worse", "equal", "trend"]
Verdict = Literal["reproduced", "partly", "contradicted", "undecided", "invalid"]
Measured = Mapping[str, Mapping[str, Mapping[str, float]]]
"""arm -> seed (as text, the key JSON has) -> metric -> value."""

FLOOR, CEILING = 0.01, 0.99


@dataclass(frozen=True)
class BestOf:
    """The arm with the best mean of a validation metric; made by :func:`best_of`."""

    arms: tuple[str, ...]
    by: str
    lower_is_better: bool = False

    def __str__(self) -> str:
        return f"best of {', '.join(self.arms)}"


def best_of(arms: Iterable[str], *, by: str, lower_is_better: bool = False) -> BestOf:
    """Stand for whichever arm has the best mean over seeds of a validation metric; the record states which it was.

    Args:
        arms: two or more arms to choose from.
        by: metric that decides; it must not be the one the statement judges, else the choice flatters the chosen.
        lower_is_better: the lowest mean wins.

    Example:
        >>> best_of(("successor", "count"), by="edit@2x")
        BestOf(arms=('successor', 'count'), by='edit@2x', lower_is_better=False)
    """
    arms = tuple(arms)
    if len(arms) < 2:
        raise UsageError(f"best_of needs two arms or more, got {arms!r}; name the one arm in its place")
    return BestOf(arms, by, lower_is_better)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One contrast with the effect it must clear. Build it with :func:`superior`, :func:`not_worse`, :func:`equal` or :func:`trend`.

    Attributes:
        against: the arm compared with; None (trend only) compares a slope with zero.
        margin: in units of the metric, > 0; for ``equal`` the tolerance.
        why: the margin's reason.
        paper: the paper's value of the estimate, or a text where the paper gives another quantity.
        proportion: whether values near 0 and 1 are a floor and a ceiling. None: they are if every value compared lies in [0, 1].
            Say False for a loss that may be small, or where full agreement is the point.
    """

    kind: Kind
    metric: str
    arm: str | BestOf
    against: str | None
    margin: float
    why: str
    paper: float | str | None = None
    lower_is_better: bool = False
    name: str
    proportion: bool | None = None

    def __post_init__(self) -> None:
        if not 0 < self.margin < float("inf"):
            raise UsageError(f"the margin of {self.name!r} must be above 0, got {self.margin}; give the smallest effect that somebody would act on")
        if not self.why.strip():
            raise UsageError(f"why of {self.name!r} is empty; say why {self.margin} is the smallest effect that matters")
        if isinstance(self.arm, BestOf) and self.arm.by == self.metric:
            raise UsageError(f"{self.name!r} chooses its arm by {self.arm.by!r}, the metric that it judges; choose by a validation metric")

    def arms(self) -> tuple[str, ...]:
        """Every arm it may compare."""
        ours = self.arm.arms if isinstance(self.arm, BestOf) else (self.arm,)
        return ours if self.against is None else (*ours, self.against)

    def lacks(self, arm: str, metrics: Iterable[str]) -> list[str]:
        """What it needs of an arm that is not among these metrics, in words."""
        names = set(metrics)
        if arm not in self.arms():
            return []
        lacking = [repr(self.arm.by)] if isinstance(self.arm, BestOf) and arm in self.arm.arms and self.arm.by not in names else []
        if self.kind == "trend":
            points = {x for curve, x in map(curve_point, names) if curve == self.metric and x is not None}
            return lacking + [f"two points of the curve {self.metric!r}"] * (len(points) < 2)
        return lacking + [repr(self.metric)] * (self.metric not in names)


def superior(
    metric: str,
    arm: str | BestOf,
    *,
    over: str,
    margin: float,
    why: str,
    paper: float | str | None = None,
    lower_is_better: bool = False,
    name: str | None = None,
    proportion: bool | None = None,
) -> Statement:
    """An arm beats another by more than a margin.

    Reproduced when the interval of the paired differences lies above the margin, contradicted when it lies below.

    Args:
        metric: key of the values that ``measure`` returns.
        arm: the arm that should win, or :func:`best_of` several.
        over: the arm it should beat.
        margin: smallest effect worth acting on, > 0.
        why: its reason.
        paper: the paper's difference, or a text where the paper reports something else.
        lower_is_better: a loss or an error.
        name: default "ARM over OTHER: METRIC".
        proportion: see :class:`Statement`.

    Raises:
        UsageError: a margin that is not above 0, or no reason for it.

    Example:
        >>> superior("edit@5x", "count", over="standard", margin=0.05, why="one token in twenty").name
        'count over standard: edit@5x'
    """
    return Statement(
        kind="superior", metric=metric, arm=arm, against=over, margin=margin, why=why, paper=paper, lower_is_better=lower_is_better,
        name=name or f"{arm} over {over}: {metric}", proportion=proportion,
    )  # fmt: skip


def not_worse(
    metric: str,
    arm: str | BestOf,
    *,
    than: str,
    margin: float,
    why: str,
    paper: float | str | None = None,
    lower_is_better: bool = False,
    name: str | None = None,
    proportion: bool | None = None,
) -> Statement:
    """An arm loses to another by no more than a margin. Arguments as in :func:`superior`.

    Example:
        >>> not_worse("loss", "small", than="large", margin=0.01, why="below seed noise", lower_is_better=True).name
        'small not worse than large: loss'
    """
    return Statement(
        kind="not_worse", metric=metric, arm=arm, against=than, margin=margin, why=why, paper=paper, lower_is_better=lower_is_better,
        name=name or f"{arm} not worse than {than}: {metric}", proportion=proportion,
    )  # fmt: skip


def equal(
    metric: str,
    arm: str | BestOf,
    *,
    to: str,
    tolerance: float,
    why: str,
    paper: float | str | None = None,
    lower_is_better: bool = False,
    name: str | None = None,
    proportion: bool | None = None,
) -> Statement:
    """Two arms agree within a tolerance. Reproduced when the whole interval lies within it. Arguments as in :func:`superior`.

    Example:
        >>> equal("loss", "packed", to="padded", tolerance=0.02, why="a hundredth of the loss").margin
        0.02
    """
    return Statement(
        kind="equal", metric=metric, arm=arm, against=to, margin=tolerance, why=why, paper=paper, lower_is_better=lower_is_better,
        name=name or f"{arm} equal to {to}: {metric}", proportion=proportion,
    )  # fmt: skip


def trend(
    curve: str,
    arm: str | BestOf,
    *,
    margin: float,
    why: str,
    over: str | None = None,
    paper: float | str | None = None,
    lower_is_better: bool = False,
    name: str | None = None,
    proportion: bool | None = None,
) -> Statement:
    """A curve rises by more than a margin per unit of x, or by that much more than another arm's.

    The slope is fitted by least squares for each seed; the seeds' slopes are then compared as in :func:`superior`.

    Args:
        curve: "exact" for the metrics ``exact@8``, ``exact@16`` ...; "edit@x" for ``edit@2x``, ``edit@5x`` ...
        arm: whose curve.
        margin: least slope, > 0, in units of the metric per unit of x.
        why: its reason.
        over: the arm whose slope is subtracted; None compares with a flat line.
        lower_is_better: the curve should fall.

    Example:
        >>> trend("exact", "standard", margin=0.01, why="1 % a token", lower_is_better=True).name
        'exact falls in standard'
    """
    verb = "falls" if lower_is_better else "rises"
    return Statement(
        kind="trend", metric=curve, arm=arm, against=over, margin=margin, why=why, paper=paper, lower_is_better=lower_is_better,
        name=name or f"{curve} {verb} in {arm}" + (f" more than in {over}" if over else ""), proportion=proportion,
    )  # fmt: skip


def curve_point(metric: str) -> tuple[str, float | None]:
    """The curve that a metric belongs to and its place on it; multiples (``@5x``) are a curve of their own.

    Example:
        >>> curve_point("exact@16"), curve_point("edit@5x"), curve_point("loss")
        (('exact', 16.0), ('edit@x', 5.0), ('loss', None))
    """
    if not (found := re.fullmatch(r"(.+)@(-?\d+(?:\.\d+)?)(x?)", metric)):
        return metric, None
    name, x, times = found.groups()
    return name + "@x" * bool(times), float(x)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope through (x, y) points with two different x at least.

    Example:
        >>> slope([(0, 1), (1, 3), (2, 5)])
        2.0
    """
    middle, mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    if not spread:
        raise ValueError(f"points must have two different x at least, got {list(points)!r}")
    return sum((x - middle) * (y - mean) for x, y in points) / spread


def judge(kind: Kind, interval: tuple[float, float], margin: float) -> Verdict:
    """The verdict that an interval of advantages gives.

    Example:
        >>> judge("superior", (0.06, 0.3), 0.05), judge("superior", (0.01, 0.04), 0.05), judge("superior", (0.0, 0.3), 0.05)
        ('reproduced', 'contradicted', 'undecided')
        >>> judge("not_worse", (-0.03, 0.3), 0.05), judge("equal", (-0.03, 0.3), 0.05)
        ('reproduced', 'undecided')
    """
    low, high = interval
    if kind == "equal":
        return "reproduced" if -margin <= low and high <= margin else "contradicted" if low > margin or high < -margin else "undecided"
    if kind == "not_worse":
        return "reproduced" if low >= -margin else "contradicted" if high < -margin else "undecided"
    return "reproduced" if low > margin else "contradicted" if high < margin else "undecided"


def _choose(arm: str | BestOf, measured: Measured, seeds: Sequence[str]) -> tuple[str, dict[str, Any] | None]:
    if not isinstance(arm, BestOf):
        return arm, None
    means = {name: fmean(measured[name][seed][arm.by] for seed in seeds) for name in arm.arms}
    best = (min if arm.lower_is_better else max)(means, key=means.__getitem__)  # the first of equals, in the claim's order
    return best, {"arms": list(arm.arms), "by": arm.by, "means": means}


def _values(statement: Statement, arm: str | None, measured: Measured, seeds: Sequence[str]) -> tuple[list[float], list[float]]:
    """What is compared, one value a seed, and the raw values behind it."""
    if arm is None:
        return [0.0] * len(seeds), []
    if statement.kind != "trend":
        values = [measured[arm][seed][statement.metric] for seed in seeds]
        return values, values
    named = [[(*curve_point(name), y) for name, y in measured[arm][seed].items()] for seed in seeds]
    curves = [[(x, y) for curve, x, y in row if curve == statement.metric and x is not None] for row in named]
    return [slope(points) for points in curves], [y for points in curves for _, y in points]


def _edge(statement: Statement, sides: Sequence[Sequence[float]]) -> str | None:
    """Where both arms sit at the floor or the ceiling, nothing can be read from their difference."""
    values = [value for side in sides for value in side]
    if statement.proportion is False or (statement.proportion is None and not all(0 <= value <= 1 for value in values)):
        return None
    means = [fmean(side) for side in sides if side]
    if max(means) <= FLOOR:
        return f"floor: no arm above {FLOOR:g}"
    return f"ceiling: no arm below {CEILING:g}" if min(means) >= CEILING else None


def evaluate(
    statement: Statement, measured: Measured, *, failed: Mapping[str, str] | None = None, level: float = 0.95, adjusted: float = 0.95
) -> dict[str, Any]:
    """The entry of a statement in a record.

    Args:
        measured: the table; arms that were not run are not in it.
        failed: arm -> what it failed of the claim's mastery condition.
        level: of the interval shown and of the verdict.
        adjusted: level at which the claim's verdict ``partly`` wants it, 1 - 0.05/m for m primary statements.

    Returns:
        kind, metric, contrast, margin ..., and what was found: verdict (None for a single seed or a missing arm), note, estimate, interval, per_seed.

    Example:
        >>> measured = {"a": {"0": {"x": 5.0}, "1": {"x": 6.0}}, "b": {"0": {"x": 1.0}, "1": {"x": 2.0}}}
        >>> found = evaluate(superior("x", "a", over="b", margin=1, why="a whole one"), measured)
        >>> found["verdict"], found["estimate"], found["per_seed"]
        ('reproduced', 4.0, {'0': 4.0, '1': 4.0})
    """
    arms = statement.arms()
    seeds = [seed for seed in measured.get(arms[0], {}) if all(seed in measured.get(arm, {}) for arm in arms)]
    entry: dict[str, Any] = {
        "name": statement.name,
        "kind": statement.kind,
        "metric": statement.metric,
        "contrast": {"arm": str(statement.arm), "against": statement.against, "best_of": None},
        "lower_is_better": statement.lower_is_better,
        "margin": statement.margin,
        "why": statement.why,
        "verdict": None,
        "note": None,
        "estimate": None,
        "interval": None,
        "level": level,
        "holds_at_adjusted_level": False,
        "paper": statement.paper,
        "per_seed": {},
    }
    if not seeds:
        missing = [arm for arm in arms if not measured.get(arm)]
        return entry | {"note": f"not run: {', '.join(missing)}" if missing else "its arms have no seed in common"}
    (arm, chosen), against = _choose(statement.arm, measured, seeds), statement.against
    (ours, raw), (theirs, raw_other) = (_values(statement, side, measured, seeds) for side in (arm, against))
    sign = -1 if statement.lower_is_better else 1
    differences = [sign * (a - b) for a, b in zip(ours, theirs, strict=True)]
    estimate, interval = paired_t(differences, level)
    entry |= {
        "contrast": {"arm": arm, "against": against, "best_of": chosen},
        "estimate": estimate,
        "interval": list(interval) if interval else None,
        "per_seed": dict(zip(seeds, differences, strict=True)),
    }
    if interval is None:
        return entry | {"note": "1 seed: no verdict"}
    if wrong := [text for side, text in (failed or {}).items() if side in (arm, against)]:
        return entry | {"verdict": "invalid", "note": "; ".join(wrong)}
    if edge := _edge(statement, [raw, raw_other]):
        return entry | {"verdict": "undecided", "note": edge}
    verdict = judge(statement.kind, interval, statement.margin)
    _, wider = paired_t(differences, adjusted)
    small = verdict == "contradicted" and statement.kind in ("superior", "trend") and estimate > 0
    notes = ["right sign, too small"] * small + ["no spread: the difference is the same on every seed"] * math.isclose(*interval, rel_tol=1e-12, abs_tol=1e-12)
    return entry | {
        "verdict": verdict,
        "note": "; ".join(notes) or None,
        "holds_at_adjusted_level": wider is not None and judge(statement.kind, wider, statement.margin) == "reproduced",
    }


def claim_verdict(primary: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """The verdict of a claim from the entries of its primary statements.

    Reproduced when all are; partly when some are at the adjusted level and none is contradicted or invalid; else the worst there is.
    None where one of them has none.

    Example:
        >>> def entry(verdict, sure=False):
        ...     return {"verdict": verdict, "holds_at_adjusted_level": sure}
        >>> claim_verdict([entry("reproduced", True), entry("undecided")]), claim_verdict([entry("reproduced", True), entry("contradicted")])
        ('partly', 'contradicted')
    """
    verdicts = [entry["verdict"] for entry in primary]
    if not verdicts or None in verdicts:
        return None
    if set(verdicts) == {"reproduced"}:
        return "reproduced"
    bad: list[Verdict] = ["invalid", "contradicted"]
    for verdict in bad:
        if verdict in verdicts:
            return verdict
    return "partly" if any(entry["holds_at_adjusted_level"] and entry["verdict"] == "reproduced" for entry in primary) else "undecided"
