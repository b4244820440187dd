import json

import pytest
import torch

import trimtab.train.hint_search as search_file
from trimtab.core import UsageError
from trimtab.nn import Transformer
from trimtab.tasks import Count, Sorting, Successor, candidate_hints
from trimtab.train import HintReport, NextToken, NonFiniteLoss, beyond, fit_with_hints, gradient_scores, search_hints
from trimtab.train.hint_scores import _gradient, _loss
from trimtab.train.hint_search import verdict

SORT = Sorting(vocab=5, lengths=(1, 4))


def small(seed=0):
    return Transformer(SORT.vocab.size, dim=8, layers=1, heads=1, generator=torch.Generator().manual_seed(seed))



def test_a_task_as_its_own_hint_has_the_affinity_of_its_loss_at_two_lengths():
    model = small()
    weights = [p.detach().clone() for p in model.parameters()]
    found = gradient_scores(model, SORT, SORT, batches=4, size=16, seed=3)
    target = _gradient(model, _loss(model, SORT, list(beyond(SORT)), 4, 16, 3, "main"))
    pull = _gradient(model, _loss(model, SORT, [1, 2, 3, 4], 4, 16, 3, "hint"))
    flat = [torch.cat([g.flatten() for g in gradient]) for gradient in (target, pull)]
    assert found["cosine"] == pytest.approx(float(torch.cosine_similarity(*flat, dim=0)), rel=1e-4)
    for p, before in zip(model.parameters(), weights, strict=True):
        assert torch.equal(p, before)
        assert p.grad is None


def test_lookahead_is_what_a_step_along_the_hint_does_to_the_long_loss():
    model = small()
    found = gradient_scores(model, SORT, SORT, batches=4, size=16, seed=3, step=0.02)
    with torch.no_grad():
        before = float(_loss(model, SORT, list(beyond(SORT)), 4, 16, 3, "main"))
    pull = _gradient(model, _loss(model, SORT, [1, 2, 3, 4], 4, 16, 3, "hint"))
    length = torch.cat([g.flatten() for g in pull]).norm()
    size = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
    with torch.no_grad():
        for p, g in zip(model.parameters(), pull, strict=True):
            p.sub_(0.02 * size * g / length)
        after = float(_loss(model, SORT, list(beyond(SORT)), 4, 16, 3, "main"))
    assert found["lookahead"] == pytest.approx(1 - after / before, rel=1e-3)


def test_lengths_are_spread_over_the_whole_range_and_each_batch_is_another():
    asked = []

    class Watched(Sorting):
        def batch(self, seed, step, size, length=None):
            asked.append((seed, step, size, length))
            return super().batch(seed, step, size, length)

    gradient_scores(small(), Watched(vocab=5, lengths=(1, 20)), SORT, batches=5, size=3)
    assert [length for *_, length in asked[:5]] == [21, 25, 30, 35, 40] and [step for _, step, *_ in asked[:5]] == [0, 1, 2, 3, 4]
    assert {size for _, _, size, _ in asked} == {3} and asked[5:] == asked[:5]  # before the step and after it


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lengths": []}, "lengths must hold one"),
        ({"step": float("inf")}, "step must be > 0 and finite"),
        ({"batches": 0}, "batches must be a whole number >= 1"),
        ({"size": True}, "size must be a whole number >= 1"),
        ({"hint": Count(Sorting(vocab=6))}, "hint must have the vocabulary"),
    ],
)
def test_bad_scores_are_refused(wrong, words):
    hint = wrong.pop("hint", SORT)
    with pytest.raises(UsageError, match=words):
        gradient_scores(small(), SORT, hint, **wrong)


def test_a_diverged_model_is_not_scored():
    model = small()
    torch.nn.init.constant_(model.tokens.weight, float("nan"))
    with pytest.raises(UsageError, match="model must give finite losses"):
        gradient_scores(model, SORT, SORT)


def test_of_minus_the_loss_the_cosine_is_minus_the_cosine(monkeypatch):
    import trimtab.train.hint_scores as scores

    plain = gradient_scores(small(), SORT, SORT, batches=2, size=8)["cosine"]
    real = scores._loss
    monkeypatch.setattr(scores, "_loss", lambda *a: -real(*a) if a[-1] == "hint" else real(*a))
    assert gradient_scores(small(), SORT, SORT, batches=2, size=8)["cosine"] == pytest.approx(-plain)


def test_a_training_mode_model_is_scored_in_eval_mode_and_left_training():
    model = Transformer(SORT.vocab.size, dim=8, layers=1, heads=1, dropout=0.5, generator=torch.Generator().manual_seed(0)).train()
    assert gradient_scores(model, SORT, SORT, batches=2, size=8) == gradient_scores(model, SORT, SORT, batches=2, size=8)
    assert model.training


@pytest.mark.parametrize(
    ("gains", "said"),
    [([0.3, 0.31, 0.29], "helps"), ([-0.3, -0.31, -0.29], "harms"), ([0.01, -0.01, 0.02], "neutral"), ([0.9, 0.1, -0.4], "undecided"), ([0.5], "undecided")],
)
def test_verdicts_need_the_whole_interval(gains, said):
    assert verdict(gains, 0.05)[0] == said


@pytest.fixture
def trained(monkeypatch):
    """Searches whose runs are looked up in place of being trained: a run's score is what the test says of its name, seed and length. Returns the runs."""
    runs = []

    def score(worth, exact=lambda name, seed: 1.0, diverges=()):
        def fit(model, main, mix, *, folder, steps, seed, batch_size, lr, device, progress):
            name, _, rest = folder.name.rpartition(f"-{steps}-seed")
            if name in diverges:
                raise NonFiniteLoss("spoilt")
            runs.append({"name": name, "steps": steps, "seed": int(rest), "mix": mix, "stream": seed, "batch_size": batch_size, "lr": lr, "device": device})
            runs[-1]["weights"], model.run = model.made_of, runs[-1]
            return type("Done", (), {"averaged": model})

        def judge(model, main, lengths, *, seed, examples):
            model.run.setdefault("judged", []).append((list(lengths), seed, examples))
            name, own = model.run["name"], model.run["seed"]
            return [{"edit": worth(name, own, length), "exact": exact(name, own)} for length in lengths]

        def gradient(model, main, hint, **how):
            return {"cosine": float(list(HINTS.values()).index(hint)) if hint in HINTS.values() else 0.0, "lookahead": 0.0}

        monkeypatch.setattr(search_file, "fit_with_hints", fit)
        monkeypatch.setattr(search_file, "evaluate_lengths", judge)
        monkeypatch.setattr(search_file, "gradient_scores", gradient)
        return runs

    return score


def named(seed):
    model = small(seed)
    model.made_of = seed
    return model


HINTS = {name: Count(SORT) for name in "abcdefghi"}


def search(**changed):
    how = {"model": named, "folder": "nowhere", "steps": 900, "lengths": [20, 12], "seeds": (0, 1, 2), "margin": 0.05} | changed
    return search_hints(SORT, how.pop("hints", HINTS), **how)


def by_letter(name, seed, length):
    return 0.2 if name.startswith("standard") else 0.2 + (ord(name) - ord("e")) / 10


def test_rungs_keep_the_best_third_and_the_best_of_all_is_judged_on_every_seed(trained):
    runs = trained(by_letter)
    report = search()
    assert isinstance(report, HintReport) and report.mastery == 1
    short, middle, full = ([(run["name"], run["seed"]) for run in runs if run["steps"] == budget] for budget in (100, 300, 900))
    assert short == [("standard", 1000), *((name, 1000) for name in HINTS)]
    assert middle == [("standard", 1000), ("i", 1000), ("h", 1000), ("g", 1000)]
    assert sorted(full) == sorted([(name, seed) for name in ("standard", "standard-equal-tokens", "i") for seed in (0, 1, 2)])
    assert [row["hint"] for row in report.rows] == ["i", "h", "g", "f", "e", "d", "c", "b", "a"]
    assert report.best == "i" and report.rows[0]["verdict"] == "helps"
    assert report.rows[0]["gain"] == report.rows[0]["gain_equal"] == pytest.approx(0.4) and report.rows[0]["seeds"] == [0, 1, 2]
    assert [(row["verdict"], row["rung"]) for row in report.rows[1:]] == [(None, 2)] * 2 + [(None, 1)] * 6
    assert report.rows[1]["validation"] == pytest.approx(0.3)
    assert [row["cosine"] for row in report.rows] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert report.cost == 100 * (1 + 9 * 1.5) + 300 * (1 + 3 * 1.5) + 900 * 3 * (1 + 1.5 + 1.5)
    assert report.exhaustive == 900 * 3 * (1 + 10 * 1.5)


def test_each_run_has_its_hint_its_seed_and_the_settings(trained):
    runs = trained(by_letter)
    search(share=0.25, batch_size=32, lr=0.01, device="cpu")
    for run in runs:
        hint = {"standard": None, "standard-equal-tokens": SORT}.get(run["name"], HINTS.get(run["name"]))
        assert run["mix"] == ({hint: 0.25} if hint else {})
        assert (run["weights"], run["batch_size"], run["lr"], run["device"]) == (run["seed"], 32, 0.01, "cpu")
    streams = {run["seed"]: run["stream"] for run in runs}
    assert len(set(streams.values())) == 4 and all(run["stream"] == streams[run["seed"]] for run in runs)
    for run in runs:
        assert run["stream"] not in {seed for _, seed, _ in run["judged"]}  # training and test are different examples


def test_the_choice_looks_at_validation_lengths_and_the_verdict_at_test_lengths(trained):
    runs = trained(by_letter)
    search(examples=7)
    for run in runs:
        lengths = [lengths for lengths, _, _ in run["judged"]]
        if run["seed"] == 1000:
            assert lengths == [[5, 6, 7, 8]]
        else:
            assert [12, 20] in lengths and all(found in ([12, 20], [4]) for found in lengths)
        assert {examples for *_, examples in run["judged"]} == {7}


def test_a_gain_is_the_mean_over_lengths(trained):
    trained(lambda name, seed, length: 0.5 + (0.1 if length == 12 else 0.3) * (name == "a") + 0.001 * seed)
    report = search(hints={"a": HINTS["a"]})
    assert report.rows[0]["gains"] == pytest.approx([0.2] * 3)


def test_a_hint_must_also_beat_more_rows_of_the_task(trained):
    trained(lambda name, seed, length: {"standard": 0.2, "standard-equal-tokens": 0.6}.get(name, 0.6))
    report = search(hints={"a": HINTS["a"]})
    assert report.best is None and report.rows[0]["verdict"] == "neutral" and report.rows[0]["gain"] == pytest.approx(0.4)


def test_nothing_is_decided_where_the_task_is_not_learnt_or_all_is_floor(trained):
    trained(by_letter, exact=lambda name, seed: 0.97 if seed == 2 else 1.0)
    report = search()
    assert report.mastery == 0.97 and report.rows[0]["verdict"] == "undecided" and report.best is None
    trained(lambda *_: 0.005)
    assert search().rows[0]["verdict"] == "undecided"


def test_a_hint_that_diverges_comes_last_and_a_task_that_does_raises(trained):
    trained(lambda *_: 0.5, diverges=("a", "c"))
    report = search()
    assert {row["hint"] for row in report.rows[-2:]} == {"a", "c"} and report.rows[-1]["validation"] is None
    json.dumps(report.rows, allow_nan=False)
    trained(by_letter, diverges=("standard",))
    with pytest.raises(NonFiniteLoss):
        search()


@pytest.mark.parametrize("noise", range(5))
def test_a_hint_that_is_noise_is_never_called_helpful(trained, noise):
    draw = torch.Generator().manual_seed(noise)
    trained(lambda name, seed, length: 0.3 + 0.2 * float(torch.rand((), generator=draw)))
    assert search(hints={"a": Successor(SORT)}).best is None


def test_more_hints_in_full_runs_need_wider_intervals(trained):
    trained(lambda name, seed, length: 0.2 if name.startswith("standard") else 0.3 + 0.01 * seed)
    one, two = search(rungs=()), search(rungs=(), keep=3)
    width = [row["interval"][1] - row["interval"][0] for row in (one.rows[0], two.rows[0])]
    assert width[1] > 1.3 * width[0]


def test_without_rungs_all_are_judged_and_without_seeds_none(trained):
    runs = trained(by_letter)
    report = search(rungs=(), hints={"a": Count(SORT), "i": Successor(SORT)})
    assert [(row["hint"], row["verdict"]) for row in report.rows] == [("i", "helps"), ("a", "harms")] and report.cost == report.exhaustive
    runs.clear()
    report = search(seeds=(), lengths=())
    assert {run["seed"] for run in runs} == {1000} and report.rows[0]["hint"] == "i" and report.mastery is None and report.exhaustive == 0


def test_equal_rungs_are_run_and_charged_once(trained):
    runs = trained(by_letter)
    report = search(steps=3, seeds=(0, 1))
    assert {run["steps"] for run in runs} == {1, 3} and report.cost == 1 * (1 + 9 * 1.5) + 3 * 2 * (1 + 1.5 + 1.5)


def test_lengths_that_the_task_has_not_are_no_reason_to_fail(trained):
    class NoSevens(Sorting):
        def check_length(self, length):
            super().check_length(length)
            if length == 7:
                raise UsageError("no sevens")

    runs = trained(by_letter)
    search_hints(NoSevens(vocab=5, lengths=(1, 4)), HINTS, model=named, folder="nowhere", steps=900, lengths=[20])
    assert runs[0]["judged"][0][0] == [5, 6, 8]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hints": {}}, "hints must hold one candidate"),
        ({"hints": {"": HINTS["a"]}}, "names that can be file names.* got ''"),
        ({"hints": {"../x": HINTS["a"]}}, r"names that can be file names.* got '\.\./x'"),
        ({"hints": {"standard": HINTS["a"]}}, "names that can be file names, and not standard or"),
        ({"hints": {"a": Count(Sorting(vocab=6))}}, "must have the vocabulary of sorting"),
        ({"lengths": [8]}, "lengths must be above 8"),
        ({"lengths": []}, "lengths must be above 8"),
        ({"seeds": (0, 0)}, "seeds must be different"),
        ({"seeds": (0, 1000)}, "not tuning_seed"),
        ({"seeds": (-1,)}, "each of seeds must be a whole number >= 0, got -1"),
        ({"rungs": (0.5, 0.1)}, "rungs must ascend"),
        ({"rungs": (1.0,)}, "rungs must ascend"),
        ({"keep": 0}, "keep must be a whole number >= 1"),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"margin": -1}, "margin must be a finite number > 0, got -1"),
        ({"share": float("nan")}, "share must be a finite number > 0, got nan"),
        ({"seeds": (), "steps": 1}, "steps must be enough for a rung"),
    ],
)
def test_bad_settings_are_refused_before_any_run(trained, wrong, words):
    runs = trained(by_letter)
    with pytest.raises(UsageError, match=words):
        search(**wrong)
    assert not runs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_labels_are_never_called_helpful(tmp_path, seed):
    main, hints = candidate_hints(Sorting(vocab=4, lengths=(1, 3)))

    def model(number):
        return Transformer(main.vocab.size, dim=32, layers=2, heads=2, generator=torch.Generator().manual_seed(number))

    seeds = range(10 * seed, 10 * seed + 3)
    how = {"model": model, "folder": tmp_path, "steps": 600, "lengths": [9], "seeds": seeds, "examples": 100, "lr": 3e-3}
    report = search_hints(main, {"random-label": hints["random-label"]}, **how)
    assert report.best is None


def test_a_second_search_takes_up_what_is_finished(tmp_path, monkeypatch):
    how = {"steps": 9, "lengths": [9], "examples": 4, "seeds": (0, 1), "folder": tmp_path, "hints": {"count": Count(SORT), "successor": Successor(SORT)}}
    first = search(**how)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert search(**how).rows == first.rows
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}


def test_the_recipe(monkeypatch, tmp_path):
    import trimtab.train.hinting as recipe

    seen = {}
    monkeypatch.setattr(recipe, "fit", lambda model, objective, source, **how: seen.update(how, objective=objective, source=source))
    fit_with_hints(small(), SORT, {Count(SORT): 0.5}, folder=tmp_path, steps=1000, seed=4, lr=0.01, batch_size=8)
    schedule = seen.pop("schedule")
    assert [schedule(0), schedule(199), round(schedule(1000), 6)] == [1 / 200, 1, 0.05]
    source = seen.pop("source")
    assert (source.main, list(source.hints.values())) == (SORT, [0.5])
    assert seen == {
        "objective": NextToken(reduction="example"), "betas": (0.9, 0.98), "weight_decay": 0.01, "clip": 1.0, "average": 0.995,
        "folder": tmp_path, "steps": 1000, "seed": 4, "lr": 0.01, "batch_size": 8, "device": None, "progress": None,
    }  # fmt: skip
    fit_with_hints(small(), SORT, folder=tmp_path, steps=10, source="mine", objective="own", clip=None)
    assert (seen["source"], seen["objective"], seen["clip"]) == ("mine", "own", None)


def test_the_recipe_averages_and_shares_main_examples(tmp_path):
    seen = []

    class Watched(Sorting):
        def batch(self, seed, step, size, length=None):
            seen.append((seed, step, size, length))
            return super().batch(seed, step, size, length)

    drawn = []
    for hints in ({}, {Count(SORT): 0.5}):
        seen.clear()
        main = Watched(vocab=5, lengths=(1, 4))
        run = fit_with_hints(small(), main, hints, folder=tmp_path / str(len(drawn)), steps=4, progress=lambda *_: None)
        assert run.averaged is not None and run.steps == 4
        drawn.append(list(seen))
    assert drawn[0] == drawn[1] and len(drawn[0]) == 4
