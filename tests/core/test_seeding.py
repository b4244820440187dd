import itertools

import numpy as np
import pytest
import torch

from trimtab.core import derive, generator


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ((0,), 3582888934675442504),
        ((0, "data", 3), 3821909571061227527),
        ((7, "hint", "successor"), 4548483227147328701),
    ],
)
def test_golden_seeds(names, value):
    """Records name seeds: what a seed means may never change."""
    assert derive(*names) == value


def test_streams_do_not_collide():
    names = [(), ("a",), ("b",), ("a", "b"), ("ab",), (1,), ("1",), (1, 1), (11,), ("a", 1), ("a1",), ("a", "1"), ("a', 'b",)]
    seeds = [derive(seed, *n) for seed in (0, 1, -1, 2**70) for n in names]
    assert len(set(seeds)) == len(seeds)


def test_range_and_spread():
    values = [derive(0, i) for i in range(2000)]
    assert all(0 <= v < 2**63 for v in values)
    for bit in (0, 1, 31, 32, 62):  # a fair bit is ones 1000 times, give or take 22
        assert 850 < sum(v >> bit & 1 for v in values) < 1150


def test_generator_is_a_function_of_its_names():
    draws = {names: torch.rand(4, generator=generator(*names)) for names in ((0,), (0, "a"), (1, "a"), (0, "a", 0))}
    for a, b in itertools.combinations(draws.values(), 2):
        assert not torch.equal(a, b)
    for names, draw in draws.items():
        torch.testing.assert_close(torch.rand(4, generator=generator(*names)), draw, rtol=0, atol=0)


def test_global_state_is_neither_read_nor_written():
    state = torch.get_rng_state()
    first = torch.rand(3, generator=generator(0, "a"))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(123)
    assert torch.equal(first, torch.rand(3, generator=generator(0, "a")))


def test_golden_draws():
    """A checkpointed run is resumed from (seed, step): the same seed has to give the same numbers in every version."""
    assert torch.randint(0, 1000, (4,), generator=generator(0, "data", 3)).tolist() == [318, 805, 131, 4]


def test_numpy_integers_name_the_same_stream():
    assert derive(np.int64(3), "data", np.int32(7)) == derive(3, "data", 7)


def test_a_seed_must_be_whole():
    with pytest.raises(TypeError, match="float"):
        derive(0.5, "data")


def test_an_integer_of_numpy_names_the_stream_of_the_same_number():
    assert derive(np.int64(3), "a", np.int32(1)) == derive(3, "a", 1)
    with pytest.raises(TypeError):
        derive(0.5)
