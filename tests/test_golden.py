"""The same seed gives the same bytes, from one version of this package to the next.

A change here makes the records of every trained claim stale; then it needs a reason in the changelog. What the bytes may depend on besides is named below, and
elsewhere the test is skipped: how torch draws and rounds differs between its versions and between kinds of processors.
"""

import hashlib
import platform

import pytest
import torch

from trimtab.core import generator
from trimtab.nn import Transformer
from trimtab.tasks import Sorting
from trimtab.train import NextToken, fit

# Settings, seed, weights, loss. With these seeds the losses are alike under AVX2 and AVX-512, MKL's code for any processor, and on one and two threads; with
# others they differ in the last bit.
GOLDEN = {
    "plain": ({}, 2, "3b54d0a92a50e76a", "0x1.5e41a80000000p+1"),
    "rope": ({"positions": "rope", "norm": "rms", "ffn": "swiglu", "kv_heads": 2}, 0, "7cebccead0c30665", "0x1.64cd660000000p+1"),
}


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason=f"the bytes are those of torch 2.13, this is {torch.__version__}")
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason=f"the bytes are those of an x86-64 with AVX2, this is {platform.machine()} with {torch.backends.cpu.get_cpu_capability()}",
)
@pytest.mark.parametrize("name", GOLDEN)
def test_initial_weights_and_the_loss_after_ten_steps(name, tmp_path):
    settings, seed, weights, loss = GOLDEN[name]
    task = Sorting(vocab=12, lengths=(1, 8))
    model = Transformer(task.vocab.size, dim=32, layers=2, heads=4, generator=generator(seed, "golden"), **settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()[:16]
        run = fit(model, NextToken(), task, folder=tmp_path, steps=10, batch_size=16, seed=seed)
    finally:
        torch.set_num_threads(threads)
    assert (found, run.metrics()[-1]["loss"].hex()) == (weights, loss)
