"""Rows of unequal length as right-padded tensors: take a prompt and its answer apart, close gaps, and put two parts together. For the tasks of this room.

No paper.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def packed(ids: Int[Tensor, "rows tokens"], keep: Bool[Tensor, "rows tokens"], fill: int) -> Int[Tensor, "rows kept"]:
    """What is kept of each row, moved to its left end, as wide as the longest.

    Example:
        >>> packed(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[True, False, True], [False, True, False]]), fill=9)
        tensor([[1, 3],
                [5, 9]])
    """
    place = keep.cumsum(1)
    width = int(keep.sum(1).max())
    out = ids.new_full((len(ids), width + 1), fill)  # column 0 takes what is dropped
    return out.scatter_(1, place * keep, ids)[:, 1:].contiguous()


def parted(ids: Int[Tensor, "rows tokens"], answer: Bool[Tensor, "rows tokens"], pad: int) -> tuple[Int[Tensor, "rows prompt"], Int[Tensor, "rows answer"]]:
    """What stands before the first run of answer positions of each row, and that run; both right-padded.

    Example:
        >>> parted(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[False, True, True], [False, False, True]]), pad=9)
        (tensor([[1, 9],
                [4, 5]]), tensor([[2, 3],
                [6, 9]]))
    """
    begun = answer.cumsum(1) > 0
    ended = (begun & ~answer).cumsum(1) > 0
    prompt = ids[:, : int((~begun).sum(1).max())]
    return prompt.masked_fill(begun[:, : prompt.shape[1]], pad), packed(ids, begun & ~ended, pad)


def joined(prompt: Int[Tensor, "rows prompt"], answer: Int[Tensor, "rows answer"], pad: int) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
    """Prompts and answers as :meth:`trimtab.tasks.SeqTask.sample` returns them; pads anywhere in them are taken out.

    Example:
        >>> joined(torch.tensor([[1, 9, 2], [3, 9, 9]]), torch.tensor([[4], [5]]), pad=9)
        (tensor([[1, 2, 4],
                [3, 5, 9]]), tensor([[False, False,  True],
                [False,  True, False]]))
    """
    both = torch.cat([prompt, answer], dim=1)
    ids = packed(both, both != pad, pad)
    start = (prompt != pad).sum(1, keepdim=True)
    column = torch.arange(ids.shape[1])
    return ids, (column >= start) & (column < start + (answer != pad).sum(1, keepdim=True))


def below(bound: Int[Tensor, "rows"], generator: torch.Generator) -> Int[Tensor, "rows"]:
    """A uniform whole number in 0 .. bound - 1 for each row; 0 where the bound is 0.

    Example:
        >>> below(torch.tensor([1, 1, 0]), torch.Generator())
        tensor([0, 0, 0])
    """
    # in float64: a float32 just below 1, times a bound, can round to the bound
    return (torch.rand(len(bound), dtype=torch.float64, generator=generator) * bound).long()
