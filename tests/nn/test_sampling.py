import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.nn.sampling import evaluating, sample


def test_zero_takes_the_likeliest():
    logits = torch.randn(4, 3, 7, generator=generator(0))
    assert torch.equal(sample(logits, 0.0), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_frequencies_are_the_softmax_of_scaled_logits(temperature):
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    drawn = sample(logits.expand(20000, 4), temperature, generator(0))
    expected = (logits / temperature).softmax(-1)
    assert (torch.bincount(drawn, minlength=4) / 20000 - expected).abs().max() < 5 * (0.25 / 20000) ** 0.5


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])
    assert set(sample(logits.expand(5000, 5), 1.0, generator(0)).tolist()) == {1, 3}


@pytest.mark.parametrize(("draw", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_ends_of_the_unit_interval_are_tokens_that_can_be_drawn(draw, token, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(*shape, draw, dtype=torch.float64))
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert sample(logits, 1.0).tolist() == [token]


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 1e-310, 5e-324])
def test_a_tiny_temperature_is_the_likeliest(temperature):
    logits = torch.randn(50, 7, generator=generator(0))
    assert torch.equal(sample(logits, temperature, generator(1)), logits.argmax(-1))
    assert torch.equal(sample(1e30 * logits, temperature, generator(1)), logits.argmax(-1))
    assert set(sample(torch.tensor([[1.0, 2.0, 2.0]]).expand(50, 3), temperature, generator(1)).tolist()) == {1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3, [torch.nan] * 3])
def test_a_row_without_a_likeliest_token(row, temperature):
    with pytest.raises(UsageError, match=r"largest logit .* must be a finite number, got (nan|inf|-inf) in row 1"):
        sample(torch.tensor([[0.0, -torch.inf, 1.0], row]), temperature)


def test_without_a_generator_the_global_stream_is_drawn_from():
    logits = torch.zeros(20, 9)
    torch.manual_seed(1)
    first = sample(logits, 1.0)
    torch.manual_seed(1)
    assert torch.equal(sample(logits, 1.0), first)
    assert not torch.equal(sample(logits, 1.0), first)


def test_each_part_gets_its_mode_back():
    parts = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    parts[0].eval()
    with evaluating(parts):
        assert not any(part.training for part in parts.modules())
    assert [part.training for part in parts.modules()] == [True, False, True, True]
