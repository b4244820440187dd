"""Each objective and each run here breaks one rule; the check must name that rule and no other."""

import random
import signal
import sys
import threading
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.core import UsageError, generator
from trimtab.losses import next_token_loss
from trimtab.optim import warmup_cosine
from trimtab.testing import CheckFailed, check_objective, check_resume
from trimtab.testing.training import OBJECTIVE_RULES
from trimtab.train import NextToken, Sums, WeightAverage, fit
from trimtab.train.run import Metrics

VOCAB = 6


def toy_model(dropout=0.1):
    draw = generator(0, "weights")
    model = nn.Sequential(nn.Embedding(VOCAB, 4), nn.Linear(4, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, VOCAB))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


class Source:
    def batch(self, seed, step, size):
        draw = generator(seed, "batch", step)
        ids = torch.randint(VOCAB, (size, 5), generator=draw)
        return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(size, 5, generator=draw) < 0.4, -100)}


BATCH = Source().batch(0, 0, 7)


def sums(model, batch, reduction="token"):
    return Sums(*next_token_loss(model(batch["input_ids"]), batch["labels"], reduction))


# ---- objectives


def corrupted(model, batch, draw):
    """A sound objective that is random: a batch of ids some of which are replaced."""
    ids = batch["input_ids"]
    other = torch.randint(VOCAB, ids.shape, generator=draw)
    made = sums(model, {**batch, "input_ids": torch.where(torch.rand(ids.shape, generator=draw) < 0.2, other, ids)})
    return made._replace(parts={"right": (made.total.detach(), made.count)})


class Teacher(nn.Module):
    """A sound objective that holds a model."""

    def __init__(self):
        super().__init__()
        self.teacher = toy_model().eval().requires_grad_(False)

    def forward(self, model, batch, draw):
        logits = model(batch["input_ids"])
        target = self.teacher.to(logits.dtype)(batch["input_ids"]).softmax(-1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        total = nn.functional.cross_entropy(logits.to(wide).flatten(0, 1), target.to(wide).flatten(0, 1), reduction="none")
        keep = (batch["labels"] != -100).flatten()
        return Sums((total * keep).sum(), keep.sum())


@pytest.mark.parametrize("objective", [NextToken("token"), NextToken("example"), corrupted, Teacher()])
def test_sound_objectives_pass(objective):
    check_objective(objective, toy_model(), BATCH)


def test_other_batches_pass():
    class Named(UserDict):  # as tokenizers make them
        x = property(lambda self: self["x"])

    def squares(error):
        return Sums(error.square().sum(dtype=torch.promote_types(error.dtype, torch.float32)), torch.tensor(len(error)))

    check_objective(lambda model, batch, draw: squares(model(batch[0]) - batch[1]), nn.Linear(3, 1), (torch.randn(5, 3), torch.randn(5, 1)))
    check_objective(lambda model, batch, draw: squares(model(batch)), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.randn(5, 3))
    check_objective(lambda model, batch, draw: squares(model(batch.x)), nn.Linear(3, 1), Named(x=torch.randn(5, 3), temperature=torch.ones(()), name="a"))


def planted(rule, bugs):
    def mark(bug):
        bugs[bug.__name__] = (bug, rule)
        return bug

    return mark


OBJECTIVES, RUNS = {}, {}


@planted("it returns sums and counts", OBJECTIVES)
def only_the_loss(model, batch, draw):
    return sums(model, batch).total


@planted("it returns sums and counts", OBJECTIVES)
def a_loss_per_row(model, batch, draw):
    return Sums(model(batch["input_ids"]).square().sum((1, 2)), torch.tensor(7))


@planted("it returns sums and counts", OBJECTIVES)
def a_count_that_is_a_number(model, batch, draw):
    return Sums(sums(model, batch).total, 7)


@planted("it returns sums and counts", OBJECTIVES)
def a_part_without_its_count(model, batch, draw):
    made = sums(model, batch)
    return made._replace(parts={"token": made.total})


@planted("it returns sums and counts", OBJECTIVES)
def a_gradient_that_was_cut_off(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total.detach())


@planted("it returns sums and counts", OBJECTIVES)
def not_a_number(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total * float("nan"))


@planted("it returns sums and counts", OBJECTIVES)
def nothing_counted(model, batch, draw):
    made = sums(model, batch)
    return made._replace(count=made.count * 0)


@planted("parts have names of their own", OBJECTIVES)
def a_part_called_loss(model, batch, draw):
    made = sums(model, batch)
    return made._replace(parts={"loss": (made.total, made.count)})


@planted("no global random state", OBJECTIVES)
def noise_from_torch(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total * torch.rand(()))


@planted("no global random state", OBJECTIVES)
def noise_from_numpy(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total * float(np.random.rand()))


@planted("no global random state", OBJECTIVES)
def noise_from_python(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total * random.random())


@planted("no global random state", OBJECTIVES)
def seeds_the_world(model, batch, draw):
    torch.manual_seed(0)
    return sums(model, batch)


@planted("no global random state", OBJECTIVES)
def reads_the_state_and_puts_it_back(model, batch, draw):
    with torch.random.fork_rng():
        noise = torch.rand(())
    made = sums(model, batch)
    return made._replace(total=made.total * noise)


@planted("the generator decides the draws", OBJECTIVES)
def noise_of_its_own(model, batch, draw, own=np.random.default_rng(0)):  # noqa: B008
    made = sums(model, batch)
    return made._replace(total=made.total * own.random())


@planted("the batch is left alone", OBJECTIVES)
def writes_to_the_batch(model, batch, draw):
    made = sums(model, batch)
    batch["labels"].masked_fill_(batch["labels"] == 1, -100)
    return made


@planted("the batch is left alone", OBJECTIVES)
def takes_from_the_batch(model, batch, draw):
    made = sums(model, batch)
    batch["mask"] = batch["labels"] != -100
    return made


@planted("the model is left alone", OBJECTIVES)
def puts_the_model_in_eval_mode(model, batch, draw):
    return sums(model.eval(), batch)


@planted("the model is left alone", OBJECTIVES)
def changes_a_weight(model, batch, draw):
    made = sums(model, batch)
    model[4].bias.data.mul_(0.99)
    return made


@planted("the model is left alone", OBJECTIVES)
def calls_backward(model, batch, draw):
    made = sums(model, batch)
    made.total.backward(retain_graph=True)
    return made


@planted("the model is left alone", OBJECTIVES)
def freezes_a_weight(model, batch, draw):
    model[0].weight.requires_grad_(False)
    return sums(model, batch)


@planted("halves add up", OBJECTIVES)
def the_mean_instead_of_the_sum(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total / made.count)


@planted("halves add up", OBJECTIVES)
def the_mean_of_a_random_one(model, batch, draw):
    made = corrupted(model, batch, draw)
    return Sums(made.total / made.count, made.count)


@planted("halves add up", OBJECTIVES)
def a_count_of_one(model, batch, draw):
    made = sums(model, batch)
    return Sums(made.total / made.count, torch.tensor(1))


@planted("halves add up", OBJECTIVES)
def a_part_that_is_a_mean(model, batch, draw):
    made = sums(model, batch)
    return made._replace(parts={"token": (made.total / made.count, made.count)})


@planted("what is masked adds nothing", OBJECTIVES)
def counts_what_is_masked(model, batch, draw):
    made = sums(model, batch)
    return made._replace(count=torch.tensor(float(batch["labels"].numel())))


@planted("what is masked adds nothing", OBJECTIVES)
def counts_rows_without_labels(model, batch, draw):
    made = sums(model, batch, "example")
    return made._replace(count=made.count + (batch["labels"][:, 1:] == -100).all(1).sum().clamp(max=1))


@planted("no narrow sums", OBJECTIVES)
def sums_in_the_models_type(model, batch, draw):
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    target = batch["labels"][:, 1:].flatten()
    return Sums(nn.functional.cross_entropy(logits, target, reduction="sum"), (target != -100).sum())


@planted("no narrow sums", OBJECTIVES)
def counts_in_the_models_type(model, batch, draw):
    made = sums(model, batch)
    return made._replace(count=made.count.to(model[1].weight.dtype))


@planted("no narrow sums", OBJECTIVES)
def always_float32(model, batch, draw):
    return Sums(*next_token_loss(model(batch["input_ids"]).float(), batch["labels"]))


@planted("halves add up", OBJECTIVES)
def rounds_on_the_way(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total.bfloat16().to(made.total.dtype))


@planted("the gradient is the total's", OBJECTIVES)
def a_term_that_is_detached(model, batch, draw):
    made = sums(model, batch)
    return made._replace(total=made.total + model(batch["input_ids"]).detach().square().sum(-1)[batch["labels"] != -100].sum())


@pytest.mark.parametrize(("bug", "rule"), OBJECTIVES.values(), ids=OBJECTIVES)
def test_each_planted_objective_is_found_by_its_rule(bug, rule):
    with pytest.raises(CheckFailed) as caught:
        check_objective(bug, toy_model(), BATCH)
    assert caught.value.rule == rule


def test_every_rule_has_a_bug():
    assert {rule for _, rule in OBJECTIVES.values()} == set(OBJECTIVE_RULES)


def test_a_rule_that_does_not_apply_is_skipped_with_its_reason():
    def contrast(model, batch, draw):  # each row against the others
        logits = model(batch["input_ids"])[:, 0]
        return Sums((logits @ logits.T).logsumexp(1).sum(), torch.tensor(len(logits)))

    with pytest.raises(CheckFailed, match=r"the sum over its halves: a sum, not a mean, saw .* for all and .* for 2 and 5 rows"):
        check_objective(contrast, toy_model(), {"input_ids": BATCH["input_ids"]})
    wide = {"halves add up": "rows are compared with each other", "no narrow sums": "likewise"}
    check_objective(contrast, toy_model(), {"input_ids": BATCH["input_ids"]}, skip=wide)
    with pytest.raises(UsageError, match="unknown rule 'halves add'; did you mean 'halves add up'"):
        check_objective(contrast, toy_model(), BATCH, skip={"halves add": "no"})


@pytest.mark.parametrize("batch", [{"a": torch.ones(1, 2)}, {}, {"a": torch.ones(2, 2), "b": torch.ones(3)}])
def test_batches_that_cannot_be_halved(batch):
    with pytest.raises(UsageError, match="batch must have tensors with the same number of rows, at least two"):
        check_objective(NextToken(), toy_model(), batch)


def test_the_model_and_the_random_state_are_the_callers():
    model = toy_model()
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    check_objective(NextToken(), model, BATCH)
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


# ---- runs


class Grow(nn.Module):
    """A hook that adds a layer once."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grown", torch.tensor(False))

    def __call__(self, moment):
        if moment.step == 3:
            self.grow(moment.model, moment.optimizer)

    def grow(self, model, optimizer):
        model.insert(1, nn.Linear(4, 4))
        nn.init.eye_(model[1].weight)
        optimizer.add_param_group({"params": list(model[1].parameters())})
        self.grown.fill_(True)

    def restore(self, model, optimizer, state):
        if state["grown"]:
            self.grow(model, optimizer)


class Best:
    """A hook that keeps a number and acts on it."""

    def __init__(self):
        self.best = float("inf")

    def __call__(self, moment):
        self.best = min(self.best, moment.loss)
        if moment.loss > self.best:
            with torch.no_grad():
                moment.model[-1].bias.mul_(1 - 0.01 * self.best)

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


def train(folder, interrupt, *hooks, **change):
    settings = dict(
        objective=NextToken(), source=Source(), steps=8, batch_size=3, lr=0.05, average=0.8, schedule=warmup_cosine(8, warmup=2), log_every=2, accumulate=2,
        evaluate=lambda model: {"size": sum(p.square().sum().item() for p in model.parameters())}, progress=lambda *_: None,
    )  # fmt: skip
    return fit(toy_model(), folder=folder, hooks=[*hooks, interrupt], **{**settings, **change})


@pytest.mark.parametrize("every", [None, 3])
def test_a_sound_run_passes(every):
    check_resume(lambda folder, interrupt: train(folder, interrupt, Best(), checkpoint_every=every))


def test_a_hook_that_grows_the_model_once_passes():
    check_resume(lambda folder, interrupt: train(folder, interrupt, Grow(), Best()), at=range(1, 8))


def test_a_data_loader_passes():
    loader = [Source().batch(0, n, 3) for n in range(5)]
    check_resume(lambda folder, interrupt: train(folder, interrupt, source=loader, batch_size=None))


@planted("the same metrics", RUNS)
def hook_state_lost(monkeypatch):
    monkeypatch.delattr(Best, "load_state_dict")
    return lambda folder, interrupt: train(folder, interrupt, Best())


@planted("the same state", RUNS)
def hook_state_lost_that_training_does_not_see(monkeypatch):
    class Count:
        calls = 0

        def __call__(self, moment):
            self.calls += 1

        def state_dict(self):
            return {"calls": self.calls}

    return lambda folder, interrupt: train(folder, interrupt, Count())


@planted("the same metrics", RUNS)
def hook_that_acts_on_a_state_it_does_not_save(monkeypatch):
    class Forgetful:
        calls = 0

        def __call__(self, moment):
            self.calls += 1
            with torch.no_grad():
                moment.model[-1].bias.add_(0.01 * self.calls)

    return lambda folder, interrupt: train(folder, interrupt, Forgetful())


@planted("the same metrics", RUNS)
def schedule_that_counts_its_own_calls(monkeypatch):
    class Counting:
        calls = 0

        def __call__(self, step):
            self.calls += 1
            return 1 / self.calls

    return lambda folder, interrupt: train(folder, interrupt, schedule=Counting())


@planted("the same metrics", RUNS)
def objective_with_global_random_state(monkeypatch):
    def noisy(model, batch, draw):
        made = NextToken()(model, batch, draw)
        return made._replace(total=made.total * (1 + random.random()))

    return lambda folder, interrupt: train(folder, interrupt, objective=noisy)


@planted("the same metrics", RUNS)
def source_with_a_position_of_its_own(monkeypatch):
    class Running:
        def __init__(self):
            self.calls = 0

        def batch(self, seed, step, size):
            self.calls += 1
            return Source().batch(seed, self.calls, size)

    return lambda folder, interrupt: train(folder, interrupt, source=Running())


@planted("the same metrics", RUNS)
def iterable_in_another_order_each_time(monkeypatch):
    class Shuffled:
        def __iter__(self):
            return iter(random.sample([Source().batch(0, n, 3) for n in range(9)], 9))

    return lambda folder, interrupt: train(folder, interrupt, source=Shuffled(), batch_size=None)


@planted("the same metrics", RUNS)
def optimizer_state_lost(monkeypatch):
    class Forgetful(torch.optim.Adam):
        def load_state_dict(self, state):
            pass

    return lambda folder, interrupt: train(folder, interrupt, optimizer=Forgetful, lr=1e-3)


@planted("the same metrics", RUNS)
def averaged_weights_lost(monkeypatch):
    monkeypatch.setattr(WeightAverage, "load_state_dict", lambda self, state, model: None)
    return train


@planted("the same metrics", RUNS)
def metrics_written_twice(monkeypatch):
    def append(self, path, lines):
        self.path, self.lines, self.seconds, self._file = path, lines, 0.0, path.open("a")

    monkeypatch.setattr(Metrics, "__init__", append)
    return train


@planted("it resumes", RUNS)
def growth_that_is_not_restored(monkeypatch):
    monkeypatch.delattr(Grow, "restore")
    return lambda folder, interrupt: train(folder, interrupt, Grow())


@planted("the same metrics", RUNS)
def wrong_random_state_for_dropout(monkeypatch):
    for module in ("trimtab.train.fit", "trimtab.train.batches"):
        monkeypatch.setattr(sys.modules[module], "seed_global", lambda seed, device: None)
    return train


@planted("it can be interrupted", RUNS)
def interrupt_not_handed_on(monkeypatch):
    return lambda folder, interrupt: train(folder, lambda moment: None)


@planted("a finished run is only read", RUNS)
def trains_again(monkeypatch):
    def again(folder, interrupt):
        for path in folder.glob("*"):
            path.unlink()
        return train(folder, interrupt)

    return again


@planted("the same files", RUNS)
def leaves_a_file_behind(monkeypatch):
    def leave(folder, interrupt):
        if (folder / "metrics.jsonl").exists() and not (folder / "model.safetensors").exists():
            (folder / "resumed").write_text("")
        return train(folder, interrupt)

    return leave


@pytest.mark.parametrize(("plant", "rule"), RUNS.values(), ids=RUNS)
def test_each_planted_run_is_found_by_its_rule(plant, rule, monkeypatch):
    run = plant(monkeypatch)
    with pytest.raises(CheckFailed) as caught:
        check_resume(run, at=(4,))
    assert caught.value.rule == rule


def test_says_what_differs_and_where_it_was_stopped(monkeypatch):
    said = r"the same state: expected hooks/0/calls = 8 in checkpoint-000000008.safetensors of a run stopped after step 1 and killed after step 4, saw 7"
    with pytest.raises(CheckFailed, match=said):
        check_resume(hook_state_lost_that_training_does_not_see(monkeypatch))
    with pytest.raises(CheckFailed, match=r"expected 2/lr = 0.0083\d* in metrics.jsonl of a run stopped after step 5 and killed after step 6, saw 0.05"):
        check_resume(schedule_that_counts_its_own_calls(monkeypatch), at=[5])


@pytest.mark.parametrize("at", [[], [0], [8], [3, 9]])
def test_steps_out_of_range(at):
    with pytest.raises(UsageError, match="at must hold steps from 1 to 7"):
        check_resume(train, at=at)


def test_only_where_ctrl_c_is_seen(tmp_path):
    seen = []

    def other():
        with pytest.raises(UsageError, match="main thread"):
            check_resume(train)
        seen.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    own = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        other()
    finally:
        signal.signal(signal.SIGINT, own)
    assert seen == [True, True]


def test_runs_where_it_is_told_to(tmp_path):
    check_resume(train, at=[7], folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped-7", "whole"]
