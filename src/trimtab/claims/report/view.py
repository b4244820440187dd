"""A record as a page or a table shows it: every value checked, so that a damaged or hostile record gives odd text and nothing worse."""

import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.claims.statements import curve_point
from trimtab.core import paired_t

VERDICTS = ("reproduced", "partly", "undecided", "contradicted", "invalid")
SIGNS = {"superior": ">", "not_worse": "not worse than", "equal": "=", "trend": "trend over"}


def text(value: Any) -> str:
    """Any value as one line that every writer takes: no control characters, no halves of characters, no more than 2,000."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+", " ", str(value)[:2000].encode("utf-8", "replace").decode())


def number(value: Any) -> float | None:
    """A number that can be averaged and drawn, or None.

    Example:
        >>> number(3), number("3"), number(float("nan")), number(10**400)
        (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -1e100 < value < 1e100 else None  # squares of it stay finite


def shown(value: float | None, signed: bool = False, like: float | None = None) -> str:
    """A number for readers: three decimals near one, four digits elsewhere. ``like``, the largest beside it, gives all of a table the same decimals.

    Example:
        >>> shown(0.0001234), shown(0.0001234, like=0.9)
        ('0.000123', '0.000')
        >>> shown(0.92641), shown(12345.6), shown(0.00001234), shown(None), shown(0.05, signed=True)
        ('0.926', '12346', '1.23e-05', '–', '+0.050')
    """
    if value is None:
        return "–"
    size = abs(value if like is None else like)
    if size >= 1e6 or 0 < size < 5e-4:
        form = ".3g"
    elif size < 10:
        form = ".3f"
    else:
        form = ".1f" if size < 1000 else ".0f"
    return f"{value:{'+' if signed else ''}{form}}".replace("-", "−" if size >= 5e-4 or not size else "-")


def exact(value: float | None) -> str:
    """A number that somebody wrote down, as they wrote it.

    Example:
        >>> exact(0.05), exact(2000.0)
        ('0.05', '2000')
    """
    return "–" if value is None else f"{value:.12g}"


def mapping(value: Any) -> dict[str, Any]:
    """A dict with text keys; anything else is an empty one."""
    return {text(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """A list; anything else is an empty one."""
    return [*value] if isinstance(value, list | tuple) else []


def curve_key(metric: str) -> tuple[str, str, float] | None:
    """Name, unit and place of a metric that is a point of a curve.

    Example:
        >>> curve_key("edit@5x"), curve_key("exact@16"), curve_key("loss")
        (('edit', 'x', 5.0), ('exact', '', 16.0), None)
    """
    name, place = curve_point(metric)
    if place is None or not math.isfinite(place):
        return None
    return (name[:-2], "x", place) if name.endswith("@x") else (name, "", place)


@dataclass
class Family:
    """One curve for each arm: a metric over length, or one that is a single number (``points`` empty, values at place 0).

    Attributes:
        name, suffix: as in ``name@5x``.
        points: the places measured, ascending.
        seeds: arm -> seed -> place -> value.
        bands: arm -> place -> mean and ends of its interval.
        paper: arm -> place -> what the paper says.
        trained: the longest place in training, where it is known.
    """

    name: str
    suffix: str = ""
    points: list[float] = field(default_factory=list)
    seeds: dict[str, dict[str, dict[float, float]]] = field(default_factory=dict)
    bands: dict[str, dict[float, tuple[float, float | None, float | None]]] = field(default_factory=dict)
    paper: dict[str, dict[float, float]] = field(default_factory=dict)
    trained: float | None = None

    @property
    def scale(self) -> float:
        """The largest of its means and of the paper's values, in size."""
        means = (mean for band in self.bands.values() for mean, _, _ in band.values())
        return max(map(abs, (0.0, *means, *(v for values in self.paper.values() for v in values.values()))))

    @property
    def axis(self) -> str:
        return "length, as a multiple of the longest in training" if self.suffix == "x" else "length"


@dataclass
class Statement:
    """One statement. ``zone`` is where its whole interval must lie for it to be reproduced."""

    name: str
    kind: str
    metric: str
    short: str
    why: str
    note: str
    primary: bool
    verdict: str | None
    estimate: float | None
    low: float | None
    high: float | None
    margin: float | None
    zone: tuple[float, float]
    paper: str
    paper_value: float | None
    per_seed: dict[str, float]

    @property
    def measured(self) -> str:
        """The estimate and its interval."""
        if self.estimate is None:
            return "not measured"
        return " ".join(filter(None, (shown(self.estimate, True, self.scale), self.interval)))

    @property
    def interval(self) -> str:
        """The interval in brackets, or "" where there is none."""
        return "" if self.low is None else f"[{shown(self.low, True, self.scale)}, {shown(self.high, True, self.scale)}]"

    @property
    def scale(self) -> float:
        """The largest of estimate and ends, in size."""
        return max(abs(v or 0.0) for v in (self.estimate, self.low, self.high))

    @property
    def sentence(self) -> str:
        """The statement with its numbers."""
        return f"{self.name}: {self.measured}" + (f", margin {exact(self.margin)}" if self.estimate is not None else "")


def _statement(raw: Any) -> Statement:
    raw = mapping(raw)
    contrast, kind, margin = mapping(raw.get("contrast")), text(raw.get("kind", "")), number(raw.get("margin"))
    arm, against = (text(contrast[k]) if contrast.get(k) is not None else "" for k in ("arm", "against"))
    short = f"{arm} {SIGNS.get(kind, 'against')} {against}" if against else f"{SIGNS.get(kind, '')} {arm}".strip()
    if chosen := mapping(contrast.get("best_of")):
        short += f" (best of {', '.join(text(a) for a in items(chosen.get('arms')))} by {text(chosen.get('by'))})"
    edge = margin or 0.0
    zone = {"not_worse": (-edge, math.inf), "equal": (-edge, edge)}.get(kind, (edge, math.inf))
    low, high = ([number(v) for v in items(raw.get("interval"))] + [None, None])[:2]
    paper = raw.get("paper")
    verdict = text(raw.get("verdict"))
    return Statement(
        name=text(raw.get("name") or raw.get("metric") or "statement"),
        kind=kind,
        metric=text(raw.get("metric", "")),
        short=short,
        why=text(raw.get("why") or ""),
        note=text(raw.get("note") or ""),
        primary=raw.get("primary") is True,
        verdict=verdict if verdict in VERDICTS else None,
        estimate=number(raw.get("estimate")),
        low=low,
        high=high,
        margin=margin,
        zone=zone,
        paper="–" if paper is None else shown(number(paper)) if number(paper) is not None else text(paper),
        paper_value=number(paper),
        per_seed={seed: v for seed, value in mapping(raw.get("per_seed")).items() if (v := number(value)) is not None},
    )


class View:
    """What a record says, for the terminal and the page.

    Args:
        record: as read from its file; any field may be missing or of a wrong type.
        claimed: the arms of its claim, where they are known: an arm has one colour, whichever others were run.
    """

    def __init__(self, record: Mapping[str, Any], claimed: Sequence[str] = ()):
        self.record = record
        self.claimed = claimed
        self.slug = text(record.get("slug", ""))
        self.size = text(record.get("size", ""))
        self.time = text(record.get("time", ""))
        self.title = text(record.get("title") or self.slug)
        self.about = text(record.get("about") or "")
        self.note = text(record.get("note") or "no verdict")
        verdict = text(record.get("verdict"))
        self.verdict = verdict if verdict in VERDICTS else None
        self.superseded = text(record.get("superseded_reason") or "a bug was found later") if record.get("superseded") else ""
        self.statements = [_statement(s) for s in items(record.get("statements"))]
        self.seeds = [text(s) for s in items(record.get("seeds"))]
        self.arms = [text(a) for a in items(record.get("arms"))]
        self.mastery = mapping(record.get("mastery"))
        self.mastered = {arm: value for arm, value in mapping(self.mastery.get("passed")).items() if isinstance(value, bool)}
        self.families = _families(self)

    @property
    def key(self) -> str:
        """A name for ids and files, whatever the slug is."""
        if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,79}", self.slug) and self.slug != "index":
            return self.slug
        return "record-" + hashlib.sha256(self.slug.encode()).hexdigest()[:12]

    @property
    def curves(self) -> list[Family]:
        return [f for f in self.families if f.points]

    @property
    def primary(self) -> list[Statement]:
        return [s for s in self.statements if s.primary]

    @property
    def condition(self) -> str:
        """What an arm must reach to have mastered its training task."""
        side = "at most" if self.mastery.get("lower_is_better") else "at least"
        return f"{text(self.mastery.get('metric', ''))} {side} {exact(number(self.mastery.get('threshold')))}"

    @property
    def command(self) -> str:
        """What runs this claim at this size, with these seeds and arms; "" for seeds that no --seeds names."""
        first, n = int(self.seeds[0]) if self.seeds and self.seeds[0].isdecimal() else 0, len(self.seeds)
        if not n or self.seeds != [str(k) for k in range(first, first + n)]:
            return ""
        arms = [] if {*self.arms} == {*self.claimed} else [word for arm in self.arms for word in ("--arm", arm)]
        return shlex.join(["trimtab", "run", self.slug, "--size", self.size, "--seeds", f"{first}-{first + n - 1}" if first else str(n), *arms])

    def place(self, arm: str) -> int:
        """Which colour an arm has: by its place in the claim, behind those for an arm that the claim does not have."""
        order = [*self.claimed, *(a for a in self.arms if a not in self.claimed)]
        return order.index(arm)

    @property
    def headline(self) -> str:
        """The result in a sentence."""
        return {
            "reproduced": "The claim is reproduced.",
            "partly": "The claim is partly reproduced.",
            "undecided": "The measurement does not decide the claim.",
            "contradicted": "The claim is contradicted.",
            "invalid": "The comparison is not valid: an arm that it needs did not learn its training task.",
        }.get(self.verdict or "", f"{self.note[:1].upper()}{self.note[1:]}.")


def _families(view: View) -> list[Family]:
    found: dict[tuple[str, str, bool], Family] = {}

    def family(metric: str) -> tuple[Family, float]:
        point = curve_key(metric)
        name, suffix, place = point or (metric, "", 0.0)
        got = found.setdefault((name, suffix, point is not None), Family(name, suffix))
        if point and place not in got.points:
            got.points = sorted([*got.points, place])
        return got, place

    for arm, seeds in mapping(view.record.get("measured")).items():
        if arm not in view.arms:
            view.arms.append(arm)
        for seed, metrics in mapping(seeds).items():
            for metric, value in mapping(metrics).items():
                if (v := number(value)) is not None:
                    got, place = family(metric)
                    got.seeds.setdefault(arm, {}).setdefault(seed, {})[place] = v
    for arm, metrics in mapping(view.record.get("paper")).items():
        for metric, value in mapping(metrics).items():
            if (v := number(value)) is not None:
                got, place = family(metric)
                got.paper.setdefault(arm, {})[place] = v
    trained = curve_key(text(view.mastery.get("metric", "")))
    for got in found.values():
        for arm, seeds in got.seeds.items():
            got.seeds[arm] = {seed: dict(sorted(values.items())) for seed, values in seeds.items()}
            places = sorted({p for values in seeds.values() for p in values})
            got.bands[arm] = {p: _band([values[p] for values in seeds.values() if p in values]) for p in places}
        if got.points and got.suffix == "x":
            got.trained = 1.0
        elif got.points and trained and trained[1] == "":
            got.trained = trained[2]
    return [_single(got) if len(got.points) == 1 else got for got in found.values()]


def _single(got: Family) -> Family:
    """A curve of one point is a number with a longer name."""
    (x,) = got.points
    got.name, got.points = f"{got.name}@{x:g}{got.suffix}", []
    got.seeds = {arm: {seed: {0.0: values[x]} for seed, values in seeds.items()} for arm, seeds in got.seeds.items()}
    got.bands = {arm: {0.0: values[x]} for arm, values in got.bands.items()}
    got.paper = {arm: {0.0: values[x]} for arm, values in got.paper.items()}
    return got


def _band(values: list[float]) -> tuple[float, float | None, float | None]:
    mean, interval = paired_t(values)
    low, high = interval or (None, None)
    return mean, low, high
