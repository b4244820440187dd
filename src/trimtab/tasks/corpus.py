"""Running text that every machine with Python has: the source of its standard library.

No paper. The text is Python's own, so it differs between Python versions; ``fingerprint`` tells two texts apart.
"""

import hashlib
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from trimtab.core import UsageError, generator, unknown, whole
from trimtab.metrics import token_accuracy
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch

SPLITS = ("train", "validation", "test")


class Text(NamedTuple):
    """Files of one split.

    Attributes:
        content: their bytes in the order of their names, a zero byte between two.
        files: names relative to the folder.
        skipped: names of files that could not be read.
    """

    content: bytes
    files: tuple[str, ...]
    skipped: tuple[str, ...]


def split_of(name: str) -> str:
    """The split of a file by the hash of its name: 80 % train, 10 % validation, 10 % test, the same on every machine.

    Example:
        >>> split_of("argparse.py"), split_of("json/decoder.py")
        ('validation', 'train')
    """
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 10
    return "validation" if draw == 8 else "test" if draw == 9 else "train"


def read_source(folder: str | Path, split: str, modules: frozenset[str] | None = None) -> Text:
    """Read a split of the ``*.py`` files below a folder, without tests and installed packages.

    Args:
        folder: read and never written.
        split: "train", "validation" or "test".
        modules: only these modules and packages at the top of the folder; default all.

    Raises:
        UsageError: no such split.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    names = []
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in ("site-packages", "dist-packages", "test", "tests", "__pycache__")]
        relative = Path(place).relative_to(folder)
        names += [(relative / f).as_posix() for f in files if f.endswith(".py")]
    kept, skipped, contents = [], [], []
    for name in sorted(names):
        if split_of(name) != split or (modules is not None and name.split("/")[0].removesuffix(".py") not in modules):
            continue
        try:
            contents.append(Path(folder, name).read_bytes())
            kept.append(name)
        except OSError:
            skipped.append(name)
    return Text(b"\0".join(contents), tuple(kept), tuple(skipped))


@cache
def _standard_library(split: str) -> tuple[Text, Tensor]:
    text = read_source(sysconfig.get_paths()["stdlib"], split, sys.stdlib_module_names)
    if not text.content:
        raise UsageError(f"this Python ({sys.executable}) comes without the source of its standard library; use one that has it")
    return text, torch.frombuffer(bytearray(text.content), dtype=torch.uint8)


class PythonCorpus:
    """Windows of bytes from the source of Python's standard library, ``pydoc_data`` with the text of the language reference included.

    Files are split by the hash of their name, so no file is in two splits; tests are left out, for not every distribution ships them. The files of a split are
    joined by zero bytes, which occur nowhere else in source, and a window may span two of them. Read at first use, once a process; about 12 MB in all.

    Args:
        length: bytes in a window, >= 2.
        split: "train", "validation" or "test".

    Raises:
        UsageError: another split, or a length that is too short or longer than the text (the latter when it is first read).

    Example:
        >>> task = PythonCorpus(length=8, split="validation")
        >>> batch = task.batch(seed=0, step=0, size=2)
        >>> batch["input_ids"].shape, batch["labels"][:, 0].tolist()
        (torch.Size([2, 8]), [-100, -100])
        >>> round(task.score(torch.zeros(2, 8, 256), batch)["nats per byte"], 3)  # log 256
        5.545

    When not to use it: to compare numbers across Python versions; compare ``fingerprint`` first.
    """

    name = "python-corpus"
    vocab_size = 256
    licence = "PSF-2.0"

    def __init__(self, length: int = 128, split: str = "train"):
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        self.length, self.split = whole("length", length, 2), split  # one byte to read and one to predict

    def __repr__(self) -> str:
        return f"PythonCorpus(length={self.length}, split={self.split!r})"

    @property
    def text(self) -> Text:
        """The whole split."""
        return _standard_library(self.split)[0]

    @property
    def bytes(self) -> int:
        """Size of the split."""
        return len(self.text.content)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the split's bytes."""
        return hashlib.sha256(self.text.content).hexdigest()

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """Windows at uniform places, as a pure function of the arguments.

        Returns:
            A dict of two tensors, int64 [size, length]: ``input_ids``, and ``labels``, the same bytes with -100 for a window's first one, which nothing before
            it could predict.
        """
        size = whole("size", size, 1)
        data = _standard_library(self.split)[1]
        if self.length > len(data):
            raise UsageError(f"length must be at most the {len(data)} bytes of the {self.split} split, got {self.length}")
        starts = torch.randint(len(data) - self.length + 1, (size, 1), generator=generator(seed, "batch", step))
        ids = data[starts + torch.arange(self.length)].long()
        labels = ids.clone()
        labels[:, 0] = IGNORE
        return {"input_ids": ids, "labels": labels}

    def score(self, output: Float[Tensor, "rows bytes vocab"], batch: Batch) -> dict[str, float]:
        """Judge logits of the whole windows, unshifted.

        Returns:
            ``nats per byte``, the mean of -log p over supervised bytes (divide by log 2 for bits), and ``byte accuracy``.

        Raises:
            UsageError: fewer than 256 logits, or another shape than the batch.
        """
        if output.shape[-1] < self.vocab_size:
            raise UsageError(f"output must have a logit for each of the {self.vocab_size} bytes, got {output.shape[-1]}")
        right, asked = token_accuracy(output, batch["labels"])
        # bf16 logits would be good to 1 % of a nat only, and a mean of many losses needs more digits than one of them
        logits = output[:, :-1].to(torch.promote_types(output.dtype, torch.float32))
        losses = functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORE, reduction="none")
        return {"nats per byte": float(losses.double().sum() / asked), "byte accuracy": float(right / asked)}
