from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from trimtab.core import UsageError
from trimtab.metrics import edit_similarity, levenshtein, levenshtein_reference

sequences = st.lists(st.integers(0, 3), max_size=9)
pairs = st.lists(st.tuples(sequences, sequences), min_size=1, max_size=8)


def padded(rows, junk=0):
    """Rows as a tensor and their lengths; the padding is junk that must not matter."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *((i + junk) % 4 for i in range(width - len(row)))] for row in rows], dtype=torch.long).reshape(len(rows), width)
    return ids, torch.tensor([len(row) for row in rows])


def brute_force(a, b):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@given(pairs, st.integers(0, 3))
def test_a_batch_equals_brute_force_and_rapidfuzz_row_by_row(rows, junk):
    (a, m), (b, n) = (padded([pair[k] for pair in rows], junk + k) for k in (0, 1))
    truth = [brute_force(*pair) for pair in rows]
    assert [levenshtein_reference(*pair) for pair in rows] == truth
    assert [Levenshtein.distance(*pair) for pair in rows] == truth
    assert levenshtein(a, b, m, n).tolist() == truth
    assert edit_similarity(a, b, m, n).tolist() == pytest.approx([Levenshtein.normalized_similarity(*pair) for pair in rows])


@given(sequences, sequences, sequences)
def test_it_is_a_metric(x, y, z):
    def d(a, b):
        return int(levenshtein(*(torch.tensor([s], dtype=torch.long) for s in (a, b))))

    assert d(x, y) == d(y, x)
    assert (d(x, y) == 0) == (x == y)
    assert d(x, z) <= d(x, y) + d(y, z)
    assert abs(len(x) - len(y)) <= d(x, y) <= max(len(x), len(y))


@pytest.mark.parametrize(
    ("a", "b", "distance", "similarity"),
    [
        ([], [], 0, 1),
        ([], [5], 1, 0),
        ([5], [5], 0, 1),
        ([5], [6], 1, 0),
        ([1, 2, 3, 4], [1, 2, 3, 4], 0, 1),
        ([1, 2, 3, 4], [2, 3, 4, 5], 2, 0.5),
        ([1, 2], [2, 1], 2, 0),
        ([7], list(range(100)), 99, 0.01),
        ([1] * 50, [2] * 3, 50, 0),
    ],
)
def test_values(a, b, distance, similarity):
    for left, right in ((a, b), (b, a)):
        left, right = (torch.tensor([s], dtype=torch.long) for s in (left, right))
        assert levenshtein(left, right).item() == distance
        assert edit_similarity(left, right).item() == pytest.approx(similarity)


def test_bytes_and_long_rows():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randint(20, (3, 200), generator=g, dtype=torch.uint8), torch.randint(20, (3, 130), generator=g, dtype=torch.uint8)
    assert levenshtein(a, b).tolist() == [Levenshtein.distance(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert edit_similarity(a, b).dtype == torch.float64


def test_inputs_stay_as_they_were():
    tensors = torch.tensor([[1, 2]]), torch.tensor([[2, 1, 0]]), torch.tensor([2]), torch.tensor([1])
    copies = [t.clone() for t in tensors]
    levenshtein(*tensors)
    assert all(map(torch.equal, tensors, copies))


@pytest.mark.parametrize("lengths", [[3], [-1]])
def test_a_length_outside_the_row(lengths):
    with pytest.raises(UsageError, match=r"a_lengths must be in 0 \.\. 2"):
        levenshtein(torch.tensor([[1, 2]]), torch.tensor([[1, 2]]), torch.tensor(lengths))


@pytest.mark.usefixtures("annotations_off")
def test_shapes_that_disagree():
    with pytest.raises(UsageError, match="as many rows, got 1 and 2"):
        levenshtein(torch.zeros(1, 2, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(UsageError, match=r"one number for each row of a, shape \(2,\), got \(1,\)"):
        levenshtein(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long), torch.tensor([1]))
