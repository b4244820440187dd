"""What a run changes and gives back: the rates of an optimiser, the global random state, the modes of modules."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; then each module has its own mode again, which a plain ``train()`` would not give a frozen part."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
