"""What makes the comparison fair: the arms of a seed differ in their hint and in nothing else."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

import trimtab.claims.task_hinting as claim_file
from trimtab.claims import PairRun, load
from trimtab.tasks import Sorting

CLAIM = load("task-hinting")
SMOKE = CLAIM.size("smoke")
VOCAB = Sorting(vocab=SMOKE.vocab).vocab


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Measure without training; returns (arm, seed) -> what fit was given, what was drawn for evaluation, and how much could be written."""
    folder = tmp_path_factory.mktemp("run")

    @cache
    def measure(arm, seed):
        found = {"draws": [], "room": []}

        def fit(model, objective, source, **settings):
            found.update(weights=torch.cat([p.detach().flatten() for p in model.parameters()]), source=source, settings=settings)
            return SimpleNamespace(averaged=model)  # and no .model: the averaged weights are judged

        batch, generate = Sorting.batch, claim_file.Transformer.generate

        def drawn(self, *args):
            found["draws"].append(args)
            return batch(self, *args)

        def written(self, ids, **settings):
            found["room"].append(settings["max_new_tokens"] - ids.shape[1])
            return generate(self, ids, **settings)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(claim_file, "fit", fit)
            patch.setattr(Sorting, "batch", drawn)
            patch.setattr(claim_file.Transformer, "generate", written)
            patch.setattr(claim_file.TaskMixture, "cost", lambda self, *args, **kwargs: {"positions": 1, "supervised": 1})
            found["values"] = CLAIM.measure(arm, seed, SMOKE, PairRun(folder, lambda *_: None))
        return found

    return measure


def test_arms_of_a_seed_share_weights_steps_training_seed_and_evaluation(seen):
    standard, *others = (seen(arm, 3) for arm in CLAIM.arms)
    for other in others:
        assert torch.equal(standard["weights"], other["weights"])
        assert standard["draws"] == other["draws"]
        assert {**standard["settings"], "progress": None} == {**other["settings"], "progress": None}


def test_seeds_differ_in_weights_training_and_evaluation(seen):
    one, two = seen("standard", 3), seen("standard", 4)
    assert not torch.equal(one["weights"], two["weights"])
    assert one["settings"]["seed"] != two["settings"]["seed"]
    assert not {draw[0] for draw in one["draws"]} & {draw[0] for draw in two["draws"]}


def test_main_examples_are_the_same_bits_and_each_arm_has_its_hint(seen):
    hints = {"standard": [], "standard-equal-tokens": ["sorting"], "successor": ["successor"], "count": ["count-unary"]}
    main = seen("standard", 0)["source"].batch(7, 2, 64)["input_ids"]
    for arm in CLAIM.arms:
        source = seen(arm, 0)["source"]
        batch = source.batch(7, 2, 64)["input_ids"]
        assert torch.equal(batch[:64, : main.shape[1]], main)
        assert [hint.name for hint in source.hints] == hints[arm]
        assert len(batch) == 64 + 32 * len(hints[arm])


def test_equal_tokens_are_equal_positions():
    size = CLAIM.size("small")
    equal, hinted = (claim_file.data(arm, size) for arm in ("standard-equal-tokens", "successor"))
    costs = [sum(source.cost(64, n)["positions"] for n in range(1, size.longest + 1)) for source in (equal, hinted)]
    assert costs[0] == pytest.approx(costs[1], rel=0.02)


def test_validation_lengths_lie_beyond_training_and_before_the_lengths_that_decide(seen):
    draws = seen("count", 0)["draws"]
    seeds = list(dict.fromkeys(draw[0] for draw in draws))
    test, validation = ([draw[-1] for draw in draws if draw[0] == seed] for seed in seeds)
    assert len(seeds) == 2
    assert test == [round(m * SMOKE.longest) for m in claim_file.MULTIPLES]
    assert validation == [*range(SMOKE.longest + 1, 2 * SMOKE.longest + 1)]


def test_what_is_written_has_room_to_be_too_long(seen):
    found = seen("standard", 0)
    prompts = [draw[-1] + 1 for draw in found["draws"]]
    assert found["room"] == prompts  # twice the prompt, which is as long as the answer


def test_the_ladder_is_the_one_that_was_fixed():
    assert {name: (rung["longest"], rung["vocab"]) for name, rung in claim_file.LADDER.items()} == {"small": (8, 16), "small-2": (8, 40), "small-3": (16, 80)}
    assert (CLAIM.size("small").longest, CLAIM.size("small").vocab) == (8, 16)


def test_margins_are_one_token_in_twenty_and_five_times_decides():
    assert [(s.metric, s.margin) for s in CLAIM.primary] == [("edit@5x", 0.05)] * 3
    assert [(str(s.arm), s.against) for s in CLAIM.primary] == [
        ("successor", "standard"),
        ("successor", "standard-equal-tokens"),
        ("best of successor, count", "standard"),
    ]
    assert (CLAIM.mastery.metric, CLAIM.mastery.threshold) == ("exact@1x", 0.98)
    assert CLAIM.size("small").examples >= 2000


def test_values_of_a_model_that_forgets_the_last_number(tmp_path, monkeypatch):
    """It writes each list in order and without its largest number, and takes <eos> for the next token everywhere."""

    class Forgetful(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.Parameter(torch.zeros(1000))

        def forward(self, ids):
            return torch.nn.functional.one_hot(torch.full_like(ids, VOCAB.eos), VOCAB.size).double()

        def generate(self, ids, *, max_new_tokens, eos, pad):
            return torch.cat([ids, ids[:, :-1].sort().values[:, :-1], torch.full((len(ids), 1), eos), torch.full((len(ids), 3), pad)], dim=1)

    monkeypatch.setattr(claim_file, "fit", lambda *_, **__: SimpleNamespace(averaged=Forgetful()))
    found = CLAIM.measure("standard", 0, SMOKE, PairRun(tmp_path, lambda *_: None))
    # one of n numbers is missing, and the <eos> after the n numbers is the one token that is right
    assert SMOKE.longest == 4
    for name, numbers in (("1x", 4), ("5x", 20), ("10x", 40)):
        expected = {"exact": 0, "edit": 1 - 1 / numbers, "token": 1 / (numbers + 1), "early": 1, "late": 0}
        assert {metric: found[f"{metric}@{name}"] for metric in expected} == pytest.approx(expected), name
    assert found["validation edit"] == pytest.approx(1 - (1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4)
    # 64 rows of 4, 6, 8 or 10 tokens: n numbers, <sort>, n numbers, <eos>; 2, 3, 4 or 5 of them are supervised
    assert (found["positions a step"], found["supervised tokens a step"]) == (64 * 7, 64 * 3.5)
    # six operations for a weight and a position, of 1000 weights, 448 positions and 40 steps
    assert found["training TFLOP"] == pytest.approx(6 * 1000 * 448 * 40 / 1e12)
