"""Figures of what was found inside a model: each takes the data that its function returned and gives a matplotlib Figure.

matplotlib is imported when a figure is made; no window is opened and no global setting changed. ``figure.savefig("name.png")`` writes one down.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trimtab.core import UsageError
from trimtab.metrics.attention import EntropyByLength, OffsetProfile
from trimtab.metrics.interventions import Patched

# Okabe and Ito's colours, told apart by colour-blind readers
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
SHADES = "Blues"
CELLS = 400  # a map with more has no numbers in it


def _axes(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


def _named(ids: Sequence[int], names: Any) -> list[str]:
    """Tokens as words: by a function or a sequence of names, or as numbers."""
    if names is None:
        return [str(i) for i in ids]
    return [str(names(i)) if callable(names) else str(names[i]) for i in ids]


def _map(axes: Any, values: Tensor, *, low: float, high: float, cells: list[list[str]] | None = None, shades: str = SHADES) -> Any:
    """A heat map whose cells say what they are, where there is room."""
    image = axes.imshow(values.numpy(), cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for row, words in enumerate(cells or []):
        for column, word in enumerate(words):
            red, green, blue, _ = image.cmap(image.norm(float(values[row, column])))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            axes.text(column, row, word, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    return image


def _numbers(values: Tensor) -> list[list[str]] | None:
    return [[f"{v:.2f}" for v in row] for row in values.tolist()] if values.numel() <= CELLS else None


def _ticks(axes: Any, columns: Sequence[str] | None = None, rows: Sequence[str] | None = None, most: int = 60) -> None:
    """Names at the edges of a map; every second or third one where they would touch."""
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if names is not None:
            step = -(-len(names) // most)
            axis.set_ticks(range(0, len(names), step), names[::step])
    if columns is not None and max(map(len, columns)) > 4:
        axes.tick_params(axis="x", labelrotation=90)


def _lines(axes: Any, xlabel: str, ylabel: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d9dce1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)


def plot_logit_lens(lens: Float[Tensor, "layers tokens vocab"], ids: Int[Tensor, "tokens"], *, names: Any = None) -> Any:
    """The likeliest next token at each layer and position of one row, shaded by its probability; of more than 50 tokens the shades alone.

    Args:
        lens: of one row: ``logit_lens(model, ids)[:, row]``.
        ids: of that row.
        names: token id -> word, as a function or a sequence; None shows ids.

    Example:
        >>> figure = plot_logit_lens(torch.randn(3, 4, 5), torch.tensor([0, 3, 1, 2]))
        >>> figure.axes[0].get_xlabel()
        'token read'
    """
    if lens.shape[1] != len(ids):
        raise UsageError(f"ids must be the {lens.shape[1]} tokens of the row that lens is of, got {len(ids)}; take lens[:, row] and ids[row]")
    p, top = lens.detach().cpu().double().softmax(-1).max(-1)
    layers, tokens, _ = lens.shape
    figure, (axes,) = _axes(min(1.6 + 0.42 * tokens, 20), 1.4 + 0.4 * layers)
    words = [_named(row, names) for row in top.tolist()]
    image = _map(axes, p, low=0, high=1, cells=words if tokens <= 50 else None)
    _ticks(axes, _named(ids.tolist(), names), [f"{k}" for k in range(layers)])
    axes.invert_yaxis()  # the last layer on top, as models are drawn
    axes.set_xlabel("token read")
    axes.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="probability")
    return figure


def plot_identity_successor(scores: Sequence[Mapping[str, Any]]) -> Any:
    """Probability of identity and successor by layer, their sum, and how often they are the two likeliest tokens.

    Args:
        scores: of :func:`trimtab.metrics.identity_successor_scores`.

    Example:
        >>> rows = [{"layer": k, "identity": 0.1 * k, "successor": 0.2, "mass": 0.2 + 0.1 * k, "top2_rate": 0.5, "positions": 9} for k in range(3)]
        >>> plot_identity_successor(rows).axes[0].get_xlabel()
        'layer'
    """
    figure, (axes,) = _axes(5, 3.2)
    layers = [row["layer"] for row in scores]
    styles = {"identity": ("-", "o"), "successor": ("-", "s"), "mass": ("--", "^"), "top2_rate": (":", "D")}
    shown = {"identity": "p(identity)", "successor": "p(successor)", "mass": "sum of both", "top2_rate": "both on top"}
    for (key, (line, marker)), colour in zip(styles.items(), PALETTE, strict=False):
        axes.plot(layers, [row[key] for row in scores], line, marker=marker, color=colour, label=shown[key])
    _lines(axes, "layer", "share")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xticks(layers)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def plot_probes(rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Accuracy of probes by layer, one line a test; thin and dashed that of its control: what lies between is the selectivity.

    Args:
        rows: of :func:`trimtab.metrics.probe_layers`, or several of them by the name of their target.

    Example:
        >>> rows = [{"layer": k, "test": "n=5", "accuracy": 0.4 + 0.3 * k, "control": 0.2} for k in range(2)]
        >>> len(plot_probes({"identity": rows, "successor": rows}).axes)
        2
    """
    panels = rows if isinstance(rows, Mapping) else {"": rows}
    figure, cells = _axes(1.6 + 2.6 * len(panels), 3.2, columns=len(panels))
    names = list(dict.fromkeys(str(row["test"]) for some in panels.values() for row in some))
    for axes, (title, some) in zip(cells, panels.items(), strict=True):
        for name, colour in zip(names, PALETTE * len(names), strict=False):
            line = [row for row in some if str(row["test"]) == name]
            layers = [row["layer"] for row in line]
            axes.plot(layers, [row["accuracy"] for row in line], marker="o", color=colour, label=name)
            axes.plot(layers, [row["control"] for row in line], "--", linewidth=1, color=colour)
            axes.set_xticks(layers)
        _lines(axes, "layer", "accuracy" if axes is cells[0] else "")
        axes.set_ylim(-0.03, 1.03)
        axes.set_title(title, fontsize=10)
    lines = cells[0].get_lines()
    figure.legend([*lines[::2], lines[1]], [*names, "control"], loc="outside right upper", frameon=False)
    return figure


def plot_offset_profile(profile: OffsetProfile) -> Any:
    """Where heads look: one row a head, one column a bin; below them, what a head would show that looks everywhere alike.

    Args:
        profile: of :func:`trimtab.metrics.attention_offset_profile`.

    Example:
        >>> from trimtab.metrics.attention import bin_names
        >>> names = bin_names(reach=1)
        >>> mass = torch.eye(len(names))[:4].view(2, 2, -1)
        >>> plot_offset_profile(OffsetProfile(mass, names, [["-1", "-1"], ["-1", "-1"]], mass.mean((0, 1)), 9)).axes[0].get_ylabel()
        'head'
    """
    layers, heads, bins = profile.mass.shape
    values = torch.cat([profile.mass.flatten(0, 1), profile.uniform[None]])
    figure, (axes,) = _axes(2.2 + 0.55 * bins, 1.7 + 0.32 * len(values))
    image = _map(axes, values, low=0, high=1, cells=_numbers(values))
    rows = [f"{layer}.{head}  ({profile.labels[layer][head]})" for layer in range(layers) for head in range(heads)]
    _ticks(axes, [name.replace("+1", "+1 (successor)") if name == "+1" else name for name in profile.bins], [*rows, "uniform"])
    for edge in range(heads, len(values), heads):
        axes.axhline(edge - 0.5, color="white", linewidth=3)
    axes.set_xlabel("key, by its value's rank from the token just read")
    axes.set_ylabel("head")
    figure.colorbar(image, ax=axes, label="attention")
    return figure


def plot_attention(pattern: Float[Tensor, "heads queries keys"], ids: Int[Tensor, "keys"] | None = None, *, names: Any = None) -> Any:
    """Attention maps of one row, a panel for each head.

    Args:
        pattern: of one layer and row: ``run_with_cache(model, ids, name)[name][row]`` for the name of a ``hook_pattern``.
        ids: the row's tokens, to name keys and queries by.
        names: token id -> word, as a function or a sequence; None shows ids.

    Example:
        >>> len(plot_attention(torch.eye(3).expand(2, 3, 3), torch.tensor([4, 0, 1])).axes)
        3
    """
    heads, queries, keys = pattern.shape
    if ids is not None and len(ids) != keys:
        raise UsageError(f"ids must be the {keys} tokens of the row that pattern is of, got {len(ids)}; take pattern[row] and ids[row]")
    columns = min(heads, 4)
    rows = -(-heads // columns)
    side = min(2.2 + 0.12 * keys, 5)
    figure, cells = _axes(columns * side + 0.8, rows * side + 0.4, columns=columns, rows=rows)
    words = None if ids is None else _named(ids.tolist(), names)
    image = None
    for head, axes in enumerate(cells):
        if head >= heads:
            axes.set_visible(False)
            continue
        image = _map(axes, pattern[head].detach().cpu().double(), low=0, high=1)
        axes.set_title(f"head {head}", fontsize=10)
        axes.tick_params(labelsize=7)
        if words is not None:
            _ticks(axes, words, words[keys - queries :], most=30)
        axes.set_xlabel("key")
        axes.set_ylabel("query" if head % columns == 0 else "")
    figure.colorbar(image, ax=cells, label="attention")
    return figure


def plot_ablation(rows: Sequence[Mapping[str, Any]]) -> Any:
    """What the score loses without each head: layers by heads.

    Args:
        rows: of :func:`trimtab.metrics.ablate_heads`.

    Example:
        >>> rows = [{"layer": 0, "head": head, "score": 0.5, "drop": 0.5, "whole": 1.0} for head in range(3)]
        >>> plot_ablation(rows).axes[0].get_xlabel()
        'head'
    """
    layers = sorted({row["layer"] for row in rows})
    heads = 1 + max(row["head"] for row in rows)
    values = torch.full((len(layers), heads), torch.nan, dtype=torch.float64)
    for row in rows:
        values[layers.index(row["layer"]), row["head"]] = row["drop"]
    most = max(float(values.nan_to_num().abs().max()), 1e-9)
    figure, (axes,) = _axes(2.4 + 0.6 * heads, 1.5 + 0.45 * len(layers))
    image = _map(axes, values, low=-most, high=most, cells=_numbers(values), shades="RdBu_r")
    _ticks(axes, [str(head) for head in range(heads)], [str(layer) for layer in layers])
    axes.invert_yaxis()
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"whole model: {rows[0]['whole']:.3g}", fontsize=10)
    figure.colorbar(image, ax=axes, label="drop in score")
    return figure


def plot_patch(results: Mapping[str, Patched]) -> Any:
    """Recovered share of the logit difference, one bar a patch; a dot for each row.

    Args:
        results: name -> of :func:`trimtab.metrics.patch`.

    Example:
        >>> one, zero = torch.ones(3), torch.zeros(3)
        >>> found = Patched(torch.zeros(3, 4, 5), 0.5, clean=one, corrupt=zero, patched=0.5 * one)
        >>> plot_patch({"head 0": found, "head 1": found}).axes[0].get_xlabel()
        'recovered share of the logit difference'
    """
    figure, (axes,) = _axes(6, 1.1 + 0.36 * len(results))
    places = range(len(results))
    axes.barh(places, [found.recovered for found in results.values()], color=PALETTE[0], height=0.6)
    for place, found in zip(places, results.values(), strict=True):
        span = (found.clean - found.corrupt).cpu()
        usable = span != 0
        shares = ((found.patched - found.corrupt).cpu()[usable] / span[usable]).clamp(-0.5, 1.5)
        axes.plot(shares.numpy(), [place] * len(shares), ".", color="#202124", alpha=0.4, markersize=4)
    axes.set_yticks(places, list(results))
    axes.invert_yaxis()
    for x in (0, 1):
        axes.axvline(x, color="#6b6f76", linewidth=0.9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("recovered share of the logit difference")
    return figure


def plot_entropy(found: EntropyByLength) -> Any:
    """Entropy of attention against length, as a share of its largest value, and the mass on the successor: one line a layer, thin ones for its heads.

    Args:
        found: of :func:`trimtab.metrics.attention_entropy`.

    Example:
        >>> some = torch.rand(3, 2, 4)
        >>> len(plot_entropy(EntropyByLength([5, 10, 20], some, some, None)).axes)
        1
    """
    panels = {"entropy / log(visible keys)": found.share} | ({} if found.successor is None else {"mass on the successor": found.successor})
    figure, cells = _axes(1.2 + 3.4 * len(panels), 3.2, columns=len(panels))
    for axes, (title, values) in zip(cells, panels.items(), strict=True):
        for layer in range(values.shape[1]):
            colour = PALETTE[layer % len(PALETTE)]
            axes.plot(found.lengths, values[:, layer].numpy(), color=colour, alpha=0.35, linewidth=0.8)
            axes.plot(found.lengths, values[:, layer].mean(1).numpy(), marker="o", color=colour, label=f"layer {layer}")
        _lines(axes, "length", title)
        if min(found.lengths) > 0 and max(found.lengths) > 12 * min(found.lengths):
            axes.set_xscale("log")
        axes.set_xticks(found.lengths, [f"{length:g}" for length in found.lengths])
        axes.minorticks_off()
        axes.set_ylim(-0.03, 1.03)
    handles, labels = cells[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    return figure
