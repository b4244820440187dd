"""A model in a folder: weights as safetensors, and the arguments that make it anew as JSON.

The weights' header repeats the arguments, so that two files which do not belong together (a crash between the renames, a file copied by hand) are told apart
from two which do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from trimtab.core import DamagedFile, UsageError, read_json, replacing, unknown, write_json

Model = TypeVar("Model", bound=nn.Module)

# what an object or a factory may fill; a name stands for itself, anything else must come back from the caller
SEAMS = ("positions", "norm", "ffn", "score_scale", "attention")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("vocab_size", "dim", "layers", "heads", "kv_heads", "ffn_dim"), (int,)),
    **dict.fromkeys(("positions", "norm", "ffn"), (str, dict)),
    **dict.fromkeys(("score_scale", "attention"), (dict, type(None))),
    **dict.fromkeys(("tied", "bias", "causal"), (bool,)),
    "max_length": (int, type(None)),
    "schedule": (list, type(None)),
    "dropout": (int, float),
}


def described(value: Any) -> Any:
    """What a file says of a seam's value: a name or None as it is, of an object what kind it is."""
    if value is None or isinstance(value, str):
        return value
    first, how = (value[0], "a sequence of ") if isinstance(value, list | tuple) else (value, "")
    return {"object": how + getattr(first, "__name__", type(first).__name__)}


def save(folder: str | Path, model: str, settings: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write both files, and only then put them in the place of older ones. A crash between the two renames leaves files that :func:`read` tells apart.

    Args:
        folder: made where it is not there.
        model: name of the class.
        settings: its constructor's arguments, objects as :func:`described`.
        state: its ``state_dict()``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model": f"trimtab.nn.{model}", "version": 1, **settings}
    tensors, held = {}, set()
    for name, value in state.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        tensors[name] = value.clone() if storage in held else value  # safetensors refuses one memory under two names
        held.add(storage)
    with replacing(folder / "config.json") as words, replacing(folder / "model.safetensors") as weights:
        write_json(words, config)
        save_file(tensors, weights, metadata={"config": json.dumps(config, sort_keys=True)})


def read(folder: str | Path, model: str, objects: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Both files, checked; the constructor's arguments with ``objects`` in their places, and the tensors.

    Raises:
        UsageError: no model there, or the objects are not those that the model was saved with.
        DamagedFile: the files are cut short, foreign, edited or not of one model.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} should be a folder that save() wrote, and it has no config.json")
    config = read_json(folder / "config.json")
    _check_config(config, f"trimtab.nn.{model}", folder / "config.json")
    _check_objects(config, objects)
    weights = folder / "model.safetensors"
    try:
        with safe_open(weights, framework="pt") as file:
            written = (file.metadata() or {}).get("config")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedFile(f"{weights} should be a whole safetensors file and is not: {error}; save the model again") from error
    if written != json.dumps(config, sort_keys=True):
        raise DamagedFile(f"{folder} should hold two files saved together, and its config.json does not go with its model.safetensors; save the model again")
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    if blocks != config["layers"]:  # even without weights a block takes memory
        raise DamagedFile(f"{weights} should hold {config['layers']} blocks, and holds {blocks}")
    return {name: value for name, value in config.items() if name in _KINDS} | objects, tensors


def fill(make: Callable[[], Model], tensors: dict[str, Tensor], folder: str | Path, device: torch.device) -> Model:
    """A model with these weights in their own types.

    Args:
        make: makes it without memory, on the meta device; what objects bring to it has its own device.
        tensors: its weights.
        folder: where they come from.
        device: of all that has no memory yet.

    Raises:
        DamagedFile: names, shapes or types are not the model's.
    """
    try:
        model = make()
    except (UsageError, RuntimeError, TypeError) as error:  # the last two are torch's, of sizes that no memory could hold
        raise DamagedFile(f"{folder} describes a model that cannot be made: {error}") from error
    state = model.state_dict()
    wanted, found = ({name: _form(value) for name, value in values.items()} for values in (state, tensors))
    if wanted != found:
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        shown = "; ".join(f"{name}: expected {wanted.get(name, 'nothing')}, found {found.get(name, 'nothing')}" for name in wrong[:5])
        raise DamagedFile(f"{folder} does not hold the weights of its model ({len(wrong)} differ): {shown}")
    memory = {name: torch.empty_like(tensors[name], device=device) for name, value in state.items() if value.is_meta}
    model.load_state_dict(memory, strict=False, assign=True)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
    return model


def _form(value: Tensor) -> str:
    """Type and shape. A model may be saved in any type that it computes in, and in several."""
    computes = value.dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    return f"{'float' if computes else str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _check_config(config: Any, model: str, path: Path) -> None:
    if not isinstance(config, dict) or config.get("model") != model or config.get("version") != 1:
        found = {name: config.get(name) for name in ("model", "version")} if isinstance(config, dict) else type(config).__name__
        raise DamagedFile(f"{path} should describe a {model}, version 1, and has {found}")
    # by the exact type, since True is an int too
    wrong = [name for name, kinds in _KINDS.items() if name not in config or type(config[name]) not in kinds]
    if wrong:
        shown = ", ".join(f"{name}={config[name]!r}" if name in config else f"no {name}" for name in wrong)
        raise DamagedFile(f"{path} should hold every setting of a {model}, each of its type, and has {shown}")


def _check_objects(config: dict[str, Any], objects: dict[str, Any]) -> None:
    for name in objects:
        if name not in SEAMS:
            raise unknown("object", name, SEAMS)
    own = {name: config[name].get("object") for name in SEAMS if isinstance(config[name], dict)}
    if missing := [name for name in own if name not in objects]:
        what, call = " and ".join(f"{name} ({own[name]})" for name in missing), ", ".join(f"{name}=..." for name in missing)
        raise UsageError(f"the model was saved with objects that files cannot hold: {what}; hand them back: load(folder, {call})")
    if extra := [name for name in objects if name not in own]:
        raise UsageError(f"{extra[0]} must be left out: the model was saved with {extra[0]}={config[extra[0]]!r}")
