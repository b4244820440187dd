"""Levenshtein distance and edit similarity of many pairs at once.

No paper: Levenshtein (1966) with unit costs. The fast form walks the shorter side token by token, and does each step for all pairs and all cells in a few
tensor operations.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from trimtab.core import UsageError


def levenshtein_reference(a: Sequence[object], b: Sequence[object]) -> int:
    """The definition, cell by cell, for one pair. For tests.

    Example:
        >>> levenshtein_reference("kitten", "sitting")
        3
    """
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (x != y)))
        previous = row
    return previous[-1]


def checked_lengths(name: str, ids: Tensor, lengths: Tensor | None) -> Tensor:
    """The lengths of padded rows; the whole width where none are given, an error where one cannot be."""
    rows, width = ids.shape
    if lengths is None:
        return torch.full((rows,), width, device=ids.device)
    if lengths.shape != (rows,):
        raise UsageError(f"{name}_lengths must have one number for each row of {name}, shape ({rows},), got {tuple(lengths.shape)}")
    if rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
        seen = f"{int(lengths.min())} .. {int(lengths.max())}"
        raise UsageError(f"{name}_lengths must be in 0 .. {width}, the width of {name}, got {seen}; pad {name} or cut the lengths")
    return lengths.long()


def levenshtein(
    a: Integer[Tensor, "batch m"],
    b: Integer[Tensor, "batch n"],
    a_lengths: Int[Tensor, "batch"] | None = None,
    b_lengths: Int[Tensor, "batch"] | None = None,
) -> Int[Tensor, "batch"]:
    r"""Fewest insertions, deletions and substitutions that turn row i of a into row i of b.

    .. math:: d_{ij} = \min(d_{i-1,j} + 1,\; d_{i,j-1} + 1,\; d_{i-1,j-1} + [a_i \ne b_j])

    Takes min(m, n) steps over a table row of batch x max(m, n) cells; exact integers.

    Args:
        a, b: token ids, one sequence a row; widths may differ and may be 0.
        a_lengths, b_lengths: how many leading tokens of each row count; the rest is padding and never looked at. Default all.

    Returns:
        One distance a row, 0 .. max(length of a, length of b).

    Raises:
        UsageError: row counts disagree, or a length is outside its width.

    Example:
        >>> a, b = torch.tensor([[1, 2, 3], [1, 2, 3]]), torch.tensor([[1, 3, 9, 9], [1, 2, 3, 4]])
        >>> levenshtein(a, b, b_lengths=torch.tensor([2, 4]))
        tensor([1, 1])

    When not to use it: one long pair of strings; a bit-parallel library is faster there.
    """
    if len(a) != len(b):
        raise UsageError(f"a and b must have as many rows, got {len(a)} and {len(b)}; give one pair a row")
    a_lengths, b_lengths = checked_lengths("a", a, a_lengths), checked_lengths("b", b, b_lengths)
    if a.shape[1] > b.shape[1]:  # the distance is symmetric, and steps cost more than cells
        a, b, a_lengths, b_lengths = b, a, b_lengths, a_lengths
    columns = torch.arange(b.shape[1] + 1, device=b.device)
    row = columns.expand(len(b), -1)  # from no token of a to the first j of b: j insertions
    distance = b_lengths
    for i in range(a.shape[1]):
        best = row + 1
        best[:, 1:] = torch.minimum(best[:, 1:], row[:, :-1] + (a[:, i : i + 1] != b))
        # an insertion adds one for each column to the right: min over k <= j of best[k] + (j - k) is a running minimum
        row = (best - columns).cummin(1).values + columns
        distance = torch.where(a_lengths == i + 1, row.gather(1, b_lengths[:, None])[:, 0], distance)
    return distance


def edit_similarity(
    a: Integer[Tensor, "batch m"],
    b: Integer[Tensor, "batch n"],
    a_lengths: Int[Tensor, "batch"] | None = None,
    b_lengths: Int[Tensor, "batch"] | None = None,
) -> Float[Tensor, "batch"]:
    r"""One minus the Levenshtein distance over the longer length: 1 for equal rows, 0 where no token can be kept.

    .. math:: 1 - \frac{d(a, b)}{\max(|a|, |b|)}

    Args:
        a, b, a_lengths, b_lengths: as in :func:`levenshtein`.

    Returns:
        One value in 0 .. 1 a row, float64; two empty sequences give 1.

    Raises:
        UsageError: as :func:`levenshtein`.

    Example:
        >>> edit_similarity(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 3, 4]]))
        tensor([0.7500], dtype=torch.float64)

    When not to use it: as a stand-in for exact match; a sorted list with two tokens swapped still scores high.
    """
    distance = levenshtein(a, b, a_lengths, b_lengths)
    longer = torch.maximum(checked_lengths("a", a, a_lengths), checked_lengths("b", b, b_lengths))
    return 1 - distance.double() / longer.clamp(min=1)
