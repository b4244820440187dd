from copy import deepcopy
from itertools import pairwise
from math import log

import pytest
import torch

from trimtab.core import UsageError, generator
from trimtab.nn import Transformer, sorting_construction
from trimtab.nn.sorting_construction import relu_ffn
from trimtab.nn.tempered import Tempered
from trimtab.tasks import Sorting
from trimtab.tasks.base import Vocab
from trimtab.testing import check_module


def ids_of(vocab, x):
    """Rows of lists as the construction reads and is to write them: ``x <sort> y <eos>``."""
    edge = x.new_ones(len(x), 1)
    return torch.cat([x, vocab.id("<sort>") * edge, x.sort(dim=1).values, vocab.eos * edge], dim=1)


@torch.no_grad()
def right(model, ids):
    """Of each row the tokens of the answer that are right, [rows, n + 1], all of them read in parallel."""
    n = (ids.shape[1] - 2) // 2
    return model(ids[:, :-1])[:, n:].argmax(-1) == ids[:, n + 1 :]


def exact(model, ids):
    return right(model, ids).all(1)


def inputs(values, n, rows, seed=0):
    """Random lists, and the extremes: all equal, least and greatest, all but one equal, two values far apart, descending."""
    x = torch.randint(values, (rows, n), generator=generator(seed, values, n))
    last = values - 1
    extremes = [torch.zeros(n), torch.full((n,), last), (torch.arange(n) == 0) * last, last - (torch.arange(n) == n // 2).int() * last]
    extremes += [(torch.arange(n) > n // 2) * last, last - torch.arange(n) * values // max(n, 1)]
    return torch.cat([x, torch.stack([row.long() for row in extremes])])


@pytest.mark.parametrize(
    ("values", "lengths", "rows"),
    [(1, (0, 1, 2, 20, 500), 1), (2, (0, 1, 2, 20, 100, 500), 3), (7, (3, 20, 200), 3), (100, (0, 1, 2, 20, 100, 200), 4), (300, (0, 1, 2, 20, 50), 2)],
)
def test_it_sorts_every_list(values, lengths, rows):
    vocab = Sorting(vocab=values).vocab
    model = sorting_construction(vocab)
    for n in lengths:
        assert exact(model, ids_of(vocab, inputs(values, n, rows))).all(), n


@pytest.mark.parametrize(("values", "n", "rows"), [(100, 500, 2), (300, 500, 1)])
def test_it_sorts_long_lists(values, n, rows):
    vocab = Sorting(vocab=values).vocab
    x = torch.randint(values, (rows, n), generator=generator(1, values, n))
    x[0, : n // 2] = values - 1  # one value crowds the others
    assert exact(sorting_construction(vocab), ids_of(vocab, x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("values", [100, 300])
def test_it_sorts_every_long_list(values):
    vocab = Sorting(vocab=values).vocab
    model = sorting_construction(vocab)
    for n in (100, 200, 500):
        assert exact(model, ids_of(vocab, inputs(values, n, 6))).all(), n


def predicted(x, values, tau):
    """Whether softmax at a fixed tau finds each next value of a list, from counts alone: a value u has the mass count(u) exp(-tau u)."""
    mass = [log(x.count(u)) - tau * u if u in x else float("-inf") for u in range(values)] + [-tau * values]
    steps = [-1, *sorted(set(x)), values]
    return all(max(range(a + 1, values + (a >= 0)), key=mass.__getitem__) == b for a, b in pairwise(steps))


@pytest.mark.parametrize("tau", [0.1, 1, 2.0])
@pytest.mark.parametrize(("values", "n", "rows"), [(100, 20, 60), (100, 100, 12), (20, 50, 60), (2, 40, 20)])
def test_a_fixed_tau_fails_where_the_arithmetic_says(values, n, rows, tau):
    vocab = Sorting(vocab=values).vocab
    x = torch.randint(values, (rows, n), generator=generator(0, n))
    expected = [predicted(row, values, tau) for row in x.tolist()]
    assert exact(sorting_construction(vocab, tau), ids_of(vocab, x)).tolist() == expected


def test_a_fixed_tau_fails_more_the_longer_the_list():
    vocab = Sorting(vocab=100).vocab
    model = sorting_construction(vocab, 1.0)
    lists = [torch.randint(100, (rows, n), generator=generator(0, n)) for n, rows in ((20, 40), (50, 40), (100, 10))]
    short, middle, long = (float(exact(model, ids_of(vocab, x)).double().mean()) for x in lists)
    assert short >= 0.95 and 0.45 < middle < 0.85 and long <= 0.2


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_it_generates_what_it_reads(n):
    task = Sorting(vocab=12, lengths=(0, 20))
    batch = task.batch(0, 0, 4, length=n)
    ids, mask = task.prompts(batch)
    out = sorting_construction(task.vocab).generate(ids, attention_mask=mask, max_new_tokens=n + 3, eos=task.vocab.eos, pad=task.vocab.pad)
    assert task.score(out[:, ids.shape[1] :], batch)["exact"] == 1


def test_it_generates_from_prompts_of_mixed_lengths():
    vocab = Sorting(vocab=12).vocab
    model, pad, sort = sorting_construction(vocab), vocab.pad, vocab.id("<sort>")
    ids = torch.tensor([[pad, pad, 7, 3, sort], [1, 9, 1, 0, sort], [pad, pad, pad, pad, sort]])
    out = model.generate(ids, attention_mask=ids != pad, max_new_tokens=5, eos=vocab.eos)
    assert out[:, 5:].tolist() == [[3, 7, *[vocab.eos] * 3], [0, 1, 1, 9, vocab.eos], [vocab.eos] * 5]


def test_the_order_of_the_list_does_not_matter():
    vocab = Sorting(vocab=30).vocab
    x = torch.randint(30, (1, 40), generator=generator(0))
    ids = ids_of(vocab, torch.cat([x, x[:, torch.randperm(40, generator=generator(1))]]))
    with torch.no_grad():
        a, b = sorting_construction(vocab)(ids)[:, 40:]
    torch.testing.assert_close(a, b)


def test_the_residual_stream_says_what_it_should():
    vocab = Vocab(6, ("<sort>",))
    ids = ids_of(vocab, torch.tensor([[4, 1, 4]]))[:, :-1]  # 4 1 4 <sort> 1 4 4
    with torch.no_grad():
        flag, mean = sorting_construction(vocab).states(ids)[0, :, 2 * vocab.size : 2 * vocab.size + 2].T
    torch.testing.assert_close(flag, torch.tensor([0, 0, 0, 1, 1, 1, 1]).double())
    torch.testing.assert_close(mean[3:], torch.tensor([0, 0, 1 / 3, 0]).double())  # of 4: two in the list, then one written, then both


def without(model, head):
    model = deepcopy(model)
    width = model.blocks[1].attention.out.weight.shape[1] // 3
    model.blocks[1].attention.out.weight.data[:, head * width : (head + 1) * width] = 0
    return model


def test_each_head_does_what_it_is_there_for():
    vocab = Sorting(vocab=10).vocab
    ids = ids_of(vocab, torch.tensor([[4, 1, 4, 7, 1, 4]]))  # 1 1 4 4 4 7 <eos>
    whole = sorting_construction(vocab)
    model = without(whole, 0)  # minimum
    assert right(model, ids).tolist() == [[False] + [True] * 6]
    model = without(whole, 1)  # identity: repeats are lost
    assert right(model, ids).tolist() == [[True, False, True, False, False, True, True]]
    model = without(whole, 2)  # successor
    assert right(model, ids).tolist() == [[True, True, False, True, True, False, False]]
    model = deepcopy(whole)
    model.blocks[0].attention.out.weight.data.zero_()  # mark: what was written is not told from the list, and copies never run out
    assert right(model, ids).tolist() == [[True, True, False, True, True, False, False]]


def test_it_is_a_transformer_like_any_other(tmp_path):
    vocab = Vocab(6, ("<sort>",))
    model = sorting_construction(vocab)
    ids = ids_of(vocab, torch.randint(6, (3, 4), generator=generator(0)))
    assert not model.training and model.settings["layers"] == 2 and len(model.blocks[0].attention.score_scale.a) == 1
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    skip = {"gradients reach every parameter": "a softmax this sharp has none", "no silent cast": "bfloat16 has not the range of its scores"}
    check_module(model, ids, causal=True, skip=skip)
    model.save(tmp_path)
    objects = {"norm": torch.nn.Identity, "ffn": relu_ffn, "score_scale": lambda *_: Tempered(dtype=torch.float64)}
    assert torch.equal(Transformer.load(tmp_path, **objects)(ids), model(ids))


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    sorting_construction(Vocab(3, ("<sort>",)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tau", ["log", 0.05, -1.0, float("inf"), float("nan")])
def test_a_wrong_tau(tau):
    with pytest.raises(UsageError, match=r"tau must be 'logn' or a finite number >= 0\.1, got"):
        sorting_construction(Vocab(3, ("<sort>",)), tau)


def test_a_wrong_vocabulary():
    class Odd:
        values, size, eos = 5, 6, 5

        def id(self, name):
            return 6

    with pytest.raises(UsageError, match=r"below size; got values=5, <sort>=6, <eos>=5, size=6"):
        sorting_construction(Odd())
    with pytest.raises(UsageError, match="unknown special token '<sort>'"):
        sorting_construction(Vocab(5))
