"""Random numbers by name: every stream is a pure function of a seed and a few names, so that nothing depends on what ran before."""

from __future__ import annotations

import hashlib
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A new seed in 0 .. 2**63 - 1 for a named stream; different names give unrelated streams.

    Example:
        >>> derive(0, "data", 3) == derive(0, "data", 3), derive(0, "data", 3) == derive(0, "data", 4)
        (True, False)
    """
    parts = (index(seed), *(name if isinstance(name, str) else index(name) for name in names))  # a NumPy integer names the stream that the plain one does
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for a named stream. Draw on the CPU and move the result: then every device sees the same numbers.

    Example:
        >>> import torch
        >>> a, b = (torch.rand(2, generator=generator(0, "data")) for _ in range(2))
        >>> torch.equal(a, b)
        True
    """
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))
