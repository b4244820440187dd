"""Averaged weights: an exponential moving average over the steps, without the bias towards the first weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.core import UsageError


class WeightAverage:
    r"""Exponential moving average of a model's parameters and buffers.

    .. math:: \bar w_t = \frac{\sum_{s=1}^{t} d^{\,t-s} w_s}{\sum_{s=1}^{t} d^{\,t-s}}

    The sum is normalised, so the average is one of trained weights from the first step on; the initial ones, which the usual recursion starts from and forgets
    only after 1 / (1 - d) steps, have no part in it. Floating-point tensors are averaged, in float32 at least; others (counters) are the model's own. A tensor
    that appears later (a hook grew the model), or changes its shape, starts from its value at that step.

    Args:
        decay: d, in 0 < d < 1; about 1 / (1 - d) steps are averaged.

    Example:
        >>> model, average = nn.Linear(1, 1, bias=False), WeightAverage(0.5)
        >>> for value in (3.0, 6.0):
        ...     _ = model.weight.data.fill_(value)
        ...     average.update(model)
        >>> with average.swapped(model):
        ...     model.weight.item()  # (0.5 * 3 + 6) / 1.5
        5.0
        >>> model.weight.item()
        6.0

    When not to use it: weights that are only good as they are (quantised or exactly sparse ones).

    References:
        Adam: A Method for Stochastic Optimization, 2014, arXiv 1412.6980, section 3 (the normalisation) and 7.2 (the average).
    """

    def __init__(self, decay: float):
        if not (isinstance(decay, Real) and 0 < decay < 1):
            raise UsageError(f"average must lie between 0 and 1, got {decay!r}; 0.999 averages about a thousand steps, None none")
        self.decay, self.steps, self.values = decay, 0, {}

    def update(self, model: nn.Module) -> None:
        """Take in the weights after one more step."""
        self.steps += 1
        now = _floating(model)
        kept = self._known(now)
        self.values = {name: self.values[name] for name in kept}
        share = (1 - self.decay) / (1 - self.decay**self.steps)
        if kept:
            averages = [self.values[name] for name in kept]
            weights = [now[name].to(average.dtype) for name, average in zip(kept, averages, strict=True)]
            torch._foreach_lerp_(averages, weights, share)  # pyright: ignore[reportPrivateImportUsage]
        for name, value in now.items():
            if name not in self.values:
                self.values[name] = value.to(torch.promote_types(value.dtype, torch.float32), copy=True)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Let the model have the averaged weights inside a ``with`` block."""
        now = _floating(model)
        own = {name: now[name].clone() for name in self._known(now)}
        try:
            for name in own:
                now[name].copy_(self.values[name])
            yield
        finally:
            for name, value in own.items():
                now[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "values": self.values}

    def load_state_dict(self, state: dict[str, Any], model: nn.Module) -> None:
        """Take up a state; the model says on which devices."""
        now = _floating(model)
        self.steps, self.values = state["steps"], {name: value.to(now[name].device) for name, value in state["values"].items() if name in now}

    def _known(self, now: dict[str, Tensor]) -> list[str]:
        return [name for name, value in now.items() if name in self.values and self.values[name].shape == value.shape]


def _floating(model: nn.Module) -> dict[str, Tensor]:
    """A model's floating-point tensors, detached, a tied one once."""
    seen, found = set(), {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point() and (same := (value.data_ptr(), value.shape)) not in seen:
            seen.add(same)
            found[name] = value
    return found
