import json
import re
from pathlib import Path

import pytest
import torch

from trimtab.claims import PairRun, Size, own_task
from trimtab.core import UsageError
from trimtab.tasks import Sorting

GUIDE = (Path(__file__).parents[2] / "docs" / "your-own-task.md").read_text(encoding="utf-8")
FENCES = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
BRIEF = ["--steps", "2", "--seeds", "2", "--examples", "4", "--dim", "8", "--lengths", "11"]


@pytest.fixture
def task(tmp_path, monkeypatch):
    """The guide's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text("\n".join(FENCES[k].replace("check_task(Last())", "") for k in (0, 2)))
    return tmp_path / "my_task.py"


def test_the_guides_task_is_trained_and_judged_with_its_hint(task, call):
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", *BRIEF)
    assert code == 0, err
    words = " ".join(out.split())
    assert "Does a hint make backwards hold on longer examples? length 5 11 exact standard" in words
    assert "has not learnt its training lengths says nothing about longer ones: raise --steps" in words
    assert "last helps, against standard: not decided" in words
    record = json.loads(Path(re.search(r"^record +(\S+)", out, re.M)[1]).read_text())
    assert record["verdict"] == "invalid"  # the record and its page say so too
    assert (record["slug"], record["arms"], record["seeds"]) == ("length-backwards", ["standard", "standard-equal-tokens", "last"], [0, 1])
    assert record["settings"]["lengths"] == [5, 11] and len(record["settings"]["files"]["my_task.py:Last"]) == 64
    page = Path("trimtab-runs/length-backwards/report/length-backwards.html").read_text()
    assert "Stale" not in page and "A task of your own" in page
    assert "trimtab length, called as before" in call("replay", re.search(r"^record +(\S+)", out, re.M)[1])[2]
    _, _, again = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", *BRIEF)
    assert "6 runs, 6 finished before" in again


def test_a_changed_task_is_trained_anew(task, call, in_process):
    for text, runs in (("", 1), ("", 1), ("\n# another version\n", 2)):
        task.write_text(task.read_text() + text)
        assert call("length", "my_task.py:Backwards", *BRIEF)[0] == 0
        assert len(list(Path("trimtab-runs/length-backwards").glob("small-*/pairs"))) == runs


def test_verdicts_on_a_hint_once_the_task_is_learnt(task, call, in_process, monkeypatch):
    def measure(arm, seed, size, run):
        edit = {"last": 0.9, "last-2": 0.45, "last-3": 0.5}.get(arm, 0.5) + 0.01 * seed
        return {f"{name}@{n}": 1.0 if n == 5 else edit for n in size.lengths for name in ("exact", "edit", "token", "early", "late")}

    monkeypatch.setattr(own_task, "measure", measure)
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", *BRIEF)
    assert code == 0, err
    words = " ".join(out.split())
    assert "last helps, against standard: yes, +0.400 (95 % interval +0.400 to +0.400) edit@11, margin 0.05" in words
    assert "last helps, against standard-equal-tokens: yes" in words and "says nothing about longer" not in words


@pytest.fixture
def in_process(monkeypatch):
    """No worker processes, which take a second each to start."""
    monkeypatch.setattr("trimtab.cli.length.measure", _in_process)


def _in_process(claim, size, seeds, arms, folder, workers, device):
    from trimtab.claims import find_records, run_claim
    from trimtab.claims.report import read_entry

    record = run_claim(claim, size, seeds=seeds, arms=arms, folder=folder, workers=0, device=device)
    return record, read_entry(find_records(folder)[-1].absolute())


def test_a_hint_that_harms_and_one_that_does_nothing_are_told_apart(task, call, in_process, monkeypatch):
    def measure(arm, seed, size, run):
        edit = {"harms": 0.3, "nothing": 0.51}.get(arm, 0.5) + 0.01 * seed
        return {f"{name}@{n}": 1.0 if n == 5 else edit for n in size.lengths for name in ("exact", "edit", "token", "early", "late")}

    monkeypatch.setattr(own_task, "measure", measure)
    text = task.read_text() + "".join(f"\n\nclass {name.title()}(Last):\n    name = '{name}'\n" for name in ("harms", "nothing"))
    task.write_text(text)
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Harms", "--hint", "my_task.py:Nothing", *BRIEF)
    words = " ".join(out.split())
    assert code == 0, err
    assert "harms helps, against standard: no, it harms, -0.200" in words and "nothing helps, against standard: not by more than the margin, +0.010" in words


def test_without_a_hint_the_question_is_whether_it_gets_worse(task, call, in_process, monkeypatch):
    def measure(arm, seed, size, run):
        return {f"{name}@{n}": 1.0 if n == 5 else 0.4 for n in size.lengths for name in ("exact", "edit", "token", "early", "late")}

    monkeypatch.setattr(own_task, "measure", measure)
    _, out, _ = call("length", "my_task.py:Backwards", *BRIEF)
    words = " ".join(out.split())
    assert "Does backwards get worse on longer examples than it was trained on?" in words
    assert "edit similarity falls with length: yes, -0.100 edit for each more item" in words


def test_arms_train_what_their_names_say_from_the_same_weights(task, monkeypatch, tmp_path):
    seen = {}

    def fit(model, main, mix, **how):
        seen[how["folder"].name] = ({name: value.clone() for name, value in model.state_dict().items()}, main, mix, how)
        return type("Done", (), {"averaged": model})

    judged = []
    monkeypatch.setattr(own_task, "fit_with_hints", fit)
    monkeypatch.setattr(own_task, "evaluate_lengths", lambda model, main, lengths, **how: judged.append((list(lengths), how)) or [])
    spec = f"{task}:"
    settings = {"task": f"{spec}Backwards", "hints": {"last": f"{spec}Last", "prefix-drop": "auto:prefix-drop"}, "lengths": [5, 11], "examples": 7}
    settings |= {"dim": 8, "layers": 1, "heads": 2, "positions": "rope", "steps": 9, "lr": 0.01, "batch_size": 4, "share": 0.25}
    arms = ("standard", own_task.EQUAL, "last", "prefix-drop")
    for seed in (0, 1):
        for arm in arms:
            own_task.measure(arm, seed, Size(seeds=2, **settings), PairRun(tmp_path / f"{arm}-{seed}", lambda *_: None))
    for arm in arms:
        weights, main, mix, how = seen[f"{arm}-0"]
        assert all(torch.equal(weights[name], seen["standard-0"][0][name]) for name in weights)
        assert any(not torch.equal(weights[name], seen["standard-1"][0][name]) for name in weights)
        assert {key: how[key] for key in ("steps", "lr", "batch_size")} == {"steps": 9, "lr": 0.01, "batch_size": 4}
        assert how["seed"] == seen["standard-0"][3]["seed"] != seen["standard-1"][3]["seed"]
        assert main.vocab == next(iter(mix), main).vocab and list(mix.values()) == [0.25] * (arm != "standard")
    names = {arm: getattr(next(iter(seen[f"{arm}-0"][2]), None), "name", None) for arm in arms}
    assert names == {"standard": None, own_task.EQUAL: "backwards", "last": "last", "prefix-drop": "prefix-drop-1 of backwards"}
    assert all(lengths == [5, 11] and how["examples"] == 7 for lengths, how in judged)
    assert not {how["seed"] for _, how in judged} & {found[3]["seed"] for found in seen.values()}


def test_auto_searches_says_what_it_found_and_judges_the_best(task, call, in_process):
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "auto", *BRIEF)
    assert code == 0, err
    assert "training prefix-drop, seed 1000, 1 steps" in err
    assert "Hints for backwards in short runs: gain in edit similarity on lengths up to 10" in out
    assert "random-label: Answers of random values: a control." in " ".join(out.split())
    (found,) = Path("trimtab-runs/length-backwards").glob("search-*/hints.json")
    rows = json.loads(found.read_text())["rows"]
    assert len(rows) == 9 and {row["verdict"] for row in rows} == {None}
    record = json.loads(Path(re.search(r"^record +(\S+)", out, re.M)[1]).read_text())
    assert record["arms"] == ["standard", own_task.EQUAL, rows[0]["hint"]]


def test_json_is_all_that_stdout_has(task, call, in_process):
    _, out, err = call("length", "my_task.py:Backwards", "--hint", "auto", "--json", *BRIEF)
    assert json.loads(out)["slug"] == "length-backwards" and "in short runs" in err


def test_a_changed_task_is_searched_anew(task, call, in_process):
    for text, searches in (("", 1), ("", 1), ("\n# another version\n", 2)):
        task.write_text(task.read_text() + text)
        assert call("length", "my_task.py:Backwards", "--hint", "auto", *BRIEF)[0] == 0
        assert len(list(Path("trimtab-runs/length-backwards").glob("search-*"))) == searches


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "0"], "steps must be a whole number >= 1, got 0"),
        (["--examples", "0"], "examples must be a whole number >= 1, got 0"),
        (["--batch-size", "0"], "batch_size must be a whole number >= 1, got 0"),
        (["--dim", "7"], "dim must be a multiple of heads"),
        (["--dim", "12", "--positions", "rope"], "dim / heads must be even"),
        (["--share", "0"], "lr and share must be finite numbers > 0"),
        (["--share", "0.001"], "size must be large enough for one row of every hint"),
        (["--lr", "nan"], "lr and share must be finite numbers > 0, got nan"),
        (["--lengths", "3", "--lengths", "2"], "lengths must hold one longer than its training lengths, up to 5"),
        (["--seeds", "0"], "seeds must be N"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_trained(task, call, options, words):
    code, _, err = call("length", "my_task.py:Backwards", *BRIEF[:-2], *options)
    assert code == 2 and words in err
    assert not Path("trimtab-runs").exists()


def test_the_length_that_decides_is_no_training_length(task, call, in_process):
    _, out, _ = call("length", "my_task.py:Backwards", *BRIEF, "--lengths", "3", "--lengths", "40", "--hint", "my_task.py:Last")
    record = json.loads(Path(re.search(r"^record +(\S+)", out, re.M)[1]).read_text())
    assert record["settings"]["lengths"] == [3, 5, 11, 40] and {entry["metric"] for entry in record["statements"]} == {"edit@11"}


def test_a_task_file_may_import_its_neighbour(task, call, in_process):
    Path("hints.py").write_text("from my_task import Last\n\n\nclass Other(Last):\n    name = 'other'\n")
    assert call("length", "my_task.py:Backwards", "--hint", "hints.py:Other", *BRIEF)[0] == 0


SHORT = FENCES[0].replace("class Backwards", "class Task")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "defines no class"),
        ("class Other: pass", "no class 'Task'; allowed: Other"),
        ("class Task: pass", "must be a subclass of trimtab.tasks.SeqTask, which has batch"),
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def broken(:", "cannot be imported: SyntaxError"),
        (SHORT.replace('name = "backwards"', "pass"), "must have the attribute 'name'"),
        (SHORT.replace('name = "backwards"', "name = 'a\\nb'"), "must have a name of 1 to 60 printable characters"),
        (SHORT.replace('name = "backwards"', "name = 5"), "must have a name of 1 to 60 printable characters, got 5"),
        (SHORT + "\n    def __init__(self, wanted):\n        pass\n", "must be made without arguments, its constructor needs 'wanted'"),
        (SHORT + "\n    def __init__(self):\n        raise ValueError('no world')\n", "cannot be made: ValueError: no world"),
        (SHORT.replace("    def answer(self, prompt):", "    def other(self, prompt):"), "cannot be made: TypeError"),
        (SHORT.replace("x.flip(1)", "x"), "supervised ids are the answer"),
        (SHORT.replace("> length", ">= length"), "the prompt is not supervised"),
        (SHORT.replace("x.flip(1), end]", "x.flip(1), end + 99]"), "must return ids in 0 .. 13, got"),
        (SHORT.replace("(size, length), generator=generator)", "(size, length))"), "no global random state"),
    ],
)
def test_what_is_no_task_is_refused_in_words_and_with_2(tmp_path, monkeypatch, call, text, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(text)
    code, out, err = call("length", "t.py:Task", *BRIEF)
    assert code == 2 and words in err and not out
    assert not (tmp_path / "trimtab-runs").exists()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere.py:Task", "there is no nowhere.py"),
        ("my_task.py", "must be FILE.py:CLASS, got 'my_task.py'"),
        ("my_task.txt:Task", "must be FILE.py:CLASS"),
        ("my_task.py:Backward", "did you mean 'Backwards'?"),
    ],
)
def test_what_names_no_class_is_refused(task, call, spec, words):
    code, _, err = call("length", spec)
    assert code == 2 and words in err


def test_hints_of_another_vocabulary_or_one_name_are_refused(task, call):
    task.write_text(task.read_text() + "\n\nclass Other(Last):\n    vocab = Vocab(11, ('<backwards>', '<last>'))\n\n\nclass Same(Last):\n    name = 'last'\n")
    code, _, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Other", *BRIEF)
    assert code == 2 and "the hint my_task.py:Other must have the task's vocabulary" in err
    code, _, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", "--hint", "my_task.py:Same", *BRIEF)
    assert code == 2 and "hints must have names of their own, got 'last' twice" in err


def test_a_task_without_longer_examples_cannot_be_judged_by_length(task, call):
    task.write_text(
        task.read_text() + "\n\nclass Only(Backwards):\n    def check_length(self, length):\n        super().check_length(length)\n"
        "        if length > 5:\n            raise UsageError('no longer ones')\n"
    )
    task.write_text("from trimtab.core import UsageError\n" + task.read_text())
    code, _, err = call("length", "my_task.py:Only", "--steps", "2")
    assert code == 2 and "must have examples longer than its training lengths, up to 5, or" in err


def test_tasks_of_one_length_two_values_or_long_answers(task, call, in_process):
    task.write_text(
        task.read_text() + "\n\nclass One(Backwards):\n    name, lengths, vocab = 'one', (3, 3), Vocab(2, Backwards.vocab.specials)\n\n\n"
        "class Long(Backwards):\n    name = 'long'\n\n    def sample(self, size, length, generator):\n        x, _ = super().sample(size, length, generator)\n"
        "        body, end = x[:, length + 1 : -1], x[:, -1:]\n        ids = torch.cat([x[:, : length + 1], body, body, body, end], dim=1)\n"
        "        return ids, torch.arange(ids.shape[1]).expand_as(ids) > length\n\n    def answer(self, prompt):\n"
        "        return super().answer(prompt)[:-1] * 3 + [self.vocab.eos]\n"
    )
    for name in ("One", "Long"):
        code, _, err = call("length", f"my_task.py:{name}", *BRIEF)
        assert code == 0, err


def test_lengths_that_are_judged():
    assert own_task.judged_lengths(Sorting(lengths=(1, 1))) == [1, 2, 3, 4, 5]
    assert own_task.judged_lengths(Sorting(lengths=(1, 8)), [30, 9]) == [8, 9, 30]
    with pytest.raises(UsageError, match="length must be <= vocab = 10"):
        own_task.judged_lengths(Sorting(vocab=10, unique=True, lengths=(1, 8)), [11])
