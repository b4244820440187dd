import pytest
import torch

import trimtab.train.hint_search as search_file
from trimtab.core import UsageError
from trimtab.nn import Transformer
from trimtab.tasks import Count, Sorting, Successor
from trimtab.train import HintReport, beyond, fit_with_hints, gradient_scores, rank_average, search_hints
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


def test_ranks_share_ties_and_average_over_scores():
    rows = [{"a": 3.0, "b": 0.0}, {"a": 1.0, "b": 0.0}, {"a": 2.0, "b": 9.0}]
    assert rank_average(rows, ["a"]) == [1, 0, 0.5]
    assert rank_average(rows, ["b"]) == [0.25, 0.25, 1]
    assert rank_average(rows, ["a", "b"]) == [0.625, 0.125, 0.75]


@pytest.mark.parametrize(
    ("gains", "said"),
    [([0.3, 0.31, 0.29], "helps"), ([-0.3, -0.31, -0.29], "harms"), ([0.01, -0.01, 0.02], "neutral"), ([0.9, 0.1, -0.4], "undecided"), ([0.5], "undecided")],
)
def test_verdicts_need_the_whole_interval(gains, said):
    assert verdict(gains, 0.05)[0] == said


@pytest.fixture
def trained(monkeypatch):
    """Searches whose runs are looked up in place of being trained: the score of a run is what the test says of its hint. Returns the runs that were made."""
    runs = []

    def score(worth):
        def fit(model, main, mix, *, folder, steps, seed, **how):
            name = folder.name.partition("-")[0]
            runs.append((name, steps, folder.name.rpartition("seed")[2]))
            model.name = name
            return type("Done", (), {"averaged": model})

        def judge(model, main, lengths, *, seed, **how):
            return [{"edit": worth(model.name, int(runs[-1][2]), list(lengths))}]

        monkeypatch.setattr(search_file, "fit_with_hints", fit)
        monkeypatch.setattr(search_file, "evaluate_lengths", judge)
        monkeypatch.setattr(search_file, "gradient_scores", lambda *a, **k: {"cosine": 0.0, "lookahead": 0.0})
        return runs

    return score


HINTS = {name: Count(SORT) for name in "abcdefghi"}


def search(**changed):
    how = {"model": small, "folder": "nowhere", "steps": 900, "lengths": [20], "seeds": (0, 1, 2), "margin": 0.05} | changed
    return search_hints(SORT, how.pop("hints", HINTS), **how)


def test_rungs_keep_the_best_third_and_the_best_of_all_is_judged_on_every_seed(trained):
    runs = trained(lambda name, seed, lengths: 0.2 if name == "standard" else 0.2 + (ord(name) - ord("e")) / 10)
    report = search()
    assert isinstance(report, HintReport) and report.margin == 0.05 and report.lengths == (20,)
    short, middle, full = ([(name, seed) for name, steps, seed in runs if steps == budget] for budget in (100, 300, 900))
    assert [name for name, _ in short] == ["standard", *HINTS] and {seed for _, seed in short} == {"1000"}
    assert [name for name, _ in middle] == ["standard", "i", "h", "g"]
    assert sorted(full) == sorted([(name, seed) for name in ("standard", "i") for seed in "012"])
    assert [row["hint"] for row in report.rows[:3]] == ["i", "h", "g"]
    assert report.best == "i" and report.rows[0]["verdict"] == "helps" and report.rows[0]["gain"] == pytest.approx(0.4)
    assert [row["verdict"] for row in report.rows[1:]] == [None] * 8
    assert report.cost == 100 * (1 + 9 * 1.5) + 300 * (1 + 3 * 1.5) + 900 * 3 * (1 + 1.5)
    assert report.exhaustive == 900 * 3 * (1 + 9 * 1.5)


def test_the_choice_looks_at_validation_lengths_and_the_verdict_at_test_lengths(trained):
    asked = []
    trained(lambda name, seed, lengths: asked.append((seed, tuple(lengths))) or 0.5)
    search()
    assert {lengths for seed, lengths in asked if seed == 1000} == {(5, 6, 7, 8)}
    assert {lengths for seed, lengths in asked if seed != 1000} == {(20,)}


@pytest.mark.parametrize("noise", range(5))
def test_a_hint_that_is_noise_is_never_called_helpful(trained, noise):
    draw = torch.Generator().manual_seed(noise)
    trained(lambda name, seed, lengths: 0.3 + 0.2 * float(torch.randn((), generator=draw)))
    assert search(hints={"a": Successor(SORT)}).best is None


def test_without_rungs_all_are_judged(trained):
    trained(lambda name, seed, lengths: 0.5)
    report = search(rungs=(), keep=1, hints={"a": Count(SORT), "b": Successor(SORT)})
    assert [row["verdict"] for row in report.rows] == ["neutral", "neutral"] and report.cost == report.exhaustive


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hints": {}}, "hints must hold one candidate"),
        ({"lengths": [8]}, "lengths must be above 8"),
        ({"lengths": []}, "lengths must be above 8"),
        ({"seeds": (0, 0)}, "seeds must be different"),
        ({"seeds": (0, 1000)}, "not tuning_seed"),
        ({"rungs": (0.5, 0.1)}, "rungs must ascend"),
        ({"rungs": (1.0,)}, "rungs must ascend"),
        ({"keep": 0}, "keep must be at least 1"),
    ],
)
def test_bad_settings_are_refused_before_any_run(trained, wrong, words):
    runs = trained(lambda *_: 0.5)
    with pytest.raises(UsageError, match=words):
        search(**wrong)
    assert not runs


def test_a_second_search_takes_up_what_is_finished(tmp_path, monkeypatch):
    how = {"steps": 9, "lengths": [9], "examples": 4, "seeds": (0, 1), "folder": tmp_path, "hints": {"count": Count(SORT), "successor": Successor(SORT)}}
    first = search(**how)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert search(**how).rows == first.rows
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}


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
