"""Figures of a record: one drawing each, kept as SVG for the page and as PNG for slides."""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from trimtab.claims.report.svg import inline
from trimtab.claims.report.view import Family, Statement, View

# Okabe and Ito's colours, told apart by colour-blind readers; yellow left out, since it vanishes on white. The page names them arm0 ... arm6.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, GRID, GROUND, ZONE = "#202124", "#6b6f76", "#d9dce1", "#fefefe", "#dff0ea"
CLASSES = {INK: "ink", MUTED: "muted", GRID: "grid", GROUND: "ground", ZONE: "zone", **{colour: f"arm{k}" for k, colour in enumerate(PALETTE)}}

WIDTH = 5.0  # inches: near the width of a phone, so that text keeps its size there
STYLE = {
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
    """Every figure of a record: one a curve family, then the statements.

    Args:
        view: the record as the report shows it.
    """
    drawn = [
        _draw(view, f"curve-{k}", f"{family.name} by length", _curve_note(view, family), lambda axes, f=family: _curve(axes[0], view, f), [3.4]) for k, family in enumerate(view.curves)
    ]
    shown = [s for s in view.statements if s.estimate is not None]
    panels = [[s for s in shown if s.metric == metric] for metric in dict.fromkeys(s.metric for s in shown)]
    if panels:
        note = "Dot and bar: estimate and 95 % interval over seeds. Small dots: single seeds. Shaded: where the whole interval must lie for the statement to be reproduced; its edge is the margin."
        note += " Diamond: the paper's value." if any(s.paper_value is not None for s in shown) else ""
        title = "Estimates and intervals of the statements"
        drawn.append(_draw(view, "statements", title, note, lambda axes: [_forest(a, p) for a, p in zip(axes, panels, strict=True)], [0.75 + 0.55 * len(p) for p in panels]))
    return drawn


def _draw(view: View, name: str, title: str, note: str, plot: Callable[[Sequence[Any]], Any], heights: list[float]) -> Picture:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may be in any script; browsers have the fonts
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        plot(figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0])
        svg, png = io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
        FigureCanvasAgg(figure)
        figure.savefig(png, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return Picture(name, title, note, inline(svg.getvalue().decode(), CLASSES, f"{view.key}-{name}", f"{title}. {_spoken(view, name)}".strip()), png.getvalue())



def _curve_note(view: View, family: Family) -> str:
    seeds = "Line: mean over seeds; band: its 95 % interval; thin lines: single seeds." if len(view.seeds) > 1 else "One seed: no interval."
    paper = " Hollow markers: the paper's values." if any(family.paper.values()) else ""
    return seeds + paper


def _curve(axes: Any, view: View, family: Family) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    points = family.points
    for k, arm in enumerate(view.arms):
        colour, marker = PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]
        series = family.seeds.get(arm, {})
        if len(series) > 1:
            for values in series.values():
                axes.plot(*zip(*values.items(), strict=True), color=colour, alpha=0.35, linewidth=0.7, zorder=2)
        mean = {x: m for x, (m, _, _) in family.bands.get(arm, {}).items()}
        band = {x: (low, high) for x, (_, low, high) in family.bands.get(arm, {}).items() if low is not None}
        if band:
            axes.fill_between([*band], *zip(*band.values(), strict=True), color=colour, alpha=0.14, linewidth=0, zorder=1)
        if mean:
            axes.plot(*zip(*mean.items(), strict=True), color=colour, marker=marker, markersize=6, linewidth=1.8, markeredgecolor=GROUND, markeredgewidth=0.7, label=arm, zorder=4)
        if paper := family.paper.get(arm):
            axes.plot(*zip(*paper.items(), strict=True), color=colour, marker=marker, markersize=7, linestyle="none", markerfacecolor="none", markeredgewidth=1.3, zorder=5)
    if points and points[0] > 0 and points[-1] / points[0] > 12:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_thin(points, axes.get_xscale() == "log")))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}{family.suffix}")
    if family.trained is not None:
        axes.axvline(family.trained, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
        axes.annotate("longest in training", (family.trained, 1), xycoords=("data", "axes fraction"), xytext=(-3, 3), textcoords="offset points", color=MUTED, fontsize=9)
    values = [v for bands in family.bands.values() for b in bands.values() for v in b[:1]] + [v for p in family.paper.values() for v in p.values()]
    if values and min(values) >= 0 and max(values) <= 1:
        axes.set_ylim(-0.04, 1.04)  # a share: an interval that reaches past 0 or 1 is cut there
    axes.set_xlabel(family.axis)
    axes.figure.legend(loc="outside upper left", ncols=2 if len(view.arms) > 1 else 1, columnspacing=1.4)


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
    spread = [0.0]
    for s in statements:
        spread += [v for v in (s.estimate, s.low, s.high, s.paper_value, s.zone[0], s.zone[1]) if v is not None and math.isfinite(v)] + [*s.per_seed.values()]
    low, high = min(spread), max(spread)
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad
    for row, s in enumerate(statements):
        a, b = max(s.zone[0], low), min(s.zone[1], high)
        axes.fill_between([a, b], row - 0.22, row + 0.22, color=ZONE, linewidth=0, zorder=0)
        for edge in s.zone:
            if math.isfinite(edge):
                axes.plot([edge, edge], [row - 0.22, row + 0.22], color=PALETTE[2], linewidth=1.4, zorder=1)
        axes.plot([*s.per_seed.values()], [row] * len(s.per_seed), color=MUTED, marker="o", markersize=3, linestyle="none", alpha=0.7, zorder=2)
        if s.low is not None and s.high is not None:
            axes.plot([s.low, s.high], [row, row], color=INK, linewidth=1.8, solid_capstyle="butt", zorder=3)
        axes.plot([s.estimate], [row], color=INK, marker="o", markersize=7, markeredgecolor=GROUND, markeredgewidth=0.8, zorder=4)
        if s.paper_value is not None:
            axes.plot([s.paper_value], [row], color=INK, marker="D", markersize=6, markerfacecolor="none", linestyle="none", zorder=4)
        axes.plot([0, 0], [row - 0.22, row + 0.22], color=MUTED, linewidth=0.9, zorder=1)
        axes.annotate(shorten(s.name, 48, placeholder=" …"), (0, row - 0.3), xycoords=("axes fraction", "data"), va="bottom", fontsize=9.5, color=INK)
        axes.annotate(s.verdict or "no verdict", (1, row - 0.3), xycoords=("axes fraction", "data"), va="bottom", ha="right", fontsize=9.5, color=MUTED)
    axes.set_xlim(low, high)
    axes.set_ylim(len(statements) - 0.6, -0.75)
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"advantage in {statements[0].metric}")


def _spoken(view: View, name: str) -> str:
    """What a screen reader says in place of the picture."""
    if name == "statements":
        return " ".join(f"{s.name}: {s.sentence}." for s in view.statements)
    family = view.curves[int(name.rpartition("-")[2])]
    parts = []
    for arm, bands in family.bands.items():
        parts.append(f"{arm}: " + ", ".join(f"{mean:.3g} at {x:g}{family.suffix}" for x, (mean, _, _) in bands.items()) + ".")
    return " ".join(parts)
