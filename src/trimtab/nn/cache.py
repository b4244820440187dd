"""Keys and values of tokens already seen, so that a step of generation reads only its own token."""

from torch import Tensor

from trimtab.core import UsageError


class KVCache:
    """Room for keys and values, allocated once and filled from the left.

    It is indexed by the place in the block schedule, not by the block: a block that runs twice has two places. Setting ``length`` back forgets what came after.

    Args:
        places: length of the block schedule.
        capacity: most positions it can hold, prompt included.

    Attributes:
        length: positions held.
        masked: whether some of them are padding, as a mask said.

    Example:
        >>> import torch
        >>> cache = KVCache(places=1, capacity=8)
        >>> k, v = cache.append(0, torch.ones(2, 4, 3, 5), torch.ones(2, 4, 3, 5))
        >>> cache.advance(3)
        >>> k, v = cache.append(0, torch.zeros(2, 4, 1, 5), torch.zeros(2, 4, 1, 5))
        >>> k.shape
        torch.Size([2, 4, 4, 5])
    """

    def __init__(self, places: int, capacity: int):
        if places < 1 or capacity < 1:
            raise UsageError(f"places and capacity of a KVCache must be >= 1, got {places} and {capacity}")
        self.capacity = capacity
        self.length = 0
        self.masked = False
        self._held: list[tuple[Tensor, Tensor] | None] = [None] * places

    @property
    def places(self) -> int:
        return len(self._held)

    def append(self, place: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values at a place; returns all that it now holds, as views.

        Args:
            place: in the schedule.
            k, v: [batch, kv_heads, new tokens, width].

        Raises:
            UsageError: no room is left, or the batch is another one than before.
        """
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise UsageError(f"the cache has room for {self.capacity} positions, holds {self.length} and got {k.shape[2]} more; make it with a larger capacity")
        held = self._held[place]
        if held is None:
            held = self._held[place] = (self._room(k), self._room(v))
        if held[0].shape[0] != k.shape[0]:
            raise UsageError(f"the cache holds {held[0].shape[0]} rows and got {k.shape[0]}; make one cache for each batch")
        for room, new in zip(held, (k, v), strict=True):
            room[:, :, self.length : end] = new
        return held[0][:, :, :end], held[1][:, :, :end]

    def advance(self, tokens: int, *, masked: bool = False) -> None:
        """Count what all places have taken in; the model calls it once a forward."""
        self.length += tokens
        self.masked |= masked

    def _room(self, new: Tensor) -> Tensor:
        return new.new_empty(new.shape[0], new.shape[1], self.capacity, new.shape[3])
