import json
import re
from pathlib import Path

import pytest

from trimtab.claims import own_task
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
    assert "of examples of length 5 are right: it has not learnt its training lengths; raise --steps." in words
    assert "against" not in words  # nothing is said about a hint then
    record = json.loads(Path(re.search(r"^record +(\S+)", out, re.M)[1]).read_text())
    assert (record["slug"], record["arms"], record["seeds"]) == ("length-backwards", ["standard", "standard-equal-tokens", "last"], [0, 1])
    assert record["settings"]["lengths"] == [5, 11] and len(record["settings"]["files"]["my_task.py:Last"]) == 64
    assert Path("trimtab-runs/length-backwards/report/length-backwards.html").exists()
    _, _, again = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", *BRIEF)
    assert "6 runs, 6 finished before" in again


def test_a_changed_task_is_trained_anew(task, call, in_process):
    for text, runs in (("", 1), ("", 1), ("\n# another version\n", 2)):
        task.write_text(task.read_text() + text)
        assert call("length", "my_task.py:Backwards", *BRIEF)[0] == 0
        assert len(list(Path("trimtab-runs/length-backwards").glob("small-*/pairs"))) == runs


def test_verdicts_on_a_hint_once_the_task_is_learnt(task, call, in_process, monkeypatch):
    def measure(arm, seed, size, run):
        edit = {"last": 0.9}.get(arm, 0.5) + 0.01 * seed
        return {f"{name}@{n}": 1.0 if n == 5 else edit for n in size.lengths for name in ("exact", "edit", "token", "early", "late")}

    monkeypatch.setattr(own_task, "measure", measure)
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "my_task.py:Last", *BRIEF)
    assert code == 0, err
    assert "last against standard: helps, +0.400 edit similarity at length 11 (95 % interval +0.400 to +0.400, 2 seeds)" in out
    assert "last against standard-equal-tokens: helps" in out


@pytest.fixture
def in_process(monkeypatch):
    """No worker processes, which take a second each to start."""
    monkeypatch.setattr("trimtab.cli.length.measure", _in_process)


def _in_process(claim, size, seeds, arms, folder, workers, device):
    from trimtab.claims import find_records, run_claim
    from trimtab.claims.report import read_entry

    record = run_claim(claim, size, seeds=seeds, arms=arms, folder=folder, workers=0, device=device)
    return record, read_entry(find_records(folder)[-1].absolute())


def test_auto_searches_and_says_what_it_found(task, call, in_process, monkeypatch):
    import trimtab.train.hint_search as search

    monkeypatch.setattr(search, "gradient_scores", lambda *a, **k: {"cosine": 0.0, "lookahead": 0.0})
    code, out, err = call("length", "my_task.py:Backwards", "--hint", "auto", *BRIEF)
    assert code == 0, err
    assert "round 1 of 2: prefix-drop" in err
    assert re.search(r"Hints for backwards, best first; the search took \d+% of full runs of all", out)
    found = json.loads(Path("trimtab-runs/length-backwards/search/hints.json").read_text())
    assert len(found["rows"]) == 8 and sum(row["verdict"] is not None for row in found["rows"]) == 1


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
    assert code == 2 and "must have examples longer than its training lengths, up to 5" in err


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
