from collections import UserDict, namedtuple
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trimtab.core import UsageError
from trimtab.train.batches import Batches, to_device

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "a b")


class ByStep:
    def batch(self, seed, step, size):
        return seed, step, size


class Table(list):
    """As of libraries whose tables have a ``batch`` of another kind."""

    def batch(self, batch_size, drop_last_batch=False):
        raise AssertionError("not this one")


def test_a_source_is_asked_by_arithmetic():
    batches = Batches(ByStep(), 7, 3, CPU)
    assert [batches(n) for n in (5, 0, 5)] == [(7, 5, 3), (7, 0, 3), (7, 5, 3)]


def test_an_iterable_is_iterated_again_and_drawn_forward(caplog):
    assert [Batches([1, 2, 3], 0, None, CPU)(n) for n in (0, 2, 3, 7)] == [1, 3, 1, 2]
    assert "drawing and dropping 7 batches" in caplog.text
    batches = Batches(Table([1, 2, 3]), 0, None, CPU)
    assert [batches(n) for n in range(7)] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_shuffling_loader_drawn_forward_gives_the_same_batches(workers):
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True, num_workers=workers)
    batches = Batches(loader, 5, None, CPU)
    drawn = []
    for n in range(9):
        drawn.append(batches(n)[0].tolist())
        torch.rand(1)  # dropout and the like
    assert drawn[:4] != drawn[4:8]  # shuffled anew
    assert sorted(chain(*drawn[4:8])) == list(range(10))
    torch.rand(3)
    assert Batches(loader, 5, None, CPU)(7)[0].tolist() == drawn[7]
    assert Batches(loader, 6, None, CPU)(7)[0].tolist() != drawn[7]


@pytest.mark.parametrize("source", [[], iter([1, 2]), (i for i in range(2))])
def test_a_source_that_ends(source):
    batches = Batches(source, 0, None, CPU)
    with pytest.raises(UsageError, match=r"source ended after [02] batches and gives none when iterated again; hand fit a DataLoader"):
        [batches(n) for n in range(5)]


def test_names_of_batches():
    assert Batches(ByStep(), 7, 3, CPU).names(2, 2) == "source.batch(7, 4, 3) and source.batch(7, 5, 3)"
    assert Batches([1], 7, None, CPU).names(2, 1) == "batch 2 of the source, counted from 0, under seed 7"


def test_moving_a_batch_goes_into_it():
    x = torch.ones(1)
    moved = to_device({"a": [x, (x, 3)], "b": Pair(x, "text"), "c": None, "d": UserDict(x=x)}, torch.device("meta"))
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["b"].a.is_meta and moved["d"]["x"].is_meta
    assert moved["a"][1][1] == 3 and type(moved["b"]) is Pair and moved["b"].b == "text" and moved["c"] is None
    assert to_device(x, CPU) is x
