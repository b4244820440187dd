import pytest
import torch

from trimtab.core import UsageError
from trimtab.metrics import hidden_states, identity_successor_scores, logit_lens, sorting_targets
from trimtab.nn import Transformer, sorting_construction
from trimtab.tasks import Sorting

MODELS = ["plain", "grouped", "learned", "twice", "llama", "gpt2"]
models = pytest.mark.parametrize("name", MODELS)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@models
@torch.no_grad()
def test_the_last_layer_is_the_model(make, ids, name):
    model = make(name)
    lens = logit_lens(model, ids, batch_size=2)
    output = model(ids)
    close(lens[-1], output if isinstance(output, torch.Tensor) else output.logits)
    assert lens.shape == (4 if name == "twice" else 3, 3, 7, 11)


@torch.no_grad()
def test_each_layer_is_read_through_the_last_norm(make, ids):
    model = make("plain")
    states = hidden_states(model, ids)
    assert torch.equal(states[0], model.tokens(ids))
    close(states[-1], model.states(ids))
    close(logit_lens(model, ids), model.unembed(states))
    close(logit_lens(model, ids)[1], model(ids, schedule=[0]))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.no_grad()
def test_hidden_states_of_hugging_face(make, ids, name):
    model = make(name)
    wanted = model(ids, output_hidden_states=True).hidden_states
    for ours, theirs in zip(hidden_states(model, ids)[:-1], wanted[:-1], strict=True):  # their last one is behind the last norm
        close(ours, theirs)


@torch.no_grad()
def test_a_model_that_scales_its_logits(make, ids):
    model = make("cohere")
    lens, states = logit_lens(model, ids), hidden_states(model, ids)
    assert torch.equal(lens[-1], model(ids).logits)
    close(lens, 0.25 * model.lm_head(model.model.norm(states)))
    where = ids < 5
    close(logit_lens(model, ids, where), lens[:, where])


@models
def test_positions_and_parts_make_no_difference(make, ids, name):
    model, where = make(name), ids > 4
    for tool in (hidden_states, logit_lens):
        whole = tool(model, ids)
        close(tool(model, ids, where, batch_size=1), whole[:, where])
        assert not whole.requires_grad


@pytest.mark.parametrize("name", ["plain", "llama", "gpt2"])
def test_padding_on_the_left(make, ids, name):
    model = make(name)
    mask = torch.arange(7) >= torch.tensor([[0], [2], [4]])
    if name == "gpt2":  # counts padding as positions unless it is told
        mask[:] = True
    padded = logit_lens(model, ids, attention_mask=mask.long())
    close(padded[:, 2, int((~mask[2]).sum()) :], logit_lens(model, ids[2:, int((~mask[2]).sum()) :])[:, 0])


def test_modes_are_given_back(make, ids):
    model = Transformer(11, dim=8, layers=1, heads=2, dropout=0.5).train()
    model.blocks[0].ffn.eval()
    assert torch.equal(logit_lens(model, ids), logit_lens(model, ids))
    assert model.training and model.blocks[0].attention.training and not model.blocks[0].ffn.training


@models
def test_scores_of_states_that_are_there_already(make, name):
    task = Sorting(vocab=3)
    batch = task.batch(seed=0, step=0, size=5, length=4)
    ids, labels, model = batch["input_ids"], batch["labels"], make(name)
    states = hidden_states(model, ids, sorting_targets(ids, labels, task.vocab).identity != -100)
    wanted = identity_successor_scores(model, ids, labels, task.vocab)
    for one, other in zip(identity_successor_scores(model, ids, labels, task.vocab, states=states), wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    with pytest.raises(UsageError, match=r"states must be \[. layers, 20 positions, dim\], got \(.*\)"):
        identity_successor_scores(model, ids, labels, task.vocab, states=states[:, 1:])


def test_states_of_a_model_that_scales_its_logits(make):
    task = Sorting(vocab=3)
    batch = task.batch(seed=0, step=0, size=2, length=4)
    ids, labels, model = batch["input_ids"], batch["labels"], make("cohere")
    states = hidden_states(model, ids, sorting_targets(ids, labels, task.vocab).identity != -100)
    with pytest.raises(UsageError, match="scales or caps its logits"):
        identity_successor_scores(model, ids, labels, task.vocab, states=states)


@torch.no_grad()
def test_scores_are_what_a_loop_over_positions_finds(make):
    task = Sorting(vocab=3)
    batch = task.batch(seed=0, step=0, size=5, length=4)
    ids, labels = batch["input_ids"], batch["labels"]
    labels[1, 7:] = -100  # a shorter row
    model = make("plain")
    rows = identity_successor_scores(model, ids, labels, task.vocab, batch_size=2)
    lens, targets = logit_lens(model, ids).softmax(-1), sorting_targets(ids, labels, task.vocab)
    for layer, row in enumerate(rows):
        seen = []
        for i, t in (targets.identity != -100).nonzero().tolist():
            pair = [int(targets.identity[i, t]), int(targets.successor[i, t])]
            p = lens[layer, i, t]
            seen.append([float(p[pair[0]]), float(p[pair[1]]), float(p[pair].sum()), float(set(p.topk(2).indices.tolist()) == set(pair))])
        assert row["layer"] == layer and row["positions"] == len(seen) == 4 * 4 + 1
        wanted = torch.tensor(seen).mean(0).tolist()
        assert [row[key] for key in ("identity", "successor", "mass", "top2_rate")] == pytest.approx(wanted, abs=1e-5)


def test_the_construction_names_identity_and_successor_in_its_last_layer():
    task = Sorting(vocab=20)
    batch = task.batch(seed=0, step=0, size=16, length=12)
    model = sorting_construction(task.vocab)
    model.head.weight.data *= 20  # its logits are 0 and 1
    rows = identity_successor_scores(model, batch["input_ids"], batch["labels"], task.vocab)
    assert [row["mass"] > 0.99 for row in rows] == [False, False, True]
    assert rows[0]["mass"] == pytest.approx(2 / task.vocab.size)
    copies = sorting_targets(batch["input_ids"], batch["labels"], task.vocab).remaining
    share = float((copies > 0).sum() / (copies >= 0).sum())
    assert rows[2]["identity"] == pytest.approx(share, abs=0.01)


def test_what_is_refused(make, ids):
    model = make("plain")
    with pytest.raises(UsageError, match="batch_size must be >= 1, got 0"):
        hidden_states(model, ids, batch_size=0)
    with pytest.raises(UsageError, match=r"ids must be \[rows, tokens\] with at least one of each"):
        logit_lens(model, ids[:0])
    task = Sorting(vocab=30)
    batch = task.batch(seed=0, step=0, size=2, length=3)
    with pytest.raises(UsageError, match="only at delimiters"):
        empty = task.batch(seed=0, step=0, size=2, length=0)
        identity_successor_scores(model, empty["input_ids"], empty["labels"], task.vocab)
    big = Transformer(task.vocab.size, dim=8, layers=1, heads=1)
    big.unembed = lambda x: x[..., :4]
    with pytest.raises(UsageError, match="below 4, the model's logits"):
        identity_successor_scores(big, batch["input_ids"], batch["labels"], task.vocab)


@pytest.mark.usefixtures("annotations_off")
def test_shapes_that_disagree(make, ids):
    with pytest.raises(UsageError, match=r"where must have the shape of ids, \(3, 7\), got \(3, 6\)"):
        logit_lens(make("plain"), ids, ids[:, 1:] > 0)
    with pytest.raises(UsageError, match=r"attention_mask must have the shape of ids, \(3, 7\), got \(7,\)"):
        logit_lens(make("plain"), ids, attention_mask=ids[0] > 0)
