"""From a name or an object to the parts of a Transformer."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

from torch import nn

from trimtab.core import UsageError, unknown, whole
from trimtab.nn.layers import Attention, FeedForward, SwiGLU
from trimtab.nn.positions import Learned, Positions, Rotary

FFNS = {"gelu": FeedForward, "swiglu": SwiGLU}
NORMS = ("layer", "rms")
POSITIONS = ("none", "learned", "rope")


def sizes(**given: Any) -> list[int]:
    """Sizes as ints; what is no whole number >= 1 is refused by name."""
    return [whole(name, size, 1) for name, size in given.items()]


def share(**shares: Any) -> list[float]:
    """Shares as floats; what is no number in [0, 1) is refused by name."""
    for name, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
            raise UsageError(f"{name} must be a number in [0, 1), got {value!r}")
    return [float(value) for value in shares.values()]


def order(schedule: Sequence[int], layers: int) -> tuple[int, ...]:
    """Block indices as ints."""
    try:
        plain = tuple(whole("an index", i, 0) for i in schedule)
    except UsageError:
        plain = ()
    if not plain or max(plain) >= layers:
        raise UsageError(f"schedule must hold one or more block indices in 0 .. {layers - 1}, got {list(schedule)}")
    return plain


def make_norm(norm: str | Callable[[int], nn.Module], bias: bool, where: dict[str, Any]) -> Callable[[int], nn.Module]:
    """Factory (dim) -> module; ``where`` has device and dtype."""
    if not isinstance(norm, str):
        return norm
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    # torch's default eps for RMSNorm follows the data type, in a way that has changed with its versions
    return partial(nn.LayerNorm, bias=bias, **where) if norm == "layer" else partial(nn.RMSNorm, eps=1e-6, **where)


def make_ffn(ffn: str | Callable[[int, int], nn.Module], made: dict[str, Any]) -> Callable[[int, int], nn.Module]:
    """Factory (dim, ffn_dim) -> module; ``made`` says how weights are drawn."""
    if not isinstance(ffn, str):
        return ffn
    if ffn not in FFNS:
        raise unknown("ffn", ffn, FFNS)
    return partial(FFNS[ffn], **made)


def make_attention(
    attention: Callable[[int, int, int], nn.Module] | None, score_scale: Callable[[int, int], nn.Module] | None, kv_heads: int, made: dict[str, Any]
) -> Callable[[int, int, int], nn.Module]:
    """Factory (layer, dim, heads) -> module."""
    if attention is None:
        return lambda layer, dim, heads: Attention(dim, heads, kv_heads, score_scale=score_scale(layer, heads) if score_scale else None, **made)
    if score_scale is not None:
        raise UsageError("score_scale is applied by the built-in attention, and `attention` was given too; leave one out")
    return attention


def make_positions(
    positions: str | Positions | Sequence[Positions], sizes: tuple[int, int, int], max_length: int | None, drawing: dict[str, Any]
) -> tuple[Positions, Sequence[Positions | None]]:
    """The scheme that all blocks share, and each block's own one or None; ``sizes`` are dim, heads and layers."""
    dim, heads, layers = sizes
    if (positions == "learned") != (max_length is not None):
        raise UsageError(f'max_length goes with positions="learned", which needs it; got max_length={max_length} and positions={positions!r}')
    shared, own = Positions(), [None] * layers
    if isinstance(positions, Positions):
        shared = positions
    elif positions == "learned":
        shared = Learned(max_length, dim, **drawing)  # pyright: ignore[reportArgumentType]
    elif positions == "rope":
        shared = Rotary()
    elif isinstance(positions, str):
        if positions not in POSITIONS:
            raise unknown("position scheme", positions, POSITIONS)
    else:
        own = _one_a_block(positions, layers)
    if dim // heads % 2 and any(isinstance(scheme, Rotary) for scheme in (shared, *own)):
        raise UsageError(f"rotary positions turn pairs, so dim / heads must be even, got {dim} / {heads} = {dim // heads}; use another number of heads")
    return shared, own


def _one_a_block(positions: Sequence[Positions], layers: int) -> list[Positions | None]:
    if len(positions) != layers or not all(isinstance(scheme, Positions) for scheme in positions):
        kinds = ", ".join(type(scheme).__name__ for scheme in positions)
        raise UsageError(f"positions, as a sequence, must hold one Positions object for each of the {layers} blocks, got {len(positions)}: {kinds}")
    for scheme in positions:
        if type(scheme).embed is not Positions.embed:
            raise UsageError(f"{type(scheme).__name__} adds to the embeddings, which all blocks share; pass it as one object, not as one a block")
    return list(positions)
