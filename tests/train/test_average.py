import pytest
import torch
from torch import nn

from tests.train.toys import made
from trimtab.core import UsageError
from trimtab.train import WeightAverage


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_is_the_normalised_sum_from_the_first_step_on():
    model, average, seen = nn.Linear(3, 2, dtype=torch.float64), WeightAverage(0.8), []
    for step in range(6):
        with torch.no_grad():
            model.weight.normal_()
        average.update(model)
        seen.append(model.weight.detach().clone())
        shares = 0.8 ** torch.arange(step, -1, -1, dtype=torch.float64)
        expected = sum(w * s for w, s in zip(seen, shares, strict=True)) / shares.sum()
        with average.swapped(model):
            torch.testing.assert_close(model.weight.detach(), expected)


def test_swapping_gives_the_models_own_weights_back_also_after_an_error():
    model, average = made(), WeightAverage(0.5)
    average.update(model)
    with torch.no_grad():
        model.embed.weight.add_(1)
    before = values(model)
    with pytest.raises(ZeroDivisionError), average.swapped(model):
        torch.testing.assert_close(model.head.weight.detach(), before["embed.weight"] - 1)  # tied: the other name sees it too
        1 / 0  # noqa: B018
    assert all(torch.equal(before[name], value) for name, value in values(model).items())


def test_bfloat16_is_averaged_in_float32():
    model, average = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16), WeightAverage(0.999)
    model.weight.data.fill_(1)
    average.update(model)
    for _ in range(600):
        model.weight.data.fill_(2)
        average.update(model)
    expected = (0.999**600 * 1 + sum(0.999**i * 2 for i in range(600))) / sum(0.999**i for i in range(601))
    assert average.values["weight"].item() == pytest.approx(expected, rel=1e-5)
    with average.swapped(model):
        assert model.weight.dtype == torch.bfloat16


def test_counters_are_the_models_own_and_statistics_are_averaged():
    model, average = nn.BatchNorm1d(1), WeightAverage(0.5)
    for value in (3.0, 6.0):
        model.running_mean.fill_(value)
        model.num_batches_tracked += 1
        average.update(model)
    with average.swapped(model):
        assert model.running_mean.item() == pytest.approx(5)
        assert model.num_batches_tracked == 2


def test_a_grown_a_shrunk_and_a_reshaped_model():
    model, average = nn.Sequential(nn.Linear(1, 1)), WeightAverage(0.5)
    average.update(model)
    model.append(nn.Linear(2, 2))
    with average.swapped(model):
        pass  # what it has not seen keeps its own weights
    average.update(model)
    assert torch.equal(average.values["1.weight"], model[1].weight)
    model[1] = nn.Linear(2, 3)
    with average.swapped(model):
        pass
    average.update(model)
    assert average.values["1.weight"].shape == (3, 2)
    del model[1]
    average.update(model)
    assert average.values.keys() == {"0.weight", "0.bias"}


def test_state_comes_back():
    model, one, other = made(), WeightAverage(0.9), WeightAverage(0.9)
    for average in (one, one, one):
        average.update(model)
    other.load_state_dict(one.state_dict() | {"values": {**one.values, "gone": torch.ones(1)}}, model)
    with torch.no_grad():
        model.embed.weight.add_(1)
    for average in (one, other):
        average.update(model)
    assert one.steps == other.steps == 4
    assert one.values.keys() == other.values.keys()
    assert "head.weight" not in one.values  # tied to another


@pytest.mark.parametrize("decay", [0, 1, -0.1, 2, float("nan")])
def test_decay_out_of_range(decay):
    with pytest.raises(UsageError, match=r"average must lie between 0 and 1, got .*; 0.999 averages about a thousand steps"):
        WeightAverage(decay)
