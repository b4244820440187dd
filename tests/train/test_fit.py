import json
import logging
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from tests.train.toys import VOCAB, Drift, Grow, Model, Noisy, Plain, Source, accuracy, contents, made, run
from trimtab.core import FolderInUse, UsageError, generator
from trimtab.losses import next_token_loss
from trimtab.optim import param_groups, warmup_cosine
from trimtab.train import NextToken, NonFiniteLoss, Sums, fit

QUIET = {"progress": lambda *_: None}
DATA = {"source": Source(), "batch_size": 4, "steps": 8, **QUIET}


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def close(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], **tolerance)


def test_equals_a_loop_written_by_hand(tmp_path):
    schedule = warmup_cosine(8, warmup=3)
    by_hand, norms, losses = made(Plain, dtype=torch.float64), [], []
    optimizer = torch.optim.AdamW(param_groups(by_hand, 0.1), lr=0.05, betas=(0.8, 0.9))
    for step in range(8):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * schedule(step)
        batch = Source().batch(5, step, 4)
        total, count = next_token_loss(by_hand(batch["input_ids"]), batch["labels"], "token")
        optimizer.zero_grad()
        (total / count).backward()
        norms.append(float(nn.utils.clip_grad_norm_(by_hand.parameters(), 0.3)))
        optimizer.step()
        losses.append(float((total / count).detach()))
    assert min(norms) > 0.3  # clipping had something to do
    model = made(Plain, dtype=torch.float64)
    options = {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "schedule": schedule, "clip": 0.3}
    result = fit(model, NextToken("token"), folder=tmp_path, seed=5, log_every=1, **options, **DATA)
    close(weights(model), weights(by_hand), rtol=1e-9, atol=1e-12)
    assert [line["loss"] for line in result.metrics()] == pytest.approx(losses)
    assert [line["grad_norm"] for line in result.metrics()] == pytest.approx(norms)
    assert [line["lr"] for line in result.metrics()] == pytest.approx([0.05 * schedule(step) for step in range(8)])


def test_a_gradient_within_the_clip_is_left_alone(tmp_path):
    def sgd(parameters):  # takes the gradient as it is, where AdamW would hide its scale
        return torch.optim.SGD(parameters, lr=0.1)

    models = [made(Plain, dtype=torch.float64) for _ in range(2)]
    for model, clip in zip(models, (1e6, None), strict=True):
        fit(model, NextToken(), folder=tmp_path / str(clip), optimizer=sgd, clip=clip, **DATA)
    close(weights(models[0]), weights(models[1]), rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["token", "example"])
def test_accumulated_batches_equal_one_large_one(tmp_path, reduction):
    class Whole(Source):
        def batch(self, seed, step, size):
            parts = [super(Whole, self).batch(seed, 3 * step + i, size // 3) for i in range(3)]
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    one, many = made(Plain, dtype=torch.float64), made(Plain, dtype=torch.float64)
    shared = {"steps": 6, "lr": 0.05, "log_every": 1, **QUIET}
    a = fit(one, NextToken(reduction), Whole(), folder=tmp_path / "one", batch_size=12, **shared)
    b = fit(many, NextToken(reduction), Source(), folder=tmp_path / "many", batch_size=4, accumulate=3, **shared)
    close(weights(one), weights(many), rtol=1e-9, atol=1e-12)
    for x, y in zip(a.metrics(), b.metrics(), strict=True):
        assert {k: v for k, v in x.items() if k != "seconds"} == pytest.approx({k: v for k, v in y.items() if k != "seconds"})


def test_a_line_is_the_mean_over_its_steps_by_count(tmp_path):
    single = fit(made(Plain), Noisy(), folder=tmp_path / "a", log_every=1, **DATA).metrics()
    grouped = fit(made(Plain), Noisy(), folder=tmp_path / "b", log_every=3, **DATA).metrics()
    assert [line["step"] for line in grouped] == [3, 6, 8]
    counts = [float((Source().batch(0, step, 4)["labels"][:, 1:] != -100).any(1).sum()) for step in range(8)]
    for line, steps in zip(grouped, (range(3), range(3, 6), range(6, 8)), strict=True):
        mean = sum(single[i]["loss"] * counts[i] for i in steps) / sum(counts[i] for i in steps)
        assert line["loss"] == pytest.approx(mean)
        assert line["double"] == pytest.approx(2 * mean)
        assert line["grad_norm"] == pytest.approx(sum(single[i]["grad_norm"] for i in steps) / len(steps))


def test_averaged_weights_are_the_weighted_mean_of_those_after_each_step(tmp_path):
    seen = []
    result = fit(made(), NextToken(), folder=tmp_path, average=0.7, lr=0.1, hooks=[lambda m: seen.append(weights(m.model))], **DATA)
    shares = torch.tensor([0.7 ** (7 - i) for i in range(8)], dtype=torch.float64)
    for name, value in result.averaged.state_dict().items():
        if value.is_floating_point():
            expected = (torch.stack([s[name].double() for s in seen], -1) * shares / shares.sum()).sum(-1)
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-6)
        else:
            assert value == 8  # batches that the norm has counted
    assert result.averaged.head.weight is result.averaged.embed.weight
    assert not result.averaged.training and not result.model.training
    close(weights(result.model), seen[-1], rtol=0, atol=0)
    assert fit(made(), NextToken(), folder=tmp_path / "none", **DATA).averaged is None


def test_evaluation_sees_averaged_weights_and_changes_nothing(tmp_path):
    seen = []

    def look(model):
        assert not model.training and not torch.is_grad_enabled()
        torch.rand(3)
        seen.append(weights(model))
        return {"answer": torch.tensor(42.0)}

    frozen = made()
    plain = fit(made(), NextToken(), folder=tmp_path / "a", average=0.7, **DATA)
    looked = fit(frozen, NextToken(), folder=tmp_path / "b", average=0.7, evaluate=look, evaluate_every=3, **DATA)
    close(weights(plain.model), weights(looked.model), rtol=0, atol=0)
    assert [line["step"] for line in looked.metrics() if "answer" in line] == [3, 6, 8]
    close(seen[-1], weights(looked.averaged), rtol=0, atol=0)
    assert not torch.equal(seen[-1]["embed.weight"], looked.model.embed.weight)


def test_a_model_in_eval_mode_is_trained_all_the_same(tmp_path):
    fit(made(), NextToken(), folder=tmp_path / "a", **DATA)
    fit(made().eval(), NextToken(), folder=tmp_path / "b", **DATA)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_evaluation_leaves_the_mode_of_each_part(tmp_path):
    modes = []

    def freeze(moment):
        modes.append((moment.model.training, moment.model.norm.training))
        moment.model.norm.eval()

    fit(made(), NextToken(), folder=tmp_path, evaluate=accuracy, evaluate_every=1, hooks=[freeze], **DATA)
    assert modes == [(True, True)] + [(True, False)] * 7


def test_random_state_is_the_callers_and_the_run_does_not_depend_on_it(tmp_path):
    a = fit(made(), Noisy(), folder=tmp_path / "a", **DATA)
    model = made()
    torch.manual_seed(77)
    before = torch.get_rng_state()
    b = fit(model, Noisy(), folder=tmp_path / "b", **DATA)
    assert torch.equal(before, torch.get_rng_state())
    close(weights(a.model), weights(b.model), rtol=0, atol=0)
    c = fit(made(), Noisy(), folder=tmp_path / "c", seed=1, **DATA)
    assert not torch.equal(a.model.embed.weight, c.model.embed.weight)


def test_dropout_differs_between_steps_and_batches(tmp_path):
    masks = []

    class Keep(nn.Dropout):
        def forward(self, x):
            masks.append(super().forward(torch.ones(50)))
            return x

    model = made(Plain)
    model.append(Keep(0.5))
    fit(model, NextToken(), Source(), folder=tmp_path, batch_size=4, steps=3, accumulate=2, **QUIET)
    assert len({tuple(mask.tolist()) for mask in masks}) == 6


def test_the_generator_is_a_function_of_seed_step_and_batch(tmp_path):
    seen = []

    def objective(model, batch, draw):
        seen.append(torch.rand(2, generator=draw).tolist())
        return NextToken()(model, batch, draw)

    fit(made(Plain), objective, Source(), folder=tmp_path, batch_size=2, steps=3, accumulate=2, seed=9, **QUIET)
    assert seen == [torch.rand(2, generator=generator(9, "objective", step, i)).tolist() for step in range(3) for i in range(2)]


def test_hooks_are_called_after_each_step_with_what_was_logged(tmp_path):
    moments = []
    model = made(Plain)
    result = fit(model, NextToken(), folder=tmp_path, log_every=3, evaluate=accuracy, evaluate_every=4, hooks=[moments.append], **DATA)
    assert [m.step for m in moments] == list(range(1, 9))
    assert {m.steps for m in moments} == {8} and all(m.model is model for m in moments)
    assert [m.line for m in moments if m.line] == result.metrics()
    assert sorted(result.metrics()[0]) == ["grad_norm", "loss", "lr", "seconds", "step"]
    assert sorted(result.metrics()[1]) == ["accuracy", "seconds", "step"]


def test_progress_is_called_at_log_times(tmp_path):
    seen = []
    fit(made(Plain), NextToken(), **{**DATA, "progress": lambda *args: seen.append(args)}, folder=tmp_path, log_every=5)
    assert [(step, steps, values["step"]) for step, steps, values in seen] == [(5, 8, 5), (8, 8, 8)]


def blowing_up(at, how):
    """An objective that goes wrong in its nth call."""
    calls = []

    def objective(model, batch, draw):
        calls.append(1)
        sums = NextToken()(model, batch, draw)
        if len(calls) != at:
            return sums
        if how == "count":
            return Sums(sums.total * 0, sums.count * 0)
        bad = {"nan": sums.total * math.nan, "inf": sums.total * math.inf, "gradient": sums.total + (sums.total * 0).sqrt()}[how]
        return Sums(bad, sums.count)

    return objective


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
def test_a_loss_that_is_not_finite_stops_before_the_step(tmp_path, how):
    before = []
    model = made(Plain)
    with pytest.raises(NonFiniteLoss, match=r"in step 4; .*source.batch\(7, 6, 4\) and source.batch\(7, 7, 4\).*lower rate \(now 0.001\).*clip \(now 1.0\)"):
        fit(model, blowing_up(7, how), folder=tmp_path, seed=7, accumulate=2, hooks=[lambda m: before.append(weights(m.model))], **DATA)
    assert len(before) == 3
    close(weights(model), before[-1], rtol=0, atol=0)


def test_a_step_that_counts_nothing_leaves_the_weights_and_says_so(tmp_path, caplog):
    seen = []
    result = fit(made(Plain), blowing_up(3, "count"), folder=tmp_path, log_every=1, hooks=[lambda m: seen.append(weights(m.model))], **DATA)
    assert "step 3 left the weights as they are: the objective counted nothing in source.batch(0, 2, 4)" in caplog.text
    close(seen[1], seen[2], rtol=0, atol=0)
    assert not torch.equal(seen[2]["0.weight"], seen[3]["0.weight"])
    assert [line["loss"] is None for line in result.metrics()] == [line["grad_norm"] is None for line in result.metrics()] == [i == 2 for i in range(8)]


def test_an_empty_batch_beside_a_full_one_is_fine(tmp_path):
    result = fit(made(Plain), blowing_up(3, "count"), folder=tmp_path, accumulate=2, log_every=1, **DATA)
    assert all(line["loss"] > 0 for line in result.metrics())


def test_a_finished_run_comes_back_without_training(tmp_path, monkeypatch):
    first = run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}

    def trained_again(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(Noisy, "__call__", trained_again)
    again = run(tmp_path)
    close(weights(first.model), weights(again.model), rtol=0, atol=0)
    close(weights(first.averaged), weights(again.averaged), rtol=0, atol=0)
    assert len(again.model.blocks) == 2  # the hook grew it again
    assert again.metrics() == first.metrics()
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 9}, "steps is 8 there and 9 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"lr": 0.5}, r"optimizer.groups\[0\].lr is 0.001 there and 0.5 here; optimizer.groups\[1\].lr is 0.001 there and 0.5 here\. Call"),
        ({"clip": None}, "clip is 1.0 there and None here"),
        ({"accumulate": 2, "average": 0.5}, "accumulate is 1 there and 2 here; average is None there and 0.5 here"),
        ({"schedule": warmup_cosine(8)}, "schedule is None there and .*WarmupCosine.steps=8"),
        ({"hooks": [Grow()]}, r"hooks is \[\] there and .*Grow object"),
        ({"hooks": [Drift()]}, r"hooks is \[\] there and .*Drift object"),
        ({"autocast": torch.bfloat16}, "autocast is None there and 'torch.bfloat16' here"),
    ],
)
def test_other_settings_are_named(tmp_path, change, message):
    fit(made(Plain), NextToken(), folder=tmp_path, **DATA)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"holds a run of other settings: {message}"):
        fit(made(Plain), NextToken(), folder=tmp_path, **{**DATA, **change})
    assert contents(tmp_path) == before


def test_other_model_objective_and_source_are_named(tmp_path):
    fit(made(Plain), NextToken(), folder=tmp_path, **DATA)
    for model, objective, source, message in (
        (made(), NextToken(), Source(), "model is 'Plain with .* parameters.* there and 'Model with"),
        (made(Plain), NextToken("token"), Source(), "objective is .*example.* there and .*token"),
        (made(Plain), NextToken(), type("Other", (Source,), {})(), "source is .*Source object.* there and .*Other object"),
    ):
        with pytest.raises(UsageError, match=message):
            fit(model, objective, source, folder=tmp_path, steps=8, batch_size=4, **QUIET)


def test_one_process_at_a_time(tmp_path):
    with pytest.raises(FolderInUse, match="in use by process"):
        fit(made(Plain), NextToken(), folder=tmp_path, hooks=[lambda m: fit(made(Plain), NextToken(), folder=tmp_path, **DATA)], **DATA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number >= 1, got 2.5"),
        ({"steps": True}, "steps must be a whole number >= 1, got True"),
        ({"seed": False}, "seed must be a whole number >= 0, got False"),
        ({"accumulate": True}, "accumulate must be a whole number >= 1, got True"),
        ({"log_every": "2"}, "log_every must be a whole number >= 1, got '2'"),
        ({"checkpoint_every": 1.5}, "checkpoint_every must be a whole number >= 1, got 1.5"),
        ({"objective": NextToken}, "objective must be a callable object, such as NextToken.., and no class, got <class"),
        ({"objective": None}, "objective must be a callable object"),
        ({"source": Source}, "source must be an object, and no class, got <class"),
        ({"folder": "a\udcff"}, "folder must be a path in UTF-8"),
        ({"folder": None}, "folder must be a path in UTF-8, .* got None"),
        ({"model": Plain}, "model must be a torch.nn.Module, got <class"),
        ({"clip": "1"}, "clip must be a finite number > 0, or None, got '1'"),
        ({"average": "0.9"}, "average must lie between 0 and 1, got '0.9'"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0 and finite, got -0.1"),
        ({"weight_decay": math.inf}, "weight_decay must be >= 0 and finite, got inf"),
        ({"weight_decay": None}, "weight_decay must be >= 0 and finite, got None"),
        ({"lr": "0.1"}, "lr must be a finite number >= 0, got '0.1'"),
        ({"schedule": 0.5}, "schedule must be a callable of the step, or None, got 0.5"),
        ({"evaluate": 1, "evaluate_every": 2}, "evaluate must be a callable of the model, or None, got 1"),
        ({"hooks": print}, "hooks must be a sequence of callables, got <built-in"),
        ({"hooks": [None]}, r"hooks must be a sequence of callables, got \[None\]"),
        ({"progress": True}, "progress must be a callable of .step, steps, line., or None, got True"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1"),
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"lr": math.nan}, "lr must be a finite number >= 0, got nan"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"seed": "0"}, "seed must be a whole number >= 0, got '0'"),
        ({"accumulate": 0}, "accumulate must be a whole number >= 1"),
        ({"clip": 0.0}, "clip must be a finite number > 0, or None, got 0.0"),
        ({"clip": math.inf}, "clip must be a finite number"),
        ({"average": 1.0}, "average must lie between 0 and 1, got 1.0"),
        ({"evaluate_every": 5}, "evaluate_every must be left out where there is no evaluate, got 5"),
        ({"checkpoint_every": 0}, "checkpoint_every must be"),
        ({"log_every": 0}, "log_every must be"),
        ({"autocast": torch.float16}, "autocast must be torch.bfloat16 or None"),
        ({"batch_size": None}, "batch_size must be given for a source with batch"),
        ({"source": 3}, "source must have batch.* or be iterable, got int"),
        ({"source": [{}]}, "batch_size must be left out for an iterable"),
        ({"device": "abacus"}, "device must be one that this machine has .cpu.*got 'abacus'"),
        ({"device": "mps"}, "got 'mps'"),
        ({"weight_decay": -1}, "weight_decay must be >= 0"),
    ],
)
def test_arguments_that_are_not_allowed(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        fit(**{"model": made(Plain), "objective": NextToken(), "folder": tmp_path, **DATA, **change})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("lr", [np.float32(0.01), torch.tensor(0.01)])
def test_rates_of_other_types_of_number(tmp_path, lr):
    assert fit(made(Plain), NextToken(), folder=tmp_path, **{**DATA, "lr": lr}).metrics()[-1]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["model.safetensors", "averaged.safetensors", "metrics.jsonl"])
def test_files_of_something_else_are_never_written_over(tmp_path, name):
    (tmp_path / name).write_bytes(b"somebody's work")
    with pytest.raises(UsageError, match=f"folder must be empty or hold a run of fit, got .* with {name} of something else"):
        fit(made(Plain), NextToken(), folder=tmp_path, **DATA)
    assert (tmp_path / name).read_bytes() == b"somebody's work" and not (tmp_path / "run.json").exists()


def test_a_finished_run_whose_checkpoint_is_gone_is_not_trained_over(tmp_path):
    fit(made(Plain), NextToken(), folder=tmp_path, **DATA)
    for path in tmp_path.glob("checkpoint-*"):
        path.unlink()
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"holds a finished run without its checkpoint, and fit would train over its model.safetensors"):
        fit(made(Plain), NextToken(), folder=tmp_path, **DATA)
    assert contents(tmp_path) == before


def test_a_run_that_failed_before_its_first_step_does_not_keep_its_folder(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(made(Plain), lambda *_: 1 / 0, folder=tmp_path, **DATA)
    assert fit(made(Plain), NextToken(), folder=tmp_path, **DATA).steps == 8


class Rows:
    """A source as users write it: no repr, a setting, and a counter that is none."""

    def __init__(self, size):
        self.size, self._calls = size, 0

    def batch(self, seed, step, size):
        self._calls += 1
        return Source().batch(seed, step, self.size)


def test_objects_without_a_repr_are_told_apart_by_their_settings(tmp_path):
    own, settings = Rows(3), {**DATA, "batch_size": 3}
    for source in (own, own, Rows(3)):
        assert fit(made(Plain), NextToken(), folder=tmp_path, **{**settings, "source": source}).steps == 8
    assert own._calls == 8
    with pytest.raises(UsageError, match=r"other settings: source.size is 3 there and 4 here\. Call"):
        fit(made(Plain), NextToken(), folder=tmp_path, **{**settings, "source": Rows(4)})


def test_a_hook_without_state_may_come_and_go(tmp_path):
    fit(made(Plain), NextToken(), folder=tmp_path, hooks=[lambda moment: None], **DATA)
    assert fit(made(Plain), NextToken(), folder=tmp_path, **DATA).steps == 8


@pytest.mark.parametrize("last", [8, 3])
def test_weights_that_a_step_has_spoilt_are_not_saved(tmp_path, last):
    def spoil(moment):
        if moment.step == last:
            with torch.no_grad():
                next(moment.model.parameters())[0, 0] = math.inf

    settings = {**DATA, "checkpoint_every": last}
    with pytest.raises(NonFiniteLoss, match=rf"after step {last} the weight 0.weight is not finite.*source.batch\(0, {last - 1}, 4\).*lower rate"):
        fit(made(Plain), NextToken(), folder=tmp_path, hooks=[spoil], **settings)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == (["checkpoint-000000007.safetensors"] if last == 8 else [])


@pytest.mark.parametrize("crashes", [False, True])
def test_an_optimizer_of_ones_own_has_its_rate_back(tmp_path, crashes):
    def crash(moment):
        assert moment.step != 5 or moment.optimizer.param_groups[0]["lr"] < 0.1
        if crashes and moment.step == 5:
            raise ZeroDivisionError

    model = made(Plain)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError) if crashes else nullcontext():
        fit(model, NextToken(), folder=tmp_path / "a", optimizer=own, schedule=warmup_cosine(8, warmup=2), hooks=[crash], **DATA)
    assert own.param_groups[0]["lr"] == 0.1 and "initial_lr" not in own.param_groups[0]
    if not crashes:  # nor does taking up a finished run change it
        fit(model, NextToken(), folder=tmp_path / "a", optimizer=own, schedule=warmup_cosine(8, warmup=2), **DATA)
        assert own.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("batch", [(torch.zeros(2, 3), torch.zeros(2, 3)), {"ids": torch.zeros(2, 3)}])
def test_batches_of_another_form_are_refused_in_words(tmp_path, batch):
    with pytest.raises(UsageError, match=r"batch must be a mapping with input_ids and labels, got (tuple|one with ids); make one in the loader's collate_fn"):
        fit(made(Plain), NextToken(), [batch], folder=tmp_path, steps=1, **QUIET)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda m, b, g: NextToken()(m, b, g).total, "must return Sums.total, count., two tensors, got Tensor"),
        (lambda m, b, g: Sums(NextToken()(m, b, g).total, 4), "got Sums of Tensor and int"),
        (lambda m, b, g: Sums(m(b["input_ids"]), torch.tensor(4)), r"no dimensions and needs a gradient, got shape \(4, 5, 7\)"),
        (lambda m, b, g: NextToken()(m, b, g)._replace(total=torch.zeros(())), "requires_grad=False"),
        (lambda m, b, g: NextToken()(m, b, g)._replace(parts={"loss": (torch.zeros(()), torch.ones(()))}), "objective must not use the names of .* got loss"),
        (lambda m, b, g: Sums(torch.ones((), requires_grad=True), torch.ones(())), "no parameter of the optimizer got a gradient"),
    ],
)
def test_objectives_that_are_none(tmp_path, objective, message):
    with pytest.raises(UsageError, match=message):
        fit(made(Plain), objective, folder=tmp_path, **DATA)


def test_evaluate_may_not_take_the_name_of_the_loss(tmp_path):
    with pytest.raises(UsageError, match=r"evaluate must not use .* got loss"):
        fit(made(Plain), NextToken(), folder=tmp_path, evaluate=lambda model: {"loss": 1.0}, **DATA)


def test_metrics_hold_no_nan(tmp_path):
    result = fit(made(Plain), NextToken(), folder=tmp_path, evaluate=lambda model: {"a": math.nan, "b": math.inf, "c": 1}, **DATA)
    assert [result.metrics()[-1][name] for name in "abc"] == [None, None, 1]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_an_optimizer_of_ones_own(tmp_path):
    a = fit(made(Plain), NextToken(), folder=tmp_path / "a", optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), **DATA)
    model = made(Plain)
    b = fit(model, NextToken(), folder=tmp_path / "b", optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **DATA)
    close(weights(a.model), weights(b.model), rtol=0, atol=0)
    settings = json.loads((tmp_path / "a" / "run.json").read_text())["settings"]["optimizer"]
    assert settings["class"] == "SGD" and settings["groups"][0]["momentum"] == 0.9
    with pytest.raises(UsageError, match="lr, weight_decay and betas belong to the default optimizer"):
        fit(made(Plain), NextToken(), folder=tmp_path / "c", optimizer=torch.optim.SGD, lr=0.1, **DATA)
    with pytest.raises(UsageError, match="2 are not"):
        fit(made(Plain), NextToken(), folder=tmp_path / "d", optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()), **DATA)


def test_a_constant_rate_is_left_to_the_optimizer(tmp_path):
    result = fit(made(Plain), NextToken(), folder=tmp_path, lr=0.03, log_every=1, **DATA)
    assert {line["lr"] for line in result.metrics()} == {0.03}


def test_bf16_autocast_runs_the_objective_in_bf16_and_leaves_the_weights(tmp_path):
    seen = []

    def objective(model, batch, draw):
        seen.append(model(batch["input_ids"]).dtype)
        return NextToken()(model, batch, draw)

    result = fit(made(Plain), objective, folder=tmp_path, autocast=torch.bfloat16, lr=0.05, **DATA)
    assert set(seen) == {torch.bfloat16}
    assert {value.dtype for value in result.model.state_dict().values()} == {torch.float32}
    exact = fit(made(Plain), NextToken(), folder=tmp_path / "exact", lr=0.05, **DATA)
    assert exact.metrics()[-1]["loss"] == pytest.approx(result.metrics()[-1]["loss"], abs=0.02)


def test_learns(tmp_path):
    ids = torch.arange(VOCAB).repeat(3, 1)
    result = fit(made(Plain), NextToken(), [{"input_ids": ids, "labels": ids}], folder=tmp_path, steps=80, lr=0.1, **QUIET)
    assert result.metrics()[-1]["loss"] < 0.05


def test_logs_a_hundredth_of_the_run_at_most_a_hundred_steps(tmp_path):
    for steps, every in ((5, 1), (300, 3)):
        result = fit(made(Plain), NextToken(), Source(), folder=tmp_path / str(steps), steps=steps, batch_size=2, **QUIET)
        assert len(result.metrics()) == math.ceil(steps / every)


def test_the_folder_of_a_finished_run(tmp_path):
    result = run(tmp_path)
    assert sorted(contents(tmp_path)) == ["averaged.safetensors", "checkpoint-000000012.safetensors", "metrics.jsonl", "model.safetensors", "run.json"]
    assert result.notes == ()
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert settings["schedule"] == "_WarmupCosine(steps=12, warmup=3, floor=0.1)"
    assert settings["log_every"] == 2 and "0x" not in json.dumps(settings)
    assert [line["step"] for line in result.metrics()] == [2, 4, 5, 6, 8, 10, 12]


def test_a_wrapped_model_is_saved_under_its_own_names(tmp_path):
    class Wrapped(nn.Module):  # as torch.compile wraps one
        def __init__(self, model):
            super().__init__()
            self._orig_mod = model

        def forward(self, ids):
            return self._orig_mod(ids)

    plain = fit(made(Plain), NextToken(), folder=tmp_path / "a", average=0.5, **DATA)
    wrapped = fit(Wrapped(made(Plain)), NextToken(), folder=tmp_path / "b", average=0.5, **DATA)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    close(weights(plain.averaged), weights(wrapped.averaged._orig_mod), rtol=0, atol=0)


def test_gradients_do_not_stay_behind(tmp_path):
    model = made(Plain)
    fit(model, NextToken(), folder=tmp_path, **DATA)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_on_its_own_device_is_not_moved_and_batches_follow(tmp_path):
    seen = []

    def objective(model, batch, draw):
        seen.append(batch["input_ids"].device)
        return NextToken()(model, batch, draw)

    fit(made(Plain), objective, folder=tmp_path, device="cpu", **DATA)
    assert set(seen) == {torch.device("cpu")}


def test_says_nothing_on_the_log_of_a_plain_run(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run(tmp_path)
    assert not caplog.records


def test_model_with_frozen_parameters(tmp_path):
    model = made(Plain)
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    fit(model, NextToken(), folder=tmp_path, lr=0.1, **DATA)
    assert torch.equal(before, model[0].weight)


def test_toy_model_is_tied():
    model = made(Model)
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize("count", [-1.0, float("inf")])
def test_a_count_that_is_none_is_refused(tmp_path, count):
    def objective(model, batch, generator):
        return NextToken()(model, batch, generator)._replace(count=torch.tensor(count))

    with pytest.raises(UsageError, match="objective must count what it sums over"):
        fit(made(Plain), objective, folder=tmp_path, **DATA)


def test_a_schedule_that_gives_nan_is_refused(tmp_path):
    with pytest.raises(UsageError, match="schedule must give finite numbers, got nan for step 2"):
        fit(made(Plain), NextToken(), folder=tmp_path, schedule=lambda step: float("nan") if step == 2 else 1.0, **DATA)
