"""What a run changes and gives back: the rates of an optimiser and the global random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer


@contextmanager
def own_rates(optimizer: Optimizer) -> Iterator[None]:
    """The optimiser's own rates come back afterwards, for a schedule's last ones would be taken for them by its next run."""
    own = [{name: group[name] for name in ("lr", "initial_lr") if name in group} for group in optimizer.param_groups]
    try:
        yield
    finally:
        for group, rates in zip(optimizer.param_groups, own, strict=False):  # a hook may have added groups
            group.pop("initial_lr", None)
            group.update(rates)


@contextmanager
def own_random_state(device: torch.device) -> Iterator[None]:
    """The caller's global random state comes back afterwards."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type="cuda" if device.type == "cpu" else device.type):
        yield
