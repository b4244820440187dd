"""Files written whole or not at all, and folders that one process holds at a time."""

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.core.errors import DamagedFile, FolderInUse, UsageError

_calls = itertools.count()  # so that two threads which write one file do not share a temporary one


def sync(path: Path) -> None:
    """Ask the system to put a file or folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write to the path this yields; when the block ends well, it takes the place of ``path`` in one step.

    After a crash, a full disk or a power cut there is the old file or the new one, never half of one. When the block fails, the old file stays and the
    temporary one goes. A file that is replaced keeps its permissions, and a link to it stays a link.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp(), "a.txt")
        >>> with replacing(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_calls)}.tmp")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole, in UTF-8.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> write_text(path, "whole")
        >>> path.read_text()
        'whole'
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON whole. NaN and infinities, which are not JSON, raise ValueError and leave the old file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.json")
        >>> write_json(path, {"seeds": [0, 1]})
        >>> read_json(path)
        {'seeds': [0, 1]}
    """
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def read_json(path: str | Path) -> Any:
    """Read JSON.

    Raises:
        DamagedFile: the file is not JSON, or holds NaN.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.json")
        >>> write_text(path, '{"loss": NaN}')
        >>> read_json(path)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        trimtab.core.errors.DamagedFile: ...a.json should be JSON and is not: NaN is not JSON; delete it or restore it from a copy
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise DamagedFile(f"{path} should be JSON and is not: it is nested too deeply; delete it or restore it from a copy") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise DamagedFile(f"{path} should be JSON and is not: {error}; delete it or restore it from a copy") from error


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold a folder for this process; the lock goes when the process does, killed or not.

    Raises:
        FolderInUse: another process holds it.
        UsageError: it cannot be made or written to.

    Example:
        >>> import tempfile
        >>> with locked(tempfile.mkdtemp()):
        ...     print("mine alone")
        mine alone
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "a+")  # noqa: SIM115
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise UsageError(f"folder must be one that can be made and written to, got {folder}: {why}; choose another") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise FolderInUse(f"{folder} is in use by process {handle.read().strip() or '(unknown)'}; wait for it, or choose another folder") from None
        with suppress(OSError):  # a full disk: who holds it is told to people, the lock itself needs no space
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), str(os.getpid()).encode())
        yield
