"""What a model that sorts has to know at each position: the targets of probes and lenses, read off the rows themselves.

Rows are ``x_1 .. x_n <delimiter> y_1 .. y_m <eos>`` with values 0 .. values - 1, of one length or of several with padding, as the sorting tasks make them; the
y are what the model has read, right or wrong. A position t is looked at where labels[:, t + 1] is supervised.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.core import UsageError
from trimtab.metrics.sequence import IGNORE


@runtime_checkable
class ValueVocab(Protocol):
    """Ids of a sorting task: values 0 .. values - 1, and <eos>; ``pad`` too, if it has one."""

    @property
    def values(self) -> int: ...

    @property
    def eos(self) -> int: ...


class SortingTargets(NamedTuple):
    """What there is to know at each position that is looked at, [rows, tokens]; -100 where it has no meaning.

    Attributes:
        identity: the value just read. Not at the delimiter.
        successor: the least larger value of the list, or <eos>. Not at the delimiter.
        minimum: the least value of the list, <eos> if the list is empty.
        remaining: how many copies of the value just read are still to be written; 0 too if there are too many already. Not at the delimiter.
        position: how many tokens of the answer have been read, 0 at the delimiter.
    """

    identity: Int[Tensor, "rows tokens"]
    successor: Int[Tensor, "rows tokens"]
    minimum: Int[Tensor, "rows tokens"]
    remaining: Int[Tensor, "rows tokens"]
    position: Int[Tensor, "rows tokens"]


class Layout(NamedTuple):
    """Parts of sorting-type rows: masks [rows, tokens], and which values the lists hold [rows, values]."""

    items: Tensor
    delimiter: Tensor
    outputs: Tensor
    looked: Tensor
    present: Tensor


def predicting_positions(labels: Int[Tensor, "rows tokens"]) -> Bool[Tensor, "rows tokens"]:
    """Where a supervised token is predicted from: True at t where labels[:, t + 1] is not -100.

    Example:
        >>> predicting_positions(torch.tensor([[-100, -100, 4, 2]]))
        tensor([[False,  True,  True, False]])
    """
    return torch.nn.functional.pad(labels[:, 1:] != IGNORE, (0, 1))


def layout(ids: Tensor, labels: Tensor, vocab: Any) -> Layout:
    """Find the parts; UsageError for rows that have not got them."""
    if labels.shape != ids.shape:
        raise UsageError(f"labels must have the shape of ids, {tuple(ids.shape)}, got {tuple(labels.shape)}")
    value = (ids >= 0) & (ids < vocab.values)
    pad = getattr(vocab, "pad", None)
    mark = ~value if pad is None else ~value & (ids != pad)
    before = mark.cumsum(1)
    delimiter = mark & (before == 1)
    if not bool(delimiter.any(1).all()):
        row = int((~delimiter.any(1)).nonzero()[0])
        raise UsageError(f"ids must be rows x <delimiter> y with values 0 .. {vocab.values - 1} before a delimiter; row {row} has no delimiter")
    items = value & (before == 0)
    looked = predicting_positions(labels) & (before >= 1)
    if not bool(looked.any()):
        raise UsageError("labels must be supervised behind a delimiter, and no position of any row is; give the labels of a sorting task, unshifted")
    slots = torch.where(items, ids, vocab.values)
    present = torch.zeros(len(ids), vocab.values + 1, dtype=torch.bool, device=ids.device).scatter_(1, slots, True)[:, :-1]
    return Layout(items, delimiter, (before >= 1) & ~delimiter & (ids != (-1 if pad is None else pad)), looked, present)


def sorting_targets(ids: Int[Tensor, "rows tokens"], labels: Int[Tensor, "rows tokens"], vocab: ValueVocab) -> SortingTargets:
    """What a model that sorts has to know at each position of its answer.

    Args:
        ids: rows ``x <delimiter> y``, of a sorting task or one of its hints.
        labels: ids where supervised, -100 elsewhere, unshifted.
        vocab: of the task: anything with ``values`` and ``eos``.

    Raises:
        UsageError: shapes disagree, a row without delimiter, or nothing supervised.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=10)
        >>> batch = task.batch(seed=0, step=0, size=1, length=5)
        >>> task.vocab.show(batch["input_ids"][0])
        '5 4 5 2 5 <sort> 2 4 5 5 5 <eos>'
        >>> targets = sorting_targets(batch["input_ids"], batch["labels"], task.vocab)
        >>> targets.successor[0, 6:].tolist(), targets.remaining[0, 6:].tolist()
        ([4, 5, 11, 11, 11, -100], [0, 0, 2, 1, 0, -100])

    When not to use it: on rows with several questions (packed hints), where what was read last is no part of one answer.
    """
    parts = layout(ids, labels, vocab)
    rows, tokens = ids.shape
    at = parts.looked & (ids >= 0) & (ids < vocab.values)  # a value of the answer was just read
    value = torch.where(at, ids, 0)

    # least present value from u on, for each u: <eos> behind the last
    u = torch.arange(vocab.values, device=ids.device)
    end = vocab.eos
    far = torch.iinfo(torch.int64).max
    nearest = torch.where(parts.present, u, far).flip(1).cummin(1).values.flip(1)
    nearest = torch.cat([nearest, nearest.new_full((rows, 1), far)], 1)
    nearest = nearest.masked_fill(nearest == far, end)
    successor = nearest.gather(1, value + 1)
    minimum = nearest[:, :1].expand(-1, tokens)

    copies = torch.zeros(rows, vocab.values + 1, dtype=torch.int64, device=ids.device)
    copies.scatter_add_(1, torch.where(parts.items, ids, vocab.values), parts.items.long())
    # a token's place among the equal tokens of the answer: equal ones lie together once sorted, in their order
    written = parts.outputs & (ids >= 0) & (ids < vocab.values)
    together, order = torch.where(written, ids, vocab.values).sort(dim=1, stable=True)
    first = torch.searchsorted(together, together)
    nth = torch.empty_like(ids).scatter_(1, order, torch.arange(tokens, device=ids.device) - first + 1)
    remaining = (copies.gather(1, value) - nth).clamp(min=0)

    position = torch.arange(tokens, device=ids.device) - parts.delimiter.int().argmax(1, keepdim=True)
    known = [(ids, at), (successor, at), (minimum, parts.looked), (remaining, at), (position, parts.looked)]
    return SortingTargets(*(torch.where(where, what, IGNORE) for what, where in known))
