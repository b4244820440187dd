"""What makes the comparison fair: arms differ in what their names say and in nothing else."""

from types import SimpleNamespace

import pytest
import torch

import trimtab.claims.task_hinting_hints as claim_file
from trimtab.claims import PairRun, load
from trimtab.metrics.sequence import IGNORE
from trimtab.nn import Tempered
from trimtab.tasks import Curriculum, RandomLabels, Scratchpad, TaskMixture

CLAIM = load("task-hinting-hints")
SMOKE, SMALL = CLAIM.size("smoke"), CLAIM.size("small")


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Measure without training: (arm, seed) -> the calls that would have trained and judged."""

    def measure(arm, seed):
        fits, judged = [], []

        def fit(model, main, mix, *, folder, **how):
            fits.append(SimpleNamespace(model=model, main=main, mix=mix, folder=folder.name, how=how))
            return SimpleNamespace(averaged=model)

        def evaluate(model, task, lengths, **how):
            judged.append((model, task, list(lengths), how))
            return [dict.fromkeys(("exact", "edit", "token", "early", "late"), 0.5) for _ in judged[-1][2]]

        with monkeypatch.context() as patch:
            patch.setattr(claim_file, "fit_with_hints", fit)
            patch.setattr(claim_file, "evaluate_lengths", evaluate)
            values = CLAIM.measure(arm, seed, SMALL, PairRun(tmp_path, lambda *_: None))
        return SimpleNamespace(fits=fits, full=fits[-1], judged=judged, values=values)

    return measure


def weights(model):
    return {name: value for name, value in model.state_dict().items() if "score_scale" not in name}


def test_arms_of_a_seed_share_weights_steps_seed_and_main_examples(seen):
    standard = seen("standard", 3)
    first = standard.full.main.batch(5, 0, 8, 4)["input_ids"]
    for arm in CLAIM.arms[1:]:
        other = seen(arm, 3)
        for name, value in weights(standard.full.model).items():
            assert torch.equal(value, weights(other.full.model)[name]), arm
        same = {"seed", "lr", "steps", "device"}
        assert {key: other.full.how[key] for key in same} == {key: standard.full.how[key] for key in same}
        source = other.full.how["source"] or TaskMixture(other.full.main, other.full.mix)
        if arm not in ("scratchpad", "curriculum"):
            assert torch.equal(source.batch(5, 0, 8, 4)["input_ids"][:8, : first.shape[1]], first), arm


def test_each_arm_is_what_its_name_says(seen):
    delimiters = {"successor": "<succ>", "successor-packed": "<succ>", "tempered-successor": "<succ>", "count": "<count>", "count-number": "<count>"}
    delimiters |= {"predecessor": "<pred>", "parity": "<parity>", "fill": "<fill>", "prefix-drop": "<hint-drop>", "copy": "<hint-again>"}
    delimiters["random-label"] = "<succ>"
    for arm in CLAIM.arms:
        run = seen(arm, 0).full
        scales = [module for module in run.model.modules() if isinstance(module, Tempered)]
        assert len(scales) == (2 if arm.startswith("tempered") else 0) and all(scale.length == "prompt" for scale in scales)
        if arm in delimiters:
            ((hint, share),) = run.mix.items()
            ids = hint.batch(0, 0, 4, 3)["input_ids"]
            assert share == 0.5 and bool((ids == hint.vocab.id(delimiters[arm])).any(1).all()), arm
            assert isinstance(hint, RandomLabels) == (arm == "random-label")
        else:
            assert run.mix == {}
        assert isinstance(run.how["source"], Curriculum) == (arm == "curriculum")
        assert isinstance(run.main.task, Scratchpad) == (arm == "scratchpad")
    assert seen("curriculum", 0).full.how["source"].stages == {0: 2, 1250: 4, 2500: 6, 3750: 8}


def test_training_test_and_validation_are_streams_of_their_own_and_differ_between_seeds(seen):
    streams = []
    for seed in (0, 1):
        run = seen("successor", seed)
        streams += [run.full.how["seed"], *{how["seed"] for *_, how in run.judged}]
    assert len(set(streams)) == len(streams) == 6


def test_what_is_judged_is_the_averaged_model_on_the_lengths_that_the_curve_names(seen):
    run = seen("count", 0)
    (proxy, *_), (full, task, lengths, how), (_, _, beyond, _) = run.judged
    assert proxy is run.fits[0].model and full is run.full.model and task is run.full.main
    assert (run.fits[0].how["steps"], run.full.how["steps"]) == (SMALL.steps // 9, SMALL.steps)
    assert lengths == [8, 12, 16, 20, 24, 32, 40, 80] and beyond == list(range(9, 17)) and how["examples"] == 2000
    assert run.values["edit@5x"] == 0.5 and run.values["proxy edit"] == 0.5


def test_a_curriculum_costs_what_its_own_batches_hold(seen):
    standard, curriculum = seen("standard", 0), seen("curriculum", 0)
    assert curriculum.values["positions a step"] < 0.8 * standard.values["positions a step"]
    source = curriculum.full.how["source"]
    widths = [source.batch(curriculum.full.how["seed"], step, 64)["labels"] for step in range(0, SMALL.steps, 50)]
    assert curriculum.values["supervised tokens a step"] == pytest.approx(sum(float((labels != IGNORE).sum()) for labels in widths) / 100)


def test_the_standard_arm_scores_every_hint_at_three_checkpoints(tmp_path):
    values = CLAIM.measure("standard", 0, claim_file.Size(seeds=1, **(SMOKE.settings | {"steps": 27})), PairRun(tmp_path, lambda *_: None))
    for hint in claim_file.HINTS:
        assert -1 <= values[f"cosine {hint}"] <= 1 and f"lookahead {hint}" in values
    assert values["cosine successor"] != values["cosine fill"]
