"""Learning-rate schedules: a schedule is a callable from the step to a multiplier of the base rate, so that resuming is arithmetic."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.core import UsageError


@dataclass(frozen=True)
class _WarmupCosine:
    """A class rather than a closure, so that a run can write down its schedule and compare it on resume."""

    steps: int
    warmup: int
    floor: float

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        passed = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * passed)) / 2


def warmup_cosine(steps: int, *, warmup: int = 0, floor: float = 0.0) -> Callable[[int], float]:
    r"""Linear warm-up, then half a cosine down to a floor.

    .. math:: m(t) = (t + 1) / w \text{ for } t < w, \qquad f + (1 - f) \tfrac{1}{2} \left(1 + \cos \pi \tfrac{t - w}{T - w}\right) \text{ after}

    Args:
        steps: T, the length of the run; >= 1. From there on the multiplier is the floor.
        warmup: w, steps of warm-up; 0 .. steps.
        floor: f, what is left at the end, as a share of the base rate; 0 .. 1.

    Returns:
        A function of the step, which counts from 0.

    Raises:
        UsageError: an argument is out of range.

    Example:
        >>> rate = warmup_cosine(100, warmup=10, floor=0.1)
        >>> [round(rate(step), 3) for step in (0, 9, 10, 55, 100)]
        [0.1, 1.0, 1.0, 0.55, 0.1]

    When not to use it: a run of unknown length; a constant rate (``schedule=None``) can be stopped at any time.

    References:
        SGDR: Stochastic Gradient Descent with Warm Restarts, 2016, arXiv 1608.03983 (the cosine).
    """
    if not steps >= 1:
        raise UsageError(f"steps must be >= 1, got {steps}")
    if not 0 <= warmup <= steps:
        raise UsageError(f"warmup must lie in 0 .. steps = {steps}, got {warmup}")
    if not 0 <= floor <= 1:
        raise UsageError(f"floor must lie in 0 .. 1, got {floor}")
    return _WarmupCosine(steps, warmup, floor)
