"""A toy with everything a claim may have, measured in milliseconds. Tests run it from this file, or from an altered copy."""

import os
import random
import signal
import subprocess
import sys
import time

from trimtab.claims import Claim, Mastery, Size, best_of, equal, not_worse, superior, trend

LEVEL = {"standard": 0.3, "hint": 0.6, "other": 0.5}


def measure(arm, seed, size, run):
    """Draw a few numbers."""
    trouble = dict(entry.split("=") for entry in os.environ.get("TOY_TROUBLE", "").split())
    kind = trouble.get(f"{arm}-{seed}") or trouble.get("all")
    if kind == "slow":
        subprocess.Popen(["sleep", "600"])  # its worker's end is to be its end
    with open(run.folder / "metrics.jsonl", "a") as curve:
        for step in range(1, size.steps + 1):
            curve.write(f'{{"step": {step}}}\n')
            run.progress(step, size.steps, {"loss": 1 / step})
            time.sleep(0.3 if kind == "slow" else 0)
    (run.folder / "checkpoint-9").mkdir(exist_ok=True)
    (run.folder / "checkpoint-9" / "model.safetensors").write_bytes(b"0")
    if kind == "raise":
        raise ValueError("the toy is broken")
    if kind == "exit":
        os._exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "print":
        print(f"a line of {arm} from process {os.getpid()}")
        print("and one more", file=sys.stderr)
    draw = random.Random(f"{arm} {seed}")
    level = LEVEL[arm]
    return {
        "exact@8": 0.99,
        "exact@16": float("nan") if kind == "nan" else level + 0.01 * draw.random(),
        "exact@32": level / 2 + 0.01 * draw.random(),
        "edit@2x": level + 0.05 * draw.random(),
        "threads": float(os.environ["OMP_NUM_THREADS"]),
    }


CLAIM = Claim(
    slug="toy",
    title="Does a hint help a toy?",
    about="Three arms of made-up numbers.",
    measure=measure,
    arms=("standard", "hint", "other"),
    primary=(
        superior("exact@16", "hint", over="standard", margin=0.05, why="one in twenty", paper=0.4),
        superior("exact@16", best_of(("hint", "other"), by="edit@2x"), over="standard", margin=0.05, why="one in twenty", name="best hint over standard"),
    ),
    secondary=(
        not_worse("edit@2x", "other", than="standard", margin=0.05, why="one in twenty"),
        equal("exact@8", "hint", to="standard", tolerance=0.01, why="one in a hundred"),
        trend("exact", "standard", margin=0.001, why="a thousandth a token", lower_is_better=True),
    ),
    mastery=Mastery("exact@8", 0.98),
    paper={"hint": {"exact@32": 0.9}, "standard": {"exact@32": 0.1}},
    sizes={"smoke": Size(steps=1, seeds=1), "small": Size(steps=3, seeds=2, core_minutes=12)},
    fingerprint=lambda: {"weights": "ab", "loss": 2.0},
)
