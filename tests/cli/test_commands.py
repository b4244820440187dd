import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.toys import TOY, child
from trimtab.cli import COMMANDS
from trimtab.cli.run import parse_seeds
from trimtab.cli.terminal import table
from trimtab.core import UsageError, cards

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "jinja2", "jaxtyping")


# Light


@pytest.mark.parametrize("code", ["import trimtab", "from trimtab.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"])
def test_import_and_help_load_little(code):
    probe = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before, file=sys.stderr)"
    modules = set(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stderr.split())
    assert not [m for m in modules if m.split(".")[0] in HEAVY]
    assert len(modules) < 160, sorted(modules)


@pytest.mark.parametrize("command", ["list", "show", "run", "report", "doctor", "replay"])
def test_a_module_of_a_command_loads_no_torch(command):
    probe = f"import sys, {COMMANDS[command][0]}\nprint(*sys.modules)"
    modules = set(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split())
    assert not modules & {"torch", "scipy", "matplotlib", "numpy", "rich"}


# The outside


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(call, command):
    code, out, err = call(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: trimtab {command}")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("lst",), "did you mean 'list'"),
        (("list", "--topc", "x"), "--topic"),
        (("list", "--topic", "language modls"), "did you mean 'language models'"),
        (("list", "--room", "lossses"), "did you mean 'losses'"),
        (("show", "task-hintng"), "did you mean 'task-hinting'"),
        (("run", "task-hintng"), "did you mean 'task-hinting'"),
        (("run", "toy", "--size", "smal"), "did you mean 'small'"),
        (("run", "toy", "--arm", "hnt"), "did you mean 'hint'"),
        (("run", "toy", "--seeds", "0"), "seeds must be N"),
        (("run", "toy", "--seeds", "-1"), "seeds must be N"),
        (("run", "toy", "--seeds", "3-1"), "seeds must be N"),
        (("run", "toy", "--seeds", "1,2"), "seeds must be N"),
        (("run", "toy", "--seeds", "999999999"), "1 to 1000 of them"),
        (("run", "toy", "--device", "abacus"), "got 'abacus'"),
        (("run", "toy", "--workers", "0"), "workers must be at least 1"),
        (("run", "toy", "--require", "good"), "reproduced"),
        (("run", "scod"), "planned and has no claim yet; claims: toy"),
        (("replay", "nowhere.json"), "there is no record nowhere.json; trimtab doctor lists"),
    ],
)
def test_a_wrong_call_exits_with_2_and_says_what_is_right(toy, call, args, says):
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert says in err
    assert not Path("trimtab-runs").exists() or not list(Path("trimtab-runs").rglob("*.json"))


def test_seeds():
    assert [*parse_seeds("3")] == [0, 1, 2]
    assert [*parse_seeds("1000-1001")] == [1000, 1001]
    with pytest.raises(UsageError, match=r"got '٣'"):
        parse_seeds("٣")


def test_a_closed_pipe_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    for args in (("list",), ("show", "task-hinting"), ("list", "--json")):
        done = child(*args, capture_output=False, stdout=write, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (0, ""), args
    os.close(write)


def test_a_full_disk_under_the_output_is_told_and_under_messages_is_not():
    with open("/dev/full", "wb") as full:
        done = child("list", capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert child("lst", capture_output=False, stderr=full).returncode == 2
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_output_that_cannot_show_a_sign_is_still_written():
    done = child("show", "task-hinting", "--paper", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("columns", ["20", "60", "120"])
def test_a_table_fits_and_loses_nothing(monkeypatch, call, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = call("list")
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "…" not in out
    if columns != "20":
        assert all(slug in out for slug in cards())
    if columns == "60":  # where what a method does has lines of its own
        assert all("".join(card.line.split()) in "".join(out.split()) for card in cards().values())


@pytest.mark.parametrize("columns", [30, 45, 79, 200])
def test_numbers_that_do_not_fit_follow_below_whole(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [["exact", *[""] * 8], ["  standard-equal-tokens", *(f"0.{k}23" for k in range(8))], ["  paper", *[""] * 7, "0.926"]]
    table(["length", *(f"{k}x" for k in range(8))], rows, right=range(1, 9))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert re.findall(r"0\.\d23", out) == [f"0.{k}23" for k in range(8)]
    assert re.findall(r"\dx", out) == [f"{k}x" for k in range(8)]
    assert out.count("length") == {30: 8, 45: 3, 79: 1, 200: 1}[columns]
    assert out.count("paper") == 1


# list and show


def test_list_json_has_every_method(call):
    code, out, err = call("list", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [m["slug"] for m in found] == [*cards()]
    assert all({"slug", "name", "room", "topics", "status", "verdict"} <= m.keys() for m in found)
    assert {m["status"] for m in found} <= {"planned", "built"}


def test_list_has_what_is_built_first_and_says_how_much_and_which_topics(call, monkeypatch):
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        _, out, _ = call("list")
        lines = out.splitlines()
        places = {card.slug: next(k for k, line in enumerate(lines) if re.match(rf"{card.slug}\s", line)) for card in cards().values()}
        built = [slug for slug, card in cards().items() if card.status == "built"]
        assert sorted(places, key=places.__getitem__)[: len(built)] == built
        assert f"{len(built)} built, {len(cards()) - len(built)} planned" in lines
        assert all(topic.replace(" ", "") in "".join(out.split()) for card in cards().values() for topic in card.topics)
    _, out, _ = call("list", "--room", "optim")
    assert "Topics" not in out
    _, _, err = call("list", "--topic", "foo")
    assert "allowed: one of" in err
    assert "active learning, algorithmic tasks" in err


def test_list_filters(call):
    _, out, _ = call("list", "--room", "losses", "--topic", cards()["task-hinting"].topics[0], "--json")
    assert json.loads(out) == []
    _, out, _ = call("list", "--topic", cards()["task-hinting"].topics[0], "--json")
    assert "task-hinting" in [m["slug"] for m in json.loads(out)]


def test_list_and_show_take_the_verdict_of_the_record_that_decides(toy, call):
    call("run", "toy", "--out", "made")
    record = json.loads(next(Path("made").glob("small-*.json")).read_text())
    folder = Path("trimtab-runs/task-hinting")
    folder.mkdir(parents=True)
    (folder / "small-20260101T000000Z.json").write_text(json.dumps(record | {"slug": "task-hinting"}))
    _, out, _ = call("list", "--json")
    assert {m["slug"]: m["verdict"] for m in json.loads(out)} == {slug: "reproduced" if slug == "task-hinting" else None for slug in cards()}
    _, out, _ = call("list")
    assert "● reproduced, stale" in out  # this test's package has no such claim


def test_show_prints_claims_with_their_statements(call, toy):
    (toy / "task_hinting_toy.py").write_text(TOY.replace('slug="toy"', 'slug="task-hinting-toy"'))
    _, out, _ = call("show", "task-hinting")
    assert "task-hinting-toy: no verdict yet" in out
    call("run", "task-hinting-toy")
    sys.modules.pop("trimtab.claims.task_hinting_toy")
    for name in ("task-hinting", "task-hinting-toy"):
        _, out, _ = call("show", name)
        assert "task-hinting-toy: ● reproduced (small, 3 seeds" in out
        assert "hint over standard: +0.300 [+0.300, +0.300], margin 0.05, paper 0.400" in " ".join(out.split())


def test_a_method_stands_for_its_only_claim(call, toy):
    (toy / "task_hinting_toy.py").write_text(TOY.replace('slug="toy"', 'slug="task-hinting-toy"'))
    code, out, _ = call("run", "task-hinting", "--size", "smoke", "--json")
    sys.modules.pop("trimtab.claims.task_hinting_toy")
    assert json.loads(out)["slug"] == "task-hinting-toy"
    (toy / "task_hinting_other.py").write_text(TOY)
    code, _, err = call("run", "task-hinting")
    assert code == 2
    assert "name one of them: task-hinting-other, task-hinting-toy" in err


def test_show_names_paper_patents_and_deviations(call):
    _, out, _ = call("show", "task-hinting")
    assert "2310.00726" in out
    assert "Patents known of\n  none known" in out
    assert "Deviations" not in out
    _, out, _ = call("show", "ann-autotune")
    assert "Patents known of\n  US 12235845, on tuning a multi-level" in out
    assert "none known" not in out
    _, out, _ = call("show", "task-hinting", "--paper")
    assert all(" ".join(line.split()) in " ".join(out.split()) for line in cards()["task-hinting"].deviations)
