r"""Linear probes: what can be read off each layer's hidden states by one linear map, and how much of that the probe owes to the labels' shares alone.

Papers: probes after Understanding intermediate layers using linear classifier probes (arXiv 1610.01644); selectivity after Designing and Interpreting Probes
with Control Tasks (arXiv 1909.03368). Deviation: the control shuffles labels over positions, so it is what a probe gets without the hidden states, not what it
can learn by heart about word types. The control's accuracy on test rows is taken in expectation over all shuffles of their labels, so only the training labels
are drawn.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trimtab.core import UsageError, generator, unknown
from trimtab.metrics.sequence import IGNORE

KINDS = ("ridge", "logistic")


def probe_layers(
    states: Float[Tensor, "layers *place dim"],
    targets: Int[Tensor, "*place"],
    test: Mapping[Any, tuple[Float[Tensor, "..."], Int[Tensor, "..."]]],
    *,
    kind: str = "ridge",
    l2: float = 1e-3,
    seed: int = 0,
) -> list[dict[str, Any]]:
    r"""Train a linear probe on each layer, and test it on other rows: longer ones, say.

    .. math:: \text{ridge: } \min_W \tfrac1N \|Y - XW\|^2 + \lambda \|W\|^2, \text{ in closed form}
        \qquad \text{logistic: } \min_W \tfrac1N \textstyle\sum_i \mathrm{CE}(y_i, x_i W) + \tfrac{\lambda}{2} \|W\|^2

    Y has a column of zeros and ones for each class, and the largest output is the answer. Each feature of X is centred and divided by its standard deviation
    among the training rows: a few features of language models are a thousand times as large as the others, and a common scale would hide all others behind the
    penalty.

    Args:
        states: of training positions, as :func:`trimtab.metrics.hidden_states` gives them.
        targets: a class for each position, as :func:`trimtab.metrics.sorting_targets` gives them; -100 leaves the position out.
        test: name -> (states, targets) of rows that were not trained on. A class that training did not have is a mistake there.
        kind: "ridge" or "logistic", which takes scikit-learn and is slow above some 10,000 positions.
        l2: penalty, > 0.
        seed: of the shuffled labels.

    Returns:
        One row for each layer and test: ``layer``, ``test``, ``accuracy``, ``control`` (of a probe trained on shuffled labels, tested on shuffled labels),
        ``selectivity`` (accuracy - control), ``train_accuracy``, ``train_positions``, ``positions``.

    Raises:
        UsageError: shapes disagree, fewer than two classes, no test position, NaN among the states, or an unknown kind.

    Example:
        >>> x = torch.randn(2, 4000, 4, generator=torch.Generator().manual_seed(0))
        >>> y = (x[1, :, 0] > 0).long()  # layer 1 knows it, layer 0 does not
        >>> rows = probe_layers(x[:, :2000], y[:2000], {"later": (x[:, 2000:], y[2000:])})
        >>> [round(row["accuracy"], 1) for row in rows]
        [0.5, 1.0]

    When not to use it: ridge, for classes that lie in order along one direction (counts, positions): the middle ones are masked by the ends; take "logistic".
    And no probe says that the model uses what it finds; patch or ablate for that.

    References:
        Understanding intermediate layers using linear classifier probes, 2016, arXiv 1610.01644. Designing and Interpreting Probes with Control Tasks, 2019,
        arXiv 1909.03368.
    """
    if kind not in KINDS:
        raise unknown("kind of probe", kind, KINDS)
    if not l2 > 0:
        raise UsageError(f"l2 must be > 0, got {l2}")
    if not test:
        raise UsageError("test must hold rows that were not trained on, by name, and is empty; a probe's accuracy on its own training rows says nothing")
    x, y = _rows("targets", states, targets)
    tests = {name: _rows(f"test[{name!r}]", *pair) for name, pair in test.items()}
    for name, (held, _) in tests.items():
        if held.shape[::2] != x.shape[::2]:
            raise UsageError(f"test[{name!r}] must have the layers and dim of states, {tuple(x.shape[::2])}, got {tuple(held.shape[::2])}")
    classes, coded = y.unique(return_inverse=True)
    if len(classes) < 2:
        raise UsageError(f"targets must have at least two classes, got only {classes.tolist()}; there is nothing to tell apart")
    fit = _ridge if kind == "ridge" else _logistic
    shuffled = coded[torch.randperm(len(coded), generator=generator(seed, "probe"))]
    # the share of each class among the labels of a test
    shares = {name: (answers[:, None] == classes).double().mean(0) for name, (_, answers) in tests.items()}
    rows = []
    for layer, features in enumerate(x):
        features, mean, scale = _scaled(features)
        probe, control = fit(features, [coded, shuffled], len(classes), l2)
        own = float((probe(features) == coded).double().mean())
        for name, (held, answers) in tests.items():
            seen = (held[layer].double() - mean) / scale
            accuracy = float((classes[probe(seen)] == answers).double().mean())
            chance = float(shares[name][control(seen)].mean())
            rows.append(
                {
                    **{"layer": layer, "test": name, "accuracy": accuracy, "control": chance, "selectivity": accuracy - chance},
                    **{"train_accuracy": own, "train_positions": len(coded), "positions": len(answers)},
                }
            )
    return rows


def _rows(name: str, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[layers, positions, dim] and [positions], on the CPU, where float64 always is."""
    if states.shape[1:-1] != targets.shape or states.dim() < 3:
        raise UsageError(f"{name}: states must be [layers, *shape of targets, dim], got states {tuple(states.shape)} and targets {tuple(targets.shape)}")
    keep = (targets != IGNORE).flatten()
    if not bool(keep.any()):
        raise UsageError(f"{name} must have a position whose target is not {IGNORE}, and has none")
    states, targets = states.detach().flatten(1, -2), targets.flatten()
    if not bool(keep.all()):
        states, targets = states[:, keep], targets[keep]
    if not bool(states.isfinite().all()):
        raise UsageError(f"{name}: states must be finite, and some are not; the model that gave them has diverged")
    return states.cpu(), targets.cpu()


def _scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each feature centred and divided by its standard deviation; the means and these."""
    x = x.double()
    mean = x.mean(0)
    x = x - mean
    scale = x.square().mean(0).sqrt()
    scale = torch.where(scale > 1e-6 * mean.abs(), scale, torch.inf)  # what is the same everywhere but for rounding says nothing
    return x / scale, mean, scale


Probe = Callable[[Tensor], Tensor]


def _ridge(x: Tensor, labels: list[Tensor], classes: int, l2: float) -> list[Probe]:
    """One factorisation for all labels."""
    gram = x.T @ x / len(x) + l2 * torch.eye(x.shape[1], dtype=x.dtype)
    # X'Y for one-hot Y is a sum of the rows of each class
    moments = torch.stack([torch.zeros(classes, x.shape[1], dtype=x.dtype).index_add_(0, y, x) for y in labels]) / len(x)
    weights = torch.linalg.solve(gram, moments.mT)
    # float64 is for solving; standardised features need no more than float32 to be told apart
    maps = [(w.float(), torch.bincount(y, minlength=classes).float() / len(y)) for w, y in zip(weights, labels, strict=True)]
    return [lambda z, w=w, b=b: torch.addmm(b, z.float(), w).argmax(-1) for w, b in maps]


def _logistic(x: Tensor, labels: list[Tensor], classes: int, l2: float) -> list[Probe]:
    from sklearn.linear_model import LogisticRegression

    def fit(y: Tensor) -> Probe:
        model = LogisticRegression(C=1 / (l2 * len(x)), max_iter=1000).fit(x.numpy(), y.numpy())
        return lambda z: torch.from_numpy(model.predict(z.numpy()))

    return [fit(y) for y in labels]
