"""What each layer would answer: the logit lens, and how much of its answer goes to the token just read and its successor.

Papers: the logit lens is nostalgebraist's (Interpreting GPT: the logit lens, 2020); that sorting models concentrate on identity and successor is a finding of
Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726). Layer 0 is what goes into the first block, layer l what comes out of the
l-th.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError
from trimtab.metrics.anatomy import anatomy, still, widest
from trimtab.metrics.hooks import LOGITS, run_with_cache, run_with_hooks
from trimtab.metrics.sequence import IGNORE
from trimtab.metrics.sorted_rows import ValueVocab, sorting_targets


def chunks(ids: Tensor, attention_mask: Tensor | None, batch_size: int) -> Iterator[tuple[slice, Tensor, dict[str, Any]]]:
    """Rows in parts: which they are, their ids, and what the model is given beside them."""
    if batch_size < 1:
        raise UsageError(f"batch_size must be >= 1, got {batch_size}")
    if ids.dim() != 2 or 0 in ids.shape:
        raise UsageError(f"ids must be [rows, tokens] with at least one of each, got {tuple(ids.shape)}")
    if attention_mask is not None and attention_mask.shape != ids.shape:
        raise UsageError(f"attention_mask must have the shape of ids, {tuple(ids.shape)}, got {tuple(attention_mask.shape)}")
    for start in range(0, len(ids), batch_size):
        part = slice(start, start + batch_size)
        yield part, ids[part], {} if attention_mask is None else {"attention_mask": attention_mask[part]}


def _streams(model: nn.Module, ids: Tensor, forward: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """The residual stream at each layer, and the logits."""
    layers = len(anatomy(model).blocks)
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(layers))]
    cache = run_with_cache(model, ids, [*names, LOGITS], **forward)
    return [cache[name] for name in names], cache[LOGITS]


def hidden_states(
    model: nn.Module,
    ids: Int[Tensor, "rows tokens"],
    where: Bool[Tensor, "rows tokens"] | None = None,
    *,
    attention_mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"] | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "layers ..."]:
    """The residual stream at each layer, in evaluation mode and without gradients.

    Args:
        model: a :class:`trimtab.nn.Transformer` or a causal language model of Hugging Face.
        ids: token ids.
        where: positions to keep; None keeps all.
        attention_mask: true at real tokens; rows padded on the right need none.
        batch_size: rows a forward pass.

    Returns:
        [layers + 1, rows, tokens, dim], or [layers + 1, kept positions, dim] in the order of ``ids[where]``.

    Raises:
        UsageError: shapes disagree, or a model whose parts are not where they were looked for.

    Example:
        >>> from trimtab.nn import Transformer
        >>> ids = torch.tensor([[0, 3, 1], [2, 2, 2]])
        >>> model = Transformer(5, dim=4, layers=2, heads=2)
        >>> hidden_states(model, ids).shape, hidden_states(model, ids, where=ids == 2).shape
        (torch.Size([3, 2, 3, 4]), torch.Size([3, 3, 4]))
    """
    where = _where(ids, where)
    found = []
    with still(model):
        for part, some, forward in chunks(ids, attention_mask, batch_size):
            streams, _ = _streams(model, some, forward)
            found.append(torch.stack(streams if where is None else [stream[where[part]] for stream in streams]))
    return torch.cat(found, 1)


def _where(ids: Tensor, where: Tensor | None) -> Tensor | None:
    if where is not None and where.shape != ids.shape:
        raise UsageError(f"where must have the shape of ids, {tuple(ids.shape)}, got {tuple(where.shape)}")
    return where


def _lens(model: nn.Module, ids: Tensor, where: Tensor | None, attention_mask: Tensor | None, batch_size: int) -> Iterator[Tensor]:
    """Logits of each layer at some positions, rows in parts."""
    parts = anatomy(model)
    last = f"blocks.{len(parts.blocks) - 1}.hook_resid_post"
    plain: bool | None = None
    for part, some, forward in chunks(ids, attention_mask, batch_size):
        streams, logits = _streams(model, some, forward)

        def pick(x: Tensor, part: slice = part) -> Tensor:
            return x if where is None else x[where[part]]

        final, seen = pick(logits), [pick(stream) for stream in streams]
        if plain is None and final.numel():
            plain = _plain(parts.unembed(seen[-1]), final)
        if plain is False:
            # let the model scale or cap its logits itself, with each layer in the place of the last
            lens = [pick(run_with_hooks(model, some, {last: lambda value, hook, stream=stream: stream}, **forward)) for stream in streams[:-1]]
        else:
            lens = [parts.unembed(stream) for stream in seen[:-1]]
        yield torch.stack([*lens, final])


def _plain(unembedded: Tensor, logits: Tensor) -> bool:
    """Whether a model's logits are what its last norm and output projection give, and nothing is done to them after that."""
    close = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 2e-2
    return float((unembedded - logits).abs().max()) <= close * float(logits.abs().max())


def _lens_of(model: nn.Module, states: Tensor, ids: Tensor, attention_mask: Tensor | None) -> Iterator[Tensor]:
    """Logits of each layer from its hidden states, positions in parts."""
    parts = anatomy(model)
    _, some, forward = next(chunks(ids, attention_mask, 1))
    streams, logits = _streams(model, some, forward)
    if not _plain(parts.unembed(streams[-1]), logits):
        raise UsageError("states cannot stand for a model that scales or caps its logits behind the output projection; leave states out")
    for part in states.split(4096, 1):
        yield torch.stack([parts.unembed(layer) for layer in part])


def logit_lens(
    model: nn.Module,
    ids: Int[Tensor, "rows tokens"],
    where: Bool[Tensor, "rows tokens"] | None = None,
    *,
    attention_mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"] | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "layers ..."]:
    r"""Logits that the last norm and the output projection make of each layer's residual stream, in evaluation mode and without gradients.

    .. math:: \mathrm{lens}_\ell = W_U\, \mathrm{norm}(h_\ell), \qquad \ell = 0 .. L

    Args: as of :func:`hidden_states`.

    Returns:
        [layers + 1, rows, tokens, vocab], or [layers + 1, kept positions, vocab]; the last layer's are the model's logits.

    Raises:
        UsageError: as of :func:`hidden_states`.

    Example:
        >>> from trimtab.nn import Transformer
        >>> ids = torch.tensor([[0, 3, 1]])
        >>> model = Transformer(5, dim=4, layers=2, heads=2).eval()
        >>> lens = logit_lens(model, ids)
        >>> lens.shape, torch.equal(lens[-1], model(ids))
        (torch.Size([3, 1, 3, 5]), True)

    When not to use it: as a proof that a layer does not know something; it may hold it in directions that the output projection does not read. Probe it then.

    References:
        nostalgebraist, Interpreting GPT: the logit lens, 2020.
    """
    where = _where(ids, where)
    with still(model):
        return torch.cat([*_lens(model, ids, where, attention_mask, batch_size)], 1)


def identity_successor_scores(
    model: nn.Module,
    ids: Int[Tensor, "rows tokens"],
    labels: Int[Tensor, "rows tokens"],
    vocab: ValueVocab,
    *,
    states: Float[Tensor, "layers positions dim"] | None = None,
    attention_mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"] | None = None,
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """How much of each layer's answer goes to the value just read (identity) and the least larger one of the list or <eos> (successor).

    Args:
        model, attention_mask, batch_size: as of :func:`hidden_states`.
        ids, labels, vocab: as of :func:`trimtab.metrics.sorting_targets`; positions at which a value of the answer was just read are looked at.
        states: hidden states of these positions, ``hidden_states(model, ids, sorting_targets(ids, labels, vocab).identity != -100)``, if they are there for
            probes, say; it saves a forward pass.

    Returns:
        One row a layer: ``layer``, mean probabilities ``identity`` and ``successor``, their sum ``mass``, ``top2_rate`` (share of positions whose two likeliest
        tokens are these two), and ``positions`` (how many were looked at).

    Raises:
        UsageError: as of :func:`sorting_targets`, or no position at which a value of the answer was just read.

    Example:
        >>> from trimtab.nn import sorting_construction
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=10)
        >>> batch = task.batch(seed=0, step=0, size=8, length=5)
        >>> model = sorting_construction(task.vocab)
        >>> rows = identity_successor_scores(model, batch["input_ids"], batch["labels"], task.vocab)
        >>> [(row["layer"], round(row["mass"], 2)) for row in rows]
        [(0, 0.11), (1, 0.11), (2, 0.33)]

    When not to use it: to compare vocabularies of different sizes by mass alone; a layer that knows nothing has 2 / size.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    targets = sorting_targets(ids, labels, vocab)
    where = targets.identity != IGNORE
    if not bool(where.any()):
        raise UsageError("labels must be supervised behind a value of the answer, and are only at delimiters; give rows with longer answers")
    pairs, count, done = torch.stack([targets.identity[where], targets.successor[where]], -1), int(where.sum()), 0
    if states is not None and states.shape[:2] != (len(anatomy(model).blocks) + 1, count):
        raise UsageError(f"states must be [{len(anatomy(model).blocks) + 1} layers, {count} positions, dim], got {tuple(states.shape)}")
    sums: Any = 0.0
    with still(model):
        for lens in _lens(model, ids, where, attention_mask, batch_size) if states is None else _lens_of(model, states, ids, attention_mask):
            pair = pairs[done : done + lens.shape[1]]
            done += len(pair)
            if not len(pair):
                continue
            if int(pair.max()) >= lens.shape[-1]:
                raise UsageError(f"ids and vocab.eos must be below {lens.shape[-1]}, the model's logits, got {int(pair.max())}; give the model's own vocab")
            lens = lens.to(torch.promote_types(lens.dtype, torch.float32))
            index = pair.expand(len(lens), -1, -1)
            p = lens.softmax(-1).gather(-1, index).to(widest(lens))
            top = lens.gather(-1, index).amin(-1) > lens.scatter(-1, index, -torch.inf).amax(-1)
            sums = sums + torch.cat([p.sum(1), top.sum(1, keepdim=True)], 1).cpu()
    return [
        {"layer": layer, "identity": identity, "successor": successor, "mass": identity + successor, "top2_rate": top, "positions": count}
        for layer, (identity, successor, top) in enumerate((sums / count).tolist())
    ]
