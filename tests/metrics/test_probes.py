import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trimtab.core import UsageError, generator
from trimtab.metrics import hidden_states, probe_layers, sorting_targets
from trimtab.nn import sorting_construction
from trimtab.tasks import Sorting

KINDS = ["ridge", "logistic"]


def planted(rows=600, dim=12, classes=5, seed=0):
    """Two layers of noise; the second has the class as a direction of its own."""
    source = generator(seed, "planted")
    y = torch.randint(classes, (rows,), generator=source)
    x = torch.randn(2, rows, dim, generator=source)
    x[1] += 12 * torch.linalg.qr(torch.randn(dim, dim, generator=source))[0][y]
    return x, y


def halves(x, y):
    half = len(y) // 2
    return x[:, :half], y[:half], {"held": (x[:, half:], y[half:])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_feature_is_found_and_noise_is_not(kind):
    x, y = planted(3000)
    noise, found = probe_layers(*halves(x, y), kind=kind)
    assert found["accuracy"] == found["train_accuracy"] == 1
    assert found["selectivity"] > 0.7
    assert abs(noise["selectivity"]) < 0.05 and abs(noise["accuracy"] - 0.2) < 0.05
    assert (found["layer"], found["test"], found["positions"], found["train_positions"]) == (1, "held", 1500, 1500)


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_that_only_names_the_commonest_class_has_no_selectivity(kind):
    y = (torch.rand(2000, generator=generator(0)) < 0.1).long()
    (row,) = probe_layers(*halves(torch.randn(1, 2000, 4, generator=generator(1)), y), kind=kind)
    assert row["accuracy"] > 0.85 and row["control"] > 0.8
    assert abs(row["selectivity"]) < 0.02


def test_ridge_is_ridge_on_one_hot_classes():
    x, y = planted()
    x[1] -= 4
    x = 3 * x
    train, labels, test = halves(x, y)
    for l2 in (1e-3, 0.5, 30.0):
        for layer, row in enumerate(probe_layers(train, labels, test, l2=l2)):
            features = train[layer].double().numpy()
            peer = make_pipeline(StandardScaler(), Ridge(alpha=l2 * len(features))).fit(features, np.eye(5)[labels])
            guess = peer.predict(test["held"][0][layer].double().numpy()).argmax(1)
            assert row["accuracy"] == pytest.approx((guess == test["held"][1].numpy()).mean(), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_of_a_layer_does_not_matter(kind):
    x, y = planted()
    loud = torch.tensor([1e-6, 1, 1e6]).repeat(4) * x + 5
    for one, other in zip(probe_layers(*halves(x.double(), y), kind=kind, l2=0.1), probe_layers(*halves(loud.double(), y), kind=kind, l2=0.1), strict=True):
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.01) and one["control"] == pytest.approx(other["control"], abs=0.01)


def test_the_control_is_the_mean_over_shuffled_tests():
    """Of a probe that was trained on shuffled labels: its answers against labels in all orders."""
    x, y = planted(400)
    y = torch.where(y < 3, 0, y)  # the commonest, and all that a probe without knowledge would say
    train, labels, test = halves(x, y)
    shuffled = labels[torch.randperm(len(labels), generator=generator(7, "probe"))]
    held, answers = test["held"]
    for layer, row in enumerate(probe_layers(train, labels, test, seed=7)):
        orders = [answers[torch.randperm(len(answers), generator=generator(k))] for k in range(60)]
        tests = {k: (held[layer : layer + 1], order) for k, order in enumerate(orders)}
        found = probe_layers(train[layer : layer + 1], shuffled, tests)
        assert row["control"] == pytest.approx(np.mean([f["accuracy"] for f in found]), abs=0.01)


def test_positions_without_a_target_are_left_out():
    x, y = planted()
    train, labels, test = halves(x, y)
    wanted = probe_layers(train, labels, test)
    hole = torch.cat([labels, torch.full((50,), -100)])
    wild = torch.cat([train, torch.full((2, 50, 12), torch.inf)], 1)
    assert probe_layers(wild, hole, test) == wanted
    assert probe_layers(train.view(2, 30, 10, 12), labels.view(30, 10), test) == wanted


def test_classes_keep_their_names_and_new_ones_are_mistakes():
    x, y = planted()
    train, labels, (held, answers) = x[:, :300], y[:300] * 10 - 7, (x[:, 300:], y[300:] * 10 - 7)
    new = torch.where(answers == 3, 1000, answers)
    rows = probe_layers(train, labels, {"same": (held, answers), "new": (held, new)})
    same, other = (row for row in rows if row["layer"] == 1)
    assert same["accuracy"] == 1
    assert other["accuracy"] == pytest.approx(float((answers != 3).double().mean()))


def test_a_layer_that_is_the_same_everywhere():
    y = torch.tensor([0, 1, 1] * 20)
    (row,) = probe_layers(torch.ones(1, 60, 4), y, {"held": (torch.ones(1, 60, 4), y)})
    assert row["accuracy"] == pytest.approx(2 / 3) and row["selectivity"] == 0


def test_the_construction_knows_identity_from_the_start_and_the_minimum_at_the_end():
    """Trained at one length and tested at a longer one."""
    task = Sorting(vocab=6)
    model = sorting_construction(task.vocab)

    def seen(length, target):
        batch = task.batch(seed=0, step=length, size=120, length=length)
        ids, labels = batch["input_ids"], batch["labels"]
        targets = getattr(sorting_targets(ids, labels, task.vocab), target)
        if target == "minimum":  # asked at the delimiter alone
            targets = torch.where(ids == task.vocab.id("<sort>"), targets, -100)
        where = targets != -100
        return hidden_states(model, ids, where), targets[where]

    rows = {target: probe_layers(*seen(4, target), {20: seen(20, target)}) for target in ("identity", "minimum")}
    assert [row["accuracy"] for row in rows["identity"]] == [1, 1, 1]
    assert rows["minimum"][2]["accuracy"] > 0.9 and rows["minimum"][2]["selectivity"] >= rows["minimum"][0]["selectivity"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "knn"}, "unknown kind of probe 'knn'"),
        ({"l2": 0.0}, "l2 must be > 0, got 0.0"),
        ({"test": {}}, "test must hold rows that were not trained on"),
        ({"targets": torch.zeros(300, dtype=torch.long)}, r"at least two classes, got only \[0\]"),
        ({"targets": torch.full((300,), -100)}, "targets must have a position whose target is not -100"),
        ({"states": torch.full((2, 300, 12), torch.nan)}, "states must be finite"),
        ({"test": {"a": (torch.zeros(2, 5, 11), torch.zeros(5, dtype=torch.long))}}, r"layers and dim of states, \(2, 12\), got \(2, 11\)"),
        ({"test": {"a": (torch.zeros(2, 5, 12), torch.zeros(4, dtype=torch.long))}}, r"test\['a'\]: states must be"),
    ],
)
def test_what_is_refused(change, says):
    train, labels, test = halves(*planted())
    with pytest.raises(UsageError, match=says):
        probe_layers(**({"states": train, "targets": labels, "test": test} | change))
