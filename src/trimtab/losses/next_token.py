"""The next-token loss of language models, as a sum and a count.

Convention of Hugging Face: ``labels`` has the width of the input, and the label at position k is predicted from position k - 1.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trimtab.core import UsageError, unknown

IGNORE = -100
_REDUCTIONS = ("token", "example")


def next_token_loss_reference(
    logits: Float[Tensor, "batch tokens vocab"], labels: Int[Tensor, "batch tokens"], reduction: Literal["token", "example"] = "token"
) -> tuple[Tensor, Tensor]:
    """The definition, position by position. For tests."""
    total, count = logits.sum() * 0, 0
    for row, answer in zip(logits, labels, strict=True):
        losses = [row[k - 1].exp().sum().log() - row[k - 1, answer[k]] for k in range(1, len(answer)) if answer[k] != IGNORE]
        if losses and reduction == "example":
            total, count = total + sum(losses) / len(losses), count + 1
        elif losses:
            total, count = total + sum(losses), count + len(losses)
    return total, torch.tensor(count)


def next_token_loss(
    logits: Float[Tensor, "batch tokens vocab"], labels: Int[Tensor, "batch tokens"], reduction: Literal["token", "example"] = "token"
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Sum of the negative log-likelihoods of the supervised tokens, and how many there are.

    .. math:: \sum_{b} \sum_{k \ge 1,\ y_{bk} \ne -100} -\log p(y_{bk} \mid x_{b,<k})

    With ``reduction="example"`` a row counts once: its mean is summed over the rows. A row with two supervised tokens then weighs as much as one with twenty.
    Sum and count are apart so that accumulated batches and several processes divide once, by the global count.

    Args:
        logits: unnormalised scores; computed in float32 at least.
        labels: ids in 0 .. vocab - 1, or -100 where nothing is asked. The first column is never predicted. A GPU sees an id that is none as an assertion of
            its own, which it cannot go on from.
        reduction: ``"token"`` or ``"example"``.

    Returns:
        The sum (nats, differentiable) and the number of supervised tokens, or of rows with at least one. Both are zero where nothing is supervised.

    Raises:
        UsageError: shapes disagree, labels are no ids of the vocabulary, or no such reduction.

    Example:
        >>> logits = torch.zeros(1, 4, 8)
        >>> total, count = next_token_loss(logits, torch.tensor([[5, 1, 2, -100]]))
        >>> round(float(total / count), 3), int(count)  # log 8, over two tokens
        (2.079, 2)

    When not to use it: labels that are already shifted (then this shifts them again), or an encoder that predicts masked tokens in place.
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise UsageError(
            f"labels must be [batch, tokens] for logits [batch, tokens, vocab], got labels {tuple(labels.shape)} and logits {tuple(logits.shape)}; "
            "hand labels as wide as the input, unshifted"
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise UsageError(f"labels must be whole numbers, got {labels.dtype}; hand the ids themselves")
    if reduction not in _REDUCTIONS:
        raise unknown("reduction", str(reduction), _REDUCTIONS)
    # Shifting the labels instead of slicing the logits copies [batch, tokens] and not [batch, tokens, vocab].
    shifted = F.pad(labels[:, 1:].long(), (0, min(1, labels.shape[1])), value=IGNORE)
    # bf16 has 8 bits of mantissa: a sum over a batch would stop growing at a few hundred nats
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    try:
        losses = F.cross_entropy(wide, shifted.flatten(), ignore_index=IGNORE, reduction="sum" if reduction == "token" else "none")
    except IndexError:  # looked at only now: a check beforehand would make every step on a GPU wait
        row, column = ((shifted != IGNORE) & ((shifted < 0) | (shifted >= logits.shape[2]))).nonzero()[0].tolist()
        allowed = f"in 0 .. {logits.shape[2] - 1}, or {IGNORE} where nothing is asked"
        raise UsageError(f"labels must be {allowed}, got {int(shifted[row, column])} at position {column + 1} of row {row}") from None
    supervised = (shifted != IGNORE).sum(1)
    if reduction == "token":
        return losses, supervised.sum().to(wide.dtype)
    return (losses.view_as(shifted).sum(1) / supervised.clamp(min=1)).sum(), (supervised > 0).sum().to(wide.dtype)
