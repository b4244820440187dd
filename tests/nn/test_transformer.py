import math

import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.nn import KVCache, Positions, Transformer


class Fire(Positions):
    """A learned bias of two positions, in the manner of FIRE: a small net of their distance over the query's position."""

    def __init__(self, heads, seed=0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, heads)).double()
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator(seed, "fire"))

    def ratio(self, q, k):
        return torch.log1p((q - k).clamp(min=0) * 0.3) / torch.log1p(q.clamp(min=4) * 0.3)

    def bias(self, q_positions, k_positions):
        q, k = q_positions[:, :, None].double(), k_positions[:, None, :].double()
        return self.net(self.ratio(q, k)[..., None]).movedim(-1, 1)


class Tempered(nn.Module):
    """Queries times a trained line in the logarithm of how many keys they see."""

    def __init__(self, layer, heads):
        super().__init__()
        self.slope = nn.Parameter(torch.linspace(0.2, 0.5, heads).double() * (layer + 1))

    def tau(self, visible):
        return 1 + self.slope * math.log(visible + 1)

    def forward(self, q, visible):
        return q * (1 + self.slope[None, :, None, None] * torch.log1p(visible.double())[:, None, :, None]).to(q.dtype)


def _norm(x, norm):
    if isinstance(norm, nn.LayerNorm):
        mean = x.mean()
        y = (x - mean) / torch.sqrt(((x - mean) ** 2).mean() + norm.eps) * norm.weight
        return y if norm.bias is None else y + norm.bias
    return x / torch.sqrt((x**2).mean() + norm.eps) * norm.weight


def _turn(x, position, base=10000.0):
    pairs = []
    for k in range(len(x) // 2):
        angle = position * base ** (-2 * k / len(x))
        a, b = x[2 * k], x[2 * k + 1]
        pairs += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    return torch.stack(pairs)


def _linear(x, layer):
    y = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def _attention(block, xs, places, own, rope, fire):
    """Attention of one row, query by query and head by head; ``own`` are its real tokens."""
    attention = block.attention
    heads, kv_heads = attention.heads, attention.kv_heads
    qkv = [_linear(_norm(x, block.attention_norm), attention.qkv).view(heads + 2 * kv_heads, -1) for x in xs]
    width = qkv[0].shape[1]
    out = []
    for i in own:
        seen = [j for j in own if j <= i]
        parts = []
        for head in range(heads):
            shared = heads + head // (heads // kv_heads)
            q = qkv[i][head]
            scores = []
            for j in seen:
                k = qkv[j][shared]
                score = (_turn(q, places[i]) @ _turn(k, places[j]) if rope else q @ k) / math.sqrt(width)
                if attention.score_scale is not None:
                    score = score * attention.score_scale.tau(len(seen))[head]
                if fire is not None:
                    score = score + fire.net(fire.ratio(torch.tensor([places[i]]).double(), torch.tensor([places[j]]).double()))[head]
                scores.append(score)
            weights = [torch.exp(score) for score in scores]
            parts.append(sum(w * qkv[j][shared + kv_heads] for w, j in zip(weights, seen, strict=True)) / sum(weights))
        out.append(_linear(torch.cat(parts), attention.out))
    return out


def _reference(model, ids, mask=None, rope=False):
    """Logits at real tokens: the definition, one token at a time, with an explicit softmax. Elsewhere None."""
    logits = []
    for row, row_ids in enumerate(ids.tolist()):
        own = [t for t in range(len(row_ids)) if mask is None or mask[row, t]]
        places = {t: n for n, t in enumerate(own)}
        xs = {t: model.tokens.weight[row_ids[t]] for t in own}
        if hasattr(model.positions, "table"):
            xs = {t: x + model.positions.table.weight[places[t]] for t, x in xs.items()}
        for index in model.schedule or range(len(model.blocks)):
            block = model.blocks[index]
            scheme = model.positions if block.positions is None else block.positions
            padded = [xs.get(t, torch.zeros_like(xs[own[0]])) for t in range(len(row_ids))]
            for t, y in zip(own, _attention(block, padded, places, own, rope, scheme if isinstance(scheme, Fire) else None), strict=True):
                xs[t] = xs[t] + y
            for t in own:
                y = _norm(xs[t], block.ffn_norm)
                if hasattr(block.ffn, "gate"):
                    gate = _linear(y, block.ffn.gate)
                    y = gate * torch.sigmoid(gate) * _linear(y, block.ffn.up)
                else:
                    up = _linear(y, block.ffn.up)
                    y = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
                xs[t] = xs[t] + _linear(y, block.ffn.down)
        head = model.tokens.weight if model.head is None else model.head.weight
        logits.append({t: head @ _norm(xs[t], model.norm) for t in own})
    return logits


SETTINGS = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "rope": {"positions": "rope", "dim": 12, "norm": "rms", "ffn": "swiglu", "bias": False},
    "rope, grouped": {"positions": "rope", "dim": 16, "heads": 4, "kv_heads": 2},
    "learned": {"positions": "learned", "max_length": 11, "tied": True},
    "looped": {"schedule": (1, 0, 1), "ffn_dim": 7},
    "rope, looped": {"positions": "rope", "dim": 12, "schedule": (0, 0), "tied": True},
    "fire": {"positions": lambda: Fire(3)},
    "fire, one a block": {"positions": lambda: [Fire(3, 1), Fire(3, 2)], "schedule": (0, 1, 0)},
    "tempered": {"score_scale": Tempered},
    "tempered, fire, grouped": {"score_scale": Tempered, "positions": lambda: Fire(3), "kv_heads": 1},
}


def make(name, **more):
    settings = {"dim": 15, "heads": 3, **SETTINGS[name], **more}
    if callable(settings.get("positions")):
        settings["positions"] = settings["positions"]()
    model = Transformer(13, layers=2, generator=generator(0, "model"), dtype=torch.float64, **settings)
    with torch.no_grad():  # fresh weights are so small that attention is nearly uniform, and zero biases hide that they are used
        for k, parameter in enumerate(model.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(1, k), dtype=torch.float64)
    return model


def rope(name):
    return "rope" in name


def draw_ids(rows, tokens, seed=0):
    return torch.randint(13, (rows, tokens), generator=generator(seed, "ids"))


LEFT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
RIGHT = LEFT.flip(1)
HOLES = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("mask", [None, LEFT, RIGHT, HOLES], ids=["whole", "left", "right", "holes"])
@pytest.mark.parametrize("name", SETTINGS)
def test_forward_and_every_gradient_equal_the_reference(name, mask):
    model, ids = make(name), draw_ids(3, 5)
    logits = model(ids, attention_mask=mask)
    expected = _reference(model, ids, mask, rope(name))
    weights = torch.randn(logits.shape, generator=generator(2), dtype=torch.float64)
    value, wanted = 0, 0
    for row, real in enumerate(expected):
        for t, one in real.items():
            torch.testing.assert_close(logits[row, t], one)
            value, wanted = value + (weights[row, t] * logits[row, t]).sum(), wanted + (weights[row, t] * one).sum()
    parameters = list(model.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    for (key, _), a, b in zip(model.named_parameters(), found, torch.autograd.grad(wanted, parameters, allow_unused=True), strict=True):
        assert (a is None) == (b is None), key
        if a is not None:
            torch.testing.assert_close(a, b, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("mask", [None, LEFT], ids=["whole", "left"])
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (3, 2), (4, 1), (1, 3, 1)])
@pytest.mark.parametrize("name", SETTINGS)
def test_cached_steps_equal_the_parallel_forward(name, steps, mask):
    model, ids = make(name), draw_ids(3, 5)
    cache, start, parts = model.new_cache(6), 0, []
    for step in steps:
        seen = None if mask is None else mask[:, : start + step]
        parts.append(model(ids[:, start : start + step], cache=cache, attention_mask=seen))
        start += step
    real = torch.ones(3, 5, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(torch.cat(parts, 1)[real], model(ids, attention_mask=mask)[real])
    assert cache.length == 5


def test_cache_set_back_forgets():
    model, ids = make("rope"), draw_ids(2, 6)
    cache = model.new_cache(6)
    model(ids, cache=cache)
    cache.length = 2
    torch.testing.assert_close(model(ids[:, 2:4], cache=cache), model(ids)[:, 2:4])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", SETTINGS)
def test_padding_changes_nothing_at_real_tokens(name, side):
    model, ids = make(name), draw_ids(1, 4)
    padding = draw_ids(1, 3, seed=9)
    padded = torch.cat([padding, ids] if side == "left" else [ids, padding], 1)
    mask = torch.tensor([[0] * 3 + [1] * 4]) if side == "left" else torch.tensor([[1] * 4 + [0] * 3])
    torch.testing.assert_close(model(padded, attention_mask=mask)[mask.bool()], model(ids)[0])
    if side == "right":
        torch.testing.assert_close(model(padded)[:, :4], model(ids))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_of_padding_gives_no_nan(name):
    model, ids = make(name), draw_ids(2, 5)
    logits = model(ids, attention_mask=torch.tensor([[0] * 5, [0, 0, 0, 1, 1]]))
    assert logits.isfinite().all()
    logits[1, 3:].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", SETTINGS)
def test_later_tokens_change_nothing_before_them(name):
    model, ids = make(name), draw_ids(2, 6)
    other = ids.clone()
    other[:, 3:] = (ids[:, 3:] + 1) % 13
    assert torch.equal(model(other)[:, :3], model(ids)[:, :3])
    assert not torch.allclose(model(other)[:, 3:], model(ids)[:, 3:])


def test_without_positions_and_without_causality_order_is_not_seen():
    model, ids = make("plain", causal=False), draw_ids(2, 6)
    order = torch.randperm(6, generator=generator(3))
    torch.testing.assert_close(model(ids[:, order]), model(ids)[:, order])
    assert not torch.allclose(make("plain")(ids[:, order]), make("plain")(ids)[:, order])
    assert not torch.allclose(make("rope", causal=False)(ids[:, order]), make("rope", causal=False)(ids)[:, order])


def test_an_encoder_sees_both_sides_but_no_padding_and_counts_what_it_sees():
    model, ids = make("tempered", causal=False), draw_ids(2, 4)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    torch.testing.assert_close(model(torch.cat([ids[:, :2], ids], 1), attention_mask=mask)[:, 2:], model(ids))
    assert not torch.allclose(model(ids)[:, 0], model(ids[:, :1])[:, 0])


def test_schedule_of_a_call_goes_before_the_model_s():
    model, looped, ids = make("plain"), make("plain", schedule=(1, 0, 1)), draw_ids(2, 4)
    looped.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(ids, schedule=[1, 0, 1]), looped(ids))
    torch.testing.assert_close(looped(ids, schedule=[0, 1]), model(ids))


def test_a_loop_equals_a_stack_of_copies():
    model, ids = make("plain", schedule=(0, 1, 0)), draw_ids(2, 4)
    stack = make("plain")
    stack.load_state_dict({k: v for k, v in model.state_dict().items()})
    stack.blocks.append(stack.blocks[0])
    torch.testing.assert_close(stack(ids), model(ids))


def test_blocks_may_be_added_later(tmp_path):
    model, ids = make("plain"), draw_ids(2, 4)
    model.blocks.insert(1, make("plain").blocks[1])
    cache = model.new_cache(4)
    torch.testing.assert_close(torch.cat([model(ids[:, :3], cache=cache), model(ids[:, 3:], cache=cache)], 1), model(ids))
    model.save(tmp_path)
    assert torch.equal(Transformer.load(tmp_path)(ids), model(ids))


def test_own_attention_feed_forward_and_norm():
    class Mean(nn.Module):
        def forward(self, x, scope):
            return x.cumsum(1) / scope.visible[..., None]

    made = []
    model = Transformer(
        7,
        4,
        2,
        2,
        attention=lambda layer, dim, heads: made.append((layer, dim, heads)) or Mean(),
        ffn=lambda dim, ffn_dim: nn.Linear(dim, dim),
        norm=lambda dim: nn.Identity(),
    )
    assert made == [(0, 4, 2), (1, 4, 2)]
    ids = torch.tensor([[1, 2, 3]])
    x = model.tokens(ids)
    for block in model.blocks:
        x = x + x.cumsum(1) / torch.tensor([1, 2, 3])[:, None]
        x = x + block.ffn(x)
    torch.testing.assert_close(model(ids), x @ model.head.weight.T)


# generation


def _generate_reference(model, prompts, new, eos, pad):
    """Row by row, without padding and cache: the whole forward for every token."""
    rows = []
    for prompt in prompts:
        row, ended = list(prompt), False
        for _ in range(new):
            token = pad if ended else int(model(torch.tensor([row]))[0, -1].argmax())
            ended |= token == eos
            row.append(token)
        rows.append(row[len(prompt) :])
    return rows


@pytest.mark.parametrize("name", SETTINGS)
def test_generate_equals_one_row_at_a_time(name):
    model = make(name)
    prompts = [[3, 1, 4], [1], [5, 9]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    free = model.generate(ids, attention_mask=mask, max_new_tokens=6)
    assert free[:, width:].tolist() == _generate_reference(model, prompts, 6, None, None)
    eos = int(free[0, width + 1])  # one that comes up in the middle
    ended = model.generate(ids, attention_mask=mask, max_new_tokens=6, eos=eos, pad=12)
    assert ended[:, width:].tolist() == _generate_reference(model, prompts, 6, eos, 12)
    assert torch.equal(ended[:, :width], ids)


def test_generate_stops_when_all_rows_have_ended():
    model, ids = make("plain"), draw_ids(1, 3)
    eos = int(model(ids)[0, -1].argmax())
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    out = model.generate(ids, max_new_tokens=9, eos=eos)
    assert out[0].tolist() == ids[0].tolist() + [eos] * 9
    assert len(calls) == 1


def test_generate_leaves_modes_gradients_and_the_global_stream_alone():
    model = make("plain", dropout=0.5)
    model.train()
    model.blocks[0].eval()
    before = torch.random.get_rng_state()
    a, b = (model.generate(draw_ids(2, 3), max_new_tokens=5, temperature=1.0, generator=generator(0)) for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training
    assert model.blocks[1].ffn.training
    assert not model.blocks[0].ffn.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    model(a).sum().backward()  # ids may train: they are no inference tensors


def test_generate_restores_the_mode_after_an_error():
    model = make("plain").train()
    model.blocks[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.generate(draw_ids(1, 2), max_new_tokens=1)
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_refuses_logits_that_are_none(temperature):
    model = make("plain")
    with torch.no_grad():
        model.norm.weight[0] = math.nan
    with pytest.raises(UsageError, match=r"largest logit .* got nan in row 0; the model that gave them has diverged"):
        model.generate(draw_ids(2, 3), max_new_tokens=3, temperature=temperature)


def test_drawn_tokens_have_the_model_s_frequencies():
    model = make("plain")
    ids = torch.tensor([[3, 1]]).expand(4000, 2)
    drawn = model.generate(ids, max_new_tokens=1, temperature=2.0, generator=generator(5))[:, -1]
    expected = (model(ids[:1])[0, -1] / 2.0).softmax(-1)
    found = torch.bincount(drawn, minlength=13) / 4000
    assert (found - expected).abs().max() < 5 * (0.25 / 4000) ** 0.5


def test_a_row_s_draws_do_not_depend_on_the_other_rows():
    model = make("plain")
    a = model.generate(torch.tensor([[1, 2], [3, 4]]), max_new_tokens=8, temperature=1.0, generator=generator(0))
    b = model.generate(torch.tensor([[1, 2], [7, 7]]), max_new_tokens=8, temperature=1.0, generator=generator(0))
    assert torch.equal(a[0], b[0])


def test_a_table_is_read_to_its_last_row_and_no_further():
    model = make("learned")
    assert model.generate(draw_ids(1, 5), max_new_tokens=7).shape == (1, 12)  # the twelfth token is not read
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    model.tokens.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(UsageError, match="max_new_tokens must be <= 7"):
        model.generate(draw_ids(1, 5), max_new_tokens=8)
    assert not calls
    with pytest.raises(UsageError, match="max_length=11, got 12"):
        model(draw_ids(1, 12))
    assert len(calls) == 1  # the pre-hook, not the embedding


# initial weights, types


def test_initial_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    a, b, c = (Transformer(11, 8, 3, 2, positions="learned", max_length=5, ffn="swiglu", generator=generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.tokens.weight, c.tokens.weight)
    torch.manual_seed(3)
    d = Transformer(11, 8, 1, 2)
    torch.manual_seed(3)
    assert torch.equal(d.tokens.weight, Transformer(11, 8, 1, 2).tokens.weight)


@pytest.mark.parametrize(("schedule", "branches"), [(None, 4), ((0, 1) * 4, 16)])
def test_initial_scales(schedule, branches):
    model = Transformer(500, 64, 2, 2, schedule=schedule, generator=generator(0))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            std = 0.02 / branches**0.5 if name.endswith(("out.weight", "down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
        else:
            assert parameter.unique().tolist() == [1.0 if "norm" in name and name.endswith("weight") else 0.0], name


def test_one_generator_gives_one_model_in_every_type():
    wide, narrow = (Transformer(11, 8, 2, 2, generator=generator(0), dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert all(torch.equal(p.bfloat16(), q) for p, q in zip(wide.parameters(), narrow.parameters(), strict=True))
    assert {p.device.type for p in Transformer(11, 8, 2, 2, positions="learned", max_length=3, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("positions", ["none", "rope"])
def test_bfloat16_is_near_float32_far_out(positions):
    model = Transformer(11, 16, 2, 2, positions=positions, norm="rms", generator=generator(0))
    ids = torch.randint(11, (1, 300), generator=generator(0))
    exact = model(ids)
    rounded = model.bfloat16()(ids)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05 * exact.std().item() * 5, rtol=0.05)


def test_dropout_acts_in_training_only():
    model, ids = make("plain", dropout=0.3), draw_ids(2, 5)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))
    torch.testing.assert_close(model(ids), make("plain").eval()(ids))


@pytest.mark.parametrize("name", ["rope, looped", "tempered, fire, grouped"])
@pytest.mark.usefixtures("annotations_off")
def test_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    model, ids = make(name), draw_ids(2, 5)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids), model(ids))
    torch.testing.assert_close(compiled(ids[:2], attention_mask=LEFT[1:]), model(ids, attention_mask=LEFT[1:]))


def test_training_makes_no_mask():
    model, masks = make("rope"), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: masks.append((inputs[1].mask, inputs[1].causal)))
    model(draw_ids(2, 5))
    assert masks == [(None, True)]


def test_repr_shows_the_settings():
    text = repr(make("rope, looped", norm="rms"))
    assert "dim=12" in text
    assert "schedule=(0, 0)" in text
    assert "Rotary(base=10000)" in text
    assert "eps=1e-06" in text


# refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 10}, "dim must be a multiple of heads, got dim=10 and heads=3; dim=12"),
        ({"kv_heads": 2}, "kv_heads must divide heads, got kv_heads=2 and heads=3"),
        ({"layers": 0}, "layers must be a whole number >= 1, got 0"),
        ({"vocab_size": 2.0}, "vocab_size must be a whole number >= 1, got 2.0"),
        ({"ffn_dim": -1}, "ffn_dim must be a whole number >= 1"),
        ({"layers": True}, "layers must be a whole number >= 1, got True"),
        ({"heads": "3"}, "heads must be a whole number >= 1, got '3'"),
        ({"positions": "learned", "max_length": 2.5}, "max_length must be a whole number >= 1, got 2.5"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"dropout": math.nan}, "dropout must be a number in .*, got nan"),
        ({"dropout": "0.1"}, "dropout must be a number in .*, got '0.1'"),
        ({"dropout": False}, "dropout must be a number in .*, got False"),
        *(({name: wrong}, f"{name} must be True or False, got {wrong!r}") for name in ("tied", "bias", "causal") for wrong in (1, "yes", None)),
        ({"positions": "rotary"}, "unknown position scheme 'rotary'; allowed: none, learned, rope"),
        ({"positions": "leaned"}, "did you mean 'learned'"),
        ({"positions": "learned"}, "max_length"),
        ({"max_length": 9}, "max_length goes with"),
        ({"positions": [Positions()]}, "one Positions object for each of the 2 blocks, got 1: Positions"),
        ({"positions": "rope"}, "dim / heads must be even, got 9 / 3 = 3"),
        ({"norm": "rmsnorm"}, "unknown norm 'rmsnorm'; did you mean 'rms'"),
        ({"ffn": "geglu"}, "unknown ffn 'geglu'; did you mean 'gelu'"),
        ({"schedule": ()}, "schedule must hold one or more block indices"),
        ({"schedule": (0, 2)}, r"in 0 .. 1, got \[0, 2\]"),
        ({"schedule": (-1,)}, r"in 0 .. 1, got \[-1\]"),
        ({"schedule": (True, 0)}, r"in 0 .. 1, got \[True, 0\]"),
        ({"schedule": (0, 0.5)}, r"in 0 .. 1, got \[0, 0.5\]"),
        ({"attention": lambda *_: nn.Identity(), "score_scale": Tempered}, "leave one out"),
    ],
)
@pytest.mark.usefixtures("annotations_off")
def test_sizes_and_names_are_refused_by_name(settings, message):
    with pytest.raises(UsageError, match=message):
        Transformer(**{"vocab_size": 11, "dim": 9, "layers": 2, "heads": 3, **settings})


def test_a_scheme_that_embeds_cannot_be_one_a_block():
    class Sinusoid(Positions):
        def embed(self, x, positions):
            return x + positions[..., None].sin()

    with pytest.raises(UsageError, match="Sinusoid adds to the embeddings"):
        Transformer(11, 9, 2, 3, positions=[Sinusoid(), Sinusoid()])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, i: m(i[:0]), r"at least one of each, got \(0, 5\)"),
        (lambda m, i: m(i[:, :0]), r"at least one of each, got \(3, 0\)"),
        (lambda m, i: m(i, attention_mask=LEFT[:, :4]), r"= \(3, 5\), got \(3, 4\)"),
        (lambda m, i: m(i, schedule=[]), "one or more block indices"),
        (lambda m, i: m(i, schedule=[5]), r"in 0 .. 1, got \[5\]"),
        (lambda m, i: m(i, cache=KVCache(3, 9)), "schedule of 3 blocks, this call runs 2"),
        (lambda m, i: m(i, cache=KVCache(2, 4)), "room for 4 positions, holds 0 and got 5 more"),
        (lambda m, i: m.generate(i, max_new_tokens=0), "max_new_tokens must be a whole number >= 1, got 0"),
        (lambda m, i: m.generate(i, max_new_tokens=1, temperature=-1.0), "temperature must be finite and >= 0, got -1"),
        (lambda m, i: m.generate(i, max_new_tokens=1, temperature=math.nan), "temperature"),
        (lambda m, i: m.generate(i + 13, max_new_tokens=1), r"input_ids must be in 0 .. 12"),
        (lambda m, i: m.generate(i - 13, max_new_tokens=1), r"input_ids must be in 0 .. 12, got -"),
        (lambda m, i: m.generate(i, max_new_tokens=1, eos=13), "eos must be in 0 .. 12, got 13"),
        (lambda m, i: m.generate(i, max_new_tokens=1, attention_mask=RIGHT), "padded on the left"),
        (lambda m, i: m.generate(i[:, :0], max_new_tokens=1), "at least one of each"),
        (lambda m, i: make("plain", causal=False).generate(i, max_new_tokens=1), "causal=False"),
        (lambda m, i: make("plain", causal=False)(i, cache=KVCache(2, 9)), "a cache needs a causal model, and this one was made with causal=False"),
    ],
)
def test_calls_are_refused_in_words(call, message):
    with pytest.raises(UsageError, match=message):
        call(make("plain"), draw_ids(3, 5))


def test_a_mask_once_given_must_be_given_again():
    model, ids = make("plain"), draw_ids(3, 5)
    cache = model.new_cache(9)
    model(ids, cache=cache, attention_mask=LEFT)
    with pytest.raises(UsageError, match="must be given again"):
        model(ids[:, :1], cache=cache)


def test_a_cache_is_for_one_batch():
    model, ids = make("plain"), draw_ids(3, 5)
    cache = model.new_cache(9)
    model(ids, cache=cache)
    with pytest.raises(UsageError, match="holds 3 rows and got 2"):
        model(ids[:2, :1], cache=cache)
    assert cache.length == 5


@pytest.mark.usefixtures("annotations_off")
def test_weights_are_drawn_on_the_cpu():
    class Elsewhere:
        device = torch.device("cuda")

    with pytest.raises(UsageError, match="generator must be on the CPU, got one on cuda"):
        Transformer(11, 8, 1, 2, generator=Elsewhere())
