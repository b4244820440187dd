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

from tests.cli.toys import INSTALL
from trimtab.cli.progress import Progress
from trimtab.cli.terminal import mastered


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
    _, out, _ = call("run", "toy", "--seeds", "2")  # a verdict of its own, and fewer seeds than the size has
    assert "Verdict: ● reproduced (small, 2 seeds" in out
    assert "The record that decides this claim: ● reproduced (small, 3 seeds" in out
    assert "The record that decides" not in call("run", "toy")[1]


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
    code, _, err = call("report", "--out", "file")
    assert code == 2
    assert "got file: it is a file; choose another with --out" in err


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


def test_progress_tells_the_time_left_and_that_a_pair_is_tested(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("trimtab.cli.progress.time.monotonic", lambda: clock.now)
    with Progress("toy", 2) as tell:
        tell({"event": "start", "pairs": 4, "finished": 1, "core_minutes": None, "folder": "here"})
        for arm in ("a", "b"):
            tell({"event": "pair", "arm": arm, "seed": 0})
        capsys.readouterr()
        clock.now = 4.0
        tell({"event": "step", "arm": "a", "seed": 0, "step": 1, "steps": 1000, "values": {"loss": 2.0}})
        assert capsys.readouterr().err == ""  # no line more often than every five seconds
        clock.now = 600.0
        tell({"event": "step", "arm": "a", "seed": 0, "step": 500, "steps": 1000, "values": {"loss": 1.0}})
        # half a pair of three took ten minutes, so two and a half take fifty
        assert capsys.readouterr().err == "1 of 4 finished, about 50 min left; a, seed 0: 500/1000 loss 1\n"
        tell({"event": "step", "arm": "a", "seed": 0, "step": 1000, "steps": 1000, "values": {"loss": 1.0}})
        assert capsys.readouterr().err == "a, seed 0: trained, testing\n"
        clock.now = 610.0
        tell({"event": "step", "arm": "b", "seed": 0, "step": 1, "steps": 10, "values": {}})
        assert "a, seed 0: 1000/1000 testing; b, seed 0: 1/10\n" in capsys.readouterr().err


def test_the_time_left_of_a_run_that_goes_on_follows_from_what_this_call_did(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("trimtab.cli.progress.time.monotonic", lambda: clock.now)
    with Progress("toy", 1) as tell:
        tell({"event": "start", "pairs": 2, "finished": 0, "core_minutes": None, "folder": "here"})
        tell({"event": "pair", "arm": "a", "seed": 0})
        tell({"event": "step", "arm": "a", "seed": 0, "step": 800, "steps": 1000, "values": {}})
        capsys.readouterr()
        clock.now = 60.0
        tell({"event": "step", "arm": "a", "seed": 0, "step": 900, "steps": 1000, "values": {}})
    assert capsys.readouterr().err == "0 of 2 finished, about 11 min left; a, seed 0: 900/1000\n"


@pytest.fixture
def lost(request):
    """What stands for an output that is lost: a pipe whose reader has gone, or None for a number that was closed before Python started."""
    read, write = os.pipe()
    os.close(read)
    yield write if request.param == "gone" else None
    os.close(write)


def run_toy(toy, *args, **streams):
    """A run in a child; a stream that is None is closed there."""
    closed = [number for number, name in ((1, "stdout"), (2, "stderr")) if streams[name] is None]
    start = f"import os, sys; [os.close(number) for number in {closed}]; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    code = INSTALL.format(folder=str(toy)) + f"main({['run', 'toy', '--seeds', '1', *args]!r})"
    return subprocess.run([sys.executable, "-c", start if closed else "import sys; exec(sys.argv[1])", code], text=True, **streams)


@pytest.mark.parametrize("lost", ["gone", "closed"], indirect=True)
def test_a_verdict_that_nobody_reads_is_still_an_exit_code(toy, call, lost):
    call("run", "toy", "--seeds", "1")
    assert run_toy(toy, "--require", "reproduced", stdout=lost, stderr=subprocess.DEVNULL).returncode == 3


@pytest.mark.parametrize("lost", ["gone", "closed"], indirect=True)
def test_progress_that_nobody_reads_ends_no_job(toy, lost):
    done = run_toy(toy, stdout=subprocess.PIPE, stderr=lost)
    assert done.returncode == 0
    assert "1 seed: no verdict" in done.stdout


def test_an_arm_that_did_not_master_its_training_is_named(capsys):
    mastered(SimpleNamespace(mastered={"standard": True, "count": False}, condition="exact@1x at least 0.98"))
    assert capsys.readouterr().out == "Mastered the training task (exact@1x at least 0.98): standard yes, count NO\n"
