"""A toy claim that the command line can run, and the command line in a child process."""

import subprocess
import sys

TOY = """
import os, time
from trimtab.claims import Claim, Mastery, Size, superior

def measure(arm, seed, size, run):
    for step in range(1, 4):
        run.progress(step, 3, {"loss": 1 / step})
        time.sleep(float(os.environ.get("TOY_SLEEP", "0")))
    if os.environ.get("TOY_BREAKS") == arm:
        raise ValueError("the toy is broken")
    level = {"standard": 0.3, "hint": 0.6}[arm] + 0.01 * seed
    return {"exact@1x": 1.0, "edit@1x": 1.0, "edit@5x": level, "loss": 0.5}

CLAIM = Claim(
    slug="toy",
    title="Does a hint help a toy?",
    measure=measure,
    arms=("standard", "hint"),
    primary=(superior("edit@5x", "hint", over="standard", margin=0.05, why="one in twenty", paper=0.4, name="hint over standard"),),
    mastery=Mastery("exact@1x"),
    paper={"hint": {"edit@5x": 0.926}},
    sizes={"smoke": Size(seeds=1), "small": Size(seeds=3, core_minutes=6)},
)
"""
# makes the toy a claim of the package; for this process by the fixture, for a child as code before main()
INSTALL = """
import sys, trimtab.claims
from pathlib import Path
from trimtab.claims import loading
loading._HERE = Path({folder!r})
trimtab.claims.__path__.append({folder!r})
from trimtab.cli import main
"""


def child(*args, prelude="from trimtab.cli import main\n", **settings):
    settings = {"capture_output": True, "text": True} | settings
    return subprocess.run([sys.executable, "-c", f"{prelude}main({[*args]!r})"], **settings)
