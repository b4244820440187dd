from functools import partial

import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.nn import Attention, Block, FeedForward, KVCache, Learned, Positions, Rotary, Scope, SwiGLU, Transformer
from trimtab.nn.scope import look
from trimtab.testing import check_module

X = torch.randn(3, 5, 8, generator=generator(0, "x"))
IDS = torch.tensor([[1, 2, 3, 4], [4, 4, 0, 1], [2, 0, 3, 3]])
SCOPE = look(Positions(), 5, None, None, causal=True, device=torch.device("cpu"), dtype=torch.float32)


def block(**how):
    return Block(Attention(8, 2, 1, **how), SwiGLU(8, 6, **how), nn.LayerNorm(8, device=how["device"], dtype=how["dtype"]), nn.Identity())


class Embeds(nn.Module):
    def __init__(self, make, **how):
        super().__init__()
        self.scheme = make(**how)

    def forward(self, x):
        return self.scheme.embed(x, torch.arange(x.shape[1])[None])


class Turns(nn.Module):
    def __init__(self, scheme):
        super().__init__()
        self.scheme = scheme

    def forward(self, q, k):
        positions = torch.arange(q.shape[2])[None]
        return self.scheme.rotate(q, k, positions, positions)


def test_parts_keep_the_contract():
    check_module(partial(Attention, 8, 2, 1), X, SCOPE, causal=True)
    check_module(partial(FeedForward, 8, 12), X, causal=True)
    check_module(partial(SwiGLU, 8, 12, bias=False), X, causal=True)
    check_module(lambda generator, device=None, dtype=None: block(generator=generator, device=device, dtype=dtype), X, SCOPE, causal=True)


def test_schemes_keep_the_contract():
    check_module(lambda: Embeds(Positions), X, causal=True)
    check_module(lambda generator, device=None, dtype=None: Embeds(partial(Learned, 5, 8, generator=generator, device=device, dtype=dtype)), X, causal=True)
    q = X.unflatten(-1, (2, 4)).transpose(1, 2)
    check_module(Turns(Rotary()), q, q[:, :1])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positions": "rope", "kv_heads": 1, "ffn": "swiglu", "norm": "rms"},
        {"positions": "learned", "max_length": 4, "tied": True, "schedule": (0, 1, 0), "dropout": 0.1},
    ],
    ids=["plain", "rope", "learned"],
)
def test_the_model_keeps_the_contract(settings):
    check_module(partial(Transformer, 5, 8, 2, 2, **settings), IDS, causal=True)
    check_module(partial(Transformer, 5, 8, 2, 2, causal=False), IDS)


def test_turning_keeps_lengths_and_makes_scores_of_distance():
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator(1), dtype=torch.float64)

    def score(i, j):
        a, b = Rotary().rotate(q, k, torch.tensor([[i]]), torch.tensor([[j]]))
        torch.testing.assert_close(a.norm(), q.norm())
        return (a * b).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100))
    assert not torch.isclose(score(7, 3), score(7, 4))


def test_turning_follows_the_formula():
    q = torch.randn(1, 1, 1, 6, generator=generator(2), dtype=torch.float64)
    turned = Rotary(base=50.0).rotate(q, q, torch.tensor([[3]]), torch.tensor([[3]]))[0].flatten()
    for k in range(3):
        angle = torch.tensor(3 * 50.0 ** (-2 * k / 6), dtype=torch.float64)
        a, b = q.flatten()[2 * k], q.flatten()[2 * k + 1]
        torch.testing.assert_close(turned[2 * k : 2 * k + 2], torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]))


def test_angles_are_exact_in_bfloat16():
    q = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    turned, _ = Rotary().rotate(q, q, torch.tensor([[256, 257]]), torch.tensor([[256, 257]]))
    exact, _ = Rotary().rotate(q.double(), q.double(), torch.tensor([[256, 257]]), torch.tensor([[256, 257]]))
    torch.testing.assert_close(turned.double(), exact, atol=0.01, rtol=0.01)


def test_a_scaled_rotary_overrides_its_angles():
    class Half(Rotary):
        def angles(self, positions, head_dim, dtype):
            return super().angles(positions, head_dim, dtype) / 2

    model = Transformer(5, 8, 2, 2, positions=Half(), generator=generator(0))
    plain = Transformer(5, 8, 2, 2, positions="rope", generator=generator(0))
    assert not torch.equal(model(IDS), plain(IDS))
    q = X.unflatten(-1, (2, 4)).transpose(1, 2)
    even, every = torch.arange(0, 10, 2)[None], torch.arange(5)[None]
    torch.testing.assert_close(Half().rotate(q, q, even, even)[0], Rotary().rotate(q, q, every, every)[0])


@pytest.mark.parametrize("base", [1.0, 0.0, -2.0, float("nan")])
def test_base_is_refused(base):
    with pytest.raises(UsageError, match="base of Rotary must be > 1"):
        Rotary(base)


def test_scope_without_and_with_padding():
    def scope(**how):
        return look(Positions(), 2, how.get("keep"), how.get("cache"), causal=how.get("causal", True), device=torch.device("cpu"), dtype=torch.float64)

    whole = scope()
    assert isinstance(whole, Scope)
    assert (whole.mask, whole.causal, whole.visible.tolist(), whole.positions.tolist()) == (None, True, [[1, 2]], [[0, 1]])
    encoder = scope(causal=False)
    assert (encoder.mask, encoder.causal, encoder.visible.tolist()) == (None, False, [[2, 2]])

    cache = KVCache(1, 4)
    cache.advance(2)
    behind = scope(cache=cache)
    assert behind.mask.dtype == torch.float64
    assert behind.mask.isfinite().tolist() == [[True, True, True, False], [True, True, True, True]]
    assert (behind.causal, behind.visible.tolist(), behind.key_positions.tolist()) == (False, [[3, 4]], [[0, 1, 2, 3]])

    padded = scope(keep=torch.tensor([[False, True], [True, True], [False, False]]))
    assert padded.mask[:, 0].isfinite().tolist() == [[[True, False], [False, True]], [[True, False], [True, True]], [[True, False], [True, True]]]
    assert padded.positions.tolist() == [[0, 0], [0, 1], [0, 0]]
    assert padded.visible.tolist() == [[1, 1], [1, 2], [1, 1]]


def test_cache_keeps_what_it_was_given():
    cache = KVCache(places=2, capacity=5)
    k, v = torch.randn(2, 3, 2, 4, 6, generator=generator(0)).unbind()
    v = v[..., :5]  # keys and values may differ in width
    for start, end in ((0, 1), (1, 4)):
        for place in range(2):
            held = cache.append(place, k[:, :, start:end] + place, v[:, :, start:end])
            assert torch.equal(held[0], k[:, :, :end] + place)
            assert torch.equal(held[1], v[:, :, :end])
        cache.advance(end - start)
    with pytest.raises(UsageError, match="room for 5 positions, holds 4 and got 2 more"):
        cache.append(0, k[:, :, :2], v[:, :, :2])
    with pytest.raises(UsageError, match="must be >= 1, got 0 and 3"):
        KVCache(0, 3)
