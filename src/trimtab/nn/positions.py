"""Where a token is: the three places at which a position scheme can act, and the schemes every model needs.

A scheme is an ``nn.Module``. It may add to the embeddings, turn queries and keys, or bias the attention scores; :class:`Positions` does none of these, which
is a model without position encoding (NoPE: the causal mask alone lets a model tell positions apart). A new scheme overrides what it needs and is handed to the
model as an object.

Rotary embeddings: RoFormer (arXiv 2104.09864), pairs (2k, 2k + 1) as in the paper. Angles are computed in float32 at least, since bf16 cannot tell position 256
from 257.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError
from trimtab.nn.weights import drawn


class Positions(nn.Module):
    """No position encoding, and the base of every scheme.

    Positions count a row's own tokens from 0, without its padding. A scheme must depend on nothing but the positions it is given: then a cached step, which
    sees one query, gives what the parallel forward gives.

    Attributes:
        max_length: longest sequence the scheme can place, or None. The model checks it before anything runs.

    Example:
        A penalty on distance, one slope a head, as an own scheme:

        >>> class Slope(Positions):
        ...     def bias(self, q_positions, k_positions):
        ...         distance = q_positions[:, None, :, None] - k_positions[:, None, None, :]
        ...         return -torch.tensor([0.5, 0.25]).view(1, 2, 1, 1) * distance
        >>> Slope().bias(torch.arange(3)[None], torch.arange(3)[None]).shape
        torch.Size([1, 2, 3, 3])
    """

    max_length: int | None = None

    def embed(self, x: Float[Tensor, "batch tokens dim"], positions: Int[Tensor, "rows tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Token embeddings with what the scheme adds to them; called once a forward, before the first block.

        Args:
            x: token embeddings.
            positions: of each token; ``rows`` is 1 where all rows agree, else the batch.
        """
        return x

    def rotate(
        self,
        q: Float[Tensor, "batch heads tokens head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        q_positions: Int[Tensor, "rows tokens"],
        k_positions: Int[Tensor, "rows keys"],
    ) -> tuple[Float[Tensor, "batch heads tokens head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """Queries and keys, turned. Keys are turned once, when they are new, and cached turned."""
        return q, k

    def bias(self, q_positions: Int[Tensor, "rows tokens"], k_positions: Int[Tensor, "rows keys"]) -> Float[Tensor, "rows heads tokens keys"] | None:
        """What to add to the attention scores, or None. It need not mask: where a query may not look, the value is not used."""
        return None


class Learned(Positions):
    """A trained vector for each position, added to the token embeddings.

    Args:
        max_length: rows of the table. The model refuses longer sequences: there is nothing to add there.
        dim: width of the embeddings.
        generator: initial values, normal with standard deviation 0.02.
        device, dtype: of the table.

    Example:
        >>> scheme = Learned(8, 4, generator=torch.Generator().manual_seed(0))
        >>> scheme.embed(torch.zeros(2, 3, 4), torch.arange(3)[None]).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        max_length: int,
        dim: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.max_length = max_length
        self.table = drawn(nn.Embedding, max_length, dim, generator=generator, device=device, dtype=dtype)

    def embed(self, x: Float[Tensor, "batch tokens dim"], positions: Int[Tensor, "rows tokens"]) -> Float[Tensor, "batch tokens dim"]:
        return x + self.table(positions)


class Rotary(Positions):
    r"""Rotary embeddings: pair k of a query or key at position i is turned by an angle, so that scores depend on distance alone.

    .. math:: \theta_{ik} = i \, \text{base}^{-2k/d_h}

    Args:
        base: > 1; larger turns the slow pairs more slowly.

    A scaled form overrides :meth:`angles`.

    Example:
        >>> q = torch.randn(1, 2, 3, 8)
        >>> turned, _ = Rotary().rotate(q, q, torch.arange(3)[None], torch.arange(3)[None])
        >>> torch.equal(turned[:, :, 0], q[:, :, 0])  # position 0 is not turned
        True

    When not to use it: the model must run at several times its training length; angles it never saw make it fail there.

    References:
        RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, arXiv 2104.09864.
    """

    def __init__(self, base: float = 10000.0):
        super().__init__()
        if not base > 1:
            raise UsageError(f"base of Rotary must be > 1, got {base}; 10000 is the usual one")
        self.base = base

    def angles(self, positions: Int[Tensor, "rows tokens"], head_dim: int, dtype: torch.dtype) -> Float[Tensor, "rows 1 tokens pairs"]:
        """Angles in radians, one for each position and pair."""
        pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=dtype)
        return (positions[:, None, :, None] * self.base ** (-pairs / head_dim)).to(dtype)

    def rotate(
        self,
        q: Float[Tensor, "batch heads tokens head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        q_positions: Int[Tensor, "rows tokens"],
        k_positions: Int[Tensor, "rows keys"],
    ) -> tuple[Float[Tensor, "batch heads tokens head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        turn = self._turn(q_positions, q)
        return _turned(q, turn), _turned(k, turn if k_positions is q_positions else self._turn(k_positions, k))

    def _turn(self, positions: Tensor, x: Tensor) -> Tensor:
        angles = self.angles(positions, x.shape[-1], torch.promote_types(x.dtype, torch.float32))
        return torch.polar(torch.ones_like(angles), angles)

    def extra_repr(self) -> str:
        return f"base={self.base:g}"


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    # a pair is a complex number and turning it is one product, which is half the passes over memory of the usual cos and sin form
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))
    return torch.view_as_real(torch.view_as_complex(wide) * turn).flatten(-2).to(x.dtype)
