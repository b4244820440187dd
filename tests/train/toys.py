"""A small model, a source and a run with everything switched on."""

import json
from pathlib import Path

import torch
from torch import nn

from trimtab.core import generator
from trimtab.optim import warmup_cosine
from trimtab.train import NextToken, Sums, fit

VOCAB = 7


class Model(nn.Module):
    """Embedding, norm with running statistics, dropout, tied output."""

    def __init__(self, dropout=0.2, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 6, dtype=dtype)
        self.blocks = nn.ModuleList([nn.Linear(6, 6, dtype=dtype)])
        self.norm, self.drop, self.head = nn.BatchNorm1d(6, dtype=dtype), nn.Dropout(dropout), nn.Linear(6, VOCAB, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(self.drop(self.norm(x.flatten(0, 1)).view_as(x)))


class Plain(nn.Sequential):
    """Each row on its own, nothing random."""

    def __init__(self, dtype=torch.float32):
        super().__init__(nn.Embedding(VOCAB, 6, dtype=dtype), nn.Linear(6, 5, dtype=dtype), nn.Tanh(), nn.Linear(5, VOCAB, dtype=dtype))


class Source:
    def batch(self, seed, step, size):
        draw = generator(seed, "batch", step)
        ids = torch.randint(VOCAB, (size, 5), generator=draw)
        return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(size, 5, generator=draw) < 0.4, -100)}


def made(kind=Model, seed=0, **options):
    torch.manual_seed(seed)
    return kind(**options)


class Noisy:
    """Next-token loss on ids some of which the generator replaces."""

    def __call__(self, model, batch, draw):
        ids = batch["input_ids"]
        other = torch.randint(VOCAB, ids.shape, generator=draw)
        sums = NextToken()(model, {**batch, "input_ids": torch.where(torch.rand(ids.shape, generator=draw) < 0.1, other, ids)}, draw)
        return Sums(sums.total, sums.count, {"double": (2 * sums.total, sums.count)})


class Grow:
    """A hook that adds a block once, after a step."""

    def __init__(self, at=4):
        self.at, self.grown = at, False

    def __call__(self, moment):
        if moment.step == self.at:
            self._grow(moment.model, moment.optimizer)

    def _grow(self, model, optimizer):
        block = nn.Linear(6, 6)
        with torch.no_grad():
            block.weight.zero_()
            block.bias.zero_()
        model.blocks.append(block)
        optimizer.add_param_group({"params": list(block.parameters()), "weight_decay": 0.0})
        self.grown = True

    def state_dict(self):
        return {"grown": self.grown}

    def restore(self, model, optimizer, state):
        if state["grown"]:
            self._grow(model, optimizer)


class Drift:
    """A hook with a state that training depends on."""

    def __init__(self):
        self.best = float("inf")

    def __call__(self, moment):
        self.best = min(self.best, moment.loss)
        with torch.no_grad():
            moment.model.head.bias.mul_(1 - 0.01 * self.best)

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


def accuracy(model):
    batch = Source().batch(99, 0, 8)
    return {"accuracy": (model(batch["input_ids"]).argmax(-1) == batch["input_ids"]).float().mean().item()}


def run(folder, *hooks, model=None, source=None, objective=None, **options):
    """A run with everything switched on."""
    settings = dict(
        steps=12, batch_size=4, seed=3, lr=0.02, schedule=warmup_cosine(12, warmup=3, floor=0.1), accumulate=2, clip=0.5, average=0.9,
        evaluate=accuracy, evaluate_every=5, log_every=2, checkpoint_every=3, progress=lambda *_: None,
    )  # fmt: skip
    return fit(model or made(), objective or Noisy(), source or Source(), folder=folder, hooks=[Grow(), Drift(), *hooks], **{**settings, **options})


def contents(folder):
    """Every file of a run by name, without the times in its metrics."""
    found = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}
    if "metrics.jsonl" in found:
        found["metrics.jsonl"] = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in found["metrics.jsonl"].splitlines()]
    return found

