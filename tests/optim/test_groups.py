import pytest
import torch
from torch import nn

from trimtab.core import UsageError
from trimtab.optim import param_groups


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.body, self.head = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.gain = nn.Parameter(torch.ones(()))
        self.head.weight = self.embed.weight


def decay(model):
    """Decay by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group["weight_decay"] for group in param_groups(model, 0.1) for p in group["params"]}


def test_matrices_decay_and_nothing_else():
    assert decay(Tied()) == {"embed.weight": 0, "norm.weight": 0, "norm.bias": 0, "body.weight": 0.1, "body.bias": 0, "gain": 0}


def test_untied_output_decays_and_kernels_do():
    model = nn.ModuleDict({"embed": nn.EmbeddingBag(7, 4), "conv": nn.Conv1d(2, 3, 1), "head": nn.Linear(4, 7)})
    assert decay(model) == {"embed.weight": 0, "conv.weight": 0.1, "conv.bias": 0, "head.weight": 0.1, "head.bias": 0}


def test_every_trainable_parameter_once():
    model = Tied()
    model.body.requires_grad_(False)
    grouped = [id(p) for group in param_groups(model, 0.1) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_no_empty_group():
    assert [group["weight_decay"] for group in param_groups(nn.Linear(2, 2, bias=False), 0.1)] == [0.1]
    assert [group["weight_decay"] for group in param_groups(nn.LayerNorm(2), 0.1)] == [0]


def test_only_what_decays_shrinks():
    model = Tied()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    torch.optim.AdamW(param_groups(model, 0.1), lr=0.5).step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (1 - 0.5 * decay(model)[name]))


def test_errors():
    with pytest.raises(UsageError, match=r"weight_decay must be >= 0, got -0\.1"):
        param_groups(nn.Linear(1, 1), -0.1)
    with pytest.raises(UsageError, match="Linear has none"):
        param_groups(nn.Linear(1, 1).requires_grad_(False), 0.1)
