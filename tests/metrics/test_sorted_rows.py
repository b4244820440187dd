from collections import Counter

import pytest
import torch

from trimtab.core import UsageError, generator
from trimtab.metrics import predicting_positions, sorting_targets
from trimtab.tasks import Sorting, Successor
from trimtab.tasks.base import Vocab

VOCAB = Sorting(vocab=8).vocab
SORT, EOS, PAD = VOCAB.id("<sort>"), VOCAB.eos, VOCAB.pad


def targets_by_hand(ids, labels):
    """One row, position by position: (identity, successor, minimum, remaining, position)."""
    start = next(t for t, token in enumerate(ids) if token >= VOCAB.values and token != PAD)
    x = [token for token in ids[:start] if token != PAD]
    found = []
    for t, token in enumerate(ids):
        if t + 1 == len(ids) or labels[t + 1] == -100:
            found.append((-100,) * 5)
            continue
        minimum, position = min(x, default=EOS), t - start
        if token >= VOCAB.values:
            found.append((-100, -100, minimum, -100, position))
            continue
        written = Counter(ids[start + 1 : t + 1])[token]
        found.append((token, min((u for u in x if u > token), default=EOS), minimum, max(x.count(token) - written, 0), position))
    return found


def rows_of(seed, rows=40, most=6):
    """Rows of mixed lengths, some with wrong answers, padded on both sides."""
    source = generator(seed, "rows")
    found = []
    for _ in range(rows):
        n = int(torch.randint(most + 1, (), generator=source))
        x = torch.randint(VOCAB.values, (n,), generator=source).tolist()
        y = sorted(x) if torch.rand((), generator=source) < 0.5 else torch.randint(VOCAB.values, (n,), generator=source).tolist()
        left = int(torch.randint(3, (), generator=source))
        right = 2 * most + 6 - left - 2 * n - 2
        ids = [PAD] * left + x + [SORT] + y + [EOS] + [PAD] * right
        found.append((ids, [-100] * (left + n + 1) + y + [EOS] + [-100] * right))
    return torch.tensor([ids for ids, _ in found]), torch.tensor([labels for _, labels in found])


def test_targets_are_what_a_loop_over_positions_finds():
    ids, labels = rows_of(0)
    found = torch.stack([*sorting_targets(ids, labels, VOCAB)], -1)
    wanted = [targets_by_hand(*row) for row in zip(ids.tolist(), labels.tolist(), strict=True)]
    assert torch.equal(found, torch.tensor(wanted))
    assert (found[..., 3] > 0).any() and (found[..., 1] == EOS).any() and (found[..., 2] == EOS).any()


def test_a_row_says_the_same_in_any_batch():
    ids, labels = rows_of(1)
    whole = torch.stack([*sorting_targets(ids, labels, VOCAB)])
    parts = [torch.stack([*sorting_targets(*pair, VOCAB)]) for pair in zip(ids.split(7), labels.split(7), strict=True)]
    assert torch.equal(whole, torch.cat(parts, 1))


def test_a_query_of_a_hint_is_a_value_just_read():
    task = Successor(Sorting(vocab=8))
    batch = task.batch(seed=0, step=0, size=20, length=5)
    ids, labels = batch["input_ids"], batch["labels"]
    found = sorting_targets(ids, labels, task.vocab)
    assert torch.equal(found.identity[:, 6], ids[:, 6])
    assert torch.equal(found.successor[:, 6], labels[:, 7])


def test_predicting_positions():
    assert predicting_positions(torch.tensor([[3, -100, 1, -100, 2], [-100] * 5])).tolist() == [[False, True, False, True, False], [False] * 5]


def test_rows_that_are_none():
    ids, labels = rows_of(2)
    with pytest.raises(UsageError, match=r"row 1 has no delimiter"):
        sorting_targets(torch.tensor([[1, SORT, 1], [1, 2, 3]]), torch.tensor([[-100, -100, 1]] * 2), VOCAB)
    with pytest.raises(UsageError, match="no position of any row is"):
        sorting_targets(ids, torch.full_like(labels, -100), VOCAB)


@pytest.mark.usefixtures("annotations_off")
def test_shapes_that_disagree():
    with pytest.raises(UsageError, match=r"labels must have the shape of ids, \(2, 3\), got \(2, 4\)"):
        sorting_targets(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long), Vocab(4))
