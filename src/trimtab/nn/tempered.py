r"""Tempered softmax: attention whose scores are multiplied by a trained function of the length, softmax(tau(n) q k).

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726), where a temperature that depends on the length comes out of the
theory: the mass that a head spreads over wrong keys grows with their number n, so tau has to grow like log n to keep it below the right key's. Deviations: the
paper's form is not known, so four are offered; "logn" and "power" are trained, "fixed-logn" is the rule of thumb of language models, "table" is the freest.
Parameters are counted from plain attention (b and the table from 1): so zero is plain attention, which is where weight decay pulls them, and bfloat16, which
has steps of 1/128 near 1, can still train them. Below 0.1, where a line would cross zero, tau goes over into a curve that stays positive.
"""

from collections.abc import Sequence
from functools import reduce
from math import log
from operator import or_
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError, unknown, whole
from trimtab.nn.scope import Scope

KINDS = ("logn", "fixed-logn", "power", "table")
LENGTHS = ("context", "prompt")
FLOOR = 0.1
_FAR = torch.iinfo(torch.int64).max
_NOTE = "_trimtab_prompt"  # what a cache remembers of its rows' prompts


def tempered_scale(
    n: Int[Tensor, "rows tokens"],
    kind: str = "logn",
    *,
    a: Float[Tensor, "heads"] | None = None,
    b: Float[Tensor, "heads"] | None = None,
    table: Float[Tensor, "heads lengths"] | None = None,
    n_train: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "rows heads tokens"]:
    r"""The factor tau(n) of attention scores.

    .. math::
        \text{logn: } 1 + b + a \log(n + 1) \qquad \text{fixed-logn: } \log n / \log n_{tr} \qquad \text{power: } n^a \qquad \text{table: } 1 + t_n

    Beyond its last length a table goes on as its own least-squares line in log n. Values x of "logn" and "table" below 0.1 become 0.01 / (0.2 - x), which meets
    the line with equal slope and stays above 0. "fixed-logn" takes lengths 0 and 1 for 2, "power" and "table" 0 for 1.

    Args:
        n: lengths, >= 0.
        kind: "logn", "fixed-logn", "power" or "table".
        a: of "logn" and "power"; None is 0.
        b: of "logn"; None is 0.
        table: of "table", one column for each length from 1; at least two.
        n_train: of "fixed-logn", the length at which tau is 1; >= 2.
        dtype: computed in this, in float32 and in the parameters' type, whichever is widest.

    Raises:
        UsageError: an unknown kind, or one without what it needs.

    Example:
        >>> n = torch.tensor([[0, 1, 20, 100]])
        >>> tempered_scale(n, "logn", a=torch.tensor([0.5]))
        tensor([[[1.0000, 1.3466, 2.5223, 3.3076]]])
        >>> tempered_scale(n, "fixed-logn", n_train=20)
        tensor([[[0.2314, 0.2314, 1.0000, 1.5372]]])

    When not to use it: to cool or heat attention by a constant; a model learns that in its query weights.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726. Scalable-Softmax Is Superior for Attention, 2025, arXiv
        2501.19399.
    """
    if kind not in KINDS:
        raise unknown("kind of tempering", kind, KINDS)
    given = next((value for value in (a, b, table) if value is not None), None)
    wide = torch.promote_types(torch.promote_types(dtype, torch.float32), torch.float32 if given is None else given.dtype)
    zero = torch.zeros(1, dtype=wide, device=n.device)
    a, b = (zero if value is None else value.to(wide) for value in (a, b))
    if kind == "logn":
        return _positive(1 + b[:, None] + a[:, None] * torch.log1p(n[:, None].to(wide)))
    if kind == "power":
        return torch.exp(a[:, None] * _log(n, 1, wide))
    if kind == "fixed-logn":
        whole("n_train", n_train, 1)
        if n_train == 1:
            raise UsageError("n_train must be >= 2, got 1: log 1 = 0 cannot be divided by")
        return _log(n, 2, wide) / log(n_train)  # pyright: ignore[reportArgumentType]
    if table is None or table.shape[1] < 2:
        raise UsageError(f"table must have a column for each length from 1 to at least 2, got {None if table is None else tuple(table.shape)}")
    last, table = table.shape[1], table.to(wide)
    inside = table[:, n.clamp(1, last) - 1].movedim(0, 1)
    x = torch.arange(1, last + 1, dtype=wide, device=n.device).log()
    around = x - x.mean()
    slope = table @ around / around.square().sum()
    beyond = (table.mean(1) - slope * x.mean())[:, None] + slope[:, None] * _log(n, 1, wide)
    return _positive(1 + torch.where(n[:, None] <= last, inside, beyond))


def _log(n: Tensor, least: int, dtype: torch.dtype) -> Tensor:
    return n.clamp(min=least)[:, None].to(dtype).log()


def _positive(tau: Tensor) -> Tensor:
    # a clamp would have no gradient below it, and a head that fell there would stay
    return torch.where(tau >= FLOOR, tau, FLOOR**2 / (2 * FLOOR - tau.clamp(max=FLOOR)))


class Tempered(nn.Module):
    """Queries times :func:`tempered_scale`: what ``score_scale`` of :class:`Transformer` takes, and :func:`temper_` puts into models that are there.

    It starts as plain attention ("fixed-logn": at ``n_train``). Queries are scaled, not scores, so that any fused attention does the rest.

    Args:
        heads: 1 for one temperature that all heads share, or one for each of so many heads.
        kind: "logn", "fixed-logn", "power" or "table".
        length: what n is: "context", the tokens that a query sees; "prompt", no more of them than come before the row's first delimiter. Delimiter and answer
            then all have n = the number of items in the prompt, in cached decoding too.
        delimiters: token ids that end a prompt, for ``length="prompt"``.
        n_train: longest training length, for "fixed-logn" and "table"; >= 2.
        device, dtype: of the parameters. Whatever it is, tau and its product are computed in float32 at least.

    Raises:
        UsageError: an unknown name, or one without what it needs.

    Example:
        >>> from trimtab.nn import Transformer
        >>> model = Transformer(11, dim=8, layers=2, heads=2, score_scale=lambda layer, heads: Tempered())
        >>> model.blocks[0].attention.score_scale
        Tempered(heads=1, kind=logn, length=context)

    When not to use it: with scores that do not come from queries and keys alone; what a position scheme adds to them is not tempered. With
    ``length="prompt"``, rows that hold more than one prompt: only the first delimiter counts.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    def __init__(
        self,
        heads: int = 1,
        kind: str = "logn",
        *,
        length: str = "context",
        delimiters: Sequence[int] = (),
        n_train: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        whole("heads", heads, 1)
        if kind not in KINDS:
            raise unknown("kind of tempering", kind, KINDS)
        if length not in LENGTHS:
            raise unknown("length", length, LENGTHS)
        if (length == "prompt") != bool(delimiters):
            raise UsageError(f'delimiters, ids that end a prompt, go with length="prompt", which needs them; got {delimiters!r} and length={length!r}')
        if any(token < 0 for token in delimiters):
            raise UsageError(f"delimiters must be token ids, >= 0, got {delimiters!r}")
        if (kind in ("fixed-logn", "table")) != (n_train is not None):
            raise UsageError(f'n_train goes with kind="fixed-logn" and kind="table", which need it; got n_train={n_train} and kind={kind!r}')
        if n_train is not None:
            whole("n_train", n_train, 1)
            if n_train == 1:
                raise UsageError("n_train must be >= 2, got 1: log 1 = 0 cannot be divided by")
        self.heads, self.kind, self.length, self.n_train = heads, kind, length, n_train
        self.delimiters = tuple(int(token) for token in delimiters)
        shapes = {"logn": {"a": (heads,), "b": (heads,)}, "power": {"a": (heads,)}, "table": {"table": (heads, n_train)}}.get(kind, {})
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)))

    def tau(self, n: Int[Tensor, "rows tokens"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows heads tokens"]:
        """The factors at lengths n, as they are now."""
        return tempered_scale(n, self.kind, **dict(self.named_parameters()), n_train=self.n_train, dtype=dtype)

    def forward(self, q: Float[Tensor, "batch heads tokens head_dim"], n: Int[Tensor, "rows tokens"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        if self.heads not in (1, q.shape[1]):
            raise UsageError(f"heads must be 1 or the model's, {q.shape[1]}, got {self.heads}; Tempered(heads) makes one for each")
        tau = self.tau(n, q.dtype)
        return (q.to(tau.dtype) * tau[..., None]).to(q.dtype)

    def count(self, scope: Scope) -> Int[Tensor, "rows tokens"]:
        """The length n of each query of a :class:`Transformer`."""
        if not self.delimiters:
            return scope.visible
        if scope.ids is None:
            raise UsageError('length="prompt" needs a scope that holds token ids, as that of a Transformer does; got one without')
        past = 0 if scope.cache is None else scope.cache.length
        return torch.minimum(scope.visible, items_before(self.delimiters, scope.ids, scope.positions, scope.cache, past))

    def extra_repr(self) -> str:
        ends = f", delimiters={self.delimiters}, " if self.delimiters else ", "
        return f"heads={self.heads}, kind={self.kind}, length={self.length}{ends}n_train={self.n_train}".removesuffix(", n_train=None")


def items_before(
    delimiters: Sequence[int], ids: Int[Tensor, "batch tokens"], positions: Int[Tensor, "rows tokens"], cache: Any = None, past: int | Tensor = 0
) -> Int[Tensor, "batch 1"]:
    """How many tokens each row has before its first delimiter; more than any sequence has where there was none yet.

    A cache remembers it: later calls see the answer only. So nothing is kept on the model, and a cache that is cut back, filled anew or copied stays right. It
    can be asked several times in one forward.

    Args:
        delimiters: token ids.
        ids: of the new tokens, -1 at padding.
        positions: how many of its own tokens a row has before each new one.
        cache: any object that lives as long as the keys it holds, or None.
        past: positions that the cache holds.

    Raises:
        UsageError: what the cache holds is of other rows, or was put there by a model without ``length="prompt"``.
    """
    found = reduce(or_, (ids == token for token in delimiters))
    first, any_ = found.int().argmax(1, keepdim=True), found.any(1, keepdim=True)
    items = positions.expand_as(ids).gather(1, first).masked_fill(~any_, _FAR)
    place = (past + first).masked_fill(~any_, _FAR)
    if cache is None:
        return items
    held: tuple[Tensor, Tensor] | None = getattr(cache, _NOTE, None)
    if held is None and int(past):
        raise UsageError(f'the cache holds {int(past)} positions from before length="prompt" was in the model; start with a new cache')
    if held is not None and len(held[0]) == len(items):
        known = held[1] < past  # false of a delimiter that was cut off again, or is of this very call
        items, place = torch.where(known, held[0], items), torch.where(known, held[1], place)
    elif held is not None and int(past):
        raise UsageError(f"the cache holds {len(held[0])} rows and got {len(items)}; make one cache for each batch")
    setattr(cache, _NOTE, (items, place))
    return items
