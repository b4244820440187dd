"""Checkpoints: everything a run needs to go on, in one safetensors file, so that one rename makes it whole.

A checkpoint is a tree of dicts and lists. Its tensors lie in the file under their paths (``model/0.weight``); the rest of the tree, with a checksum over all
of it, is JSON in the file's metadata. Nothing is ever unpickled.
"""

import json
import logging
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trimtab.core import DamagedFile, TrimtabError, UsageError, replacing

log = logging.getLogger("trimtab.train")
_KEY = "trimtab"  # one key only: safetensors writes several in no fixed order, and equal runs should have equal bytes


class NotWritten(TrimtabError, OSError):
    """A file of a run could not be written; the message says what is left."""


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Take a tree apart into tensors by path and a JSON value that remembers the rest. A tensor that occurs twice (tied weights) is kept once.

    Raises:
        UsageError: something in the tree is no tensor, number, string, None, list, tuple or dict.

    Example:
        >>> tensors, rest = flatten({"weight": torch.zeros(2), "betas": (0.9, 0.98)})
        >>> tensors, rest
        ({'weight': tensor([0., 0.])}, {'weight': {'$tensor': 'weight'}, 'betas': {'$tuple': [0.9, 0.98]}})
    """
    tensors: dict[str, Tensor] = {}
    names: dict[tuple, str] = {}
    storages: set[int] = set()

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()
            same = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if not value.numel() or same not in names:
                while path in tensors:
                    path += "'"  # {"a/b": x, "a": {"b": y}} would meet
                stored = value.cpu().contiguous()
                if (storage := stored.untyped_storage().data_ptr()) in storages:
                    stored = stored.clone()  # another view of the same memory, which safetensors refuses
                storages.add(storage)
                names[same], tensors[path] = path, stored
            return {"$tensor": names[same]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": repr(float(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            items = [walk(v, f"{path}/{i}") for i, v in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            items = [(k, walk(v, f"{path}/{k}".removeprefix("/"))) for k, v in value.items()]
            if all(isinstance(k, str) and not k.startswith("$") for k, _ in items):
                return dict(items)
            return {"$items": [[walk(k, f"{path}, a key,"), v] for k, v in items]}
        allowed = "tensors, numbers, strings, None, and lists, tuples and dicts of them"
        raise UsageError(f"a checkpoint can hold {allowed}, but {path} is a {type(value).__name__}; turn it into one of these in state_dict")

    return tensors, walk(tree, "")


def unflatten(tensors: Mapping[str, Tensor], rest: Any) -> Any:
    """The tree that :func:`flatten` took apart.

    Example:
        >>> unflatten(*flatten({"state": {0: [1, None]}, "best": math.inf}))
        {'state': {0: [1, None]}, 'best': inf}
    """
    if isinstance(rest, list):
        return [unflatten(tensors, v) for v in rest]
    if not isinstance(rest, dict):
        return rest
    match next(iter(rest.items()), None):
        case ("$tensor", name):
            return tensors[name]
        case ("$float", text):
            return float(text)
        case ("$tuple", items):
            return tuple(unflatten(tensors, v) for v in items)
        case ("$items", items):
            return {unflatten(tensors, k): unflatten(tensors, v) for k, v in items}
    return {k: unflatten(tensors, v) for k, v in rest.items()}


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = zlib.crc32(raw(tensors[name]), value)
    return value


def raw(value: Tensor) -> memoryview:
    """The bytes of a tensor, in order."""
    flat = value.detach().cpu().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().data  # a single element counts as contiguous whatever its strides


def write_tree(path: Path, tree: Any) -> None:
    """Write a tree whole."""
    tensors, rest = flatten(tree)
    text = json.dumps(rest, allow_nan=False)
    with replacing(path) as temporary:
        save_file(tensors, temporary, {_KEY: f"{_checksum(tensors, text):08x} {text}"})


def read_tree(path: Path) -> Any:
    """Read a tree.

    Raises:
        DamagedFile: it is cut short, was changed, or is something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            # clones, because these would be windows into the file
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            checksum, text = (file.metadata() or {})[_KEY].split(" ", 1)
        if int(checksum, 16) != _checksum(tensors, text):
            raise ValueError("its checksum does not fit its content")
        return unflatten(tensors, json.loads(text))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:  # no RuntimeError: memory that runs out is no damage
        raise DamagedFile(f"{path} should be a checkpoint of trimtab and is not a whole one: {type(error).__name__}: {error}") from error


def _path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step:09d}.safetensors"


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("checkpoint-*.safetensors") if re.fullmatch(r"checkpoint-\d{9}", path.stem) and path.is_file())


def save(folder: Path, step: int, tree: Any) -> None:
    """Write the checkpoint of a step; keep it and the one before.

    Raises:
        NotWritten: disk full, no permission and the like; the checkpoints before this one are as they were.
    """
    with explaining(path := _path(folder, step)):
        write_tree(path, tree)
    prune(folder, step, 2)


def prune(folder: Path, step: int, keep: int) -> None:
    """Remove all checkpoints but the last few up to a step. Later ones are damaged, or the run would not be at this step: they would be found first again."""
    kept = [path for path in _all(folder) if path <= _path(folder, step)][-keep:]
    for old in set(_all(folder)) - set(kept):
        old.unlink()


def newest(folder: Path) -> Any | None:
    """The newest checkpoint that is whole, or None where there are none.

    Raises:
        DamagedFile: there are some, and none can be read.
    """
    damaged = []
    for path in reversed(_all(folder)):
        try:
            tree = read_tree(path)
            if not isinstance(tree, dict) or tree.get("step") != int(path.stem[-9:]):
                raise DamagedFile(f"{path} should be the checkpoint of the step in its name, and is not; remove it")
        except DamagedFile as error:
            damaged.append(error)
            continue
        if damaged:
            log.warning("%s; going on from %s instead", damaged[0], path.name)
        return tree
    if damaged:
        reasons = "; ".join(map(str, damaged))
        raise DamagedFile(f"no checkpoint in {folder} can be read; restore one from a copy, or delete the folder to train from the start. {reasons}")
    return None


def export(path: Path, model: nn.Module) -> None:
    """Write a model's weights under their own names, for any loader of safetensors. Of tied weights one name is kept: ``safetensors.torch.load_model`` knows.

    Raises:
        NotWritten: disk full, no permission and the like.
    """
    tensors, _ = flatten({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})
    with explaining(path), replacing(path) as temporary:
        save_file(tensors, temporary, {"format": "pt"})


def load(path: Path, model: nn.Module) -> None:
    """Read into a model what :func:`export` wrote of it; what is no tensor stays as the model has it.

    Raises:
        DamagedFile: it is not whole, or of another model.
    """
    own = model.state_dict()
    expected, _ = flatten({name: value for name, value in own.items() if isinstance(value, Tensor)})
    try:
        found = load_file(path)
        if found.keys() != expected.keys():
            raise ValueError(f"it differs in {', '.join(sorted(found.keys() ^ expected.keys()))}")
        if wrong := [name for name, value in found.items() if value.shape != expected[name].shape]:
            raise ValueError(f"it has other shapes of {', '.join(wrong)}")
    except (SafetensorError, ValueError) as error:
        raise DamagedFile(f"{path} should have the weights of this {type(model).__name__} and has not: {error}; restore it from a copy") from error
    model.load_state_dict({**own, **found})


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turn a failed write into an error that names the file and what is left."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        others = [p.name for p in _all(path.parent) if p != path]
        left = f"{others[-1]} is whole and the same call goes on from it" if others else "there was no checkpoint yet and the same call starts again"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NotWritten(f"could not write {path}: {reason}; {left}, once there is space and permission") from error
