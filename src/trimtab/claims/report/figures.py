"""Figures of a record: one drawing each, kept as SVG for the page and as PNG for slides."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from trimtab.claims.report.svg import inline
from trimtab.claims.report.view import Family, Statement, View, curve_key

# Okabe and Ito's colours, told apart by colour-blind readers; yellow left out, since it vanishes on white. The page names them arm0 ... arm6.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, GRID, GROUND, ZONE = "#202124", "#6b6f76", "#d9dce1", "#fefefe", "#dff0ea"
CLASSES = {INK: "ink", MUTED: "muted", GRID: "grid", GROUND: "ground", ZONE: "zone", **{colour: f"arm{k}" for k, colour in enumerate(PALETTE)}}

MOST = 12  # curves that are drawn, each a tenth of a second or more; all are in the tables
WIDTH = 5.0  # inches: near the width of a phone, so that text keeps its size there
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a "$" in the name of an arm is a dollar
    "font.family": "DejaVu Sans",  # ships with matplotlib: PNGs are the same on every machine
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
}


@dataclass(frozen=True)
class Picture:
    """One figure.

    Attributes:
        name: file name without an ending.
        title: what it shows, for the caption and for screen readers.
        note: how to read it.
        svg: element to put into a page.
        png: the same as a file.
    """

    name: str
    title: str
    note: str
    svg: str
    png: bytes


def pictures(view: View) -> list[Picture]:
    """The figures of a record: one for each curve, those that statements are about first, then the statements.

    Args:
        view: the record as the report shows it.
    """
    from matplotlib import rc_context

    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may be in any script; browsers have the fonts
        judged = {(curve_key(s.metric) or (s.metric,))[0] for s in view.statements}
        chosen = sorted(view.curves, key=lambda family: family.name not in judged)[:MOST]
        return [*(_curve_picture(view, family, f"curve-{k}") for k, family in enumerate(chosen)), *_statements_picture(view)]


def _curve_picture(view: View, family: Family, name: str) -> Picture:
    several = "Line: mean over seeds; bars: its 95\N{NO-BREAK SPACE}% interval, side by side; thin lines: single seeds."
    note = several if len(view.seeds) > 1 else "One seed: no interval."
    ends = [end for band in family.bands.values() for _, *interval in band.values() for end in interval if end is not None]
    note += " Intervals are cut at 0 and 1, beyond which there is no value." if _share(family) and ends and (min(ends) < 0 or max(ends) > 1) else ""
    note += " Hollow markers: the paper's values." if family.paper else ""
    arms = (f"{arm}: " + ", ".join(f"{mean:.3g} at {x:g}{family.suffix}" for x, (mean, _, _) in band.items()) for arm, band in family.bands.items())
    figure, (axes,) = _figure([3.4])
    _curve(axes, view, family)
    return _picture(figure, view, name, f"{family.name} by length", note, "; ".join(arms))


def _statements_picture(view: View) -> list[Picture]:
    """None where nothing was estimated."""
    shown = [s for s in view.statements if s.estimate is not None]
    if not shown:
        return []
    panels = [[s for s in shown if s.metric == metric] for metric in dict.fromkeys(s.metric for s in shown)]
    what = "Dot and bar: estimate and 95\N{NO-BREAK SPACE}% interval; small dots: single seeds." if len(view.seeds) > 1 else "Dot: estimate, of one seed."
    note = f"{what} Shaded: where the whole interval must lie for the statement to be reproduced."
    note += " Diamond: the paper's value." if any(s.paper_value is not None for s in shown) else ""
    figure, rows = _figure([0.75 + 0.55 * len(panel) for panel in panels])
    for axes, panel in zip(rows, panels, strict=True):
        _forest(axes, panel)
    return [_picture(figure, view, "statements", "Statements", note, "; ".join(s.sentence for s in shown))]


def _figure(heights: list[float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    return figure, figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]


def _picture(figure: Any, view: View, name: str, title: str, note: str, spoken: str) -> Picture:
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg")
    figure.set_layout_engine("none")  # what was laid out once stays
    figure.savefig(png, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return Picture(name, title, note, inline(svg.getvalue().decode(), CLASSES, f"{view.key}-{name}", f"{title}. {spoken}."), png.getvalue())


def _curve(axes: Any, view: View, family: Family) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator
    from matplotlib.transforms import offset_copy

    for k, arm in enumerate(view.arms):
        colour, marker = PALETTE[view.place(arm) % len(PALETTE)], MARKERS[view.place(arm) % len(MARKERS)]
        series, band, paper = family.seeds.get(arm, {}), family.bands.get(arm, {}), family.paper.get(arm, {})
        for values in series.values() if len(series) > 1 else ():
            axes.plot(*_xy(values), color=colour, alpha=0.35, linewidth=0.7, zorder=2)
        if ends := {x: (low, high) for x, (_, low, high) in band.items() if low is not None}:
            beside = offset_copy(axes.transData, axes.figure, x=3 * (k - (len(view.arms) - 1) / 2), units="points")  # bars of one place stand side by side
            axes.vlines([*ends], *zip(*ends.values(), strict=True), color=colour, alpha=0.8, linewidth=1.6, zorder=3, transform=beside)
        if band:
            edge = {"markeredgecolor": GROUND, "markeredgewidth": 0.7}  # keeps markers apart where curves meet
            axes.plot(
                *_xy({x: mean for x, (mean, _, _) in band.items()}), color=colour, marker=marker, markersize=6, linewidth=1.8, label=arm, zorder=4, **edge
            )
        if paper:
            axes.plot(*_xy(paper), color=colour, marker=marker, markersize=7, markerfacecolor="none", markeredgewidth=1.3, linestyle="none", zorder=5)
    points = family.points
    log = points[0] > 0 and points[-1] / points[0] > 12
    if log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_thin(points, log)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}{family.suffix}")
    if family.trained is not None:
        axes.axvline(family.trained, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
        place = {"xycoords": ("data", "axes fraction"), "xytext": (-3, 3), "textcoords": "offset points"}
        axes.annotate("longest in training", (family.trained, 1), **place, color=MUTED, fontsize=9)
    if _share(family):
        axes.set_ylim(-0.04, 1.04)
    axes.set_xlabel(family.axis)
    axes.set_ylabel(family.name)
    if family.bands:
        axes.figure.legend(loc="outside upper left", ncols=2 if len(view.arms) > 1 else 1, columnspacing=1.4)


def _share(family: Family) -> bool:
    """Whether a curve lies between 0 and 1."""
    values = [mean for band in family.bands.values() for mean, _, _ in band.values()] + [v for paper in family.paper.values() for v in paper.values()]
    return bool(values) and min(values) >= 0 and max(values) <= 1


def _xy(values: Mapping[float, float]) -> tuple[list[float], list[float]]:
    return [*values], [*values.values()]


def _thin(points: Sequence[float], log: bool) -> list[float]:
    """Those of the points that can carry a label without touching the next one."""
    place = [math.log(x) for x in points] if log else [*points]
    least = (place[-1] - place[0]) / 11 if len(place) > 1 else 0
    kept: list[int] = []
    for k in range(len(place)):
        if not kept or place[k] - place[kept[-1]] >= least:
            kept.append(k)
    return [points[k] for k in kept]


def _forest(axes: Any, statements: Sequence[Statement]) -> None:
    """Rows of one metric on one axis, each with its label above it: a phone has no room beside it."""
    from matplotlib.ticker import MaxNLocator

    ends = [
        0.0,
        *(v for s in statements for v in (s.estimate, s.low, s.high, s.paper_value, *s.zone, *s.per_seed.values()) if v is not None and math.isfinite(v)),
    ]
    pad = 0.06 * (max(ends) - min(ends)) or 1.0
    low, high = min(ends) - pad, max(ends) + pad
    for row, s in enumerate(statements):
        height = [row - 0.22, row + 0.22]
        axes.fill_between([max(s.zone[0], low), min(s.zone[1], high)], *height, color=ZONE, linewidth=0, zorder=0)
        for edge in filter(math.isfinite, s.zone):
            axes.plot([edge, edge], height, color=PALETTE[2], linewidth=1.4, zorder=1)
        axes.plot([0, 0], height, color=MUTED, linewidth=0.9, zorder=1)
        axes.plot([*s.per_seed.values()], [row] * len(s.per_seed), color=MUTED, marker="o", markersize=3, linestyle="none", alpha=0.7, zorder=2)
        if s.low is not None and s.high is not None:
            axes.plot([s.low, s.high], [row, row], color=INK, linewidth=1.8, solid_capstyle="butt", zorder=3)
        axes.plot([s.estimate], [row], color=INK, marker="o", markersize=7, markeredgecolor=GROUND, markeredgewidth=0.8, zorder=4)
        if s.paper_value is not None:
            axes.plot([s.paper_value], [row], color=INK, marker="D", markersize=6, markerfacecolor="none", linestyle="none", zorder=4)
        label = {"xycoords": ("axes fraction", "data"), "va": "bottom", "fontsize": 9.5}
        axes.annotate(shorten(s.name, 48, placeholder=" …"), (0, row - 0.3), color=INK, **label)
        axes.annotate(s.verdict or "no verdict", (1, row - 0.3), ha="right", color=MUTED, **label)
    axes.set_xlim(low, high)
    axes.set_ylim(len(statements) - 0.6, -0.75)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.6g}".replace("-", "−"))
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"advantage in {statements[0].metric}")
