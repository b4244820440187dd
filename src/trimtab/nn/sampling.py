"""From logits to tokens."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError


def sample(logits: Float[Tensor, "*batch vocab"], temperature: float, generator: torch.Generator | None = None) -> Int[Tensor, "*batch"]:
    """One token a row from softmax(logits / temperature); the likeliest at temperature 0.

    Args:
        logits: of one position.
        temperature: >= 0.
        generator: on the CPU whatever the device, so that all devices draw alike; a row's draw depends on its place and not on the other rows. None draws from
            torch's global stream.

    Raises:
        UsageError: a row has no likeliest token: NaN or infinity among its logits, or nothing but -infinity.

    Example:
        >>> sample(torch.tensor([[0.0, 5.0, 1.0]]), 0.0)
        tensor([1])
    """
    top = logits.amax(-1, keepdim=True)
    if not bool(top.isfinite().all()):
        row = int((~top.isfinite()).flatten().nonzero()[0])
        raise UsageError(f"the largest logit of a row must be a finite number, got {top.flatten()[row]:g} in row {row}; the model that gave them has diverged")
    if temperature == 0:
        return logits.argmax(-1)
    # float64: with 2**24 float32 steps, tokens of small probability would be missed. Below the least normal number a reciprocal would be infinite
    below = ((logits.double() - top) / max(temperature, sys.float_info.min)).softmax(-1).cumsum(-1)
    draw = torch.rand(below.shape[:-1], generator=generator, dtype=torch.float64, device="cpu").to(below.device)
    # scaled by the last sum, which rounding keeps from being 1; right=True steps over tokens of probability 0
    return torch.searchsorted(below, draw[..., None] * below[..., -1:], right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside; then each module has its own mode again, which a plain ``train()`` would not give a frozen part."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
