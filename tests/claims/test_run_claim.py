import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.claims import ClaimIncomplete, Size, estimate, find_records, load_file, read_record, run_claim
from trimtab.claims.pair import finite, origin
from trimtab.claims.record import TIME_FIELDS
from trimtab.claims.run import check_device, run_folder
from trimtab.claims.schema import problems
from trimtab.claims.worker import _claim
from trimtab.core import DamagedFile, FolderInUse, TrimtabError, UsageError, locked, read_json, write_json

ARGV = ["trimtab", "run", "toy"]


def here(claim, folder, size="small", **rest):
    return run_claim(claim, size, **{"folder": folder, "workers": 0, "argv": ARGV} | rest)


def lasting(record):
    return json.dumps({key: value for key, value in record.items() if key not in TIME_FIELDS})


def pairs(folder):
    return sorted(path.stem for path in folder.glob("*/pairs/*.json"))


def kinds(events):
    return [event["event"] for event in events if event["event"] != "step"]


ALL = ["hint-seed0", "hint-seed1", "other-seed0", "other-seed1", "standard-seed0", "standard-seed1"]


def test_workers_measure_every_pair_and_a_record_comes_out(toy, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TOY_TROUBLE", "hint-1=print")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    events, folder = [], tmp_path / "runs"
    record = run_claim(toy, folder=folder, progress=events.append, argv=ARGV)
    assert problems(record) == []
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert record["measured"]["hint"]["1"]["threads"] == record["threads"] == 1
    assert (record["arms"], record["seeds"], record["verdict"]) == (["standard", "hint", "other"], [0, 1], "reproduced")
    assert record["fingerprint"] == {"weights": "ab", "loss": 2.0}

    assert events[0] == {"event": "start", "pairs": 6, "finished": 0, "core_minutes": 12.0, "folder": str(run_folder(folder, "small", toy.hash("small")))}
    started = [(event["arm"], event["seed"]) for event in events if event["event"] == "pair"]
    assert started == [(arm, seed) for seed in (0, 1) for arm in ("standard", "hint", "other")]  # both arms of a seed before the next seed
    done = [event for event in events if event["event"] == "done"]
    assert [event["finished"] for event in done] == [1, 2, 3, 4, 5, 6]
    assert {event["metrics"]["exact@8"] for event in done} == {0.99}
    last = [event for event in events if event["event"] == "step" and event["step"] == event["steps"]]
    assert {(event["arm"], event["seed"]) for event in last} == set(started)
    assert all(event["values"] == {"loss": 1 / 3} for event in last)
    assert (events[-1]["event"], events[-1]["verdict"]) == ("record", "reproduced")
    assert json.dumps(read_record(events[-1]["path"])) == json.dumps(record)

    run = Path(events[0]["folder"])
    assert pairs(folder) == ALL
    assert sorted(str(path.relative_to(run / "work" / "hint-seed0")) for path in (run / "work" / "hint-seed0").rglob("*")) == ["metrics.jsonl"]
    printed = (run / "logs" / "hint-seed1.log").read_text()
    assert "a line of hint" in printed
    assert "and one more" in printed
    assert [path.name for path in (run / "logs").iterdir()] == ["hint-seed1.log"]
    assert capfd.readouterr() == ("", "")

    again = []
    assert json.dumps(run_claim(toy, folder=folder, progress=again.append, argv=["trimtab", "run", "toy", "--json"])) == json.dumps(record)
    assert (kinds(again), again[0]["finished"], len(find_records(folder))) == (["start", "record"], 6, 1)
    assert lasting(here(toy, tmp_path / "other", workers=1)) == lasting(record)  # one worker or two


def test_torch_has_one_thread_in_a_worker(altered, tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    toy = altered(("import os\n", "import os\n\nimport torch\n"), ('float(os.environ["OMP_NUM_THREADS"])', "torch.get_num_threads()"))
    record = here(toy, tmp_path, workers=1, seeds=[0], arms=["hint"])
    assert (record["measured"]["hint"]["0"]["threads"], record["threads"]) == (1, 1)


def test_whatever_befalls_a_pair_the_others_go_on_and_a_second_call_finishes(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_TROUBLE", "standard-0=raise hint-0=exit other-0=kill standard-1=nan")
    events, folder = [], tmp_path / "runs"
    with pytest.raises(ClaimIncomplete) as caught:
        run_claim(toy, folder=folder, progress=events.append, argv=ARGV)
    failed = {(entry["arm"], entry["seed"]): entry for entry in caught.value.failed}
    assert {pair: entry["message"] for pair, entry in failed.items()} == {
        ("standard", 0): "ValueError: the toy is broken",
        ("hint", 0): "its worker ended with exit code 3",
        ("other", 0): "its worker was killed by SIGKILL (often: the machine ran out of memory)",
        ("standard", 1): "TrimtabError: the metric 'exact@16' must be finite, got nan; did the training diverge, or was a mean taken over nothing?",
    }
    log = Path(failed["standard", 0]["log"]).read_text()
    assert "Traceback" in log
    assert 'raise ValueError("the toy is broken")' in log
    assert "4 of 6 runs of toy failed" in str(caught.value)
    assert "the same command tries these again" in str(caught.value)
    assert pairs(folder) == ["hint-seed1", "other-seed1"]
    assert find_records(folder) == []

    monkeypatch.delenv("TOY_TROUBLE")
    events.clear()
    record = run_claim(toy, folder=folder, progress=events.append, argv=ARGV)
    assert kinds(events).count("pair") == 4
    assert lasting(record) == lasting(here(toy, tmp_path / "smooth", workers=1))


PARENT = """
import sys
from trimtab.claims import load_file, run_claim
from trimtab.core import TrimtabError

def show(event):
    print(event["event"], event.get("step"), file=sys.stderr, flush=True)

try:
    run_claim(load_file(sys.argv[1]), folder=sys.argv[2], workers=2, progress=show, argv=["trimtab", "run", "toy"])
except KeyboardInterrupt as error:
    print(error, flush=True)
    sys.exit(130)
"""


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_process_and_ends_in_the_same_record(toy, tmp_path, monkeypatch, how):
    folder = tmp_path / "runs"
    slow = os.environ | {"TOY_TROUBLE": "standard-1=slow hint-1=slow other-1=slow"}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(toy.source), str(folder)], env=slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with parent, parent.stderr as said:
        while said.readline() and len(pairs(folder)) < 3:
            pass
        while "step" not in said.readline():  # in the middle of a pair
            pass
        workers = children(parent.pid)
        below = [child for pid in workers for child in children(pid)]  # a slow measurement has a child of its own
        assert workers and below
        parent.send_signal(how)
        out = parent.stdout.read()
    deadline = time.monotonic() + 10
    while left := [pid for pid in (*workers, *below) if alive(pid)]:
        assert time.monotonic() < deadline, f"of the workers {workers} and their children {below} are still there: {left}"
        time.sleep(0.02)
    if how == signal.SIGINT:
        assert parent.returncode == 130
        assert "of 6 runs are finished and kept in" in out
        assert "the same command goes on from there" in out
    assert 3 <= len(pairs(folder)) < 6
    assert lasting(here(toy, folder, workers=1)) == lasting(here(toy, tmp_path / "smooth", workers=1))


def test_ctrl_c_in_this_process_says_how_to_go_on(toy, tmp_path):
    def interrupt(event):
        if event["event"] == "done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="1 of 6 runs are finished and kept"):
        here(toy, tmp_path, progress=interrupt)
    assert pairs(tmp_path) == ["standard-seed0"]


def test_a_worker_is_gone_after_an_error_in_the_parent(toy, tmp_path):
    def broken(event):
        if event["event"] == "step":
            raise RuntimeError("the screen is gone")

    with pytest.raises(RuntimeError, match="the screen is gone"):
        here(toy, tmp_path, workers=1, progress=broken)
    assert not [pid for pid in children(os.getpid()) if alive(pid)]


def test_a_claim_file_that_changed_is_not_run_by_a_new_worker(toy):
    request = {"source": str(toy.source), "size": "small", "claim_hash": toy.hash("small")}
    assert _claim(request).slug == "toy"
    with pytest.raises(TrimtabError, match="was changed during the run"):
        _claim(request | {"claim_hash": "0" * 64})


def test_two_runs_in_one_folder(toy, tmp_path):
    with locked(run_folder(tmp_path, "small", toy.hash("small"))), pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
        here(toy, tmp_path)


def test_a_part_first_and_the_rest_later(toy, tmp_path):
    part = here(toy, tmp_path, arms=["hint"], seeds=[1])
    assert (part["verdict"], part["arms"], part["seeds"]) == (None, ["hint"], [1])
    events = []
    whole = here(toy, tmp_path, progress=events.append)
    assert (events[0]["finished"], events[0]["core_minutes"], kinds(events).count("pair")) == (1, 10.0, 5)
    assert whole["seeds"] == [0, 1]
    assert len(find_records(tmp_path)) == 2


def test_pairs_of_another_claim_file_settings_or_device_are_not_used(toy, altered, tmp_path):
    here(toy, tmp_path)
    here(altered(("level / 2", "level / 3")), tmp_path)
    assert len(list(tmp_path.glob("small-*/pairs"))) == 2  # a folder of its own for each
    run = run_folder(tmp_path, "small", toy.hash("small"))
    changes = {"claim_hash": "0" * 64, "settings": {"steps": 4}, "size": "smoke", "seed": 3, "origin": origin("cuda"), "metrics": {"exact@8": 1.0}}
    for key, value in changes.items():
        path = run / "pairs" / "hint-seed1.json"
        write_json(path, read_json(path) | {key: value})
        events = []
        here(toy, tmp_path, progress=events.append)
        assert kinds(events).count("pair") == 1, key
    assert run_folder(tmp_path, "small", "f" * 64, "cuda:1").name == "small-ffffffff-cuda1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "tiny"}, "unknown size 'tiny'"),
        ({"arms": ["hnt"]}, "unknown arm 'hnt'; did you mean 'hint'"),
        ({"arms": []}, "arms must name one arm at least"),
        ({"seeds": []}, "seeds must be one or more whole numbers"),
        ({"seeds": [-1]}, r"from 0 on, got \[-1\]"),
        ({"seeds": [0.5]}, "seeds must be"),
        ({"seeds": [True]}, "seeds must be"),
        ({"workers": -1}, "workers must be a whole number"),
        ({"device": "abacus"}, "device must be one that this machine has"),
    ],
)
def test_a_wrong_call_leaves_no_folder(toy, tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        here(toy, tmp_path / "runs", **arguments)
    assert not (tmp_path / "runs").exists()


def test_devices():
    import torch

    check_device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="got 'cuda'"):
            check_device("cuda")


def test_a_metric_that_a_statement_needs(altered, tmp_path):
    toy = altered(('"edit@2x": level', '"edit": level'))
    with pytest.raises(ClaimIncomplete, match="measure must return 'edit@2x', which the claim's statements need, got: 'exact@8'"):
        here(toy, tmp_path, seeds=[0])


def test_a_full_disk_fails_the_pair_and_keeps_the_others(toy, tmp_path, monkeypatch):
    def full(path, value):
        if path.name == "hint-seed0.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_json(path, value)

    monkeypatch.setattr("trimtab.claims.pair.write_json", full)
    with pytest.raises(ClaimIncomplete, match="No space left on device"):
        here(toy, tmp_path)
    assert pairs(tmp_path) == [name for name in ALL if name != "hint-seed0"]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"a": float("inf")}, "'a' must be finite, got inf"),
        ({"a": "1.x"}, "'a' must be a number, got '1.x'"),
        ({"a": None}, "'a' must be a number, got None"),
        ({1: 2.0}, "must name its metrics with texts, got the name 1"),
        ({}, r"a dict of metric -> number, got \{\}"),
        (0.5, "got 0.5"),
    ],
)
def test_a_measurement_that_is_none(metrics, message):
    with pytest.raises(TrimtabError, match=message):
        finite(metrics)


def test_numbers_of_arrays_and_tensors_become_plain():
    import numpy as np
    import torch

    plain = finite({"a": np.float32(0.5), "b": torch.tensor(2), "c": True})
    assert plain == {"a": 0.5, "b": 2.0, "c": 1.0}
    assert {type(value) for value in plain.values()} == {float}


def test_estimate_scales_with_the_share_of_pairs(toy):
    assert estimate(toy, "small") == 12
    assert estimate(toy, "small", seeds=range(5), arms=["hint"]) == 10
    assert estimate(toy, "smoke") is None
    assert "core_minutes=12" in repr(toy.size("small"))
    assert repr(Size(seeds=1, a=2)) == "Size(seeds=1, core_minutes=None, a=2)"


def test_where_a_measurement_comes_from_names_no_folder_and_no_host():
    import platform

    found = origin("cpu")
    assert {"version", "commit", "dirty", "libraries", "device", "threads", "machine"} == found.keys()
    text = json.dumps(found)
    assert str(Path.home()) not in text
    assert platform.node() not in text


def test_commit_is_the_packages_own(tmp_path, monkeypatch):
    """A package that is merely installed below somebody's checkout does not take that checkout's commit."""
    from trimtab.claims.pair import _git

    repo, package = tmp_path / "repo", tmp_path / "repo" / "site-packages" / "trimtab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr("trimtab.__file__", str(package / "__init__.py"))
    assert _git.__wrapped__() == (None, None)

    def git(*words):
        subprocess.run(["git", "-C", repo, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert _git.__wrapped__() == (None, None)
    git("add", ".")
    git("commit", "-m", "ours")
    commit, dirty = _git.__wrapped__()
    assert len(commit) == 40
    assert dirty is False
    (package / "__init__.py").write_text("x = 1\n")
    assert _git.__wrapped__() == (commit, True)


FITTED = """
import torch
from trimtab.claims import Claim, Size, superior
from trimtab.train import NextToken, fit


def measure(arm, seed, size, run):
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4))
    ids = torch.arange(4).repeat(2, 1)
    fit(model, NextToken(), [{"input_ids": ids, "labels": ids}], folder=run.folder, steps=10**7, log_every=1, progress=run.progress)
    return {"x": 1.0}


CLAIM = Claim(
    slug="fitted", measure=measure, arms=("standard", "b"), primary=(superior("x", "b", over="standard", margin=1, why="whole"),),
    sizes={"smoke": Size(seeds=1), "small": Size(seeds=1)},
)
"""


def test_ctrl_c_lets_a_training_save_a_checkpoint(tmp_path):
    (tmp_path / "fitted.py").write_text(FITTED)
    stepped = set()

    def interrupt(event):
        if event["event"] == "step":
            stepped.add(event["arm"])
        if stepped == {"standard", "b"}:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="0 of 2 runs are finished and kept"):
        run_claim(load_file(tmp_path / "fitted.py"), folder=tmp_path / "runs", progress=interrupt, argv=ARGV)
    assert {path.parent.name for path in tmp_path.rglob("checkpoint-*.safetensors")} == {"standard-seed0", "b-seed0"}


def test_what_a_dead_worker_left_running_is_ended_and_its_death_noticed(altered, tmp_path):
    toy = altered(
        ("    trouble = dict(", "    if (arm, seed) == ('hint', 0):\n        leave(run.folder)\n    trouble = dict("),
        ("LEVEL =", "def leave(folder):\n    child = os.fork()\n    if not child:\n        time.sleep(600)\n"
         "    (folder / 'child.jsonl').write_text(str(child))\n    os.kill(os.getpid(), signal.SIGKILL)\n\n\nLEVEL ="),
    )  # fmt: skip
    with pytest.raises(ClaimIncomplete, match="hint, seed 0: its worker was killed by SIGKILL"):
        run_claim(toy, folder=tmp_path, seeds=[0], argv=ARGV)
    (child,) = (int(path.read_text()) for path in tmp_path.rglob("child.jsonl"))
    deadline = time.monotonic() + 10
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_error_in_the_fingerprint_comes_before_any_measurement(altered, tmp_path):
    toy = altered(('lambda: {"weights": "ab", "loss": 2.0}', "lambda: 1 / 0"))
    with pytest.raises(ZeroDivisionError):
        here(toy, tmp_path)
    assert pairs(tmp_path) == []


def test_a_call_in_the_claims_own_file_without_a_main_guard_ends_in_words(toy, tmp_path):
    again = f"from trimtab.claims import run_claim\nif 'TRIMTAB_CLAIM_WORKER' in os.environ:\n    run_claim(CLAIM, folder={str(tmp_path / 'again')!r})\n"
    toy.source.write_text(toy.source.read_text() + again)
    with pytest.raises(ClaimIncomplete, match=r'run_claim was called while a worker loads toy_0.py; put the call .* under if __name__ == "__main__"'):
        here(toy, tmp_path, workers=1, seeds=[0], arms=["hint"])


def test_a_file_name_in_the_command_that_is_not_utf8(toy, tmp_path):
    assert here(toy, tmp_path, argv=["trimtab", "a\udcff"])["argv"] == ["trimtab", "a\\udcff"]


def test_an_exit_in_a_measurement_in_this_process_is_its_pairs_failure(altered, tmp_path):
    toy = altered(('raise ValueError("the toy is broken")', "raise SystemExit(3)"), ('    if kind == "raise":', "    if arm == 'hint':"))
    with pytest.raises(ClaimIncomplete, match="hint, seed 0: SystemExit: 3"):
        here(toy, tmp_path, seeds=[0])
    assert pairs(tmp_path) == ["other-seed0", "standard-seed0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], r"a finished run should be an object, is \[\]"),
        ({"metrics": []}, "metrics should be metric -> number"),
        ({"metrics": {"exact@8": "0.9"}}, "metrics should be metric -> number"),
        ({"metrics": {"exact@8": 1e300}}, r"metrics should be metric -> number of at most 1e\+100"),
        ({"origin": None}, "origin should be an object with version, commit"),
        ({"origin": {"device": "cpu"}}, "origin should be an object with version, commit"),
        ({"wall_time": "long"}, "wall_time should be a number of seconds, is 'long'"),
        ({"curve": [1, 2]}, r"curve should be \[step, loss\] pairs"),
        (None, "a finished run should be an object, is 'a folder'"),
    ],
)
def test_a_finished_run_of_the_wrong_form_is_damaged(toy, tmp_path, change, message):
    here(toy, tmp_path, seeds=[0], arms=["hint"])
    (path,) = tmp_path.glob("*/pairs/*.json")
    if change is None:
        path.unlink()
        path.mkdir()
    else:
        write_json(path, change if isinstance(change, list) else read_json(path) | change)
    with pytest.raises(DamagedFile, match=f"hint-seed0.json should be a finished run and is not: {message}.*; delete it"):
        here(toy, tmp_path, seeds=[0], arms=["hint"])


def test_a_record_has_thinned_curves_of_the_loss(altered, tmp_path):
    toy = altered(("f'{{\"step\": {step}}}\\n'", 'f\'{{"step": {step}, "loss": {1 / step}}}\\n\''), ("Size(steps=3, seeds=2", "Size(steps=250, seeds=2"))
    record = here(toy, tmp_path, seeds=[0], arms=["hint"])
    curve = record["curves"]["hint"]["0"]
    assert len(curve) == 84 and curve[-1] == [250, 1 / 250] and curve[0] == [1, 1.0] and curve == sorted(curve)
    assert here(altered(), tmp_path / "other", seeds=[0], arms=["hint"])["curves"] == {"hint": {"0": []}}
