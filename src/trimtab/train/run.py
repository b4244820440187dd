"""The folder of a run: its settings, its metrics, and what a finished run hands back.

run.json               settings, conditions, and what could not be promised
metrics.jsonl          one JSON object a line
checkpoint-*           see trimtab.train.checkpoint; the last one of a finished run stays
model.safetensors      the trained weights, and averaged.safetensors the averaged ones
"""

import copy
import hashlib
import json
import logging
import math
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import __version__
from trimtab.core import DamagedFile, UsageError, read_json, write_json, write_text
from trimtab.train.checkpoint import explaining, load, raw

log = logging.getLogger("trimtab.train")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where it lies.
        model: the model that was handed to ``fit``, trained, in eval mode.
        steps: how many steps it took.
        notes: what could not be promised, in sentences; empty for a run that gives the same bytes however it was interrupted.
    """

    folder: Path
    model: nn.Module = field(repr=False)
    steps: int
    notes: tuple[str, ...] = ()

    @cached_property
    def averaged(self) -> nn.Module | None:
        """A copy of the model with the averaged weights, in eval mode; None where ``fit`` was not asked to average.

        Raises:
            DamagedFile: their file is not whole, or of another model.
        """
        path = self.folder / "averaged.safetensors"
        if not path.exists():
            return None
        averaged = copy.deepcopy(self.model).eval()
        load(path, getattr(averaged, "_orig_mod", averaged))
        return averaged

    def metrics(self) -> list[dict[str, Any]]:
        """The logged lines, in order. A value that was not finite is None.

        Raises:
            DamagedFile: a line is not JSON.
        """
        return [json.loads(line) for line in _lines(self.folder / "metrics.jsonl")]


def _lines(path: Path, limit: int | None = None) -> list[str]:
    """The first whole lines of a metrics file; a last one without its end was cut off by a crash."""
    if not path.exists():
        return []
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1][:limit]
    for number, line in enumerate(lines, 1):
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise DamagedFile(f"line {number} of {path} should be a JSON object and is not: {error}") from error
    return lines


class Metrics:
    """metrics.jsonl, open to be added to, after it was cut back to a number of lines.

    Raises:
        DamagedFile: there are fewer.
    """

    def __init__(self, path: Path, lines: int):
        kept = _lines(path, lines)
        if len(kept) < lines:
            raise DamagedFile(f"{path} should have the {lines} lines its checkpoint speaks of and has {len(kept)}; restore it, or delete the folder")
        self.path, self.lines = path, lines
        self.seconds = json.loads(kept[-1]).get("seconds") if kept else 0.0
        if not isinstance(self.seconds, int | float) or not math.isfinite(self.seconds):
            raise DamagedFile(f"line {lines} of {path} should have the run's seconds, a number, and has {self.seconds!r}; restore it from a copy")
        text = "".join(line + "\n" for line in kept)
        with explaining(path):
            if not path.exists() or path.stat().st_size != len(text.encode()):
                write_text(path, text)
            self._file = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line; what is not finite becomes null, for NaN is not JSON."""
        line = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
        with explaining(self.path):
            self._file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
            self._file.flush()
        self.lines += 1

    def sync(self) -> None:
        """Put it on the disk, so that it is never behind a checkpoint."""
        with explaining(self.path):
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # a line that did not fit on the disk was reported when it was written, and closing tries again
            self._file.close()


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_HOW = ("foreach", "fused", "capturable", "differentiable")  # how an optimiser computes, not what; torch adds to these from version to version


def describe(value: Any) -> Any:
    """A setting as JSON: plain values as they are, other objects by their repr without its memory addresses.

    Where a class has no repr of its own, the plain attributes of the object stand beside it, those without a leading underscore. A hook's are its state.

    Example:
        >>> describe((0.9, 0.98)), describe(describe)
        ([0.9, 0.98], '<function describe>')
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    text = _ADDRESS.sub("", repr(value))
    if type(value).__repr__ is object.__repr__ and not hasattr(value, "state_dict"):
        plain = {name: describe(v) for name, v in getattr(value, "__dict__", {}).items() if not name.startswith("_") and _is_plain(v)}
        return {"class": text, **plain} if plain else text
    # a module with a teacher inside prints pages
    return text if len(text) <= 1000 else f"{text[:200]}... ({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else value is None or isinstance(value, bool | int | float | str)


def describe_model(model: nn.Module) -> str:
    """A model by its class, the names, shapes and types of its tensors, and what its repr and its ``settings`` say."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    layout = repr([(name, tuple(value.shape), str(value.dtype)) for name, value in state.items()])
    layout += _ADDRESS.sub("", repr(model)) + repr(describe(getattr(model, "settings", None)))  # what no tensor shows: heads, dropout, order of blocks
    numbers = sum(p.numel() for p in model.parameters())
    return f"{type(model).__name__} with {numbers} parameters, layout {hashlib.sha256(layout.encode()).hexdigest()[:12]}"


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """An optimiser by its class and the options of its groups, the rate being the one a schedule starts from."""
    groups = []
    for group in optimizer.param_groups:
        options = {name: value for name, value in group.items() if name not in ("params", "initial_lr", *_HOW)}
        options |= {"lr": float(group.get("initial_lr", group["lr"])), "parameters": len(group["params"])}
        groups.append({name: describe(options[name]) for name in sorted(options)})
    return {"class": type(optimizer).__name__, "groups": groups}


def _weights(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(raw(value))
    return digest.hexdigest()[:16]


def _write(path: Path, value: Any) -> None:
    with explaining(path):
        write_json(path, value)


def _differing(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two settings differ, each leaf with its path."""
    if isinstance(there, dict) and isinstance(here, dict):
        return [text for key in {**there, **here} for text in _differing(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return [text for k, pair in enumerate(zip(there, here, strict=True)) for text in _differing(*pair, f"{name}[{k}]")]
    return [] if there == here else [f"{name} is {there!r} there and {here!r} here"]


def enter(
    folder: Path, settings: Mapping[str, Any], model: nn.Module, device: torch.device, notes: tuple[str, ...], step: int, steps: int
) -> tuple[str, ...]:
    """Compare a run with what the folder holds, write run.json where the run is new, and return the notes.

    Args:
        model: as it was handed to ``fit``, before a checkpoint is loaded.
        step, steps: what the checkpoint has reached, 0 where there is none; and the length of the run.

    Raises:
        UsageError: the folder holds a run of other settings, files of another run or of none, or a finished run without its checkpoint.
        DamagedFile: it has checkpoints and no run.json, or one that is damaged.
    """
    for pattern in (".*.safetensors.*.tmp", ".metrics.jsonl.*.tmp", ".run.json.*.tmp"):
        for stale in folder.glob(pattern):  # of a process that was killed while it wrote
            stale.unlink()
    for stale in folder.glob(".tmp*"):  # safetensors' own, as it names them; a file of the user's is not ours to remove
        if re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", stale.name) and stale.is_file():
            stale.unlink()
    path = folder / "run.json"
    conditions = {
        "trimtab": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "machine": platform.machine(),
    }
    new = {"settings": json.loads(json.dumps(settings)), "conditions": conditions, "initial_weights": _weights(model), "notes": list(notes)}
    weights = [name for name in ("model.safetensors", "averaged.safetensors") if (folder / name).exists()]
    lines = folder / "metrics.jsonl"
    begun = bool(weights) or (lines.exists() and lines.stat().st_size > 0)
    if not path.exists():
        if step:
            raise DamagedFile(f"{folder} has checkpoints but no run.json that says of which run; restore it from a copy, or choose another folder")
        if begun:
            raise UsageError(f"folder must be empty or hold a run of fit, got {folder} with {(weights or [lines.name])[0]} of something else; choose another")
        _write(path, new)
        return notes
    old = read_json(path)
    kinds = {name: type(value) for name, value in new.items()}
    if not isinstance(old, dict) or any(not isinstance(old.get(name), kind) for name, kind in kinds.items()):
        expected = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
        raise DamagedFile(f"{path} should have {expected} and has not; restore it from a copy, or choose another folder")
    if (differing := _differing(old["settings"], new["settings"])) and (step or begun):
        there = "; ".join(differing)
        raise UsageError(f"{folder} holds a run of other settings: {there}. Call fit with the run's own settings to go on with it, or choose another folder")
    if not step and weights:
        raise UsageError(f"{folder} holds a finished run without its checkpoint, and fit would train over its {weights[0]}; load it, or choose another folder")
    if not step:  # nothing was saved: it starts again, from the weights that are handed in now
        _write(path, new)
        return notes
    if old["initial_weights"] != new["initial_weights"]:
        log.warning("the model was handed in with other weights than the run in %s began from; the run's own are loaded in their place", folder)
    if step < steps and (changed := [f"{k} {old['conditions'].get(k)} -> {v}" for k, v in conditions.items() if old["conditions"].get(k) != v]):
        old["notes"].append(f"resumed at step {step} under other conditions ({', '.join(changed)}): the bytes may differ from those of an uninterrupted run")
        log.warning(old["notes"][-1])
        _write(path, {**old, "conditions": conditions})
    return tuple(old["notes"])
