"""Where batches come from: a source that is a function of (seed, step), or anything that can be iterated."""

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from trimtab.core import UsageError, derive, whole

log = logging.getLogger("trimtab.train")

NO_PROMISE = (
    "the source is an iterable: on resume its batches are drawn again and dropped up to the step that was reached, "
    "which gives the bytes of an uninterrupted run only if iterating it again gives the same batches in the same order"
)


def seed_global(seed: int, device: torch.device) -> None:
    """Seed what dropout and shuffling loaders draw from; ``torch.manual_seed``, which looks for every kind of device, takes a hundred times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device: tensors, and mappings, lists and tuples of them; anything else is left as it is."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


class Batches:
    """Batch number n of a source, for n = 0, 1, 2 ...

    A source with ``batch(seed, step, size)`` is asked for batch n. An iterable is drawn from, and iterated again when it is exhausted; to start at a later n,
    the batches before it are drawn and dropped, each under the random state it was drawn under before. Torch's global random state, from which a loader
    shuffles and dropout draws, is seeded anew for each batch.

    Example:
        >>> batches = Batches(["a", "b", "c"], 0, None, torch.device("cpu"))
        >>> batches(1), batches(2), batches(3)
        ('b', 'c', 'a')
    """

    def __init__(self, source: Any, seed: int, size: int | None, device: torch.device):
        self.source, self.seed, self.size, self.device = source, seed, size, device
        # other libraries have a `batch` of their own on their iterables
        self.by_step = callable(getattr(source, "batch", None)) and {"seed", "step"} <= inspect.signature(source.batch).parameters.keys()
        if not self.by_step and not isinstance(source, Iterable):
            raise UsageError(f"source must have batch(seed, step, size) or be iterable, got {type(source).__name__}")
        if self.by_step:
            if size is None:
                raise UsageError("batch_size must be given for a source with batch(seed, step, size), got None")
            size = whole("batch_size", size, 1)
        if not self.by_step and size is not None:
            raise UsageError(f"batch_size must be left out for an iterable, which makes its own batches, got {size!r}")
        self.setting = source if self.by_step else type(source).__name__  # the repr of a list of batches would be pages of numbers
        self._iterator, self._drawn = None, 0

    def __call__(self, n: int) -> Any:
        if self.by_step:
            seed_global(derive(self.seed, "global", n), self.device)
            return to_device(self.source.batch(self.seed, n, self.size), self.device)
        if self._drawn == 0 < n:
            log.warning("drawing and dropping %d batches: %s", n, NO_PROMISE)
        while True:
            seed_global(derive(self.seed, "global", self._drawn), self.device)
            batch, self._drawn = self._next(), self._drawn + 1
            if self._drawn > n:
                return to_device(batch, self.device)

    def _next(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.source)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise UsageError(
            f"source ended after {self._drawn} batches and gives none when iterated again; hand fit a DataLoader or a list, no iterator, or ask for fewer steps"
        )

    def names(self, step: int, accumulate: int) -> str:
        """How a person gets the batches of a step again."""
        numbers = range(step * accumulate, (step + 1) * accumulate)
        if self.by_step:
            return " and ".join(f"source.batch({self.seed}, {n}, {self.size})" for n in numbers)
        return f"batch {' and '.join(map(str, numbers))} of the source, counted from 0, under seed {self.seed}"
