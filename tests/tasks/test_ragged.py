import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.tasks.ragged import below, joined, packed, parted

PAD = 9
PARTS = st.lists(st.tuples(st.lists(st.integers(0, 8), max_size=5), st.lists(st.integers(0, 8), min_size=1, max_size=5)), min_size=1, max_size=4)


def padded(rows, gap=False):
    width = max(map(len, rows), default=0)
    return torch.tensor([[PAD] * gap + [*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.long).reshape(len(rows), -1)


@settings(max_examples=25)
@given(PARTS, st.booleans())
def test_joined_and_parted_undo_each_other(rows, gap):
    prompts, answers = zip(*rows, strict=True)
    ids, answer = joined(padded(prompts, gap), padded(answers), PAD)
    assert ids.shape[1] == max(len(p) + len(a) for p, a in rows)
    for row, mask, prompt, reply in zip(ids.tolist(), answer.tolist(), prompts, answers, strict=True):
        used = len(prompt) + len(reply)
        assert row[:used] == prompt + reply and set(row[used:]) <= {PAD}
        assert mask == [len(prompt) <= k < used for k in range(len(row))]
    x, y = parted(ids, answer, PAD)
    assert torch.equal(x, padded(prompts)) and torch.equal(y, padded(answers))


def test_parted_takes_the_first_of_several_answers():
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]])
    answer = torch.tensor([[False, True, False, True, True], [False, False, True, True, False]])
    x, y = parted(ids, answer, PAD)
    assert x.tolist() == [[1, PAD], [6, 7]] and y.tolist() == [[2, PAD], [8, 1]]


@settings(max_examples=25)
@given(st.lists(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=3, max_size=3), min_size=1, max_size=4))
def test_packed(rows):
    ids, keep = (torch.tensor([[item[k] for item in row] for row in rows]) for k in (0, 1))
    assert torch.equal(packed(ids, keep, PAD), padded([[i for i, kept in row if kept] for row in rows]))
    assert packed(ids, keep, PAD).is_contiguous()


def test_below_is_uniform_for_each_bound():
    bound = torch.tensor([0, 1, 3, 7]).repeat(7000)
    drawn = below(bound, torch.Generator().manual_seed(0))
    for n in (1, 3, 7):
        counts = torch.bincount(drawn[bound == n], minlength=n).double()
        assert len(counts) == n and ((counts - 7000 / n) ** 2 * n / 7000).sum() < 38  # 6 degrees of freedom at 1e-6
    assert (drawn[bound == 0] == 0).all()
