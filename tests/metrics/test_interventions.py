import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.metrics import ablate_heads, exact_match, hook_names, patch, run_with_hooks
from trimtab.nn import Transformer, sorting_construction
from trimtab.tasks import Sorting

MODELS = ["plain", "grouped", "twice", "llama", "gpt2"]
models = pytest.mark.parametrize("name", MODELS)


def logits_of(model, ids, **forward):
    output = model(ids, **forward)
    return output if isinstance(output, torch.Tensor) else output.logits


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def surprise(logits, labels):
    """Minus the cross entropy, one value a row."""
    wanted = labels[:, 1:].clamp(min=0)
    p = logits[:, :-1].log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
    return (p * (labels[:, 1:] != -100)).sum(1)


@pytest.fixture
def labels(ids):
    labels = ids.clone()
    labels[:, :3] = -100
    labels[1, 5:] = -100
    return labels


@pytest.mark.parametrize("name", ["plain", "llama", "gpt2"])
@torch.no_grad()
def test_a_head_by_zero_is_its_output_weights_gone(make, ids, labels, name):
    """Taken out of the weights that read it: those of the output projection."""
    rows = ablate_heads(make(name), ids, labels, mode="zero", score=surprise, batch_size=2)
    for row in rows:
        layer, head, model = row["layer"], row["head"], make(name)
        if name == "llama":
            model.model.layers[layer].self_attn.o_proj.weight[:, 4 * head : 4 * head + 4] = 0
        elif name == "gpt2":
            model.transformer.h[layer].attn.c_proj.weight[4 * head : 4 * head + 4] = 0
        else:
            model.blocks[layer].attention.out.weight[:, 4 * head : 4 * head + 4] = 0
        assert row["score"] == pytest.approx(float(surprise(logits_of(model, ids), labels).mean()), abs=1e-4)
        assert row["drop"] == pytest.approx(row["whole"] - row["score"])
    assert [(row["layer"], row["head"]) for row in rows] == [(layer, head) for layer in range(2) for head in range(4)]
    assert rows[0]["whole"] == pytest.approx(float(surprise(logits_of(make(name), ids), labels).mean()), abs=1e-4)


@torch.no_grad()
def test_the_only_head_of_a_layer_is_its_attention(ids, labels):
    model = Transformer(11, dim=8, layers=2, heads=1, generator=generator(3)).eval()
    rows = ablate_heads(model, ids, labels, mode="zero", score=surprise)
    nn.init.zeros_(model.blocks[1].attention.out.weight)  # its bias, zero at the start, stays
    assert rows[1]["score"] == pytest.approx(float(surprise(model(ids), labels).mean()), abs=1e-5)


@torch.no_grad()
def test_the_mean_is_over_real_positions(make, ids, labels):
    model = make("plain")
    site = "blocks.0.attn.hook_z"
    seen = {}

    def note(value, hook):
        seen["z"] = value

    run_with_hooks(model, ids, {site: note})
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1, 5:] = False
    mean = seen["z"][real].mean(0)

    def without(value, hook):
        value[:, :, 2] = mean[2]

    wanted = float(surprise(run_with_hooks(model, ids, {site: without}), labels).mean())
    for more in ({}, {"batch_size": 1}):
        assert ablate_heads(model, ids, labels, score=surprise, **more)[2]["score"] == pytest.approx(wanted, abs=1e-5)
    full = ablate_heads(model, ids, labels, score=surprise, attention_mask=torch.ones_like(ids))[2]["score"]
    assert full != pytest.approx(wanted, abs=1e-5)


@torch.no_grad()
def test_a_head_that_always_says_the_same_loses_nothing_by_its_mean(make, ids, labels):
    model = make("plain")
    qkv = model.blocks[0].attention.qkv
    qkv.weight[32 + 4 : 32 + 8] = 0  # values of head 1: its bias alone
    means, zeros = (ablate_heads(model, ids, labels, score=surprise, mode=mode)[1] for mode in ("mean", "zero"))
    assert means["drop"] == pytest.approx(0, abs=1e-5)
    assert abs(zeros["drop"]) > 1e-3


def test_the_construction_needs_the_heads_it_has():
    task = Sorting(vocab=12)
    batch = task.batch(seed=0, step=0, size=32, length=10)
    ids, labels = batch["input_ids"], batch["labels"]
    model = sorting_construction(task.vocab)

    def first(logits, labels):
        return logits[:, 10].argmax(-1) == labels[:, 11]

    exact = {(row["layer"], row["head"]): row for row in ablate_heads(model, ids, labels, mode="zero")}
    begin = {(row["layer"], row["head"]): row for row in ablate_heads(model, ids, labels, mode="zero", score=first)}
    assert all(row["whole"] == 1 for row in (*exact.values(), *begin.values()))
    used = {(0, 0), (1, 0), (1, 1), (1, 2)}  # mark, minimum, identity, successor; the other two do nothing
    assert {head for head, row in exact.items() if row["drop"] > 0.9} == used
    assert {head for head, row in exact.items() if row["drop"] == 0} == exact.keys() - used
    assert begin[1, 0]["drop"] > 0.9  # without the minimum head the first token is wrong
    assert all(row["drop"] == 0 for head, row in begin.items() if head != (1, 0))


def test_scores_may_be_one_value_for_all_rows(make, ids, labels):
    model = make("plain")
    a, b = (ablate_heads(model, ids, labels, score=score) for score in (surprise, lambda *pair: float(surprise(*pair).mean())))
    assert [row["score"] for row in a] == pytest.approx([row["score"] for row in b])
    with pytest.raises(UsageError, match=r"score must return a value for each of 3 rows, or one for all, got shape \(3, 7\)"):
        ablate_heads(model, ids, labels, score=lambda logits, labels: labels)
    with pytest.raises(UsageError, match="unknown mode of ablation 'noise'"):
        ablate_heads(model, ids, labels, mode="noise")
    assert ablate_heads(model, ids, labels)[0]["whole"] == float(exact_match(model(ids), labels).double().mean())


# patching


def asked(model, clean, corrupt, site, **more):
    rows = len(clean)
    return patch(model, clean, corrupt, site, answer=torch.full((rows,), 1), wrong=torch.full((rows,), 2), **more)


@models
@torch.no_grad()
def test_every_site_together_gives_the_clean_run(make, ids, name):
    model = make(name)
    found = asked(model, ids, ids.flip(1), hook_names(model))
    close(found.logits, logits_of(model, ids))
    assert found.recovered == pytest.approx(1, abs=1e-4)


@models
@torch.no_grad()
def test_a_cut_through_the_whole_stream_gives_the_clean_run(make, ids, name):
    model = make(name)
    for site in ("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre", "ln_final.hook_normalized"):
        close(asked(model, ids, ids.flip(1), site).logits, logits_of(model, ids))


@torch.no_grad()
def test_heads_add_up_to_the_layer_and_positions_to_the_row(make, ids):
    model, other = make("plain"), ids.flip(1)
    site = "blocks.0.attn.hook_z"
    z = {}

    def note(value, hook):
        z["clean"] = value

    run_with_hooks(model, ids, {site: note})
    where = ids > 4

    def put(value, hook):
        value[:, :, 2][where] = z["clean"][:, :, 2][where]

    close(asked(model, ids, other, site, head=2, where=where).logits, run_with_hooks(model, other, {site: put}))
    close(asked(model, ids, other, site, head=-2, where=where).logits, run_with_hooks(model, other, {site: put}))
    everywhere = torch.ones_like(where)
    close(asked(model, ids, other, site, where=everywhere).logits, asked(model, ids, other, site).logits)
    nothing = asked(model, ids, other, site, where=~everywhere)
    close(nothing.logits, model(other))
    assert nothing.recovered == pytest.approx(0, abs=1e-5)


@torch.no_grad()
def test_queries_of_a_pattern(make, ids):
    model, other = make("plain"), ids.flip(1)
    site = "blocks.1.attn.hook_pattern"
    patterns = {}

    def note(value, hook):
        patterns["clean"] = value

    run_with_hooks(model, ids, {site: note})

    def put(value, hook):
        value[:, 1, 5] = patterns["clean"][:, 1, 5]

    where = torch.zeros_like(ids, dtype=torch.bool)
    where[:, 5] = True
    close(asked(model, ids, other, site, head=1, where=where).logits, run_with_hooks(model, other, {site: put}))


@torch.no_grad()
def test_differences_are_those_of_the_asked_position(make, ids):
    model, other = make("plain"), ids.flip(1)
    found = asked(model, ids, other, "blocks.0.hook_attn_out", position=torch.tensor([2, 3, 6]))
    for run, delta in ((model(ids), found.clean), (model(other), found.corrupt), (found.logits, found.patched)):
        wanted = torch.stack([run[row, t, 1] - run[row, t, 2] for row, t in enumerate((2, 3, 6))])
        close(delta.float(), wanted)
    share = (found.patched.mean() - found.corrupt.mean()) / (found.clean.mean() - found.corrupt.mean())
    assert found.recovered == pytest.approx(float(share))
    assert torch.equal(asked(model, ids, other, "hook_embed").clean, asked(model, ids, other, "hook_embed", position=6).clean)


def test_the_successor_head_flips_the_answer():
    """With the successor in the list, and with it taken out: only the head that looks for it, where it is read, brings the answer back."""
    task = Sorting(vocab=12)
    vocab = task.vocab
    clean = torch.tensor([[2, 7, 5, vocab.id("<sort>"), 2], [0, 9, 3, vocab.id("<sort>"), 0]])
    corrupt, answer, wrong = clean.clone(), torch.tensor([5, 3]), torch.tensor([7, 9])
    corrupt[:, 2] = torch.tensor([11, 10])
    model = sorting_construction(vocab)
    assert torch.equal(model(clean)[:, -1].argmax(-1), answer) and torch.equal(model(corrupt)[:, -1].argmax(-1), wrong)
    for head in range(3):
        found = patch(model, clean, corrupt, "blocks.1.attn.hook_z", head=head, answer=answer, wrong=wrong)
        assert torch.equal(found.logits[:, -1].argmax(-1), answer if head == 2 else wrong)
        assert found.recovered == pytest.approx(float(head == 2), abs=1e-6)
    last = torch.arange(5) == 4
    elsewhere = patch(model, clean, corrupt, "blocks.1.attn.hook_z", where=~last.expand(2, 5), answer=answer, wrong=wrong)
    assert elsewhere.recovered == pytest.approx(0, abs=1e-6)
    pattern = patch(model, clean, corrupt, "blocks.1.attn.hook_pattern", head=2, answer=answer, wrong=wrong)
    assert pattern.recovered < 0.6  # it looks to where the successor was, and finds another value there


def test_padding_is_passed_on(make, ids):
    model = make("plain")
    mask = torch.arange(7) >= torch.tensor([[0], [2], [4]])
    found = asked(model, ids, ids.roll(1, 1), "blocks.0.hook_resid_post", attention_mask=mask)
    close(found.logits[mask], model(ids, attention_mask=mask)[mask])


@pytest.mark.usefixtures("annotations_off")
def test_what_is_refused(make, ids):
    model, other = make("plain"), ids.flip(1)
    with pytest.raises(UsageError, match=r"clean and corrupt must have one shape.*got \(3, 7\), \(3, 6\), \(3,\), \(3,\)"):
        asked(model, ids, other[:, 1:], "hook_embed")
    with pytest.raises(UsageError, match=r"where must have the shape of clean, \(3, 7\), got \(7,\)"):
        asked(model, ids, other, "hook_embed", where=ids[0] > 2)
    with pytest.raises(UsageError, match=r"head goes with sites inside attention .*, got hook_embed; leave head out"):
        asked(model, ids, other, "hook_embed", head=1)
    with pytest.raises(UsageError, match=r"head must be in 0 \.\. 3, got 4"):
        asked(model, ids, other, "blocks.0.attn.hook_z", head=4)
    with pytest.raises(UsageError, match="unknown name in names 'hook_embd'; did you mean 'hook_embed'"):
        asked(model, ids, other, "hook_embd")
    with pytest.raises(UsageError, match="must differ in their mean logit difference"):
        asked(model, ids, ids, "hook_embed")
