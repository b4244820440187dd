import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab.core import UsageError
from trimtab.metrics import Hook, hook_names, run_with_cache, run_with_hooks
from trimtab.metrics.hooks import attention_pattern
from trimtab.nn import Tempered, Transformer, sorting_construction, temper_
from trimtab.tasks import Sorting

MODELS = ["plain", "grouped", "learned", "twice", "llama", "gpt2"]
models = pytest.mark.parametrize("name", MODELS)


def logits_of(model, ids, **forward):
    output = model(ids, **forward)
    return output if isinstance(output, torch.Tensor) else output.logits


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def by_hand(model, ids):
    """A plain Transformer without position scheme, written out: name -> value."""
    found = {"hook_embed": F.embedding(ids, model.tokens.weight)}
    x, (rows, tokens) = found["hook_embed"], ids.shape
    for layer, block in enumerate(model.blocks):
        at = f"blocks.{layer}"
        found[f"{at}.hook_resid_pre"] = x
        attention, normed = block.attention, F.layer_norm(x, x.shape[-1:], block.attention_norm.weight, block.attention_norm.bias)
        mixed = normed @ attention.qkv.weight.T + attention.qkv.bias
        q, k, v = (part.view(rows, tokens, attention.heads, -1) for part in mixed.chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        for i in range(tokens):
            scores[:, :, i, i + 1 :] = -torch.inf
        pattern = scores.exp() / scores.exp().sum(-1, keepdim=True)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        out = z.reshape(rows, tokens, -1) @ attention.out.weight.T + attention.out.bias
        middle = x + out
        mlp = block.ffn(F.layer_norm(middle, x.shape[-1:], block.ffn_norm.weight, block.ffn_norm.bias))
        x = middle + mlp
        inner = {"hook_q": q, "hook_k": k, "hook_v": v, "hook_pattern": pattern, "hook_z": z}
        found |= {f"{at}.attn.{name}": value for name, value in inner.items()}
        found |= {f"{at}.hook_attn_out": out, f"{at}.hook_mlp_out": mlp, f"{at}.hook_resid_post": x}
    found["ln_final.hook_normalized"] = F.layer_norm(x, x.shape[-1:], model.norm.weight, model.norm.bias)
    return found | {"logits": found["ln_final.hook_normalized"] @ model.head.weight.T}


@torch.no_grad()
def test_every_hook_is_what_a_forward_by_hand_has(make, ids):
    model = make("plain")
    cache, wanted = run_with_cache(model, ids), by_hand(model, ids)
    assert list(cache) == [*hook_names(model), "logits"] == list(wanted)
    for name, value in wanted.items():
        close(cache[name], value)


@models
@torch.no_grad()
def test_shapes_are_those_of_transformer_lens(make, ids, name):
    model = make(name)
    rows, tokens = ids.shape
    shapes = {"q": (rows, tokens, 4, 4), "k": (rows, tokens, 4, 4), "v": (rows, tokens, 4, 4), "z": (rows, tokens, 4, 4), "pattern": (rows, 4, tokens, tokens)}
    for hook, value in run_with_cache(model, ids, hook_names(model)).items():
        assert value.shape == shapes.get(hook.rpartition("hook_")[2], (rows, tokens, 16)), hook


@models
@torch.no_grad()
def test_looking_changes_no_bit(make, ids, name):
    model = make(name)
    plain = logits_of(model, ids)
    assert torch.equal(run_with_cache(model, ids)["logits"], plain)
    seen = []
    hooks = dict.fromkeys(hook_names(model), lambda value, hook: seen.append(hook.name))
    assert torch.equal(run_with_hooks(model, ids, hooks), plain)
    assert sorted(seen) == sorted(hooks)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@models
@torch.no_grad()
def test_a_value_put_back_gives_the_same_logits(make, ids, name):
    model = make(name)
    close(run_with_hooks(model, ids, dict.fromkeys(hook_names(model), lambda value, hook: value)), logits_of(model, ids))


@models
@torch.no_grad()
def test_the_parts_fit_together(make, ids, name):
    """Residual sums, z = pattern v, and the next block's input, on each kind of model."""
    model = make(name)
    cache = run_with_cache(model, ids)
    layers = len([hook for hook in cache if hook.endswith("resid_pre")])
    assert layers == (3 if name == "twice" else 2)
    for layer in range(layers):
        at = f"blocks.{layer}"
        close(cache[f"{at}.hook_resid_pre"] + cache[f"{at}.hook_attn_out"] + cache[f"{at}.hook_mlp_out"], cache[f"{at}.hook_resid_post"])
        close(torch.einsum("bhqk,bkhd->bqhd", cache[f"{at}.attn.hook_pattern"], cache[f"{at}.attn.hook_v"]), cache[f"{at}.attn.hook_z"])
        if layer:
            assert torch.equal(cache[f"{at}.hook_resid_pre"], cache[f"blocks.{layer - 1}.hook_resid_post"])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_hugging_face_says_the_same(make, ids, name, padded):
    mask = (torch.arange(ids.shape[1]) >= torch.tensor([[0], [2], [4]])).long() if padded else None
    eager = make(name, attention="eager")(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    cache = run_with_cache(make(name), ids, attention_mask=mask)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    for layer, attention in enumerate(eager.attentions):
        close(cache[f"blocks.{layer}.attn.hook_pattern"].transpose(1, 2)[real], attention.transpose(1, 2)[real])
        close(cache[f"blocks.{layer}.hook_resid_pre"][real], eager.hidden_states[layer][real])
    close(cache["ln_final.hook_normalized"][real], eager.hidden_states[-1][real])
    close(cache["logits"][real], eager.logits[real])


@pytest.mark.parametrize("name", ["grouped", "llama"])
@torch.no_grad()
def test_one_head_of_a_group_can_be_changed_alone(make, ids, name):
    """Heads 0 and 1 share keys and values; only head 0's are changed."""
    model = make(name)
    z = "blocks.1.attn.hook_z"

    def twice(value, hook):
        value[:, :, 0] *= 2

    for site in ("hook_k", "hook_v"):
        before, after = run_with_cache(model, ids, z)[z], run_with_cache(model, ids, z, hooks={f"blocks.1.attn.{site}": twice})[z]
        assert not torch.allclose(before[:, 1:, 0], after[:, 1:, 0])
        close(before[:, :, 1:], after[:, :, 1:])


@models
@torch.no_grad()
def test_a_changed_query_changes_the_pattern_alike_recorded_or_not(make, ids, name):
    model = make(name)

    def still(value, hook):
        return 0 * value

    hooks = {"blocks.0.attn.hook_q": still}
    cache = run_with_cache(model, ids, hooks=hooks)
    lower = torch.ones(7, 7).tril()
    close(cache["blocks.0.attn.hook_pattern"], (lower / lower.sum(1, keepdim=True)).expand(3, 4, 7, 7))  # without queries, attention is uniform
    close(cache["logits"], run_with_hooks(model, ids, hooks))


@torch.no_grad()
def test_a_changed_pattern_is_used(make, ids):
    for name in ("plain", "grouped", "llama", "gpt2"):
        model = make(name)
        eye = torch.eye(7).expand(3, 4, 7, 7)
        cache = run_with_cache(model, ids, hooks={"blocks.1.attn.hook_pattern": lambda value, hook, eye=eye: eye})
        close(cache["blocks.1.attn.hook_z"], cache["blocks.1.attn.hook_v"])  # each token looks at itself
        close(cache["blocks.1.attn.hook_pattern"], eye)


@torch.no_grad()
def test_no_attention_is_no_attention_branch(make, ids):
    model = make("plain")
    without = run_with_hooks(model, ids, {"blocks.1.attn.hook_z": lambda value, hook: torch.zeros_like(value)})
    nn.init.zeros_(model.blocks[1].attention.out.weight)
    close(without, model(ids))


@models
@torch.no_grad()
def test_a_changed_stream_goes_on(make, ids, name):
    model = make(name)
    other = ids.flip(0)
    there = run_with_cache(model, other)
    for hook in ("hook_embed", "blocks.1.hook_resid_pre", "blocks.0.hook_resid_post", "ln_final.hook_normalized"):
        close(run_with_hooks(model, ids, {hook: lambda value, hook: there[hook.name]}), there["logits"])
    both = {f"blocks.1.hook_{part}": lambda value, hook: torch.zeros_like(value) for part in ("attn_out", "mlp_out")}
    cache = run_with_cache(model, ids, hooks=both)
    assert torch.equal(cache["blocks.1.hook_resid_pre"], cache["blocks.1.hook_resid_post"])


@torch.no_grad()
def test_a_change_in_place_reaches_the_model_and_nothing_that_was_recorded(make, ids):
    model = make("plain")

    def wipe(value, hook):
        value.zero_()

    for hook in ("blocks.1.hook_resid_pre", "blocks.1.attn.hook_pattern", "blocks.1.attn.hook_q"):
        cache = run_with_cache(model, ids, hooks={hook: wipe})
        assert not cache[hook].any()
        assert cache["blocks.0.hook_resid_post"].any()
        assert not torch.allclose(cache["logits"], model(ids))


@torch.no_grad()
def test_layers_of_a_schedule_are_counted_as_they_run(make, ids):
    model = make("plain")
    cache = run_with_cache(model, ids, schedule=[1, 1, 0])
    assert "blocks.2.hook_resid_post" in cache
    torch.testing.assert_close(cache["logits"], model(ids, schedule=[1, 1, 0]), rtol=0, atol=0)
    with pytest.raises(UsageError, match=r"unknown name in names 'blocks\.2\.hook_resid_post'"):
        run_with_cache(model, ids, "blocks.2.hook_resid_post")


def test_gradients_reach_what_was_recorded(make, ids):
    model = make("plain")
    cache = run_with_cache(model, ids, ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z", "logits"])
    wanted = torch.autograd.grad(cache["logits"].square().sum(), [cache["blocks.0.hook_resid_post"], cache["blocks.1.attn.hook_z"]])
    assert all(bool(gradient.any()) for gradient in wanted)


@torch.no_grad()
def test_padding_on_the_left_and_what_may_look_at_nothing(make, ids):
    model = make("plain")
    mask = torch.arange(7) >= torch.tensor([[0], [2], [4]])
    pattern = run_with_cache(model, ids, "blocks.0.attn.hook_pattern", attention_mask=mask)["blocks.0.attn.hook_pattern"]
    alone = run_with_cache(model, ids[2:, 4:], "blocks.0.attn.hook_pattern")["blocks.0.attn.hook_pattern"]
    close(pattern[2:, :, 4:, 4:], alone)
    q, k = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64)
    assert not attention_pattern(q, k, torch.zeros(3, 3, dtype=torch.bool)).any()


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_pattern_is_that_of_sdpa(mask, scale):
    q, k, v = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    mask = {"bool": torch.eye(5, dtype=torch.bool) | (torch.rand(2, 1, 5, 5) < 0.5), "float": torch.randn(5, 5, dtype=torch.float64)}.get(mask)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    torch.testing.assert_close(attention_pattern(q, k, mask, mask is None, scale) @ v, wanted)


@torch.no_grad()
def test_half_precision_and_inference_mode(make, ids):
    model = make("plain").bfloat16()
    cache = run_with_cache(model, ids)
    assert cache["blocks.0.attn.hook_pattern"].dtype == torch.float32
    assert cache["blocks.0.attn.hook_z"].dtype == torch.bfloat16
    with torch.inference_mode():

        def wipe(value, hook):
            value.zero_()

        assert not torch.equal(run_with_hooks(model, ids, {"blocks.0.attn.hook_pattern": wipe}), cache["logits"])


def test_names_are_chosen_in_four_ways(make, ids):
    model = make("plain")
    one = "blocks.0.attn.hook_z"
    for names in (one, [one], (one,), lambda name: name == one):
        assert list(run_with_cache(model, ids, names)) == [one]
    assert len(run_with_cache(model, ids)) == len(hook_names(model)) + 1
    assert Hook(one).layer() == 0 and Hook("blocks.12.hook_resid_pre").layer() == 12
    with pytest.raises(UsageError, match="names must choose at least one hook"):
        run_with_cache(model, ids, lambda name: False)
    with pytest.raises(UsageError, match=r"unknown name in hooks 'blocks\.0\.attn\.hook_y'; did you mean 'blocks\.0\.attn\.hook_"):
        run_with_hooks(model, ids, {"blocks.0.attn.hook_y": lambda value, hook: value})
    with pytest.raises(UsageError, match="unknown name in hooks 'logits'"):
        run_with_hooks(model, ids, {"logits": lambda value, hook: value})


def test_a_hook_that_returns_another_shape(make, ids):
    with pytest.raises(UsageError, match=r"hook at blocks\.0\.attn\.hook_z must return a tensor of shape \(3, 7, 4, 4\), or None, got \(3, 7, 4\)"):
        run_with_hooks(make("plain"), ids, {"blocks.0.attn.hook_z": lambda value, hook: value[..., 0]})


def test_a_hook_that_fails_leaves_no_hook_behind(make, ids):
    model = make("plain")

    def fails(value, hook):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_with_hooks(model, ids, {"blocks.1.attn.hook_pattern": fails})
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert torch.equal(run_with_hooks(model, ids, {}), model(ids))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_that_is_not_on_sdpa(make, ids, name):
    model = make(name, attention="eager")
    with pytest.raises(UsageError, match='attn_implementation="sdpa"'):
        run_with_cache(model, ids)
    assert run_with_cache(model, ids, "blocks.0.hook_attn_out")["blocks.0.hook_attn_out"].shape == (3, 7, 16)


def test_models_in_which_nothing_is_found(make, ids):
    with pytest.raises(UsageError, match=r"parts tokens, blocks, norm and unembed.*get_output_embeddings.*Linear has neither"):
        hook_names(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="has neither"):
        hook_names(make("llama").model)
    model = make("llama")
    model.model.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    with pytest.raises(UsageError, match=r"a part named attention, self_attn, attn, self_attention; looked in LlamaModel and found none"):
        hook_names(model)
    model = make("llama")
    del model.model.norm
    with pytest.raises(UsageError, match=r"looked in LlamaModel for norm, ln_f, .* and found none"):
        hook_names(model)


def test_a_part_that_a_model_has_not_is_no_name(make, ids):
    model = make("plain", attention=lambda layer, dim, heads: nn.Identity())
    model.blocks[0].attention = None
    assert "blocks.0.hook_attn_out" not in hook_names(model)
    assert "blocks.1.hook_attn_out" in hook_names(model)


class Odd(nn.Module):
    """Attention that calls SDPA with these shapes, one call for each."""

    def __init__(self, *shapes):
        super().__init__()
        self.shapes = shapes

    def forward(self, x, scope):
        for shape in self.shapes:
            q = x.view(shape)
            F.scaled_dot_product_attention(q, q, q)
        return x


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([(3, 7, 16)], r"queries \[batch, heads, tokens=7, head_dim\], got \(3, 7, 16\) in block 0"),
        ([(3, 7, 4, 4)], r"queries \[batch, heads, tokens=7, head_dim\], got \(3, 7, 4, 4\) in block 0"),
        ([(3, 1, 7, 16)] * 2, r"blocks\.0\.attn\.hook_pattern came twice in one forward pass"),
        ([], 'attn_implementation="sdpa"'),
    ],
)
def test_attention_that_cannot_be_looked_into(make, ids, shapes, says):
    model = Transformer(11, dim=16, layers=1, heads=4, attention=lambda layer, dim, heads: Odd(*shapes))
    with pytest.raises(UsageError, match=says):
        run_with_cache(model, ids, lambda name: name.endswith("pattern"))
    assert run_with_cache(model, ids, "blocks.0.hook_attn_out")["blocks.0.hook_attn_out"].shape == (3, 7, 16)


def test_what_did_not_come_by(make, ids):
    model = make("plain")
    model.unembed = lambda x: x
    with pytest.raises(UsageError, match=r"ln_final\.hook_normalized did not come by"):
        run_with_cache(model, ids)


@torch.no_grad()
def test_a_tempered_model(make, ids):
    """q is what attention gets, its temperature included."""
    for name in ("plain", "llama"):
        model = make(name)
        wanted = run_with_cache(model, ids, hooks={f"blocks.{layer}.attn.hook_q": lambda value, hook: 2 * value for layer in range(2)})
        temper_(model)
        for part in model.modules():
            if isinstance(part, Tempered):
                part.b.fill_(1)
        found = run_with_cache(model, ids)
        for key, value in wanted.items():
            close(found[key], value)


@torch.no_grad()
def test_the_construction_in_the_clear():
    vocab = Sorting(vocab=6).vocab
    ids = torch.tensor([[4, 1, 4, vocab.id("<sort>"), 1, 4]])
    pattern = run_with_cache(sorting_construction(vocab), ids, "blocks.1.attn.hook_pattern")["blocks.1.attn.hook_pattern"][0]
    assert pattern[0, 3].argmax() == 1  # the minimum head at <sort>
    close(pattern[1, 5].float(), torch.tensor([1, 0, 1, 0, 0, 1]) / 3)  # the identity head at a 4
    assert pattern[2, 4, [0, 2]].sum() > 0.9  # the successor head at the 1
