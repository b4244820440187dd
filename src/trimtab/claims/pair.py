"""One arm with one seed: measured, checked, and kept in a small file of its own, so that a run that is stopped loses nothing that was finished."""

import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import trimtab
from trimtab.claims.claim import Claim, PairRun
from trimtab.claims.schema import pair_problems
from trimtab.core import DamagedFile, TrimtabError, read_json, write_json
from trimtab.core.intervals import LARGEST

_KEPT = {".jsonl", ".png", ".svg"}  # of a finished pair's folder: curves and figures
_POINTS = 100  # of a curve in a record


def pair_name(arm: str, seed: int) -> str:
    """The name of a pair's files.

    Example:
        >>> pair_name("standard", 3)
        'standard-seed3'
    """
    return f"{arm}-seed{seed}"


def finite(metrics: Any) -> dict[str, float]:
    """Metrics as plain numbers.

    Raises:
        TrimtabError: they are not a dict of finite numbers under texts; the message names the metric and what came.

    Example:
        >>> finite({"loss": 1})
        {'loss': 1.0}
    """
    if not isinstance(metrics, Mapping) or not metrics:
        raise TrimtabError(f"measure must return a dict of metric -> number, got {metrics!r}")
    plain = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TrimtabError(f"measure must name its metrics with texts, got the name {name!r}")
        try:
            plain[name] = float(value)
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"the metric {name!r} must be a number, got {value!r}") from error
        if not math.isfinite(plain[name]):
            raise TrimtabError(f"the metric {name!r} must be finite, got {plain[name]}; did the training diverge, or was a mean taken over nothing?")
        if abs(plain[name]) > LARGEST:
            raise TrimtabError(f"the metric {name!r} must be at most {LARGEST:g} in size, got {plain[name]}; give its logarithm")
    return plain


def curve(folder: Path) -> list[list[float]]:
    """The loss by step of the longest run in a pair's folder, at most a hundred points and the last; empty where nothing of the kind was written.

    Example:
        >>> curve(Path("/nowhere"))
        []
    """
    longest: list[list[float]] = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            points = [[line["step"], float(line["loss"])] for line in lines if line.get("loss") is not None]
        except (ValueError, TypeError, KeyError, AttributeError, OSError):
            continue  # a measurement may write what it likes; only what fit writes is known
        longest = max(longest, points, key=lambda found: found[-1][0] if found else 0)
    every = -(-len(longest) // _POINTS)
    return longest[::-1][::every][::-1] if longest else []


@cache
def _git() -> tuple[str | None, bool | None]:
    """Commit of the checkout that the package lies in, and whether the package differs from it; None for an installed package."""
    package = Path(trimtab.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(package), *words], check=True, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else the package is installed below a checkout of something else
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def origin(device: str) -> dict[str, Any]:
    """What a measurement depends on beside its claim: code, libraries, machine."""
    commit, dirty = _git()
    torch = sys.modules.get("torch")  # a claim that did not import it does not depend on it
    return {
        "version": trimtab.__version__,
        "commit": commit,
        "dirty": dirty,
        "libraries": {"python": platform.python_version(), **{name: _installed(name) for name in ("torch", "numpy", "scipy")}},
        "device": device,
        "threads": torch.get_num_threads() if torch else 1,
        "machine": {"system": platform.system(), "machine": platform.machine(), "cpu": _processor()},
    }


def tidy(folder: Path) -> None:
    """Remove the checkpoints and weights of a finished pair; JSON lines and figures stay."""
    for path in sorted(folder.rglob("*"), reverse=True):  # children before their folder
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.suffix not in _KEPT:
            path.unlink()


def run_pair(
    claim: Claim,
    size: str,
    arm: str,
    seed: int,
    *,
    folder: Path,
    claim_hash: str,
    device: str = "cpu",
    progress: Callable[[int, int, Mapping[str, float]], None] = lambda step, steps, values: None,
) -> dict[str, Any]:
    """Measure a pair and write ``<folder>/pairs/<arm>-seed<k>.json``.

    Raises:
        TrimtabError: the measurement is not a dict of finite numbers, or lacks a metric that a statement needs.
    """
    name, settings = pair_name(arm, seed), claim.size(size)
    work, pairs = folder / "work" / name, folder / "pairs"
    work.mkdir(parents=True, exist_ok=True)
    pairs.mkdir(exist_ok=True)
    _git()  # of the code that is loaded now; a commit made during a long measurement has no part in it
    wall, cpu = time.perf_counter(), time.process_time()
    metrics = finite(claim.measure(arm, seed, settings, PairRun(work, progress, device)))
    if lacking := claim.lacks(arm, metrics):
        raise TrimtabError(f"measure must return {', '.join(lacking)}, which the claim's statements need, got: {', '.join(map(repr, metrics))}")
    pair = {
        "slug": claim.slug,
        "size": size,
        "claim_hash": claim_hash,
        "settings": settings.settings,
        "arm": arm,
        "seed": seed,
        "metrics": metrics,
        "curve": curve(work),
        "wall_time": round(time.perf_counter() - wall, 3),
        "core_minutes": round((time.process_time() - cpu) / 60, 5),
        "origin": origin(device),
    }
    write_json(pairs / f"{name}.json", pair)
    tidy(work)
    return pair


def read_pair(claim: Claim, size: str, arm: str, seed: int, *, folder: Path, claim_hash: str, device: str = "cpu") -> dict[str, Any] | None:
    """A finished pair; None where there is none, or one of another claim file, size, device or settings, or without a metric that is needed.

    Raises:
        DamagedFile: its file is not JSON, or not that of a pair.
    """
    path = folder / "pairs" / f"{pair_name(arm, seed)}.json"
    if not path.exists():
        return None
    pair: Any = "a folder" if path.is_dir() else read_json(path)
    if wrong := pair_problems(pair):
        raise DamagedFile(f"{path} should be a finished run and is not: {'; '.join(wrong[:3])}; delete it, and the run is made again")
    due = {"slug": claim.slug, "size": size, "claim_hash": claim_hash, "settings": claim.size(size).settings, "arm": arm, "seed": seed}
    good = all(pair[key] == value for key, value in due.items()) and pair["origin"]["device"] == device and not claim.lacks(arm, pair["metrics"])
    return pair if good else None


def described(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def log_path(folder: Path, arm: str, seed: int) -> Path:
    """Where what a pair prints goes, and the traceback when it fails."""
    path = folder / "logs" / f"{pair_name(arm, seed)}.log"
    path.parent.mkdir(exist_ok=True)
    return path
