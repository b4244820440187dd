"""What every test stands on: one thread, no network, a folder of its own, fixed draws, NaN in memory nobody wrote, and annotations that are held."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"  # before anything loads a BLAS: bytes depend on the number of threads
os.environ |= {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1"}

import random
import signal
import socket
import sys
from pathlib import Path

import beartype.door  # noqa: F401 - loads the part of beartype that draws
import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch

# Shapes and types in the signatures of these rooms are checked at every call, here and nowhere else.
# Before the first of them is imported: what is loaded already stays unchecked.
CHECKED = ("metrics", "losses", "nn", "tasks")
if loaded := [room for room in CHECKED if f"trimtab.{room}" in sys.modules]:
    raise RuntimeError(f"imported before their annotations could be held: {', '.join(loaded)}")
# jaxtyping decorates methods one by one, where beartype cannot know what Self is; and an int will do for a float.
HOLD = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, hint_overrides=beartype.FrozenDict({__import__('typing').Self: object})))"
jaxtyping.install_import_hook([f"trimtab.{room}" for room in CHECKED], HOLD)

# beartype looks at one item of a list, drawn at random. It draws from a stream of its own here: the global one has to show what trimtab does to it.
for name, module in list(sys.modules.items()):
    if name.startswith("beartype.") and hasattr(module, "getrandbits"):
        module.getrandbits = random.Random(0).getrandbits

# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that: the tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)  # and with it torch fills new, unwritten memory with NaN: a read of it cannot go unseen
hypothesis.settings.register_profile("trimtab", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("trimtab")


_connect = socket.socket.connect


def _connect_here(self: socket.socket, address: object) -> None:
    if self.family != socket.AF_UNIX and not str(address[0] if isinstance(address, tuple) else address).startswith(("127.", "localhost", "::1")):
        raise RuntimeError(f"a test asked for the network ({address}); tests run offline")
    return _connect(self, address)


socket.socket.connect = _connect_here


@pytest.fixture(autouse=True)
def _own_folder_and_fixed_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture
def annotations_off():
    """For a test of what a function itself says about a wrong shape or type, which the check of its annotations would say first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
