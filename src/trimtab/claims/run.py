"""Run a claim: every arm with every seed in one-thread worker processes, each finished pair kept at once, and a record at the end.

Workers are plain child processes that speak lines of JSON, not ``multiprocessing``: that would import the user's main script again in each of them,
cannot start from a script on standard input, and forbids a measurement to have children of its own (data loaders).
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from trimtab.claims.claim import Claim
from trimtab.claims.pair import described, log_path, read_pair, run_pair, tidy
from trimtab.claims.record import TIME_FIELDS, build_record, find_records, read_record, write_record
from trimtab.core import DamagedFile, TrimtabError, UsageError, locked

Say = Callable[[dict[str, Any]], None]
Pair = tuple[str, int]

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "NUMBA")}
_IN_WORKER = "TRIMTAB_CLAIM_WORKER"  # set in a worker's environment
_GRACE = 10.0  # seconds that an interrupted measurement has for a last checkpoint


class ClaimIncomplete(TrimtabError, RuntimeError):
    """Some pairs of a claim failed; the finished ones are kept.

    Attributes:
        failed: a dict for each, with arm, seed, message and log (the path of what it printed, traceback included).
    """

    def __init__(self, message: str, failed: Sequence[dict[str, Any]]):
        super().__init__(message)
        self.failed = list(failed)


def estimate(claim: Claim, size: str, seeds: Iterable[int] | None = None, arms: Iterable[str] | None = None) -> float | None:
    """Core minutes that a run will take, by the claim's own figure and the share of its pairs; None where the claim gives none.

    Example:
        >>> from trimtab.claims import Size, superior
        >>> claim = Claim(slug="toy", measure=lambda *_: {}, arms=("standard", "b"), sizes={"small": Size(seeds=5, core_minutes=20)},
        ...               primary=(superior("x", "b", over="standard", margin=1, why="whole"),))
        >>> estimate(claim, "small"), estimate(claim, "small", seeds=[0], arms=["b"])
        (20.0, 2.0)
    """
    settings = claim.size(size)
    if settings.core_minutes is None:
        return None
    pairs = len(list(seeds) if seeds is not None else range(settings.seeds)) * len(list(arms) if arms is not None else claim.arms)
    return settings.core_minutes * pairs / (settings.seeds * len(claim.arms))


def run_folder(folder: str | Path, size: str, claim_hash: str, device: str = "cpu") -> Path:
    """Where the pairs of a run lie in the folder of its claim. It carries the claim's hash, so that pairs of a changed claim never mix.

    Example:
        >>> run_folder("trimtab-runs/toy", "small", "0123456789abcdef").name
        'small-01234567'
    """
    return Path(folder) / (f"{size}-{claim_hash[:8]}" + ("" if device == "cpu" else f"-{device.replace(':', '')}"))


def check_device(device: str) -> None:
    """Raise UsageError unless tensors can be made on a device."""
    if device == "cpu":
        return
    from trimtab.nn.weights import available  # at use: torch

    available(device)


def _plan(claim: Claim, size: str, seeds: Iterable[int] | None, arms: Iterable[str] | None) -> list[Pair]:
    """The pairs in their order: all arms of the first seed come first, so that a run that is stopped early can still compare."""
    wanted = {claim.check_arm(arm) for arm in claim.arms} if arms is None else {claim.check_arm(arm) for arm in arms}
    chosen = list(range(claim.size(size).seeds)) if seeds is None else list(seeds)
    if not wanted:
        raise UsageError(f"arms must name one arm at least, got none; allowed: {', '.join(claim.arms)}")
    if not chosen or any(isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 for seed in chosen):
        raise UsageError(f"seeds must be one or more whole numbers from 0 on, got {chosen!r}")
    return [(arm, seed) for seed in sorted(set(chosen)) for arm in claim.arms if arm in wanted]


class _Worker:
    """A worker process with the pair that it is at; a thread passes on what it says, and None when it ends."""

    def __init__(self, request: dict[str, Any], heard: "queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]"):
        # The parent's import path, for a child started with -m knows only the installed packages and its working folder. While it imports, an interrupt
        # just ends it, without a traceback.
        start = "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); sys.path[:] = json.loads(sys.argv.pop()); "
        start += "from trimtab.claims.worker import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, _IN_WORKER: "1"},
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the parent, which then stops its workers
        )
        self._stdin, self._stdout = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        self.pair: Pair | None = None
        self._say(request)
        threading.Thread(target=self._pass_on, args=(heard,), daemon=True).start()
        self._burial = threading.Thread(target=self._bury, daemon=True)
        self._burial.start()

    def _bury(self) -> None:
        """When it has ended, end what it left running, which would hold the pipe open and go on using the machine."""
        self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Ctrl-C: a measurement inside ``fit`` saves a checkpoint and ends."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def _pass_on(self, heard: "queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]") -> None:
        with self._stdout, suppress(ValueError):  # ValueError: a line cut off by the worker's death, which comes next
            for line in self._stdout:
                heard.put((self, json.loads(line)))
        heard.put((self, None))

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it has died, and the thread says so
            self._stdin.write(json.dumps(message) + "\n")
            self._stdin.flush()

    def give(self, pair: Pair) -> None:
        self.pair = pair
        self._say({"arm": pair[0], "seed": pair[1]})

    def stop(self) -> int:
        """End it, at once and whatever it is at, for its files are written whole or not at all; its exit code."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._burial.join(timeout=5)
        if self._burial.is_alive():
            self._process.kill()
            self._burial.join()
        return self._process.wait()


def _obituary(code: int) -> str:
    if code >= 0:
        return f"its worker ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its worker was killed by {name}" + (" (often: the machine ran out of memory)" if name == "SIGKILL" else "")


def _in_workers(pairs: Sequence[Pair], count: int, request: dict[str, Any], tell: Callable[[Pair, dict[str, Any]], None]) -> None:
    waiting, live = deque(pairs), set()
    heard: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()

    def start() -> None:
        worker = _Worker(request, heard)
        live.add(worker)
        next_pair(worker)

    def next_pair(worker: _Worker) -> None:
        worker.pair = None
        if waiting:
            pair = waiting.popleft()
            tell(pair, {"event": "pair"})
            worker.give(pair)
        else:
            live.discard(worker)
            worker.stop()

    try:
        for _ in range(min(count, len(pairs))):
            start()
        while live:
            worker, message = heard.get()
            if worker not in live or worker.pair is None:
                continue  # it was told to stop, and has
            if message is None:
                live.discard(worker)
                tell(worker.pair, {"event": "failed", "message": _obituary(worker.stop())})
                if waiting:
                    start()
            else:
                tell(worker.pair, message)
                if message["event"] != "step":
                    next_pair(worker)
    except KeyboardInterrupt:
        for worker in live:
            worker.interrupt()
        until = time.monotonic() + _GRACE
        for worker in live:
            worker.wait(max(0.0, until - time.monotonic()))
        raise
    finally:
        for worker in live:
            worker.stop()


def _in_process(pairs: Sequence[Pair], claim: Claim, request: dict[str, Any], tell: Callable[[Pair, dict[str, Any]], None]) -> None:
    folder = Path(request["folder"])
    for pair in pairs:
        tell(pair, {"event": "pair"})

        def progress(step: int, steps: int, values: Any, pair: Pair = pair) -> None:
            tell(pair, {"event": "step", "step": step, "steps": steps, "values": dict(values)})

        try:
            done = run_pair(claim, request["size"], *pair, folder=folder, claim_hash=request["claim_hash"], device=request["device"], progress=progress)
        except (Exception, SystemExit) as error:  # as in a worker
            log_path(folder, *pair).write_text(traceback.format_exc(), encoding="utf-8")
            tell(pair, {"event": "failed", "message": described(error)})
        else:
            tell(pair, {"event": "done", "metrics": done["metrics"], "wall_time": done["wall_time"]})


def _unchanged(folder: Path, record: dict[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """The newest record of this folder that says the same, whenever and with whichever options it was asked for."""

    def same(other: dict[str, Any]) -> bool:
        return all(other.get(name) == record.get(name) for name in record.keys() | other.keys() if name not in (*TIME_FIELDS, "argv"))

    for path in reversed(find_records(folder)):
        try:
            if path.parent == folder and same(other := read_record(path)):
                return path, other
        except DamagedFile:
            continue  # a broken neighbour is no reason to lose this run; reading it says what is wrong with it
    return None


def run_claim(
    claim: Claim,
    size: str = "small",
    *,
    seeds: Iterable[int] | None = None,
    arms: Iterable[str] | None = None,
    folder: str | Path,
    workers: int = 2,
    device: str = "cpu",
    progress: Say | None = None,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measure every arm with every seed and write the record. A second call takes up what is finished.

    Args:
        size: a name in ``claim.sizes``.
        seeds: default 0 .. the size's seeds - 1.
        arms: default all; a primary statement whose arm is left out leaves the claim without a verdict.
        folder: of the claim: the record goes to ``<folder>/<size>-<time>.json``, pairs to ``<folder>/<size>-<hash>/pairs``.
        workers: processes of one thread each; 0 measures in this process, with its threads.
        device: handed to ``measure``.
        progress: called in this process with a dict for each event: ``start`` (pairs, finished, core_minutes, folder), ``pair`` (arm, seed),
            ``step`` (arm, seed, step, steps, values), ``done`` (arm, seed, metrics, wall_time, finished, pairs), ``failed`` (arm, seed, message, log),
            ``record`` (path, verdict).
        argv: the command line for the record; default this process's.

    Returns:
        The record.

    Raises:
        UsageError: no such size, arm, device, or bad seeds; or a call from the claim's own file while a worker loads it.
        FolderInUse: another run holds the folder.
        ClaimIncomplete: a pair failed or its worker died; the others ran and are kept.
        KeyboardInterrupt: with a message that says how to resume; measurements inside :func:`trimtab.train.fit` have saved a checkpoint.

    Example:
        >>> from trimtab.claims import load
        >>> record = run_claim(load("task-hinting"), "smoke", folder="trimtab-runs/task-hinting")  # doctest: +SKIP
        >>> record["verdict"] is None  # doctest: +SKIP
        True
    """
    if _IN_WORKER in os.environ:
        raise UsageError(f'run_claim was called while a worker loads {claim.source.name}; put the call in that file under if __name__ == "__main__":')
    plan = _plan(claim, size, seeds, arms)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise UsageError(f"workers must be a whole number from 0 on, got {workers!r}; 2 is usual")
    check_device(device)
    folder, digest, say = Path(folder), claim.hash(size), progress or (lambda event: None)
    run = run_folder(folder, size, digest, device)
    request = {"source": str(claim.source.resolve()), "size": size, "folder": str(run.resolve()), "device": device, "claim_hash": digest}
    finished: dict[Pair, dict[str, Any]] = {}
    failed: list[dict[str, Any]] = []

    def collect(pair: Pair) -> bool:
        if found := read_pair(claim, size, *pair, folder=run, claim_hash=digest, device=device):
            finished[pair] = found
        return found is not None

    def tell(pair: Pair, message: dict[str, Any]) -> None:
        event = {"event": message["event"], "arm": pair[0], "seed": pair[1], **message}
        log = log_path(run, *pair)
        if event["event"] == "done":
            collect(pair)
            event |= {"finished": len(finished), "pairs": len(plan)}
            if log.exists() and not log.stat().st_size:
                log.unlink()
        elif event["event"] == "failed":
            event["log"] = str(log)
            failed.append({key: event[key] for key in ("arm", "seed", "message", "log")})
        say(event)

    with locked(run):
        for arm, seed in plan:
            if collect((arm, seed)):
                tidy(run / "work" / f"{arm}-seed{seed}")
        todo = [pair for pair in plan if pair not in finished]
        minutes = estimate(claim, size, range(len(todo)), [claim.arms[0]])
        fingerprint = claim.fingerprint() if claim.fingerprint else None  # first: an error in it should not come after hours
        say({"event": "start", "pairs": len(plan), "finished": len(finished), "core_minutes": minutes, "folder": str(run)})
        try:
            _in_workers(todo, workers, request, tell) if workers else _in_process(todo, claim, request, tell)
        except KeyboardInterrupt:
            kept = f"{len(finished)} of {len(plan)} runs are finished and kept in {run}"
            raise KeyboardInterrupt(f"stopped; {kept}; the same command goes on from there") from None
        if failed:
            lines = "".join(f"\n  {f['arm']}, seed {f['seed']}: {f['message']} (see {f['log']})" for f in failed)
            summary = f"{len(failed)} of {len(plan)} runs of {claim.slug} failed, the others are kept in {run}; the same command tries these again:"
            raise ClaimIncomplete(summary + lines, failed)
        record = build_record(
            claim,
            size,
            [finished[pair] for pair in plan],
            claim_hash=digest,
            fingerprint=fingerprint,
            # a file name that is not UTF-8 has surrogates, which are not JSON text
            argv=[word.encode("utf-8", "backslashreplace").decode() for word in ([Path(sys.argv[0]).name, *sys.argv[1:]] if argv is None else argv)],
            now=datetime.now(UTC),
        )
        if before := _unchanged(folder, record):
            path, record = before
        else:
            path = write_record(folder, record)
    say({"event": "record", "path": str(path), "verdict": record["verdict"]})
    return record
