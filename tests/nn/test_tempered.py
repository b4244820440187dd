import math
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.nn import Rotary, Tempered, Transformer, temper_, tempered_scale, untemper_
from trimtab.testing import check_module

END = 9  # the delimiter of these tests
KINDS = {"logn": {}, "fixed-logn": {"n_train": 4}, "power": {}, "table": {"n_train": 4}}
LENGTHS = {"context": {}, "prompt": {"delimiters": (END,)}}
SETTINGS = [(kind, length) for kind in KINDS for length in LENGTHS]


def settings(kind, length):
    return {"kind": kind, "length": length, **KINDS[kind], **LENGTHS[length]}


def shake(model, seed=0):
    source = generator(seed, "shake")
    for part in model.modules():
        if isinstance(part, Tempered):
            for parameter in part.parameters():
                nn.init.uniform_(parameter, 0.1, 0.6, generator=source)
    return model


def made(kind="logn", length="context", heads=1, **more):
    def scale(layer, _):
        return Tempered(heads, **settings(kind, length), dtype=torch.float64)

    model = Transformer(11, 8, 2, 2, positions="rope", score_scale=scale, dtype=torch.float64, generator=generator(0), **more)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 10
    return shake(model).eval()


# tau


def positive(x):
    return x if x >= 0.1 else 0.01 / (0.2 - x)


def by_hand(kind, n, a, b, table, n_train):
    """One tau, from the definition, in plain numbers."""
    if kind == "logn":
        return positive(1 + b + a * math.log(n + 1))
    if kind == "fixed-logn":
        return math.log(max(n, 2)) / math.log(n_train)
    if kind == "power":
        return max(n, 1) ** a
    if n <= len(table):
        return positive(1 + table[max(n, 1) - 1])
    slope, start = np.polyfit(np.log(np.arange(1, len(table) + 1)), table, 1)
    return positive(1 + start + slope * math.log(n))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_tau_is_the_definition(kind, heads):
    n = torch.tensor([[0, 1, 2, 3, 7], [5, 6, 8, 1000, 0]])
    a, b = (torch.randn(heads, dtype=torch.float64, generator=generator(seed)) for seed in (0, 1))
    table = torch.randn(heads, 6, dtype=torch.float64, generator=generator(2))
    given = {"logn": {"a": a, "b": b}, "power": {"a": a}, "table": {"table": table}, "fixed-logn": {"n_train": 5}}[kind]
    tau = tempered_scale(n, kind, **given, dtype=torch.float64)
    heads = 1 if kind == "fixed-logn" else heads
    expected = [[[by_hand(kind, m, float(a[h]), float(b[h]), table[h].numpy(), 5) for m in row] for h in range(heads)] for row in n.tolist()]
    torch.testing.assert_close(tau, torch.tensor(expected, dtype=torch.float64))
    assert (tau > 0).all()


def test_gradients_of_tau():
    n = torch.tensor([[0, 1, 3, 50], [2, 4, 9, 6]])
    a, b = (torch.randn(2, dtype=torch.float64, generator=generator(seed), requires_grad=True) for seed in (0, 1))
    table = torch.randn(2, 5, dtype=torch.float64, generator=generator(2), requires_grad=True)
    for call in (
        lambda a, b, t: tempered_scale(n, "logn", a=a, b=b),
        lambda a, b, t: tempered_scale(n, "power", a=a),
        lambda a, b, t: tempered_scale(n, "table", table=t),
    ):
        assert torch.autograd.gradcheck(call, (a, b, table))


@pytest.mark.parametrize("per", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_as_plain_attention(kind, per):
    n = torch.full((3, 4), 4) if kind == "fixed-logn" else torch.arange(12).view(3, 4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        q = torch.randn(3, 2, 4, 5, generator=generator(0)).to(dtype)
        assert torch.equal(Tempered(per, kind, **KINDS[kind])(q, n), q)


def test_tau_stays_positive_and_keeps_its_gradient():
    b = torch.tensor([-1e4, -50.0, -2.0, -0.91, -0.9, -0.89], requires_grad=True)
    tau = tempered_scale(torch.tensor([[3]]), "logn", b=b)
    assert (tau > 0).all() and (tau.diff(dim=1) > 0).all()
    (slope,) = torch.autograd.grad(tau.sum(), b)
    assert (slope > 0).all()
    torch.testing.assert_close(slope[3:], torch.tensor([0.8264, 1.0, 1.0]), rtol=1e-3, atol=0)  # the line goes on with the slope it had


def test_bfloat16_is_scaled_in_float32():
    q = torch.randn(2, 3, 5, 4, generator=generator(0)).bfloat16()
    scale = shake(Tempered(3, dtype=torch.bfloat16))
    n = torch.arange(100, 110).view(2, 5)
    tau = 1 + scale.b.float()[:, None] + scale.a.float()[:, None] * torch.log(n[:, None] + 1.0)
    assert torch.equal(scale(q, n), (q.float() * tau[..., None]).bfloat16())


@pytest.mark.parametrize(("kind", "length"), SETTINGS)
def test_contract(kind, length):
    q, n = torch.randn(3, 2, 5, 4, generator=generator(0)), torch.randint(1, 9, (3, 5), generator=generator(1))
    check_module(Tempered(2, **settings(kind, length)), q, n)
    check_module(lambda **where: Tempered(1, **settings(kind, length), **where), q, n)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Tempered(kind="log"), "unknown kind of tempering 'log'; did you mean 'logn'?"),
        (lambda: Tempered(length="prompts"), "unknown length 'prompts'; did you mean 'prompt'?"),
        (lambda: Tempered(length="prompt"), 'go with length="prompt", which needs them'),
        (lambda: Tempered(delimiters=(3,)), 'go with length="prompt", which needs them'),
        (lambda: Tempered(length="prompt", delimiters=(-1,)), "delimiters must be token ids, >= 0"),
        (lambda: Tempered(kind="table"), "n_train goes with"),
        (lambda: Tempered(n_train=5), "n_train goes with"),
        (lambda: Tempered(kind="table", n_train=1), "n_train must be >= 2, got 1"),
        (lambda: Tempered(kind="table", n_train=0), "n_train must be a whole number >= 1, got 0"),
        (lambda: Tempered(0), "heads must be a whole number >= 1, got 0"),
        (lambda: Tempered(3)(torch.zeros(1, 2, 1, 4), torch.ones(1, 1, dtype=torch.int64)), "heads must be 1 or the model's, 2, got 3"),
        (lambda: tempered_scale(torch.ones(1, 1, dtype=torch.int64), "sqrt"), "unknown kind of tempering 'sqrt'"),
        (lambda: tempered_scale(torch.ones(1, 1, dtype=torch.int64), "table"), "table must have a column for each length"),
        (lambda: tempered_scale(torch.ones(1, 1, dtype=torch.int64), "fixed-logn"), "n_train must be a whole number >= 1"),
        (lambda: tempered_scale(torch.ones(1, 1, dtype=torch.int64), "fixed-logn", n_train=1), "n_train must be >= 2, got 1"),
        (lambda: temper_(Transformer(5, 4, 1, 1), per="block"), "unknown per 'block'"),
    ],
)
def test_errors(call, says):
    with pytest.raises(UsageError) as error:
        call()
    assert says in str(error.value)


# In a Transformer


def lengths(ids, keep=None):
    """n of every token for length="prompt", token by token."""
    rows = []
    for row, kept in zip(ids.tolist(), [[1] * ids.shape[1]] * len(ids) if keep is None else keep.tolist(), strict=True):
        own, n = [token for token, real in zip(row, kept, strict=True) if real], []
        for t in range(len(own)):
            n.append(own.index(END) if END in own[: t + 1] else t + 1)
        rows.append([None] * (len(row) - len(own)) + n)
    return rows


def counted(model, call):
    """What the first tempered layer was told in a call: the n of each forward."""
    seen, scale = [], next(part for part in model.modules() if isinstance(part, Tempered))
    handle = scale.register_forward_pre_hook(lambda module, args: seen.append(args[1].expand(len(args[0]), -1)))
    try:
        call()
    finally:
        handle.remove()
    return torch.cat(seen, dim=1).tolist()


PROMPTS = torch.tensor([[3, 1, 2, END, 1, 2, 3], [END, 5, 5, 5, END, 5, 5], [0, 1, 2, 3, 4, 5, 6], [4, 4, 4, 4, 4, END, 4]])


def padded(ids, pads):
    """Rows moved to the right by so many pads each, and the mask. The pad is the delimiter itself, which must not count there."""
    wide = torch.full((len(ids), ids.shape[1] + max(pads)), END)
    for row, by in enumerate(pads):
        wide[row, by : by + ids.shape[1]] = ids[row]
    keep = torch.arange(wide.shape[1]) >= torch.tensor(pads)[:, None]
    return wide[:, : ids.shape[1]], keep[:, : ids.shape[1]]


def same_where_real(got, expected):
    return all(e is None or g == e for a, b in zip(got, expected, strict=True) for g, e in zip(a, b, strict=True))


def test_the_length_of_a_prompt():
    model = made(length="prompt")
    assert counted(model, lambda: model(PROMPTS)) == lengths(PROMPTS)
    assert lengths(PROMPTS)[0] == [1, 2, 3, 3, 3, 3, 3]
    ids, keep = padded(PROMPTS, [0, 2, 1, 3])
    assert same_where_real(counted(model, lambda: model(ids, attention_mask=keep)), lengths(ids, keep))


def test_an_encoder_knows_the_prompt_from_the_start():
    model = made(length="prompt", causal=False)
    assert counted(model, lambda: model(PROMPTS))[0] == [3] * 7


@pytest.mark.parametrize("cuts", [[3], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("pads", [None, [0, 2, 1, 3]])
@pytest.mark.parametrize(("kind", "length"), SETTINGS)
def test_cached_is_parallel(kind, length, pads, cuts):
    model = made(kind, length, heads=2)
    ids, keep = (PROMPTS, None) if pads is None else padded(PROMPTS, pads)
    whole, cache, parts = model(ids, attention_mask=keep), model.new_cache(7), []
    for start, end in zip([0, *cuts], [*cuts, 7], strict=True):
        parts.append(model(ids[:, start:end], attention_mask=None if keep is None else keep[:, :end], cache=cache))
    real = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "length"), [("logn", "context"), *((kind, "prompt") for kind in KINDS)])
def test_generation_is_parallel_decoding(kind, length):
    model = made(kind, length)
    ids, keep = padded(PROMPTS, [0, 2, 1, 3])
    keep[:, -1] = True
    out = model.generate(ids, attention_mask=keep, max_new_tokens=6)
    for row in range(len(ids)):
        own = ids[row : row + 1, keep[row]]
        for token in out[row, 7:]:
            assert model(own)[0, -1].argmax() == token
            own = torch.cat([own, token.view(1, 1)], dim=1)


def test_nothing_leaks_from_one_call_to_another():
    model = made(length="prompt")
    other = PROMPTS.flip(0)
    expected = [model(ids)[:, 5:] for ids in (PROMPTS, other)]
    caches = [model.new_cache(7) for _ in range(2)]
    for cache, ids in zip(caches, (PROMPTS, other), strict=True):
        model(ids[:, :5], cache=cache)
    for cache, ids, logits in zip(caches, (PROMPTS, other), expected, strict=True):  # the other call came between
        torch.testing.assert_close(model(ids[:, 5:], cache=cache), logits)
    torch.testing.assert_close(model(PROMPTS)[:, 5:], expected[0])
    assert {name for part in model.modules() for name, value in vars(part).items() if isinstance(value, torch.Tensor)} == set()


def test_a_cache_that_was_cut_back_forgets_the_delimiter():
    model = made(length="prompt")
    cache = model.new_cache(7)
    model(PROMPTS[:1, :2], cache=cache)
    model(PROMPTS[:1, 2:], cache=cache)
    cache.length = 3  # before the delimiter
    changed = torch.tensor([[3, 1, 2, 5, 6, END, 4]])
    torch.testing.assert_close(model(changed[:, 3:], cache=cache), model(changed)[:, 3:])
    cache.length = 6  # behind it
    torch.testing.assert_close(model(changed[:, 6:], cache=cache), model(changed)[:, 6:])
    cache.length = 0
    torch.testing.assert_close(model(PROMPTS[:1], cache=cache), model(PROMPTS[:1]))


def test_a_copied_cache_remembers():
    model = made(length="prompt")
    cache = model.new_cache(7)
    with torch.no_grad():
        model(PROMPTS[:, :5], cache=cache)
        torch.testing.assert_close(model(PROMPTS[:, 5:], cache=deepcopy(cache)), model(PROMPTS[:, 5:], cache=cache))


def test_a_cache_of_other_rows_or_of_an_untempered_model_is_refused():
    model, plain = made(length="prompt"), made()
    cache = model.new_cache(7)
    model(PROMPTS[:, :5], cache=cache)
    with pytest.raises(UsageError, match="the cache holds 4 rows and got 2"):
        model(PROMPTS[:2, 5:], cache=cache)
    cache = plain.new_cache(7)
    plain(PROMPTS[:, :5], cache=cache)
    with pytest.raises(UsageError, match='holds 5 positions from before length="prompt"'):
        model(PROMPTS[:, 5:], cache=cache)


def test_blocks_with_their_own_positions_are_told_the_same():
    model = Transformer(11, 8, 2, 2, positions=[Rotary(), Rotary()], score_scale=lambda *_: Tempered(length="prompt", delimiters=(END,)))
    assert counted(model, lambda: model(PROMPTS)) == lengths(PROMPTS)


@pytest.mark.parametrize(("kind", "length"), SETTINGS)
def test_it_trains_by_gradients_that_are_right(kind, length):
    model = made(kind, length, heads=2)
    parameters = [p for part in model.modules() if isinstance(part, Tempered) for p in part.parameters()]
    if kind == "fixed-logn":
        assert not parameters
        return
    weight = torch.randn(4, 7, 11, dtype=torch.float64, generator=generator(3))
    loss = lambda: (model(PROMPTS) * weight).sum()  # noqa: E731
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss(), parameters), strict=True):
        with torch.no_grad():
            direction, step = torch.randn_like(parameter), 1e-5
            parameter += step * direction
            above = loss()
            parameter -= 2 * step * direction
            slope = (above - loss()) / (2 * step)
            parameter += step * direction
        torch.testing.assert_close(slope, (gradient * direction).sum(), rtol=1e-5, atol=1e-5)


# In place


@pytest.mark.parametrize(("kind", "length"), SETTINGS)
def test_temper_a_transformer(kind, length, tmp_path):
    per = "layer" if length == "context" else "head"
    model = Transformer(11, 8, 2, 2, dtype=torch.float64, generator=generator(0))
    before = model(PROMPTS)
    table = temper_(model, per=per, **settings(kind, length))
    each = {"logn": 2, "fixed-logn": 0, "power": 1, "table": 4}[kind] * (2 if per == "head" else 1)
    assert table == [{"layer": f"blocks.{i}.attention", "kind": kind, "length": length, "parameters": each} for i in range(2)]
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    if kind != "fixed-logn":
        assert torch.equal(model(PROMPTS), before)
    changed = shake(model)(PROMPTS)
    assert not torch.allclose(changed, before)

    model.save(tmp_path)
    scale = partial(Tempered, 1 if per == "layer" else 2, **settings(kind, length))
    assert torch.equal(Transformer.load(tmp_path, score_scale=lambda *_: scale())(PROMPTS), changed)
    copy = deepcopy(model)
    assert untemper_(copy) == table
    assert torch.equal(copy(PROMPTS), before) and torch.equal(model(PROMPTS), changed)
    copy.save(tmp_path)
    assert torch.equal(Transformer.load(tmp_path)(PROMPTS), before)


def test_temper_where_it_cannot():
    model = Transformer(11, 8, 2, 2)
    temper_(model)
    with pytest.raises(UsageError, match=r"blocks\.0\.attention has a score scale already; call untemper_ first"):
        temper_(model)
    with pytest.raises(UsageError, match="Linear has none; for your own attention"):
        temper_(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="Linear has none; temper_ makes some"):
        untemper_(nn.Linear(2, 2))
    own = Transformer(11, 8, 2, 2, attention=lambda *_: nn.Identity())
    with pytest.raises(UsageError, match="built-in attention in every block, and block 0 has Identity"):
        temper_(own)
    model = Transformer(11, 8, 2, 2)
    with pytest.raises(UsageError, match="n_train goes with"):
        temper_(model, "table")
    assert model.blocks[0].attention.score_scale is None


def test_temper_a_transformer_inside_another_module():
    model = nn.Sequential(Transformer(11, 8, 1, 2))
    assert [row["layer"] for row in temper_(model)] == ["0.blocks.0.attention"]


# Hugging Face models: tiny, random, from a configuration

MAKE = ["llama", "gpt2"]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="the lm extra is not installed")


def hugging_face(transformers, name, **more):
    torch.manual_seed(0)
    common = {"vocab_size": 11, "initializer_range": 0.4, "bos_token_id": None, "eos_token_id": None, "pad_token_id": END, **more}
    if name == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(max_position_embeddings=64, **sizes, **common)).eval()
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **common)).eval()


def cached(model, ids, cache=None, **settings):
    """Logits and the cache, under the name that this version of transformers has for it."""
    name = "cache" if hasattr(model(ids[:, :1], use_cache=True), "cache") else "past_key_values"
    out = model(ids, use_cache=True, **({} if cache is None else {name: cache}), **settings)
    return out.logits, getattr(out, name)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(("per", "length"), [("layer", "context"), ("head", "prompt")])
def test_temper_a_hugging_face_model(transformers, name, per, length):
    model = hugging_face(transformers, name)
    before, plain = model(PROMPTS).logits, set(model.state_dict())
    table = temper_(model, per=per, **settings("logn", length))
    paths = {"llama": "model.layers.{}.self_attn", "gpt2": "transformer.h.{}.attn"}[name]
    parameters = 2 if per == "layer" else 8
    assert table == [{"layer": paths.format(i), "kind": "logn", "length": length, "parameters": parameters} for i in range(2)]
    close(model(PROMPTS).logits, before)
    assert set(model.state_dict()) - plain == {f"{paths.format(i)}.score_scale.{p}" for i in range(2) for p in "ab"}

    shake(model)(PROMPTS, labels=PROMPTS).loss.backward()
    assert all(p.grad.abs().sum() > 0 for part in model.modules() if isinstance(part, Tempered) for p in part.parameters())
    changed = model(PROMPTS).logits
    assert not torch.allclose(changed, before, atol=1e-2)

    other = hugging_face(transformers, name)
    temper_(other, per=per, **settings("logn", length))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(PROMPTS).logits, changed)
    copy = deepcopy(model)
    assert untemper_(copy) == table
    close(copy(PROMPTS).logits, before)
    assert torch.equal(model(PROMPTS).logits, changed)
    copy(inputs_embeds=torch.zeros(1, 2, 16))  # nobody looks for a delimiter any more
    assert set(copy.state_dict()) == plain
    assert copy.config._attn_implementation == "sdpa" and not vars(copy.base_model).get("_trimtab_prompt_reader")
    temper_(copy)


@pytest.mark.parametrize("name", MAKE)
def test_a_constant_scales_the_queries(transformers, name):
    model, other = (hugging_face(transformers, name) for _ in range(2))
    temper_(model)
    for part in model.modules():
        if isinstance(part, Tempered):
            part.b.data.fill_(0.5)
    with torch.no_grad():
        for layer in range(2):
            if name == "llama":
                other.model.layers[layer].self_attn.q_proj.weight *= 1.5
            else:
                other.transformer.h[layer].attn.c_attn.weight[:, :16] *= 1.5
                other.transformer.h[layer].attn.c_attn.bias[:16] *= 1.5
    close(model(PROMPTS).logits, other(PROMPTS).logits)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("length", LENGTHS)
def test_what_hugging_face_layers_are_told(transformers, name, length):
    model = hugging_face(transformers, name)
    temper_(model, **settings("logn", length))
    expected = lengths if length == "prompt" else lambda ids, keep=None: lengths(ids.masked_fill(ids == END, 0), keep)
    assert counted(model, lambda: model(PROMPTS)) == expected(PROMPTS)
    ids, keep = padded(PROMPTS, [0, 2, 1, 3])
    assert same_where_real(counted(model, lambda: model(ids, attention_mask=keep.long())), expected(ids, keep))
    four = (keep[:, None] & torch.ones(7, 7, dtype=torch.bool).tril())[:, None]
    for mask in (four, torch.where(four, 0.0, torch.finfo(torch.float32).min)):
        told = counted(model, lambda mask=mask: model(ids, attention_mask=mask))
        assert same_where_real(told, expected(ids, keep))


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_hugging_face_cached_is_parallel(transformers, name, length):
    model = hugging_face(transformers, name)
    temper_(model, per="head", **settings("logn", length))
    whole = shake(model)(PROMPTS).logits
    for cuts in ([4], [1, 2, 3, 4, 5, 6]):
        for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=9)):
            parts = []
            for start, end in zip([0, *cuts], [*cuts, 7], strict=True):
                logits, cache = cached(model, PROMPTS[:, start:end], cache)
                parts.append(logits)
            close(torch.cat(parts, dim=1), whole)
    _, cache = cached(model, PROMPTS[:, :5])
    close(cached(model, PROMPTS[:, 5:], deepcopy(cache))[0], whole[:, 5:])
    close(cached(model, PROMPTS[:, 5:], cache)[0], whole[:, 5:])
    close(model(PROMPTS).logits, whole)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("length", LENGTHS)
def test_hugging_face_generation_is_parallel_decoding(transformers, name, length):
    model = hugging_face(transformers, name)
    temper_(model, per="head", **settings("logn", length))
    shake(model)
    ids, keep = padded(PROMPTS[[0, 2]], [2, 0])
    for how in ({}, {"cache_implementation": "static", "disable_compile": True}):
        out = model.generate(ids, attention_mask=keep.long(), max_new_tokens=6, do_sample=False, **how)
        for row in range(2):
            own = ids[row : row + 1, keep[row]]
            for token in out[row, 7:]:
                assert model(own).logits[0, -1].argmax() == token
                own = torch.cat([own, token.view(1, 1)], dim=1)


@pytest.mark.parametrize("name", MAKE)
def test_hugging_face_gradient_checkpointing(transformers, name):
    model = hugging_face(transformers, name)
    temper_(model, **settings("logn", "prompt"))
    shake(model).train()
    model(PROMPTS, labels=PROMPTS, use_cache=False).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    loss = model(PROMPTS, labels=PROMPTS, use_cache=False).loss
    model(PROMPTS.flip(0), use_cache=False)  # layers run again only in the backward pass, after this
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_hugging_face_models_that_share_a_configuration(transformers):
    model = hugging_face(transformers, "llama")
    other = transformers.LlamaForCausalLM(model.config).eval()
    before = other(PROMPTS).logits
    temper_(model)
    shake(model)
    close(other(PROMPTS).logits, before)
    temper_(other)
    close(other(PROMPTS).logits, before)
    untemper_(model)  # which must not take the other's temperature away in silence
    with pytest.raises(UsageError, match="must stay on the attention that temper_ set, got attn_implementation='sdpa'"):
        other(PROMPTS)


def test_only_self_attention_is_tempered(transformers):
    model = hugging_face(transformers, "gpt2", add_cross_attention=True)
    assert [row["layer"] for row in temper_(model)] == ["transformer.h.0.attn", "transformer.h.1.attn"]


def test_hugging_face_errors(transformers):
    model = hugging_face(transformers, "llama")
    model.config._attn_implementation = "eager"
    with pytest.raises(UsageError, match="must run on SDPA, got attn_implementation='eager'"):
        temper_(model)
    model.config._attn_implementation = "sdpa"
    temper_(model, length="prompt", delimiters=(END,))
    with pytest.raises(UsageError, match="needs input_ids"):
        model(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(UsageError, match="call the whole model"):
        model.model.layers[0](torch.zeros(1, 2, 16), position_embeddings=(torch.ones(1, 2, 4), torch.zeros(1, 2, 4)))
    with pytest.raises(UsageError, match="has a score scale already"):
        temper_(model)
    _, cache = cached(model, PROMPTS[:, :5])
    with pytest.raises(UsageError, match="the cache holds 4 rows and got 2"):
        cached(model, PROMPTS[:2, 5:], cache)

    class OldAttention(nn.Linear):
        layer_idx = 0

    with pytest.raises(UsageError, match=r"attention interface of transformers, and 0 \(OldAttention\) does not"):
        temper_(nn.Sequential(OldAttention(2, 2)))
