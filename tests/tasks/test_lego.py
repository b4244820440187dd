import pytest
import torch
from torch.nn.functional import one_hot

from tests.tasks.rows import even
from trimtab.core import UsageError
from trimtab.nn import Transformer
from trimtab.tasks import Lego, LegoOneHop, LegoParent, LegoRelation, Task, TaskMixture, chain_places
from trimtab.tasks.ragged import packed
from trimtab.testing import check_task
from trimtab.train import fit
from trimtab.train.objective import TokenClassification

MAIN = Lego()
HINTS = [LegoOneHop(MAIN), LegoRelation(MAIN), LegoParent(MAIN)]


def read(ids):
    """Clauses of a row, variable -> (val or not, what it depends on), and where each variable is defined."""
    mark, *words = Lego.vocab.show(ids).split()
    clauses, places = {}, {}
    for k in range(0, len(words), 5):
        variable, equal, relation, needs, comma = words[k : k + 5]
        assert (equal, comma) == ("=", ",") and relation in ("val", "not") and variable.isalpha() and variable not in clauses
        clauses[variable], places[variable] = (relation, needs), k + 1
    return mark, clauses, places


def value(clauses, variable):
    relation, needs = clauses[variable]
    return (int(needs) if needs.isdigit() else value(clauses, needs)) ^ (relation == "not")


def depth(clauses, variable):
    needs = clauses[variable][1]
    return 0 if needs.isdigit() else 1 + depth(clauses, needs)


def each(batch):
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        yield *read(ids), {k: label for k, label in enumerate(labels) if label != -100}


@pytest.mark.parametrize(("n", "supervised"), [(1, 1), (2, 1), (12, 6), (12, 12), (26, 3)])
def test_values_from_the_shuffled_clauses(n, supervised):
    task = Lego(n, supervised)
    batch = task.batch(3, 4, 20)
    for mark, clauses, places, labels in each(batch):
        assert mark == "<lego>" and len(clauses) == n
        roots = [variable for variable, (relation, needs) in clauses.items() if needs.isdigit() and relation == "val"]
        assert len(roots) == 1 and sorted(depth(clauses, variable) for variable in clauses) == list(range(n))
        assert labels == {places[v]: value(clauses, v) for v in clauses if depth(clauses, v) < supervised}
    assert chain_places(batch["input_ids"]).tolist() == [[depth(clauses, v) for v in clauses] for _, clauses, _, _ in each(batch)]


def test_more_labels_change_no_clause():
    few, all_of_them = MAIN.batch(0, 1, 9), MAIN.batch(0, 1, 9, length=12)
    assert torch.equal(few["input_ids"], all_of_them["input_ids"])
    assert (few["labels"] != -100).sum(1).tolist() == [6] * 9 and (all_of_them["labels"] != -100).sum(1).tolist() == [12] * 9
    asked = few["labels"] != -100
    assert torch.equal(few["labels"][asked], all_of_them["labels"][asked])


def test_draws_are_uniform():
    batch = MAIN.batch(0, 0, 5000, length=12)
    ids, place = batch["input_ids"], chain_places(batch["input_ids"])
    letters, relation, labels = (ids[:, 1::5] - MAIN.vocab.id("a"), ids[:, 3::5] == MAIN.vocab.id("not"), batch["labels"][:, 1::5])
    for k in (0, 1, 5, 11):
        at = (place == k).long().argmax(1)
        even(at, 12)  # clauses are shuffled
        even(letters.gather(1, at[:, None])[:, 0], 26)
        even(labels.gather(1, at[:, None])[:, 0], 2)
        if k:
            even(relation.gather(1, at[:, None])[:, 0].long(), 2)


@pytest.mark.parametrize("length", [2, 6, 12])
def test_one_hop(length):
    batch, seen = LegoOneHop(MAIN).batch(0, 0, 80, length), set()
    world = MAIN.batch(0, 0, 80, length)
    for (mark, clauses, places, labels), (_, before, _, true) in zip(each(batch), each(world), strict=True):
        assert mark == "<hop>" and len(labels) == 1
        variable = next(v for v in clauses if places[v] in labels)
        needs = clauses[variable][1]
        assert clauses[needs] == ("val", str(value(before, needs)))
        assert labels[places[variable]] == value(clauses, variable) == true[places[variable]]
        assert depth(clauses, variable) == 1
        assert {v: c for v, c in clauses.items() if v != needs} == {v: c for v, c in before.items() if v != needs}
        seen.add(depth(before, variable))
    assert seen == set(range(1, length))  # nothing that a training batch of that length does not ask for


@pytest.mark.parametrize("length", [1, 6, 12])
def test_relation_and_parent(length):
    for k, hint in enumerate((LegoRelation(MAIN), LegoParent(MAIN))):
        batch = hint.batch(0, 0, 20, length)
        assert torch.equal(batch["input_ids"][:, 1:], MAIN.batch(0, 0, 20)["input_ids"][:, 1:])
        for mark, clauses, places, labels in each(batch):
            assert mark == ("<relation>", "<parent>")[k]
            shown = {place: MAIN.vocab.show([label]) for place, label in labels.items()}
            assert shown == {places[v]: clauses[v][k] for v in clauses if depth(clauses, v) < length}


class Written:
    """Each label put behind its position, where the contract of next-token tasks looks for it; all of that contract then holds for tasks read in place."""

    def __init__(self, task):
        self.task, self.name, self.vocab, self.score = task, task.name, task.vocab, task.score

    def batch(self, seed, step, size):
        ids, labels = self.task.batch(seed, step, size).values()
        both = torch.stack([ids, labels], dim=2).flatten(1)
        behind = torch.stack([torch.full_like(labels, -100), labels], dim=2).flatten(1)
        keep = torch.stack([torch.ones_like(labels, dtype=torch.bool), labels != -100], dim=2).flatten(1)
        return {"input_ids": packed(both, keep, self.vocab.pad), "labels": packed(behind, keep, -100)}


@pytest.mark.parametrize("task", [MAIN, *HINTS], ids=lambda task: task.name)
def test_contract(task):
    check_task(Written(task))
    assert isinstance(task, Task) and task.batch(0, 0, 3)["labels"].dtype == torch.int64


@pytest.mark.parametrize("task", [MAIN, *HINTS], ids=lambda task: task.name)
def test_score_of_right_answers(task):
    batch = task.batch(0, 0, 20)
    score = task.score(one_hot(batch["labels"].clamp(min=0), task.vocab.size).double(), batch)
    places = [2] if task.name == "lego-one-hop" else range(1, 7)
    assert score == {"accuracy": 1.0} | {f"accuracy@{k}": 1.0 for k in places}


def test_score_by_place_in_the_chain():
    batch = MAIN.batch(0, 0, 20, length=12)
    wrong = batch["labels"].clamp(min=0)
    at = chain_places(batch["input_ids"])
    wrong[:, 1::5] = torch.where(at == 6, 1 - wrong[:, 1::5], wrong[:, 1::5])
    logits = one_hot(wrong, MAIN.vocab.size).double()
    score = MAIN.score(logits, batch)
    assert score == pytest.approx({"accuracy": 11 / 12} | {f"accuracy@{k}": float(k != 7) for k in range(1, 13)})
    assert MAIN.score(logits[:, :, :2], batch) == score  # a binary head
    logits[:, :, MAIN.vocab.id("q")] = 9  # no possible answer
    assert MAIN.score(logits, batch) == score
    assert 0.4 < MAIN.score(torch.rand(20, 61, 2, generator=torch.Generator().manual_seed(0)), batch)["accuracy"] < 0.6


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lego(27), "n_vars must be a whole number from 1 to 26, a letter for each, got 27"),
        (lambda: Lego(12, 0), "supervised of lego, the variables with labels, must be from 1 to n_vars = 12, got 0"),
        (lambda: Lego(12, 13), "got 13"),
        (lambda: LegoOneHop(Lego(12, 1)), "supervised of lego-one-hop, the variables with labels, must be from 2 to n_vars = 12, got 1"),
        (lambda: MAIN.batch(0, 0, 1, length=13), "length of lego, .* got 13"),
        (lambda: MAIN.batch(0, 0, 0), "size must be a whole number >= 1, got 0"),
        (lambda: MAIN.score(torch.zeros(2, 61, 1), MAIN.batch(0, 0, 2)), r"by at least 2 logits, got \(2, 61, 1\)"),
        (lambda: MAIN.score(torch.zeros(3, 61, 2), MAIN.batch(0, 0, 2)), r"= \(2, 61\) by"),
        (lambda: MAIN.score(torch.full((2, 61, 2), float("nan")), MAIN.batch(0, 0, 2)), "output must not be NaN"),
        (lambda: MAIN.score(torch.zeros(1, 6, 2), {name: values[:1, :6] * 0 - 100 for name, values in MAIN.batch(0, 0, 1).items()}), "nothing to score"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_mixture_and_an_encoder(tmp_path):
    task = TaskMixture(MAIN, dict.fromkeys(HINTS, 0.5))
    batch = task.batch(0, 0, 8)
    assert torch.equal(batch["labels"][:8], MAIN.batch(0, 0, 8)["labels"]) and batch["input_ids"].shape == (20, 61)
    model = Transformer(MAIN.vocab.size, dim=8, layers=1, heads=2, causal=False, generator=torch.Generator().manual_seed(0))
    fit(model, TokenClassification(), task, folder=tmp_path / "run", steps=3, batch_size=8, lr=1e-3)
    score = MAIN.score(model(MAIN.batch(1, 0, 4, 12)["input_ids"]).detach(), MAIN.batch(1, 0, 4, 12))
    assert len(score) == 13
