"""The worker process of a claim, started by :mod:`trimtab.claims.run` in a session of its own, and by nothing else.

Lines of JSON on the standard input say what to run, lines of JSON on the standard output what happened. What a measurement prints goes to its pair's log.
The input's end means that the parent has gone, and ends the process wherever it is, with all that a measurement left running.
"""

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from trimtab.claims.claim import Claim
from trimtab.claims.loading import load_file
from trimtab.claims.pair import described, log_path, run_pair
from trimtab.core import TrimtabError

_EVERY = 0.2  # seconds between two progress lines: enough for a moving bar, no load


def _listen(stream: IO[str], inbox: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in stream:
        inbox.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)


def _claim(request: Mapping[str, Any]) -> Claim:
    claim = load_file(request["source"])
    if claim.hash(request["size"]) != request["claim_hash"]:
        raise TrimtabError(f"{claim.source.name} was changed during the run; start it again")
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    return claim


def serve() -> None:
    """Run pairs until the input ends, or until the parent, which then knows, sends an interrupt."""
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which fit takes over while it trains
        _serve()


def _serve() -> None:
    stream, out = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()
    request = json.loads(stream.readline())
    folder, inbox = Path(request["folder"]), queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stream, inbox), daemon=True).start()

    def send(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")

    claim = None
    while True:
        pair = inbox.get()
        arm, seed, last = pair["arm"], pair["seed"], 0.0

        def progress(step: int, steps: int, values: Mapping[str, float]) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= _EVERY or step >= steps:
                last = now
                send(event="step", step=step, steps=steps, values={name: float(value) for name, value in values.items()})

        try:
            with open(log_path(folder, arm, seed), "a", encoding="utf-8") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            claim = claim or _claim(request)
            done = run_pair(claim, request["size"], arm, seed, folder=folder, claim_hash=request["claim_hash"], device=request["device"], progress=progress)
        except (Exception, SystemExit) as error:  # whatever a measurement raises is its pair's failure, and the others go on
            traceback.print_exc()
            message = {"event": "failed", "message": described(error)}
        else:
            message = {"event": "done", "metrics": done["metrics"], "wall_time": done["wall_time"]}
        sys.stdout.flush()
        sys.stderr.flush()
        send(**message)
