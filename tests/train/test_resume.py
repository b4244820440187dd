"""An interrupted run ends in the bytes of one that was not, wherever and however it was interrupted."""

import errno
import gc
import os
import random
import resource
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from torch.utils.data import DataLoader, TensorDataset

from tests.train import toys
from tests.train.toys import Model, Plain, contents, made, run
from trimtab.core import DamagedFile, UsageError
from trimtab.train import NextToken, NotWritten, checkpoint, fit
from trimtab.train.batches import NO_PROMISE


class Crash(BaseException):
    pass


class At:
    """A hook that does something after a step, once."""

    def __init__(self, step=None, what=None, pause=0.0):
        self.step, self.what, self.pause = step, what, pause

    def __call__(self, moment):
        time.sleep(self.pause)
        if moment.step == self.step:
            self.what()

    def __repr__(self):
        return "At"


def crash():
    raise Crash


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(folder, At())
    return contents(folder)


@pytest.mark.parametrize("every", [1, 5, 100])
def test_crashed_and_stopped_at_a_step(tmp_path, whole, every):
    for step in (1, 4, 6, 11):  # before, at and after the model has grown; one of them in the middle of a line of metrics
        for what, error in ((crash, Crash), (press, KeyboardInterrupt)):
            folder = tmp_path / f"{step}-{what.__name__}"
            with pytest.raises(error):
                run(folder, At(step, what), checkpoint_every=every)
            run(folder, At(), checkpoint_every=every)
            assert contents(folder) == whole


def test_many_interruptions_of_one_run(tmp_path, whole):
    for step in range(1, 12):
        with pytest.raises(Crash):
            run(tmp_path, At(step, crash), checkpoint_every=2)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, At(step, press), checkpoint_every=2)
    run(tmp_path, At())
    assert contents(tmp_path) == whole


def test_checkpoints_by_time(tmp_path, whole, monkeypatch):
    now = 0.0

    class Clock(At):
        def __call__(self, moment):
            nonlocal now
            now += 25
            super().__call__(moment)

    monkeypatch.setitem(fit.__globals__, "time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(Crash):
        run(tmp_path, Clock(11, crash), checkpoint_every=None)
    assert [path.stem[-2:] for path in sorted(tmp_path.glob("checkpoint-*"))] == ["06", "09"]  # at 75, 150 and 225 seconds
    run(tmp_path, At(), checkpoint_every=None)
    assert contents(tmp_path) == whole


def test_ctrl_c_says_how_to_go_on(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt, match=r"stopped after step 5 of 12, with a checkpoint in .*; make the same call again to go on"):
        run(tmp_path, At(5, press))
    assert "make the same call again to go on" in caplog.text
    assert checkpoint.newest(tmp_path)["step"] == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Breaks:
    """An evaluation, or a hook, that fails at the nth call."""

    def __init__(self, at, inner):
        self.calls, self.at, self.inner = 0, at, inner

    def __call__(self, given):
        self.calls += 1
        return self.inner(given) if self.calls < self.at else 1 / 0

    def __repr__(self):
        return "<function accuracy>"  # it is mended under its name


def test_a_failure_after_the_last_step_costs_that_step_alone(tmp_path, whole):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "a", At(), checkpoint_every=100, evaluate=Breaks(3, toys.accuracy))  # evaluated after steps 5, 10 and 12
    assert checkpoint.newest(tmp_path / "a")["step"] == 11
    run(tmp_path / "a", At(), checkpoint_every=100)
    assert contents(tmp_path / "a") == whole
    small = partial(fit, objective=NextToken(), source=toys.Source(), folder=tmp_path / "b", steps=4, batch_size=2, progress=lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        small(made(Plain), hooks=[Breaks(4, id)])
    assert checkpoint.newest(tmp_path / "b")["step"] == 3


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def twice():
        press()
        press()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, At(5, twice))
    assert checkpoint.newest(tmp_path)["step"] == 3


def test_ctrl_c_in_the_last_step(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt, match="step 12 of 12"):
        run(tmp_path, At(12, press))
    run(tmp_path, At())
    assert contents(tmp_path) == whole


def test_an_applications_own_handler_is_left_alone(tmp_path):
    seen = []
    own = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        run(tmp_path, At(5, press))
    finally:
        signal.signal(signal.SIGINT, own)
    assert seen == [1]


def test_two_checkpoints_are_kept(tmp_path):
    for step, kept in ((2, []), (4, [3]), (7, [3, 6]), (11, [6, 9])):
        with pytest.raises(Crash):
            run(tmp_path / str(step), At(step, crash))
        assert [int(path.stem[-9:]) for path in sorted((tmp_path / str(step)).glob("checkpoint-*"))] == kept


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-20] ^= 1  # in a tensor: its form stays right
    path.write_bytes(data)


def foreign(path):
    path.write_bytes(b"not a checkpoint at all, but long enough to look at")


def huge(path):
    path.write_bytes((10**15).to_bytes(8, "little") + path.read_bytes()[8:])


def edited(path):
    path.write_bytes(path.read_bytes().replace(b'\\"step\\": 9', b'\\"step\\": 8'))


@pytest.mark.parametrize("damage", [cut, empty, flip, foreign, huge, edited])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, whole, damage, caplog):
    with pytest.raises(Crash):
        run(tmp_path, At(11, crash))
    before = (newest := tmp_path / "checkpoint-000000009.safetensors").read_bytes()
    damage(newest)
    assert newest.read_bytes() != before
    with pytest.raises(Crash):
        run(tmp_path, At(8, crash))  # before there is another ninth step
    assert "checkpoint-000000009.safetensors should be a checkpoint of trimtab and is not a whole one" in caplog.text
    assert "going on from checkpoint-000000006.safetensors instead" in caplog.text
    run(tmp_path, At())
    assert contents(tmp_path) == whole


def test_both_checkpoints_damaged(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, At(11, crash))
    for path in tmp_path.glob("checkpoint-*"):
        cut(path)
    before = contents(tmp_path)
    with pytest.raises(DamagedFile, match=r"no checkpoint in .* can be read; restore one from a copy, or delete the folder"):
        run(tmp_path, At())
    assert contents(tmp_path) == before


def test_other_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, At(11, crash))
    lines = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(lines.splitlines(keepends=True)[0])
    with pytest.raises(DamagedFile, match=r"metrics.jsonl should have the 5 lines its checkpoint speaks of and has 1"):
        run(tmp_path, At())
    (tmp_path / "metrics.jsonl").write_text("\x00" * 20 + "\n" + lines)
    with pytest.raises(DamagedFile, match=r"line 1 of .*metrics.jsonl should be a JSON object"):
        run(tmp_path, At())
    (tmp_path / "metrics.jsonl").write_text(lines + "\x00\x00\n{")  # after a power cut
    settings = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(DamagedFile, match=r"run.json should have settings .dict., conditions"):
        run(tmp_path, At())
    (tmp_path / "run.json").unlink()
    with pytest.raises(DamagedFile, match=r"checkpoints but no run.json"):
        run(tmp_path, At())
    (tmp_path / "run.json").write_text(settings)
    assert len(run(tmp_path, At()).metrics()) == 7


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_permission(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def no_space_in_rust(*_, **__):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("trimtab.train.checkpoint.save_file", no_space_in_rust, "No space left on device"),
        ("os.fsync", no_space, "No space left on device"),
        ("os.replace", no_permission, "Permission denied"),
    ],
)
def test_disk_full_and_no_permission_leave_the_checkpoint_before(tmp_path, whole, monkeypatch, where, error, message):
    with monkeypatch.context() as patch, pytest.raises(NotWritten) as caught:
        run(tmp_path, At(4, lambda: patch.setattr(where, error)), log_every=100)
    assert message in str(caught.value)
    assert "; checkpoint-000000003.safetensors is whole and the same call goes on from it" in str(caught.value)
    assert f"could not write {tmp_path / ('metrics.jsonl' if where == 'os.fsync' else 'checkpoint-000000006.safetensors')}" in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint-000000003.safetensors", "metrics.jsonl", "run.json"]
    again = tmp_path / "again"
    with monkeypatch.context() as patch, pytest.raises(NotWritten):
        run(again, At(4, lambda: patch.setattr(where, error)))
    run(again, At())
    assert contents(again) == whole


def test_disk_full_before_the_first_checkpoint_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "save_file", no_space_in_rust)
    with pytest.raises(NotWritten, match="there was no checkpoint yet and the same call starts again"):
        run(tmp_path, At())


def test_no_permission_for_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", no_permission)
    with pytest.raises(NotWritten, match=r"could not write .*run.json: Permission denied"):
        run(tmp_path, At())


def forked(child, kill_when=None):
    """Run a function in a child process, and kill it when told to; its exit status, negative for a signal."""
    gc.collect()
    if not (pid := os.fork()):
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    while kill_when:
        if (ended := os.waitpid(pid, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(ended[1])
        if kill_when():
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_file_that_may_not_grow(tmp_path):
    """The real error of a full disk, as far as a process can have one to itself."""

    def child():
        with pytest.raises(Crash):
            run(tmp_path, At(4, crash))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with pytest.raises(NotWritten, match=r"File too large.*checkpoint-000000003.safetensors is whole"):
            run(tmp_path, At())

    assert forked(child) == 0
    assert checkpoint.newest(tmp_path)["step"] == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_every_write_sync_and_rename(tmp_path):
    """Killed before its nth sync or rename or in its nth write, for n = 1, 2 ... until a run gets through."""
    small = partial(run, steps=6, accumulate=1)
    small(tmp_path / "whole", At())

    def child(folder, deadly):
        done = 0

        def counted(function, torn=lambda *_: None):
            def call(*args):
                nonlocal done
                done += 1
                if done == deadly:
                    torn(*args)
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args)

            return call

        def torn(tensors, path, metadata):
            save(tensors, path, metadata)
            cut(path)

        save = checkpoint.save_file
        checkpoint.save_file = counted(save, torn)
        os.replace, os.fsync = counted(os.replace), counted(os.fsync)
        small(folder, At())

    deadly, code = 0, None
    while code != 0:
        deadly, folder = deadly + 1, tmp_path / f"{deadly}"
        code = forked(partial(child, folder, deadly))
        assert code in (0, -signal.SIGKILL)
        small(folder, At())
        assert contents(folder) == contents(tmp_path / "whole")
    assert deadly > 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_sigkill_at_random_moments(tmp_path, whole):
    draw, kills = random.Random(4), 0
    while True:
        before, late = set(tmp_path.glob("checkpoint-*")), draw.uniform(0, 0.02)

        def further(before=before, late=late):  # some time after the next checkpoint, or in its middle
            return set(tmp_path.glob("checkpoint-*")) != before and not time.sleep(late)

        code = forked(lambda: run(tmp_path, At(pause=0.01), checkpoint_every=2), further)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    assert contents(tmp_path) == whole


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, At(4, crash))
    for name in (".checkpoint-000000006.safetensors.123.tmp", ".run.json.9.tmp", ".metrics.jsonl.9.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".mine.tmp").write_text("not a file of the run")
    run(tmp_path, At())
    assert [path.name for path in tmp_path.glob(".*.tmp")] == [".mine.tmp"]


def test_other_conditions_are_noted(tmp_path, caplog, monkeypatch):
    with pytest.raises(Crash):
        run(tmp_path, At(4, crash))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)
        result = run(tmp_path, At())
    assert result.notes == ("resumed at step 3 under other conditions (threads 1 -> 2): the bytes may differ from those of an uninterrupted run",)
    assert result.notes[0] in caplog.text
    assert run(tmp_path, At()).notes == result.notes  # also when it is read back later


def test_other_initial_weights_are_noticed(tmp_path, whole, caplog):
    with pytest.raises(Crash):
        run(tmp_path, At(4, crash))
    run(tmp_path, At(), model=made(seed=1))
    assert "was handed in with other weights than the run" in caplog.text
    assert contents(tmp_path) == whole


def test_a_run_without_a_checkpoint_starts_from_the_weights_it_is_given(tmp_path, whole):
    with pytest.raises(Crash):
        run(tmp_path, At(2, crash), model=made(seed=1))
    run(tmp_path, At())
    assert contents(tmp_path) == whole


def test_a_hook_that_grows_the_model_and_does_not_restore_it(tmp_path, monkeypatch):
    monkeypatch.delattr(toys.Grow, "restore")
    with pytest.raises(Crash):
        run(tmp_path, At(8, crash))
    with pytest.raises(UsageError, match=r"(?s)checkpoint of step 6 does not fit the model: .*blocks.1.weight.*restore.model, optimizer, state"):
        run(tmp_path, At())


def test_a_hook_whose_state_cannot_be_saved(tmp_path):
    class Odd:
        def __call__(self, moment):
            pass

        def state_dict(self):
            return {"seen": {1, 2}}

    with pytest.raises(UsageError, match=r"hooks/2/seen is a set"):
        run(tmp_path, Odd())
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""  # before the first step


class Float32State(torch.optim.Optimizer):
    """Momentum that is more precise than the weights."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.02})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["momentum"] = state.get("momentum", torch.zeros_like(p, dtype=torch.float32)) * 0.9 + p.grad.float()
                p.sub_((group["lr"] * state["momentum"]).to(p.dtype))


def test_optimiser_state_of_another_type_than_the_weights(tmp_path):
    def go(folder, *hooks):
        model = made(Plain, dtype=torch.bfloat16)
        return fit(
            model, NextToken(), toys.Source(), folder=folder, steps=8, batch_size=4, optimizer=Float32State, average=0.9, hooks=hooks, progress=lambda *_: None
        )

    go(tmp_path / "whole", At())
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", At(5, press))
    go(tmp_path / "broken", At())
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert checkpoint.newest(tmp_path / "whole")["average"]["values"]["0.weight"].dtype == torch.float32


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_loader_is_drawn_forward(tmp_path, shuffle, caplog):
    def go(folder, *hooks):
        ids = toys.Source().batch(0, 0, 10)["input_ids"]
        loader = DataLoader(TensorDataset(ids), batch_size=4, shuffle=shuffle)

        def objective(model, batch, draw):
            return NextToken()(model, {"input_ids": batch[0], "labels": batch[0]}, draw)

        return fit(made(Model), objective, loader, folder=folder, steps=8, accumulate=2, log_every=1, hooks=hooks, progress=lambda *_: None)

    assert go(tmp_path / "whole", At()).notes == (NO_PROMISE,)
    assert not caplog.records
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", At(5, press))
    result = go(tmp_path / "broken", At())
    assert "drawing and dropping 10 batches: the source is an iterable" in caplog.text
    assert result.notes == (NO_PROMISE,)
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_only_what_safetensors_left_is_removed(tmp_path):
    for name in (".tmpa1B2c3", ".tmp-notes", ".tmpabcdefg"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".tmpfolder").mkdir()
    run(tmp_path)
    assert sorted(path.name for path in tmp_path.glob(".tmp*")) == [".tmp-notes", ".tmpabcdefg", ".tmpfolder"]
