"""What is minimised: a callable that returns sums and counts, so that one division by the global count is right for any accumulation or process layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.core import UsageError, unknown
from trimtab.losses import next_token_loss
from trimtab.losses.next_token import IGNORE


class Sums(NamedTuple):
    """What an objective returns for one batch.

    Attributes:
        total: the sum to minimise; differentiable, no dimensions.
        count: how many things it sums over; no dimensions. The loss is total / count.
        parts: name -> (sum, count) of what should be logged beside it; no gradient is needed.

    Example:
        >>> sums = Sums(torch.tensor(6.0), torch.tensor(4))
        >>> float(sums.total / sums.count), dict(sums.parts)
        (1.5, {})
    """

    total: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    parts: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})


class Objective(Protocol):
    """A callable (model, batch, generator) -> :class:`Sums`.

    It draws random numbers from the generator only (a CPU one: draw there and move the result), and leaves the model's mode, its parameters and the batch as
    they are. Parameters it wants trained belong to the model; a teacher is an attribute. :func:`trimtab.testing.check_objective` checks one.
    """

    def __call__(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Sums: ...


@dataclass(frozen=True)
class NextToken:
    """The next-token loss on batches with ``input_ids`` and ``labels``, and ``attention_mask`` where there is one.

    Works on a model that returns logits, and on one whose output has ``.logits`` (Hugging Face).

    Args:
        reduction: ``"example"`` weighs every row alike, ``"token"`` every supervised token; see :func:`trimtab.losses.next_token_loss`.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> sums = NextToken("token")(model, {"input_ids": ids, "labels": ids}, torch.Generator())
        >>> int(sums.count)
        2
    """

    reduction: Literal["token", "example"] = "example"

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor], generator: torch.Generator) -> Sums:
        if not isinstance(batch, Mapping) or not {"input_ids", "labels"} <= batch.keys():
            got = f"one with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
            raise UsageError(f"batch must be a mapping with input_ids and labels, got {got}; make one in the loader's collate_fn, or write an objective")
        mask = {"attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        output = model(batch["input_ids"], **mask)
        return Sums(*next_token_loss(getattr(output, "logits", output), batch["labels"], self.reduction))


@dataclass(frozen=True)
class TokenClassification:
    """Cross-entropy where the label of a position is predicted at that position, as encoders do it; of Hugging Face, models ...ForTokenClassification.

    Batches are as for :class:`NextToken`, unshifted, but the first position may have a label, and labels may be of other classes than the ids.

    Args:
        reduction: ``"example"`` weighs every row alike, ``"token"`` every supervised position.

    Raises:
        UsageError: no such reduction, or (when called) labels of another shape than the logits.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))
        >>> sums = TokenClassification("token")(model, {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[0, -100, 1]])}, torch.Generator())
        >>> int(sums.count)
        2

    When not to use it: with a causal model that writes text; the label of a position is its own id there, and this would teach it to copy.
    """

    reduction: Literal["token", "example"] = "example"

    def __post_init__(self):
        if self.reduction not in ("token", "example"):
            raise unknown("reduction", str(self.reduction), ("token", "example"))

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor], generator: torch.Generator) -> Sums:
        mask = {"attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        output, labels = model(batch["input_ids"], **mask), batch["labels"]
        logits: Tensor = getattr(output, "logits", output)
        if logits.ndim != 3 or labels.shape != logits.shape[:2]:
            raise UsageError(f"labels must be [batch, tokens] for logits [batch, tokens, classes], got {tuple(labels.shape)} and {tuple(logits.shape)}")
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)  # sums in bfloat16 would stop growing at a few hundred
        losses = functional.cross_entropy(wide, labels.flatten(), ignore_index=IGNORE, reduction="none").view_as(labels)
        supervised = (labels != IGNORE).sum(1)
        if self.reduction == "token":
            return Sums(losses.sum(), supervised.sum().to(wide.dtype))
        return Sums((losses.sum(1) / supervised.clamp(min=1)).sum(), (supervised > 0).sum().to(wide.dtype))
