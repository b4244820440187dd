"""Each figure shows the numbers that it was given, and can be written down."""

import io

import pytest
import torch

from trimtab.core import UsageError, generator
from trimtab.metrics import (
    EntropyByLength,
    OffsetProfile,
    Patched,
    plot_ablation,
    plot_attention,
    plot_entropy,
    plot_identity_successor,
    plot_logit_lens,
    plot_offset_profile,
    plot_patch,
    plot_probes,
)
from trimtab.metrics.attention import bin_names


def written(figure):
    """Drawn whole; warnings, of text that does not fit, are errors."""
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=30)
    assert page.getvalue().startswith(b"\x89PNG")


def shown(axes):
    return torch.from_numpy(axes.images[0].get_array().filled(torch.nan))


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_lens():
    lens, ids = torch.randn(3, 5, 9, generator=generator(0)), torch.tensor([4, 4, 0, 8, 1])
    figure = plot_logit_lens(lens, ids, names=lambda i: f"<{i}>")
    axes = figure.axes[0]
    assert words(axes) == [f"<{i}>" for i in lens.argmax(-1).flatten().tolist()]
    torch.testing.assert_close(shown(axes), lens.double().softmax(-1).amax(-1))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["<4>", "<4>", "<0>", "<8>", "<1>"]
    written(figure)
    assert not words(plot_logit_lens(lens[:, :1].expand(3, 80, 9), torch.zeros(80, dtype=torch.long)).axes[0])


def test_identity_successor():
    rows = [{"layer": k, "identity": 0.1 * k, "successor": 0.2, "mass": 0.2 + 0.1 * k, "top2_rate": 0.5, "positions": 9} for k in range(3)]
    figure = plot_identity_successor(rows)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines["p(identity)"] == [0, 0.1, 0.2] and lines["both on top"] == [0.5] * 3 and lines["sum of both"] == [row["mass"] for row in rows]
    written(figure)


def test_probes():
    rows = [{"layer": k, "test": n, "accuracy": 0.1 * k + n / 100, "control": 0.2 + k / 10} for k in range(3) for n in (8, 40)]
    figure = plot_probes({"identity": rows, "successor": rows})
    for axes, title in zip(figure.axes, ("identity", "successor"), strict=True):
        assert axes.get_title() == title
        assert list(axes.get_lines()[2].get_ydata()) == [0.1 * k + 0.4 for k in range(3)]
        assert list(axes.get_lines()[3].get_ydata()) == [0.2 + k / 10 for k in range(3)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["8", "40", "control"]
    written(figure)
    assert len(plot_probes(rows).axes) == 1


def test_offset_profile():
    names = bin_names(reach=2)
    mass = torch.rand(2, 3, len(names), generator=generator(0))
    figure = plot_offset_profile(OffsetProfile(mass, names, [["a", "b", "c"], ["d", "e", "f"]], mass.mean((0, 1)), 9))
    axes = figure.axes[0]
    torch.testing.assert_close(shown(axes), torch.cat([mass.flatten(0, 1), mass.mean((0, 1))[None]]))
    assert words(axes)[0] == f"{mass[0, 0, 0]:.2f}"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.0  (a)", "0.1  (b)", "0.2  (c)", "1.0  (d)", "1.1  (e)", "1.2  (f)", "uniform"]
    written(figure)


@pytest.mark.parametrize("heads", [1, 5])
def test_attention(heads):
    pattern, ids = torch.rand(heads, 2, 3, generator=generator(0)), torch.tensor([7, 5, 6])
    figure = plot_attention(pattern, ids, names=[str(k) * 2 for k in range(8)])
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"head {head}" for head in range(heads)]
    for axes, values in zip(panels, pattern, strict=True):
        torch.testing.assert_close(shown(axes), values.double())
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["55", "66"]  # the last two tokens ask
    written(figure)
    assert plot_attention(pattern).axes[0].get_yticklabels()[0].get_text() != "55"


@pytest.mark.usefixtures("annotations_off")
def test_tokens_of_another_row():
    with pytest.raises(UsageError, match="ids must be the 5 tokens of the row that lens is of, got 4"):
        plot_logit_lens(torch.zeros(2, 5, 9), torch.zeros(4, dtype=torch.long))
    with pytest.raises(UsageError, match="ids must be the 3 tokens of the row that pattern is of, got 2"):
        plot_attention(torch.zeros(1, 3, 3), torch.zeros(2, dtype=torch.long))


def test_ablation():
    rows = [{"layer": layer, "head": head, "score": 0.0, "drop": layer - head / 4, "whole": 0.75} for layer in (0, 2) for head in range(3)]
    figure = plot_ablation(rows[:-1])
    values = shown(figure.axes[0])
    assert values[1, :2].tolist() == [2, 1.75] and values[1, 2].isnan() and values[0].tolist() == [0, -0.25, -0.5]
    assert "0.75" in figure.axes[0].get_title()
    written(figure)
    assert not shown(plot_ablation([row | {"drop": 0.0} for row in rows]).axes[0]).any()


def test_patch():
    one, zero = torch.ones(3), torch.zeros(3)
    found = Patched(torch.zeros(3, 4, 5), 0.5, clean=torch.tensor([1.0, 2.0, 0.0]), corrupt=zero, patched=0.5 * one)
    figure = plot_patch({"head 0": found, "head 1": found._replace(recovered=-0.25)})
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.5, -0.25]
    assert list(axes.get_lines()[0].get_xdata()) == [0.5, 0.25]  # a row whose runs do not differ has no share
    written(figure)


def test_entropy():
    share, mass = torch.rand(2, 3, 2, 4, generator=generator(0))
    figure = plot_entropy(EntropyByLength([5, 20, 100], 9 * share, share, mass))
    for axes, values in zip(figure.axes, (share, mass), strict=True):
        means = [line for line in axes.get_lines() if line.get_label().startswith("layer")]
        for layer, line in enumerate(means):
            torch.testing.assert_close(torch.from_numpy(line.get_ydata()), values[:, layer].mean(1))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["5", "20", "100"]
    written(figure)
    assert len(plot_entropy(EntropyByLength([3], share[:1], share[:1], None)).axes) == 1
