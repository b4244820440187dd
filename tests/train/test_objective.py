from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.train.toys import Plain, Source, made
from trimtab.core import UsageError
from trimtab.losses import next_token_loss
from trimtab.testing import check_objective
from trimtab.train import NextToken, Sums

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
