"""The global random state of torch, NumPy and Python, which nothing here may use: looked at, disturbed, and given back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def states() -> dict[str, tuple]:
    """Each library's state, comparable with ==."""
    kind, key, *rest = np.random.get_state()
    return {"torch": tuple(torch.get_rng_state().tolist()), "numpy": (kind, *np.asarray(key).tolist(), *rest), "random": random.getstate()}


def scramble(seed: int) -> None:
    """Set all three: what draws from one of them gives something else after another seed."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def own_random_state() -> Iterator[None]:
    """Let the caller's global random state be as it was, whatever the block does to it."""
    for_torch, for_numpy, for_random = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(for_torch)
        np.random.set_state(for_numpy)
        random.setstate(for_random)
