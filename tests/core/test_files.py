import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core import DamagedFile, FolderInUse, UsageError, locked, read_json, replacing, write_json, write_text


def write(path, text="new"):
    with replacing(path) as temporary:
        temporary.write_text(text)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failure_at_any_step_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch, code, step):
    # Injected, since tests may run as root, whom a mode of 000 does not stop.
    path = tmp_path / "a"
    write(path, "old")

    def fail(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
        if step in ("fsync", "replace"):
            patch.setattr(os, step, fail)
        with replacing(path) as temporary:
            if step == "open":
                fail()
            temporary.write_text("half")
            if step == "write":
                fail()
    assert caught.value.errno == code
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_file_that_does_not_fit_on_the_disk(tmp_path):
    """The system itself stops the write half-way: a limit on file sizes stands for the full disk."""
    path = tmp_path / "a.json"
    write_json(path, "old")
    code = f"""
import resource, signal
from trimtab.core import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_json({str(path)!r}, "x" * 100_000)
except OSError as error:
    print(error.strerror)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == os.strerror(errno.EFBIG)
    assert read_json(path) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failure_in_the_block_keeps_the_old_file(tmp_path):
    path = tmp_path / "a"
    write(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_file_is_on_the_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    # A name that reaches the disk before its bytes is an empty file after a power cut.
    done, names = [], {}
    real_open, real_fsync, real_replace = os.open, os.fsync, os.replace

    def opening(path, *args, **kwargs):
        handle = real_open(path, *args, **kwargs)
        names[handle] = Path(path)
        return handle

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(("sync", names[handle])), real_fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(("replace", Path(b))), real_replace(a, b)))
    path = tmp_path / "a"
    write(path)
    assert [what for what, _ in done] == ["sync", "replace", "sync"]
    assert done[0][1] not in (path, tmp_path) and done[0][1].parent == tmp_path
    assert done[1:] == [("replace", path), ("sync", tmp_path)]


def test_the_temporary_file_is_hidden_and_beside_its_target(tmp_path):
    # On another file system the rename would be a copy, which is not one step.
    with replacing(str(tmp_path / "a")) as temporary:
        assert temporary.parent == tmp_path and temporary.name.startswith(".")
        temporary.write_text("x")


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    write(path, "old")
    code = f"""
import os, signal
from trimtab.core import replacing
with replacing({str(path)!r}) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"


text = st.text(st.characters(codec="utf-8"))
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text


@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(text, inner)))
def test_json_comes_back_as_it_was(value):
    write_json("value.json", value)
    assert read_json("value.json") == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")], {"a": object()}])
def test_what_is_not_json_is_refused_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises((ValueError, TypeError)):
        write_json(path, value)
    assert read_json(path) == 1


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"NaN", b'{"a": Infinity}', b"\xff\xfe", b"<html>", b"\x00" * 64])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"record\.json should be JSON and is not: .*; delete it or restore it"):
        read_json(path)


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def holder(folder):
    """A process that holds the folder until it is ended."""
    code = f"import time\nfrom trimtab.core import locked\nwith locked({str(folder)!r}):\n    print('held', flush=True)\n    time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_held_folder_refuses_a_second_process_and_names_the_first(tmp_path):
    with holder(tmp_path / "run") as process:
        try:
            with pytest.raises(FolderInUse, match=rf"run is in use by process {process.pid}; wait for it, or choose another folder"), locked(tmp_path / "run"):
                raise AssertionError("two processes hold the folder")
        finally:
            process.kill()


def test_the_lock_goes_with_a_killed_process(tmp_path):
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_the_lock_goes_with_the_block_and_with_an_error_in_it(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass
    with locked(tmp_path), pytest.raises(FolderInUse), locked(tmp_path):
        raise AssertionError("one process held the folder twice")


def test_write_json_is_plain_utf8_text(tmp_path):
    write_json(tmp_path / "a.json", {"é": [1]})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert "é" in text and text.endswith("\n") and json.loads(text) == {"é": [1]}


def test_permissions_and_links_stay(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    write_json(target, 1)
    target.chmod(0o640)
    link.symlink_to(target)
    write_json(link, 2)
    assert link.is_symlink() and read_json(target) == 2
    assert target.stat().st_mode & 0o777 == 0o640


def test_temporary_names_differ_within_a_process(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as two:
        assert one != two
        one.write_text("1")
        two.write_text("2")
    assert (tmp_path / "a").read_text() == "1"  # the outer block ends last


def test_a_full_disk_does_not_keep_a_folder_from_being_held(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with locked(tmp_path), pytest.raises(FolderInUse, match=r"process \(unknown\)"), locked(tmp_path):
        raise AssertionError("one process held the folder twice")


def test_a_folder_that_is_a_file_or_forbidden_is_refused_in_words(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"folder must be one that can be made and written to, got .*file: it is a file; choose"), locked(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "mine"

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UsageError, match="Permission denied"), locked(tmp_path):
        pass


def test_text_is_written_whole_in_utf8(tmp_path):
    write_text(tmp_path / "a.txt", "größe\n")
    assert (tmp_path / "a.txt").read_bytes() == "größe\n".encode()
