"""A two-layer Transformer that sorts exactly, with weights set by hand: an oracle for tools that look inside models.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) proves that two layers with a tempered softmax can sort, out of the
primitives copy, minimum, and identity + successor. Deviation: its weights are not known, so these are ours. Everything is in the clear, one direction of the
residual stream for each meaning: a one-hot of the token | a one-hot of the answer | a flag, "<sort> was read" | the mean described below.

    layer 1   head 0, mark        attends to <sort> where it sees it: flag = 1. So written values are told from values to be sorted.
    layer 2   head 0, minimum     at <sort>: scores -tau u on values u; what it pools is the answer there
              head 1, identity    at a value v: attends to all tokens equal to v, which count +1 before <sort> and -1 after it; their mean is above 0 as long as
                                  copies of v remain to be written
              head 2, successor   at a value v: scores -tau (u - v - 1) on values u > v, <sort> counting as the value after the last and standing for <eos>
              feed-forward        copies remain: v is the answer, whatever the successor head says

A head of width ``vocab.size`` can have any table of scores between tokens. In a list of n values a wrong one pools at most (n - 1) exp(-tau) for 1 of the right
one: exact for every list if tau > log n. ``tau="logn"`` is log(2 (visible + 1)), above that at every length; a fixed tau fails once lists are long enough.
"""

from math import isfinite, log
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trimtab.core import UsageError
from trimtab.nn.layers import FeedForward
from trimtab.nn.tempered import FLOOR, Tempered
from trimtab.nn.transformer import Transformer

# what a query must not look at has a score below every other's by this, and by four times the number of values
_NEVER = 40.0
# the feed-forward's answer: above 1, the most that the successor head says, for one copy among a million
_LOUD = 1e6


@runtime_checkable
class SortVocab(Protocol):
    """Ids of a sorting task: values 0 .. values - 1, and the special tokens <sort> and <eos>, below ``size``."""

    @property
    def values(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def eos(self) -> int: ...

    def id(self, name: str) -> int: ...


def relu_ffn(dim: int, ffn_dim: int) -> FeedForward:
    """The construction's feed-forward, as a factory that ``Transformer.load`` takes."""
    return FeedForward(dim, ffn_dim, act=nn.ReLU(), generator=torch.Generator(), dtype=torch.float64)


def sorting_construction(vocab: SortVocab, tau: str | float = "logn", *, device: torch.device | str | None = None) -> Transformer:
    """A Transformer that sorts ``x_1 .. x_n <sort>`` into ``y_1 .. y_n <eos>``, repeats kept, for lists of any length.

    Two blocks of three heads, no position encoding, no norm, float64, in evaluation mode. At input values its output has no meaning.

    Args:
        vocab: of a task such as ``trimtab.tasks.Sorting``: anything with ``values``, ``size``, ``eos`` and ``id("<sort>")``.
        tau: "logn", log(2 (visible + 1)), which is exact; or a fixed factor >= 0.1 of all scores, which fails more the longer the list and the more crowded the
            values. 1 is plain attention.
        device: of the weights.

    Raises:
        UsageError: another tau, or ids outside the vocabulary.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> vocab = Sorting(vocab=10).vocab
        >>> model = sorting_construction(vocab)
        >>> prompt = torch.tensor([[5, 4, 5, 2, 5, vocab.id("<sort>")]])
        >>> vocab.show(model.generate(prompt, max_new_tokens=6)[0])
        '5 4 5 2 5 <sort> 2 4 5 5 5 <eos>'

    When not to use it: as a start for training; its scores are so large that softmax has no gradient.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    values, size, sort, eos = vocab.values, vocab.size, vocab.id("<sort>"), vocab.eos
    if not (values >= 1 and values <= sort < size and values <= eos < size and sort != eos):
        raise UsageError(f"vocab must have values 0 .. values - 1, then <sort> and <eos> below size; got values={values}, <sort>={sort}, <eos>={eos}, {size=}")
    if not (tau == "logn" or (not isinstance(tau, str) and isfinite(tau) and tau >= FLOOR)):
        raise UsageError(f"tau must be 'logn' or a finite number >= {FLOOR}, got {tau!r}")
    model = Transformer(
        size,
        dim=3 * size,
        layers=2,
        heads=3,
        ffn_dim=values,
        norm=nn.Identity,
        ffn=relu_ffn,
        score_scale=lambda layer, heads: Tempered(dtype=torch.float64),
        generator=torch.Generator(),
        dtype=torch.float64,
    )
    for parameter in model.parameters():
        parameter.detach().zero_()
    slope, constant = (1.0, log(2)) if isinstance(tau, str) else (0.0, float(tau))
    never = -(_NEVER + 4 * values) * max(1.0, 1 / constant if slope == 0 else 1.0)
    # rows of the residual stream: token u at u, answer u at size + u, then these two
    u, eye, flag, mean = torch.arange(values), torch.eye(size, dtype=torch.float64), 2 * size, 2 * size + 1
    weights: Any = {name: parameter.detach() for name, parameter in model.named_parameters()}
    weights["tokens.weight"][:, :size] = eye
    weights["head.weight"][:, size : 2 * size] = eye
    for block in ("blocks.0", "blocks.1"):
        weights[f"{block}.attention.score_scale.a"].fill_(slope)
        weights[f"{block}.attention.score_scale.b"].fill_(constant - 1)

    # scores[query token, key token] of each head
    mark, minimum, identity, successor = torch.full((4, size, size), never, dtype=torch.float64)
    mark[:, sort] = 0
    minimum[sort, u] = -u.double()
    minimum[u, sort] = 0
    identity[u, u] = identity[sort, sort] = 0
    ahead = (u[None, :] - u[:, None] - 1).double()
    successor[:values, :values] = torch.where(ahead >= 0, -ahead, never)
    successor[u, sort] = -(values - 1 - u).double()
    successor[sort, sort] = 0

    # a head has a dimension for each key token; what a head reads, [width, residual], and writes, [residual, width]
    reads, writes = _attention(weights, "blocks.0.attention", [mark])
    reads[0, 0, sort] = writes[flag, 0, 0] = 1
    reads, writes = _attention(weights, "blocks.1.attention", [minimum, identity, successor])
    reads[0, u, u] = reads[2, u, u] = reads[2, eos, sort] = 1
    writes[size + u, 2, u] = writes[size + eos, 2, eos] = 1
    writes[size + u, 0, u] = 2.0 * values  # the likeliest value has at least 1 / values: it drowns the <eos> that the successor head says at <sort>
    reads[1, 0, u], reads[1, 0, sort], reads[1, 0, flag] = 1, 2, -2  # +1 before <sort>, 0 at it, -1 after it
    writes[mean, 1, 0] = 1

    # relu(mean + [the token is v] - 1): the mean at v while it is above 0, and 0 at other tokens
    weights["blocks.1.ffn.up.weight"][:, :values] = torch.eye(values)
    weights["blocks.1.ffn.up.weight"][:, mean] = 1
    weights["blocks.1.ffn.up.bias"].fill_(-1)
    weights["blocks.1.ffn.down.weight"][size : size + values] = _LOUD * torch.eye(values)
    return model.to(device).eval()


def _attention(weights: dict[str, Tensor], path: str, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Give the heads of an attention layer their tables of scores; views of what they read, [heads, width, residual], and write, [residual, heads, width]."""
    size, dim = len(scores[0]), len(weights[f"{path}.out.weight"])
    q, k, v = weights[f"{path}.qkv.weight"].view(3, dim // size, size, dim)
    for head, table in enumerate(scores):
        q[head, :, :size] = table.T * size**0.5  # attention divides by this root
        k[head, :, :size] = torch.eye(size)
    return v, weights[f"{path}.out.weight"].view(dim, dim // size, size)
