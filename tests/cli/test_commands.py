import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import trimtab.claims
from trimtab.claims import loading
from trimtab.cli import COMMANDS, main
from trimtab.cli.run import parse_seeds
from trimtab.cli.terminal import mastered
from trimtab.core import UsageError, cards

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "jinja2", "jaxtyping")

TOY = """
import os, time
from trimtab.claims import Claim, Mastery, Size, superior

def measure(arm, seed, size, run):
    for step in range(1, 4):
        run.progress(step, 3, {"loss": 1 / step})
        time.sleep(float(os.environ.get("TOY_SLEEP", "0")))
    if os.environ.get("TOY_BREAKS") == arm:
        raise ValueError("the toy is broken")
    level = {"standard": 0.3, "hint": 0.6}[arm] + 0.01 * seed
    return {"exact@1x": 1.0, "edit@1x": 1.0, "edit@5x": level, "loss": 0.5}

CLAIM = Claim(
    slug="toy",
    title="Does a hint help a toy?",
    measure=measure,
    arms=("standard", "hint"),
    primary=(superior("edit@5x", "hint", over="standard", margin=0.05, why="one in twenty", paper=0.4, name="hint over standard"),),
    mastery=Mastery("exact@1x"),
    paper={"hint": {"edit@5x": 0.926}},
    sizes={"smoke": Size(seeds=1), "small": Size(seeds=3, core_minutes=6)},
)
"""
# makes the toy a claim of the package; for this process by the fixture, for a child as code before main()
INSTALL = """
import sys, trimtab.claims
from pathlib import Path
from trimtab.claims import loading
loading._HERE = Path({folder!r})
trimtab.claims.__path__.append({folder!r})
from trimtab.cli import main
"""


@pytest.fixture
def toy(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(loading, "_HERE", folder)
    monkeypatch.setattr(trimtab.claims, "__path__", [*trimtab.claims.__path__, str(folder)])
    monkeypatch.setattr("trimtab.claims.report.library.packaged", lambda: folder / "records")
    for module in ("list", "show", "run", "report", "doctor"):
        __import__(f"trimtab.cli.{module}")
        monkeypatch.setattr(f"trimtab.cli.{module}.packaged", lambda: folder / "records")
    yield folder
    sys.modules.pop("trimtab.claims.toy", None)


@pytest.fixture(autouse=True)
def _few_figures(request, monkeypatch):
    """Drawing takes most of the time, and has its own tests."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("trimtab.claims.report.figures.pictures", lambda view: [])


@pytest.fixture
def drawn():
    """Asks for real figures."""


@pytest.fixture
def call(capsys):
    def run(*args):
        with pytest.raises(SystemExit) as end:
            main([*map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return end.value.code, out, err

    return run


def child(*args, prelude="from trimtab.cli import main\n", **settings):
    settings = {"capture_output": True, "text": True} | settings
    return subprocess.run([sys.executable, "-c", f"{prelude}main({[*args]!r})"], **settings)


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
        (("replay", "nowhere.json"), "there is no record nowhere.json"),
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


# list and show


def test_list_json_has_every_method(call):
    code, out, err = call("list", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [m["slug"] for m in found] == [*cards()]
    assert all({"slug", "name", "room", "topics", "status", "verdict"} <= m.keys() for m in found)
    assert {m["status"] for m in found} <= {"planned", "built"}


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
    _, out, _ = call("show", "task-hinting", "--paper")
    assert all(" ".join(line.split()) in " ".join(out.split()) for line in cards()["task-hinting"].deviations)


# run


def test_run_prints_table_mastery_statements_and_places(toy, drawn, call):
    code, out, err = call("run", "toy")
    assert code == 0
    assert "6 runs, 0 finished before, about 6 min of one core, 3 min on 2" in err
    words = " ".join(out.split())
    for line in ("length 1x 5x", "standard 1.000 0.310", "hint 1.000 0.610", "paper 0.926", "exact@1x at least 0.98): standard yes, hint yes"):
        assert line in words
    assert "● reproduced hint over standard edit@5x +0.300 [+0.300, +0.300], margin 0.05, paper 0.400" in words
    assert "Verdict: ● reproduced (small, 3 seeds" in words
    places = dict(line.split() for line in out.splitlines() if re.match(r"(record|report|figures) ", line))
    assert json.loads(Path(places["record"]).read_text())["verdict"] == "reproduced"
    assert Path(places["report"]).with_name("toy.html").exists()
    assert sorted(path.name for path in Path(places["figures"]).iterdir()) == ["toy-curve-0.png", "toy-statements.png"]
    assert places["record"].startswith("trimtab-runs/toy/small-")


def test_a_second_run_takes_up_what_is_done(toy, call):
    call("run", "toy", "--seeds", "2", "--arm", "hint")
    _, _, err = call("run", "toy")
    assert "6 runs, 2 finished before, about 4 min of one core" in err
    assert "hint, seed 0: done" not in err
    assert "hint, seed 2: done" in err


def test_one_seed_has_no_verdict_beside_the_record_that_decides(toy, call):
    call("run", "toy")
    code, out, _ = call("run", "toy", "--seeds", "1")
    assert code == 0
    assert "Verdict: 1 seed: no verdict (small, 1 seed" in out
    assert "The record that decides this claim: ● reproduced (small, 3 seeds" in out
    assert out.count("edit@5x +0.300 [+0.300, +0.300]") == 1  # the numbers of all seeds, below those of one
    assert "1 seed: no verdict." in Path("trimtab-runs/toy/report/toy.html").read_text()


def test_json_is_the_record_alone(toy, call):
    code, out, err = call("run", "toy", "--size", "smoke", "--json", "--out", "elsewhere")
    assert code == 0
    assert json.loads(out) == json.loads(next(Path("elsewhere").glob("smoke-*.json")).read_text())
    assert json.loads(out)["verdict"] is None
    assert "elsewhere/report/index.html" in err


@pytest.mark.parametrize(("seeds", "required", "code"), [("3", "reproduced", 0), ("3", "contradicted", 3), ("1", "reproduced", 3)])
def test_only_require_makes_a_verdict_an_exit_code(toy, call, seeds, required, code):
    assert call("run", "toy", "--seeds", seeds, "--require", required)[0] == code


def test_a_failed_pair_exits_with_1_and_names_it(toy, call, monkeypatch):
    monkeypatch.setenv("TOY_BREAKS", "hint")
    code, out, err = call("run", "toy", "--seeds", "1")
    assert (code, out) == (1, "")
    assert "hint, seed 0: FAILED, ValueError: the toy is broken" in err
    assert "standard, seed 0: done" in err
    monkeypatch.delenv("TOY_BREAKS")
    _, _, err = call("run", "toy", "--seeds", "1")
    assert "2 runs, 1 finished before" in err


def test_a_folder_that_cannot_be_written_is_named(toy, call):
    Path("file").touch()
    code, _, err = call("run", "toy", "--out", "file/inside")
    assert code == 2
    assert "got file/inside: Not a directory; choose another with --out" in err


def test_a_full_disk_is_an_error_not_a_traceback(toy, call, monkeypatch):
    def full(*args, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.cli.report.write_report", full)
    code, _, err = call("report")
    assert code == 1
    assert "No space left on device" in err


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(toy):
    script = INSTALL.format(folder=str(toy)) + "sys.argv[1:] = ['run', 'toy', '--seeds', '1']\nmain()"
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TOY_SLEEP": "20"}, **settings)
    deadline = time.monotonic() + 60
    while not list(Path("trimtab-runs").glob("toy/*/work/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "To go on: trimtab run toy --seeds 1" in err
    again = subprocess.run([sys.executable, "-c", script], timeout=60, **settings)
    assert again.returncode == 0, again.stderr
    assert "1 seed: no verdict" in again.stdout


def test_a_terminal_gets_bars_on_stderr(toy):
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm", "COLUMNS": "80", "TOY_SLEEP": "0.2"}
    code = INSTALL.format(folder=str(toy)) + "main(['run', 'toy', '--seeds', '1'])"
    with open("out", "w+") as out, subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=theirs, env=environment) as running:
        os.close(theirs)
        drawn = b""
        with suppress(OSError):  # how the end of a terminal reads
            while piece := os.read(ours, 1 << 16):
                drawn += piece
        os.close(ours)
    assert running.returncode == 0, drawn.decode()
    assert "━".encode() in drawn
    assert b"hint, seed 0" in drawn
    assert "\x1b" not in Path("out").read_text()


# replay, report, doctor


@pytest.fixture
def recorded(toy, call):
    call("run", "toy", "--out", "made")
    return next(Path("made").glob("small-*.json"))


def test_replay_agrees_and_measures_again(recorded, call):
    code, out, err = call("replay", recorded)
    assert code == 0
    assert "They agree." in out
    assert "6 runs, 0 finished before" in err
    code, out, _ = call("replay", recorded, "--json")
    assert json.loads(out).items() >= {"slug": "toy", "agree": True, "recorded": "reproduced", "replayed": "reproduced", "same_claim": True}.items()


def test_replay_takes_seeds_and_arms_of_the_record(toy, call):
    call("run", "toy", "--seeds", "1-2", "--arm", "hint", "--out", "made")
    _, out, _ = call("replay", next(Path("made").glob("small-*.json")), "--json")
    again = json.loads(Path(json.loads(out)["record"]).read_text())
    assert (again["seeds"], again["arms"], again["size"]) == ([1, 2], ["hint"], "small")


def test_replay_tells_another_verdict_and_another_claim(toy, recorded, call):
    (toy / "toy.py").write_text(TOY.replace('"hint": 0.6', '"hint": 0.31'))
    sys.modules.pop("trimtab.claims.toy")
    code, out, _ = call("replay", recorded)
    assert code == 0
    assert "They do NOT agree." in out
    assert "The claim file is not the one" in out


def test_replay_of_a_smoke_record_has_nothing_to_agree_with(toy, call):
    call("run", "toy", "--size", "smoke", "--out", "made")
    _, out, _ = call("replay", next(Path("made").glob("smoke-*.json")))
    assert "The record has no verdict to agree with." in out


def test_replay_executes_nothing_of_the_record(recorded, call):
    record = json.loads(recorded.read_text())
    record |= {"argv": ["touch", "harm"], "settings": {"steps": "__import__('os').system('touch harm')"}, "commit": None}
    recorded.write_text(json.dumps(record))
    assert call("replay", recorded)[0] == 0
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"slug": "other"}, 2, "which this version of trimtab does not have; claims: toy"),
        ({"size": "full"}, 2, "unknown size 'full'"),
        ({"slug": "../toy"}, 1, "slug should be"),
        ({"seeds": "012"}, 1, "seeds should be"),
        (None, 1, "should be JSON and is not"),
    ],
)
def test_replay_of_a_damaged_or_foreign_record(recorded, call, changes, code, says):
    text = recorded.read_text()
    recorded.write_text(text[:99] if changes is None else json.dumps(json.loads(text) | changes))
    found, out, err = call("replay", recorded)
    assert (found, out) == (code, "")
    assert says in err


def test_report_takes_packaged_records_and_those_of_this_folder(toy, call):
    call("run", "toy", "--out", toy / "records" / "toy")
    call("run", "toy", "--seeds", "1")
    code, out, _ = call("report", "--out", "pages")
    assert code == 0
    assert Path(out.strip()) == Path("pages/index.html").resolve()
    assert "reproduced" in Path("pages/index.html").read_text()
    assert "Other records of this claim" in Path("pages/toy.html").read_text()


def test_a_record_that_cannot_be_read_is_a_warning(recorded, call):
    folder = Path("trimtab-runs/toy")
    folder.mkdir(parents=True)
    (folder / "small-20260101T000000Z.json").write_text("{")
    code, _, err = call("report")
    assert code == 0
    assert "Warning" in err
    assert "small-20260101T000000Z.json" in Path("trimtab-report/index.html").read_text()


def test_report_opens_a_browser_when_asked(toy, call, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    call("report")
    assert not opened
    call("report", "--open")
    assert opened == [Path("trimtab-report/index.html").resolve().as_uri()]


def test_doctor_names_versions_extras_and_records(toy, call):
    call("run", "toy")
    code, out, err = call("doctor", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["trimtab"] == trimtab.__version__
    assert found["libraries"]["torch"]
    assert "cpu" in found["devices"]
    assert found["extras"]["lm"]["install"] == "pip install 'trimtab[lm]'"
    assert [record["stale"] for record in found["records"]] == [""]
    assert found["writable"] is True
    (toy / "toy.py").write_text(TOY.replace("0.05", "0.06"))
    _, out, _ = call("doctor")
    assert "stale: its claim file has changed since" in " ".join(out.split())


def test_an_arm_that_did_not_master_its_training_is_named(capsys):
    mastered(SimpleNamespace(mastered={"standard": True, "count": False}, condition="exact@1x at least 0.98"))
    assert capsys.readouterr().out == "Mastered the training task (exact@1x at least 0.98): standard yes, count NO\n"
