from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.train.toys import Plain, Source, made
from trimtab.core import UsageError
from trimtab.losses import next_token_loss
from trimtab.testing import check_objective
from trimtab.train import NextToken, Sums
from trimtab.train.objective import TokenClassification

BATCH = Source().batch(0, 0, 4)


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_next_token_is_the_loss_of_the_models_logits(reduction):
    model = made(Plain)
    sums = NextToken(reduction)(model, BATCH, torch.Generator())
    total, count = next_token_loss(model(BATCH["input_ids"]), BATCH["labels"], reduction)
    assert torch.equal(sums.total, total) and torch.equal(sums.count, count) and not sums.parts


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_it_keeps_the_contract_of_an_objective(reduction):
    check_objective(NextToken(reduction), made(Plain), BATCH)


def test_default_weighs_rows_alike():
    assert NextToken() == NextToken("example")


def test_an_output_with_logits_and_an_attention_mask():
    inner = made(Plain)

    class Other(nn.Module):
        def forward(self, input_ids, attention_mask=None):
            masks.append(attention_mask)
            return SimpleNamespace(logits=inner(input_ids))

    masks, mask = [], torch.ones(4, 5)
    plain, masked = (NextToken()(Other(), batch, torch.Generator()) for batch in (BATCH, {**BATCH, "attention_mask": mask}))
    assert torch.equal(plain.total, masked.total) and torch.equal(plain.total, NextToken()(inner, BATCH, torch.Generator()).total)
    assert masks[0] is None and masks[1] is mask


def test_sums_without_parts_have_none_that_could_be_shared():
    sums = Sums(torch.ones(()), torch.ones(()))
    assert dict(sums.parts) == {}
    with pytest.raises(TypeError):
        sums.parts["x"] = 1


@pytest.mark.usefixtures("annotations_off")
def test_unknown_reduction():
    with pytest.raises(UsageError, match="did you mean 'token'"):
        NextToken("tokens")(made(Plain), BATCH, torch.Generator())


# Labels where they are read: also at the first position, and of other classes than the ids.
IN_PLACE = {"input_ids": BATCH["input_ids"], "labels": (BATCH["input_ids"] % 3).masked_fill(torch.arange(20).view(4, 5) % 3 != 0, -100)}


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_token_classification_position_by_position(reduction):
    model = made(Plain)
    batch = {**IN_PLACE, "labels": IN_PLACE["labels"].clone()}
    batch["labels"][2] = -100  # a row that asks nothing
    logits = model(batch["input_ids"]).log_softmax(-1)
    rows = [[-logits[b, k, label] for k, label in enumerate(row) if label != -100] for b, row in enumerate(batch["labels"].tolist())]
    rows = [row for row in rows if row]
    total, count = (sum(map(sum, rows)), sum(map(len, rows))) if reduction == "token" else (sum(sum(row) / len(row) for row in rows), len(rows))
    sums = TokenClassification(reduction)(model, batch, torch.Generator())
    torch.testing.assert_close(sums.total, total)
    assert float(sums.count) == count and not sums.parts and IN_PLACE["labels"][0, 0] != -100


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_token_classification_keeps_the_contract_of_an_objective(reduction):
    check_objective(TokenClassification(reduction), made(Plain), IN_PLACE)


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_token_classification_is_next_token_with_the_labels_one_place_on(reduction):
    model = made(Plain)
    later = {**IN_PLACE, "labels": torch.nn.functional.pad(IN_PLACE["labels"][:, :-1], (1, 0), value=-100)}
    here = {**IN_PLACE, "labels": IN_PLACE["labels"].clone()}
    here["labels"][:, -1] = -100  # what falls off at the end
    a, b = NextToken(reduction)(model, later, torch.Generator()), TokenClassification(reduction)(model, here, torch.Generator())
    torch.testing.assert_close(a.total, b.total)
    assert a.count == b.count


def test_token_classification_of_an_output_with_logits_and_an_attention_mask():
    inner, masks = made(Plain), []

    class Other(nn.Module):
        def forward(self, input_ids, attention_mask=None):
            masks.append(attention_mask)
            return SimpleNamespace(logits=inner(input_ids))

    masked = TokenClassification()(Other(), {**IN_PLACE, "attention_mask": torch.ones(4, 5)}, torch.Generator())
    assert torch.equal(masked.total, TokenClassification()(inner, IN_PLACE, torch.Generator()).total) and masks[0] is not None


def test_token_classification_refuses():
    assert TokenClassification() == TokenClassification("example")
    with pytest.raises(UsageError, match="did you mean 'token'"):
        TokenClassification("tokens")
    with pytest.raises(UsageError, match=r"labels must be \[batch, tokens\] .* got \(4, 4\) and \(4, 5, 7\)"):
        TokenClassification()(made(Plain), {**IN_PLACE, "labels": IN_PLACE["labels"][:, :4]}, torch.Generator())
