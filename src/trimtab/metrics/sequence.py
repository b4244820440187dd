"""How well a sequence model answered: exact match and token accuracy from one parallel forward, edit similarity and endings from free-running outputs.

No paper. Edit similarity and endings compare the *answer*, the supervised ids of a row without their closing <eos>, with the *output*, what the model wrote
after the prompt up to its first <eos>, that one left out. Exact match and token accuracy count the <eos> of the answer as one of its tokens.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.core import UsageError
from trimtab.metrics.edit import checked_lengths, edit_similarity

IGNORE = -100  # the label of a position that is not supervised, as in PyTorch's cross entropy and Hugging Face models


def _hits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where the prediction is right, and where one is asked for; position t of both is about labels[:, t + 1]."""
    if logits.ndim != 3 or logits.shape[:2] != labels.shape:
        seen = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise UsageError(f"logits must be [batch, tokens, vocab] and labels [batch, tokens], got {seen}; give the logits of the whole row, unshifted")
    if bool(logits.isnan().any()):  # argmax would take the first NaN for the answer
        raise UsageError("logits must not be NaN, and some are; the model that gave them has diverged")
    wanted = labels[:, 1:]
    return logits[:, :-1].argmax(-1) == wanted, wanted != IGNORE


def exact_match(logits: Float[Tensor, "batch tokens vocab"], labels: Int[Tensor, "batch tokens"]) -> Bool[Tensor, "batch"]:
    r"""Rows whose every supervised token is the most likely one, given the true tokens before it.

    .. math:: \prod_{t:\, y_t \ne -100} [\arg\max_v \ell_{t-1,v} = y_t]

    This is also whether greedy free-running decoding writes the answer: as long as all is right so far, both see the same tokens, and at the first
    mistake both are wrong. So exact match needs one parallel forward, while edit similarity needs generation (:func:`free_running`).

    Args:
        logits: of the whole rows, unshifted: logits[:, t] predict token t + 1.
        labels: ids where supervised, -100 elsewhere. Column 0 is never predicted and not looked at.

    Returns:
        One truth value a row.

    Raises:
        UsageError: shapes disagree, or a row has no supervised token (calling it right would flatter the mean).

    Example:
        >>> logits = torch.eye(4)[torch.tensor([[3, 1, 2], [3, 1, 2]])]  # predicts 3, then 1
        >>> exact_match(logits, torch.tensor([[0, 3, 1], [-100, -100, 3]]))
        tensor([ True, False])

    When not to use it: for rows with several separate answers (packed queries): a wrong one does not reach the next, so this is stricter than any one of them.
    """
    right, asked = _hits(logits, labels)
    if not bool(asked.any(1).all()):
        row = int((~asked.any(1)).nonzero()[0])
        raise UsageError(f"labels must have a supervised token in every row, got none in row {row}; leave such rows out")
    return (right | ~asked).all(1)


def token_accuracy(logits: Float[Tensor, "batch tokens vocab"], labels: Int[Tensor, "batch tokens"]) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
    """How many supervised tokens are the most likely one given the true tokens before it, and how many there are.

    Args:
        logits, labels: as in :func:`exact_match`.

    Returns:
        Right tokens and supervised tokens, apart, so that batches add up before the division.

    Raises:
        UsageError: shapes disagree.

    Example:
        >>> logits = torch.eye(4)[torch.tensor([[3, 1, 2], [3, 1, 2]])]
        >>> token_accuracy(logits, torch.tensor([[0, 3, 1], [-100, -100, 3]]))
        (tensor(2), tensor(3))

    When not to use it: to claim that a model solves a task; it is a diagnostic, as true tokens put the model back on the path after each mistake.
    """
    right, asked = _hits(logits, labels)
    return (right & asked).sum(), asked.sum()


def before_eos(ids: Int[Tensor, "batch tokens"], eos: int) -> Int[Tensor, "batch"]:
    """Number of tokens before the first eos; the whole width where there is none.

    Example:
        >>> before_eos(torch.tensor([[5, 9, 5, 9], [9, 5, 5, 5], [5, 5, 5, 5]]), eos=9)
        tensor([1, 0, 4])
    """
    return ((ids == eos).cumsum(1) == 0).sum(1)


class Outcome(NamedTuple):
    """What became of each output, row by row.

    Attributes:
        exact: the output is the answer and is ended by eos.
        edit: edit similarity of output and answer, without eos.
        early: eos came before as many tokens as the answer has.
        late: eos came after more tokens than the answer has, or did not come at all.
    """

    exact: Bool[Tensor, "batch"]
    edit: Float[Tensor, "batch"]
    early: Bool[Tensor, "batch"]
    late: Bool[Tensor, "batch"]


def free_running(
    output: Int[Tensor, "batch out"],
    target: Int[Tensor, "batch answer"],
    target_lengths: Int[Tensor, "batch"] | None = None,
    *,
    eos: int,
) -> Outcome:
    """Judge what a model wrote by itself after a prompt.

    The output counts up to its first eos, whatever follows. One without eos (the cap on new tokens was reached) counts whole, is late, and is never exact.
    A target that does not end in eos asks for that many tokens and no ending: the output is cut there, is exact if those tokens are right, and cannot be late.

    Args:
        output: ids after the prompt. Let the cap exceed the longest answer, or late outputs look better than they are.
        target: answer ids with their eos, right-padded.
        target_lengths: tokens of each target, its eos included; default the whole width.
        eos: id that ends an answer.

    Returns:
        An :class:`Outcome` of one value a row; no row is both early and late, and an exact one is neither.

    Raises:
        UsageError: row counts disagree, or a length is outside the target's width.

    Example:
        >>> target = torch.tensor([[1, 2, 3, 9]]).expand(4, -1)
        >>> output = torch.tensor([[1, 2, 3, 9, 0], [1, 2, 9, 0, 0], [1, 2, 3, 3, 9], [1, 2, 3, 3, 3]])
        >>> outcome = free_running(output, target, eos=9)
        >>> outcome.exact.tolist(), [round(e, 2) for e in outcome.edit.tolist()]
        ([True, False, False, False], [1.0, 0.67, 0.75, 0.6])
        >>> outcome.early.tolist(), outcome.late.tolist()
        ([False, True, False, False], [False, False, True, True])

    When not to use it: if only exact match is wanted; :func:`exact_match` gives the same truth values from one forward.
    """
    if len(output) != len(target):
        raise UsageError(f"output and target must have as many rows, got {len(output)} and {len(target)}; give every prompt one output")
    lengths = checked_lengths("target", target, target_lengths)
    last = torch.arange(target.shape[1], device=target.device) == lengths[:, None] - 1
    closed = ((target == eos) & last).any(1)
    wanted = lengths - closed.long()
    written = before_eos(output, eos)
    late = closed & ((written > wanted) | (written == output.shape[1]))
    written = torch.where(closed, written, torch.minimum(written, wanted))
    edit = edit_similarity(output, target, written, wanted)
    return Outcome(exact=(edit == 1) & ~late, edit=edit, early=~late & (written < wanted), late=late)
