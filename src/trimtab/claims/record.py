"""Records: what a run of a claim found, with all that is needed to judge it and to run it again.

A record is one JSON file ``<folder>/<size>-<UTC time>.json``. What is read from one is data and nothing else: no name in it is imported, opened or run.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab.claims.claim import Claim, claim_hash
from trimtab.claims.loading import load, slugs, source
from trimtab.claims.schema import problems
from trimtab.claims.statements import Measured, claim_verdict, evaluate
from trimtab.core import DamagedFile, UsageError, read_json, write_json

TIME_FIELDS = ("time", "wall_time", "core_minutes", "seconds")
"""The fields in which two runs of the same thing differ."""

_LARGEST = 64 << 20  # bytes; a hundred arms with a hundred seeds and metrics each stay below
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-\d{8}T\d{6}Z\.json")


def _mastery(claim: Claim, measured: Measured) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """The mastery condition's entry, and arm -> what it failed."""
    if claim.mastery:
        metric, threshold, sign, arms = claim.mastery.metric, claim.mastery.threshold, 1, list(measured)
    elif claim.least_baseline_loss is not None:
        metric, threshold, sign, arms = "loss", claim.least_baseline_loss, -1, [arm for arm in measured if arm == claim.baseline]
    else:
        return None, {}
    failed = {}
    for arm in arms:
        if short := [f"seed {seed}: {row[metric]:.4g}" for seed, row in measured[arm].items() if sign * row[metric] < sign * threshold]:
            failed[arm] = f"{arm} did not reach {metric} {'>=' if sign > 0 else '<='} {threshold:g} ({', '.join(short)})"
    return {"metric": metric, "threshold": threshold, "lower_is_better": sign < 0, "passed": {arm: arm not in failed for arm in arms}}, failed


def _paper(claim: Claim, entry: Mapping[str, Any]) -> float | str | None:
    """The paper's value of an estimate: the statement's own, else from the paper's values of both arms."""
    if entry["paper"] is not None or entry["kind"] == "trend":
        return entry["paper"]
    ours, theirs = (claim.paper.get(entry["contrast"][side], {}).get(entry["metric"]) for side in ("arm", "against"))
    return None if ours is None or theirs is None else (theirs - ours if entry["lower_is_better"] else ours - theirs)


def build_record(
    claim: Claim,
    size: str,
    pairs: Sequence[Mapping[str, Any]],
    *,
    claim_hash: str,
    fingerprint: Mapping[str, str | float] | None = None,
    argv: Sequence[str] = (),
    now: datetime | None = None,
) -> dict[str, Any]:
    """The record of finished pairs: a pure function of its arguments.

    Args:
        pairs: as :func:`trimtab.claims.pair.run_pair` gives them: every arm with every seed.
        claim_hash: of the claim file that they were run with.
        fingerprint: the claim's, computed now.
        argv: the command line.
        now: the record's time, in UTC.

    Raises:
        UsageError: an arm lacks a seed that another has.
    """
    arms = [arm for arm in claim.arms if any(pair["arm"] == arm for pair in pairs)]
    seeds = sorted({pair["seed"] for pair in pairs})
    table = {(pair["arm"], pair["seed"]): pair for pair in pairs}
    if missing := [f"{arm} seed {seed}" for arm in arms for seed in seeds if (arm, seed) not in table]:
        raise UsageError(f"a record needs every arm with every seed, not run: {', '.join(missing)}")
    measured = {arm: {str(seed): dict(table[arm, seed]["metrics"]) for seed in seeds} for arm in arms}
    mastery, failed = _mastery(claim, measured)
    statements = []
    for statement in claim.statements:
        entry = evaluate(statement, measured, failed=failed, adjusted=1 - 0.05 / len(claim.primary))
        if size == "smoke" and entry["verdict"] is not None:
            entry |= {"verdict": None, "note": "smoke size: no verdict", "holds_at_adjusted_level": False}
        statements.append({"name": entry.pop("name"), "primary": statement in claim.primary, **entry, "paper": _paper(claim, entry)})
    primary = [entry for entry in statements if entry["primary"]]
    note = "smoke size: no verdict" if size == "smoke" else next((entry["note"] for entry in primary if entry["verdict"] is None), None)
    origins = [pair["origin"] for pair in pairs]
    return {
        "slug": claim.slug,
        "title": claim.title,
        "about": claim.about,
        "size": size,
        "verdict": claim_verdict(primary),
        "note": note,
        "statements": statements,
        "mastery": mastery,
        "arms": arms,
        "baseline": claim.baseline,
        "seeds": seeds,
        "measured": measured,
        "curves": {arm: {str(seed): table[arm, seed].get("curve", []) for seed in seeds} for arm in arms},
        "paper": {arm: dict(values) for arm, values in claim.paper.items()},
        "settings": claim.size(size).settings,
        "claim_hash": claim_hash,
        "fingerprint": dict(fingerprint or {}),
        "argv": list(argv),
        **origins[-1],
        "mixed": [name for name in origins[-1] if any(origin[name] != origins[-1][name] for origin in origins)],
        "time": (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "wall_time": round(sum(pair["wall_time"] for pair in pairs), 3),
        "core_minutes": round(sum(pair["core_minutes"] for pair in pairs), 5),
        "seconds": {arm: {str(seed): table[arm, seed]["wall_time"] for seed in seeds} for arm in arms},
    }


def record_path(folder: str | Path, record: Mapping[str, Any]) -> Path:
    """Where a record lies in the folder of its claim.

    Example:
        >>> record_path("records/toy", {"size": "small", "time": "2026-01-02T03:04:05Z"}).name
        'small-20260102T030405Z.json'
    """
    return Path(folder) / f"{record['size']}-{record['time'].replace('-', '').replace(':', '')}.json"


def write_record(folder: str | Path, record: dict[str, Any]) -> Path:
    """Write a record whole and return its path. Where one of the same second lies, it waits for the next.

    Raises:
        DamagedFile: it is not a valid record (a NaN among the values, say); nothing is written.
    """
    if wrong := problems(record):
        raise DamagedFile(f"this is not a valid record, and is not written: {'; '.join(wrong[:3])}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    while (path := record_path(folder, record)).exists():
        time.sleep(0.1)
        record["time"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    write_json(path, record)
    return path


def read_record(path: str | Path) -> dict[str, Any]:
    """Read and check a record.

    Raises:
        UsageError: there is no such file.
        DamagedFile: it is not a record; the message says what was expected and what was found.

    Example:
        >>> read_record("small-20260101T000000Z.json")
        Traceback (most recent call last):
            ...
        trimtab.core.errors.UsageError: there is no record small-20260101T000000Z.json
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no record {path}")
    if path.stat().st_size > _LARGEST:
        raise DamagedFile(f"{path} has {path.stat().st_size} bytes, more than a record may have ({_LARGEST})")
    try:
        record = read_json(path)
        wrong = problems(record)
    except RecursionError:
        raise DamagedFile(f"{path} is not a record: it is nested too deeply") from None
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise DamagedFile(f"{path} is not a valid record: {'; '.join(wrong[:3])}{more}")
    return record


def find_records(folder: str | Path) -> list[Path]:
    """Files with a record's name in a claim's folder, or in the folders of the claims below it; oldest first for each claim.

    Example:
        >>> find_records("/nowhere")
        []
    """
    found = [path for pattern in ("*.json", "*/*.json") for path in Path(folder).glob(pattern) if _FILE.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.parent, path.stem.rpartition("-")[2], path.name))


def supersede(path: str | Path, reason: str) -> None:
    """Mark a record that a bug has spoilt. It stays, and counts no more; the claim is run again on the next seeds.

    Raises:
        UsageError: no reason is given.

    Example:
        >>> supersede("small-20260101T000000Z.json", "")
        Traceback (most recent call last):
            ...
        trimtab.core.errors.UsageError: reason must say which bug spoilt the record, got nothing
    """
    if not reason.strip():
        raise UsageError("reason must say which bug spoilt the record, got nothing")
    write_json(path, read_record(path) | {"superseded": True, "superseded_reason": reason})


def drift(recorded: Mapping[str, str | float], now: Mapping[str, str | float]) -> list[str]:
    """Where two fingerprints differ: texts must be equal, numbers within a thousandth.

    Example:
        >>> drift({"weights": "ab", "loss": 2.0}, {"weights": "ab", "loss": 2.1})
        ['loss was 2.0, is 2.1']
    """

    def same(a: Any, b: Any) -> bool:
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return math.isclose(a, b, rel_tol=1e-3) if numbers else a == b

    names = [*recorded, *(name for name in now if name not in recorded)]
    return [f"{name} was {recorded.get(name)}, is {now.get(name)}" for name in names if not same(recorded.get(name), now.get(name))]


def stale(record: Mapping[str, Any], *, recompute: bool = False) -> list[str]:
    """Why a record no longer speaks for the installed package; nothing where it does.

    Args:
        record: a valid one.
        recompute: also compute the claim's fingerprint again (imports the claim, takes seconds) to see whether the code below it has drifted.

    Example:
        >>> stale({"slug": "perpetual-motion", "size": "small"})
        ["this version of trimtab has no claim 'perpetual-motion'"]
    """
    slug, size = record["slug"], record["size"]
    if slug not in slugs():
        return [f"this version of trimtab has no claim {slug!r}"]
    try:
        current = claim_hash(source(slug).read_text(encoding="utf-8"), size)
    except UsageError as error:
        return [str(error)]
    reasons = [] if current == record["claim_hash"] else ["its claim file has changed since"]
    if recompute and (fingerprint := load(slug).fingerprint):
        reasons += drift(record["fingerprint"], fingerprint())
    return reasons
