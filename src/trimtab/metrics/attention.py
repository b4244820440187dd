"""Where heads look when a model sorts: by rank of values, and how sharply as lists grow.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726), whose theory has heads that look at the value just read and its
successor, and a temperature against the dilution of attention on long lists. The bins are ours.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError
from trimtab.metrics.anatomy import anatomy, still, widest
from trimtab.metrics.hooks import run_with_cache
from trimtab.metrics.lens import chunks
from trimtab.metrics.sequence import IGNORE
from trimtab.metrics.sorted_rows import Layout, ValueVocab, layout, predicting_positions, sorting_targets


class OffsetProfile(NamedTuple):
    """Where each head looks from positions at which a value of the answer was just read.

    Attributes:
        mass: mean share of the attention that goes to each bin; sums to 1 over bins.
        bins: their names. Inputs by rank offset among the list's distinct values, "+1" the successor; then the delimiter, the answer so far, and what is left.
        labels: of each layer's heads, the name of its top bin.
        uniform: mass of a head that looks everywhere alike.
        positions: how many positions the means are over.
    """

    mass: Float[Tensor, "layers heads bins"]
    bins: list[str]
    labels: list[list[str]]
    uniform: Float[Tensor, "bins"]
    positions: int


def bin_names(reach: int) -> list[str]:
    inner = ["identity" if k == 0 else f"{k:+d}" for k in range(-reach, reach + 1)]
    return [f"below {-reach}", *inner, f"above +{reach}", "delimiter", "outputs", "other"]


def _patterns(model: nn.Module, ids: Tensor, where: tuple[Tensor, Tensor], forward: dict[str, Any]) -> Iterator[Tensor]:
    """Of each layer the attention from some positions, [positions, heads, keys]; one layer at a time in float64, as all of them may be large."""
    attention = anatomy(model).attention
    names = [f"blocks.{layer}.attn.hook_pattern" for layer, part in enumerate(attention) if part is not None]
    row, query = where
    for pattern in run_with_cache(model, ids, names, **forward).values():
        yield pattern[row, :, query].to(widest(pattern))


def _bins(ids: Tensor, parts: Layout, values: int, reach: int) -> Tensor:
    """[rows, tokens, keys]: the bin of each key, seen from each query. Where a query is no value the bin has no meaning."""
    token = ids.clamp(0, values - 1)
    rank = parts.present.cumsum(1).gather(1, token)  # how many distinct values of the list are at most this
    held = parts.present.gather(1, token)
    offset = rank[:, None, :] - rank[:, :, None]
    # below a value that is not in the list itself, the nearest one would get offset 0
    below = (ids[:, None, :] < ids[:, :, None]) & ~held[:, :, None]
    offset = (offset - below.long()).clamp(-reach - 1, reach + 1) + reach + 1
    last = 2 * reach + 3
    kind = torch.full_like(ids, last + 2).masked_fill(parts.delimiter, last).masked_fill(parts.outputs, last + 1)
    return torch.where(parts.items[:, None, :], offset, kind[:, None, :])


def attention_offset_profile(
    model: nn.Module,
    ids: Int[Tensor, "rows tokens"],
    labels: Int[Tensor, "rows tokens"],
    vocab: ValueVocab,
    *,
    reach: int = 3,
    attention_mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"] | None = None,
    batch_size: int = 32,
) -> OffsetProfile:
    """Attention from positions at which a value v of the answer was just read, grouped by how far the keys' values lie from v in the sorted list.

    Args:
        model: a :class:`trimtab.nn.Transformer`, or a causal language model of Hugging Face on SDPA.
        ids, labels, vocab: as of :func:`trimtab.metrics.sorting_targets`.
        reach: largest offset with a bin of its own, >= 1. Offsets count distinct values; the nearest above a v that is not in the list is +1.
        attention_mask: true at real tokens; rows padded on the right need none.
        batch_size: rows a forward pass.

    Raises:
        UsageError: as of :func:`sorting_targets`, a reach below 1, or a model that does not run on SDPA.

    Example:
        >>> from trimtab.nn import sorting_construction
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=10)
        >>> batch = task.batch(seed=0, step=0, size=8, length=5)
        >>> profile = attention_offset_profile(sorting_construction(task.vocab), batch["input_ids"], batch["labels"], task.vocab)
        >>> profile.labels[1][1:]
        ['identity', '+1']

    When not to use it: to say what a head does; where it looks and what it moves are two things. Patch or ablate it.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    if reach < 1:
        raise UsageError(f"reach must be >= 1, got {reach}")
    targets, parts = sorting_targets(ids, labels, vocab), layout(ids, labels, vocab)
    where = targets.identity != IGNORE
    count = int(where.sum())
    if count == 0:
        raise UsageError("labels must be supervised behind a value of the answer, and are only at delimiters; give rows with longer answers")
    names = bin_names(reach)
    total, even = torch.zeros(()), torch.zeros(())
    with still(model):
        for part, some, forward in chunks(ids, attention_mask, batch_size):
            row, query = where[part].nonzero(as_tuple=True)
            bins = _bins(some, Layout(*(field[part] for field in parts)), vocab.values, reach)[row, query]
            sums = []
            for pattern in _patterns(model, some, (row, query), forward):
                grouped = pattern.new_zeros(*pattern.shape[:-1], len(names)).scatter_add_(-1, bins[:, None, :].expand_as(pattern), pattern)
                sums.append(grouped.sum(0).cpu())
            total = total + torch.stack(sums)
            seen = (torch.arange(ids.shape[1], device=ids.device) <= query[:, None]).float()
            if attention_mask is not None:
                seen = seen * attention_mask[part][row].bool()
            even = even + seen.new_zeros(len(seen), len(names)).scatter_add_(-1, bins, seen / seen.sum(-1, keepdim=True)).sum(0).cpu()
    mass = total / count
    return OffsetProfile(mass, names, [[names[k] for k in heads] for heads in mass.argmax(-1).tolist()], even / count, count)


class EntropyByLength(NamedTuple):
    """How sharply heads look, by length.

    Attributes:
        lengths: as the batches were named.
        entropy: mean over positions of the entropy of a head's attention, in nats.
        share: the same over its largest value, the log of how many keys the query sees; 1 is uniform.
        successor: mean mass on copies of the successor in the list, over positions that have one there; None without a vocab.
    """

    lengths: list[int]
    entropy: Float[Tensor, "lengths layers heads"]
    share: Float[Tensor, "lengths layers heads"]
    successor: Float[Tensor, "lengths layers heads"] | None


def attention_entropy(
    model: nn.Module, batches: Mapping[int, Mapping[str, Tensor]], vocab: ValueVocab | None = None, *, batch_size: int = 32
) -> EntropyByLength:
    r"""Entropy of each head's attention against length, and its mass on the successor: attention that spreads as lists grow is what tempering acts against.

    .. math:: H = -\sum_j p_j \log p_j \qquad \text{share} = H / \log(\text{visible keys})

    Args:
        model: a causal :class:`trimtab.nn.Transformer`, or a causal language model of Hugging Face on SDPA.
        batches: length -> batch with ``input_ids`` and ``labels``, and ``attention_mask`` where rows are padded on the left. Positions t are looked at whose
            labels[:, t + 1] is not -100.
        vocab: of a sorting task, as of :func:`trimtab.metrics.sorting_targets`; None: batches may be of any task, and there is no successor.
        batch_size: rows a forward pass.

    Raises:
        UsageError: no batch, nothing supervised in one, or a model that does not run on SDPA; with a vocab, as of :func:`sorting_targets`.

    Example:
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=10)
        >>> batches = {n: task.batch(seed=0, step=0, size=4, length=n) for n in (5, 10)}
        >>> found = attention_entropy(Transformer(task.vocab.size, dim=8, layers=2, heads=2), batches, task.vocab)
        >>> found.lengths, found.entropy.shape
        ([5, 10], torch.Size([2, 2, 2]))

    When not to use it: to compare models whose heads do different things; a head that counts copies is right to look at many keys.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    if not batches:
        raise UsageError("batches must hold at least one length, and is empty")
    with still(model):
        found = [_entropy(model, length, batch, vocab, batch_size) for length, batch in batches.items()]
    entropy, share, successor = (torch.stack(part) for part in zip(*found, strict=True))
    return EntropyByLength(list(batches), entropy, share, None if vocab is None else successor)


def _entropy(model: nn.Module, length: int, batch: Mapping[str, Tensor], vocab: Any, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """[layers, heads] each."""
    ids, labels, mask = batch["input_ids"], batch["labels"], batch.get("attention_mask")
    where = predicting_positions(labels)
    if not bool(where.any()):
        raise UsageError(f"labels must be supervised somewhere, and in the batch of length {length} they are nowhere")
    items = successors = None
    if vocab is not None:
        items, successors = layout(ids, labels, vocab).items, sorting_targets(ids, labels, vocab).successor
    sums, positions, reachable = torch.zeros(3, 1, 1), 0, 0
    for part, some, forward in chunks(ids, mask, batch_size):
        row, query = where[part].nonzero(as_tuple=True)
        visible = query + 1 if mask is None else mask[part].cumsum(1)[row, query]
        most = visible.clamp(min=2).float().log()[:, None]  # one key leaves no choice, and counts as sharp
        hit = torch.zeros_like(some[row], dtype=torch.bool)
        if items is not None and successors is not None:
            hit = items[part][row] & (some[row] == successors[part][row, query][:, None])
        layers = []
        for pattern in _patterns(model, some, (row, query), forward):
            entropy = -torch.special.xlogy(pattern, pattern).sum(-1)
            layers.append(torch.stack([entropy.sum(0), (entropy / most).sum(0), (pattern * hit[:, None, :]).sum((0, 2))]).cpu())
        sums = sums + torch.stack(layers, 1)
        positions += len(row)
        reachable += int(hit.any(-1).sum())
    entropy, share, mass = sums
    return entropy / positions, share / positions, mass / max(reachable, 1)
