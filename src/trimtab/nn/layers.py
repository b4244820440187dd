"""The parts of a Transformer block: attention, two feed-forwards, and the block that joins them."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.nn.positions import Positions
from trimtab.nn.scope import Scope
from trimtab.nn.weights import STD, drawn


class Attention(nn.Module):
    """Multi-head self-attention with shared key and value heads (GQA) where ``kv_heads < heads``.

    Args:
        dim: width, a multiple of ``heads``.
        heads: query heads.
        kv_heads: key and value heads, a divisor of ``heads``.
        bias: whether the projections have biases.
        dropout: of attention weights, in training.
        score_scale: module (q [batch, heads, tokens, head_dim], visible [1 or batch, tokens]) -> q, called on turned queries; None leaves them. A module with
            a method ``count`` (:class:`Scope`) -> [1 or batch, tokens] is handed that in place of ``visible``.
        out_std: standard deviation of the output projection's initial weights.
        generator, device, dtype: of the weights.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        score_scale: nn.Module | None = None,
        out_std: float = STD,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.dropout = heads, kv_heads, dropout
        made = {"bias": bias, "generator": generator, "device": device, "dtype": dtype}
        self.qkv = drawn(nn.Linear, dim, dim // heads * (heads + 2 * kv_heads), **made)
        self.out = drawn(nn.Linear, dim, dim, std=out_std, **made)
        self.score_scale = score_scale

    def forward(self, x: Float[Tensor, "batch tokens dim"], scope: Scope) -> Float[Tensor, "batch tokens dim"]:
        heads = self.heads + 2 * self.kv_heads
        q, k, v = (part.transpose(1, 2) for part in self.qkv(x).unflatten(-1, (heads, -1)).split((self.heads, self.kv_heads, self.kv_heads), 2))
        q, k = scope.scheme.rotate(q, k, scope.positions, scope.positions)
        if self.score_scale is not None:
            count: Any = getattr(self.score_scale, "count", None)
            q = self.score_scale(q, scope.visible if count is None else count(scope))
        if scope.cache is not None:
            k, v = scope.cache.append(scope.place, k, v)
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=scope.mask, dropout_p=self.dropout if self.training else 0.0, is_causal=scope.causal, enable_gqa=self.kv_heads != self.heads
        )
        return self.out(seen.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, dropout={self.dropout:g}"


class FeedForward(nn.Module):
    """Two linear layers with an activation between them.

    Args:
        dim: width.
        ffn_dim: width between the layers.
        act: the activation, as a module.
        bias: whether the layers have biases.
        out_std: standard deviation of the second layer's initial weights.
        generator, device, dtype: of the weights.

    Example:
        >>> FeedForward(4, 16, act=nn.ReLU())(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        *,
        act: nn.Module | None = None,
        bias: bool = True,
        out_std: float = STD,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        made = {"bias": bias, "generator": generator, "device": device, "dtype": dtype}
        self.up = drawn(nn.Linear, dim, ffn_dim, **made)
        self.act = nn.GELU() if act is None else act
        self.down = drawn(nn.Linear, ffn_dim, dim, std=out_std, **made)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return self.down(self.act(self.up(x)))


class SwiGLU(nn.Module):
    """Feed-forward whose inner units are gated by SiLU units.

    Args: as :class:`FeedForward`. At equal ``ffn_dim`` it has half as many weights again.

    Example:
        >>> SwiGLU(4, 16)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    References:
        GLU Variants Improve Transformer, 2020, arXiv 2002.05202.
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        *,
        bias: bool = True,
        out_std: float = STD,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        made = {"bias": bias, "generator": generator, "device": device, "dtype": dtype}
        self.gate = drawn(nn.Linear, dim, ffn_dim, **made)
        self.up = drawn(nn.Linear, dim, ffn_dim, **made)
        self.down = drawn(nn.Linear, ffn_dim, dim, std=out_std, **made)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm residual block: attention, then feed-forward.

    Args:
        attention: module (x, scope) -> x.
        ffn: module x -> x.
        attention_norm, ffn_norm: modules x -> x, one before each.
        positions: this block's own position scheme; None uses the model's.
        dropout: of each branch before it is added, in training.
    """

    def __init__(
        self,
        attention: nn.Module,
        ffn: nn.Module,
        attention_norm: nn.Module,
        ffn_norm: nn.Module,
        *,
        positions: Positions | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.ffn_norm, self.ffn = ffn_norm, ffn
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch tokens dim"], scope: Scope) -> Float[Tensor, "batch tokens dim"]:
        x = x + self.dropout(self.attention(self.attention_norm(x), scope))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))
