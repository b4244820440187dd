"""What each query may look at: positions, visible keys and the mask, made once a forward."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from trimtab.nn.cache import KVCache
from trimtab.nn.positions import Positions


class Scope(NamedTuple):
    """What attention may look at in one forward, for one place in the schedule.

    Attributes:
        positions: of the queries, [1 or batch, tokens].
        key_positions: of all keys, cached ones first, [1 or batch, keys].
        visible: how many keys each query sees, [1 or batch, tokens].
        mask: added to the scores, -inf where a query may not look; broadcasts to [batch, heads, tokens, keys]. None: nothing but ``causal`` applies.
        causal: SDPA's own causal rule applies, and no mask was made.
        scheme: position scheme of this block.
        cache: where earlier keys and values lie, or None.
        place: this block's place in the schedule.
        ids: of the queries' tokens, [batch, tokens], -1 at padding.
    """

    positions: Tensor
    key_positions: Tensor
    visible: Tensor
    mask: Tensor | None
    causal: bool
    scheme: Positions
    cache: KVCache | None
    place: int
    ids: Tensor | None = None


def look(
    scheme: Positions, tokens: int, keep: Bool[Tensor, "batch keys"] | None, cache: KVCache | None, *, causal: bool, device: torch.device, dtype: torch.dtype
) -> Scope:
    """The scope of ``tokens`` new queries behind what the cache holds.

    Args:
        scheme: position scheme.
        tokens: how many queries are new.
        keep: True at real tokens, False at padding, over cached and new ones; None where all are real.
        cache: holds earlier keys, or None.
        causal: whether a query sees no later key.
        device, dtype: of the mask, should one be needed.
    """
    past = 0 if cache is None else cache.length
    keys = past + tokens
    key_positions = torch.arange(keys, device=device)[None] if keep is None else (keep.cumsum(1) - 1).clamp(min=0)
    positions = key_positions[:, past:]
    seen = positions if causal else key_positions[:, -1:].expand(positions.shape)

    mask = scheme.bias(positions, key_positions)
    # one query sees all keys, and keys that are all new suit SDPA's own causal rule: then training makes no mask tensor
    simple = keep is None and (not causal or tokens in (1, keys))
    if mask is not None or not simple:
        allowed = torch.ones(tokens, keys, dtype=torch.bool, device=device)
        if causal:
            allowed = allowed.tril(past)
        if keep is not None:
            # padding looks at everything before it: nobody reads its output, and a row that may look at nothing would be NaN
            allowed = (allowed & (keep[:, None, :] | ~keep[:, past:, None]))[:, None]
        mask = torch.zeros((), dtype=dtype, device=device) if mask is None else mask.to(dtype)
        mask = torch.where(allowed, mask, -torch.inf)
    return Scope(positions, key_positions, seen + 1, mask, causal and mask is None and tokens > 1, scheme, cache, 0)
