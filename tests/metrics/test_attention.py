from math import log

import pytest
import torch
from torch import nn

from trimtab.core import UsageError
from trimtab.metrics import attention_entropy, attention_offset_profile, run_with_cache
from trimtab.nn import Transformer, sorting_construction
from trimtab.tasks import Sorting
from trimtab.tasks.base import Vocab

TASK = Sorting(vocab=4, lengths=(1, 8))  # of as many ids as the models in conftest.py have, or fewer
VOCAB = Vocab(4, ("<sort>",))
SORT, EOS, PAD = VOCAB.id("<sort>"), VOCAB.eos, VOCAB.pad


def rows_of():
    """Two lengths and a wrong answer, padded on the right."""
    ids = [[3, 0, 3, 2, SORT, 0, 2, 3, 3, EOS], [1, 3, SORT, 1, 3, EOS] + [PAD] * 4, [0, 3, 0, SORT, 2, 1, 0, EOS] + [PAD] * 2]
    starts = [5, 3, 4]
    labels = [[token if t >= start and token != PAD else -100 for t, token in enumerate(row)] for row, start in zip(ids, starts, strict=True)]
    return torch.tensor(ids), torch.tensor(labels)


def bin_of(x, v, u, reach):
    """Name of the bin of an input u seen from v, from the definition."""
    offset = 0 if u == v else len({w for w in x if v < w <= u}) if u > v else -len({w for w in x if u <= w < v})
    if abs(offset) > reach:
        return f"above +{reach}" if offset > 0 else f"below -{reach}"
    return "identity" if offset == 0 else f"{offset:+d}"


@pytest.mark.parametrize("name", ["plain", "grouped", "llama", "gpt2"])
@pytest.mark.parametrize("reach", [1, 3])
@torch.no_grad()
def test_the_profile_is_what_a_loop_over_keys_finds(make, name, reach):
    ids, labels = rows_of()
    model = make(name)
    profile = attention_offset_profile(model, ids, labels, VOCAB, reach=reach, batch_size=2)
    cache = run_with_cache(model, ids, lambda name: name.endswith("pattern"))
    patterns = torch.stack([*cache.values()])
    mass, uniform, count = torch.zeros(2, 4, len(profile.bins)), torch.zeros(len(profile.bins)), 0
    for i, row in enumerate(ids.tolist()):
        mark = row.index(SORT)
        for t in range(mark + 1, len(row) - 1):
            if labels[i, t + 1] == -100:
                continue
            count += 1
            for key, u in enumerate(row):
                group = "delimiter" if key == mark else "outputs" if key > mark and u != PAD else "other" if u == PAD else bin_of(row[:mark], row[t], u, reach)
                mass[:, :, profile.bins.index(group)] += patterns[:, i, :, t, key]
                uniform[profile.bins.index(group)] += (key <= t) / (t + 1)
    assert profile.positions == count == 4 + 2 + 3
    torch.testing.assert_close(profile.mass.float(), mass / count, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(profile.uniform.float(), uniform / count, rtol=1e-4, atol=1e-5)
    assert profile.labels == [[profile.bins[k] for k in heads] for heads in mass.argmax(-1).tolist()]
    torch.testing.assert_close(profile.mass.sum(-1), torch.ones(2, 4, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_the_construction_is_labelled_by_what_its_heads_are():
    task = Sorting(vocab=20)
    batch = task.batch(seed=0, step=0, size=8, length=12)
    profile = attention_offset_profile(sorting_construction(task.vocab), batch["input_ids"], batch["labels"], task.vocab)
    assert profile.labels[0][0] == "delimiter"
    assert profile.labels[1][2] == "+1"
    mass = dict(zip(profile.bins, profile.mass[1, 1].tolist(), strict=True))
    assert mass["identity"] + mass["outputs"] == pytest.approx(1)


@torch.no_grad()
def test_padding_on_the_left(make):
    ids, labels = rows_of()
    model = make("plain")
    wanted = attention_offset_profile(model, ids[:1], labels[:1], VOCAB)
    pads = torch.full((1, 3), PAD)
    wide = torch.cat([pads, ids[:1]], 1), torch.cat([torch.full((1, 3), -100), labels[:1]], 1)
    padded = attention_offset_profile(model, *wide, VOCAB, attention_mask=wide[0] != PAD)
    torch.testing.assert_close(padded.mass, wanted.mass, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(padded.uniform, wanted.uniform)
    batches = [{"input_ids": ids[:1], "labels": labels[:1]}, {"input_ids": wide[0], "labels": wide[1], "attention_mask": wide[0] != PAD}]
    a, b = (attention_entropy(model, {4: batch}, VOCAB) for batch in batches)
    for one, other in zip(a[1:], b[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_uniform_attention_has_the_log_of_what_it_sees():
    model = Transformer(VOCAB.size, dim=8, layers=2, heads=2)
    for block in model.blocks:
        nn.init.zeros_(block.attention.qkv.weight)
    batches = {}
    for n in (3, 7):
        batches[n] = Sorting(vocab=4, lengths=(1, 8)).batch(seed=0, step=0, size=5, length=n)
        batches[n]["input_ids"] = batches[n]["input_ids"].clamp(max=VOCAB.size - 1)
    found = attention_entropy(model, batches)
    assert found.lengths == [3, 7] and found.successor is None
    for k, n in enumerate((3, 7)):
        wanted = sum(log(t + 1) for t in range(n, 2 * n + 1)) / (n + 1)
        torch.testing.assert_close(found.entropy[k], torch.full((2, 2), wanted, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.share, torch.ones(2, 2, 2, dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "llama"])
@torch.no_grad()
def test_entropy_and_successor_mass_are_what_a_loop_finds(make, name):
    ids, labels = rows_of()
    model = make(name)
    found = attention_entropy(model, {9: {"input_ids": ids, "labels": labels}}, VOCAB, batch_size=2)
    patterns = torch.stack([*run_with_cache(model, ids, lambda name: name.endswith("pattern")).values()]).double()
    entropies, masses = [], []
    for i, row in enumerate(ids.tolist()):
        mark = row.index(SORT)
        for t in range(mark, len(row) - 1):
            if labels[i, t + 1] == -100:
                continue
            p = patterns[:, i, :, t, : t + 1]
            entropies.append(-(p * p.log()).sum(-1))
            above = [u for u in row[:mark] if u > row[t]]
            if t > mark and above:
                masses.append(sum(patterns[:, i, :, t, key] for key in range(mark) if row[key] == min(above)))
    torch.testing.assert_close(found.entropy[0], torch.stack(entropies).mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.successor[0], torch.stack(masses).mean(0), rtol=1e-4, atol=1e-5)


def test_a_fixed_temperature_dilutes_and_one_that_grows_does_not():
    task = Sorting(vocab=30)
    batches = {n: task.batch(seed=0, step=0, size=4, length=n) for n in (5, 40)}
    plain, tempered = (attention_entropy(sorting_construction(task.vocab, tau=tau), batches, task.vocab).successor[:, 1, 2] for tau in (1.0, "logn"))
    assert plain[1] < plain[0] - 0.02
    assert tempered[1] > tempered[0] > plain[0]


def test_what_is_refused(make):
    ids, labels = rows_of()
    model = make("plain")
    with pytest.raises(UsageError, match="reach must be >= 1, got 0"):
        attention_offset_profile(model, ids, labels, VOCAB, reach=0)
    with pytest.raises(UsageError, match="only at delimiters"):
        attention_offset_profile(model, ids, torch.where(ids.roll(1, 1) == SORT, labels, -100), VOCAB)
    with pytest.raises(UsageError, match="batches must hold at least one length"):
        attention_entropy(model, {})
    with pytest.raises(UsageError, match="in the batch of length 5 they are nowhere"):
        attention_entropy(model, {5: {"input_ids": ids, "labels": torch.full_like(labels, -100)}})
    with pytest.raises(UsageError, match='attn_implementation="sdpa"'):
        attention_offset_profile(make("llama", attention="eager"), ids, labels, VOCAB)
