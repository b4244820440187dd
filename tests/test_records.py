"""The records that are kept: each is whole, made by committed code, follows from its own numbers, and still speaks for this version."""

from pathlib import Path

import pytest

from trimtab.claims import find_records, load, read_record, stale
from trimtab.claims.record import build_record

PATHS = find_records(Path(__file__).parents[1] / "records")
records = pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")


def test_there_are_some():
    assert PATHS


@records
def test_a_record_is_whole_and_of_committed_code(path):
    record = read_record(path)
    claim = load(record["slug"])
    assert path.parent.name == claim.slug
    assert record["arms"] == list(claim.arms)
    assert len(record["seeds"]) >= claim.size(record["size"]).seeds
    assert record["commit"] and record["dirty"] is False and record["mixed"] == []


@records
def test_a_record_follows_from_its_own_numbers(path):
    record = read_record(path)
    claim = load(record["slug"])
    names = ("version", "commit", "dirty", "libraries", "device", "threads", "machine")
    pairs = [
        {"arm": arm, "seed": int(seed), "metrics": metrics, "origin": {name: record[name] for name in names}, "wall_time": 0.0, "core_minutes": 0.0}
        for arm, rows in record["measured"].items()
        for seed, metrics in rows.items()
    ]
    again = build_record(claim, record["size"], pairs, claim_hash=record["claim_hash"])
    for name in ("verdict", "note", "statements", "mastery", "arms", "seeds", "settings", "paper"):
        assert again[name] == record[name], name


@pytest.mark.parametrize("slug", sorted({path.parent.name for path in PATHS}))
def test_records_are_not_stale_and_the_code_below_has_not_drifted(slug):
    live = [record for path in PATHS if path.parent.name == slug and not (record := read_record(path)).get("superseded")]
    assert live
    for record in live[:-1]:
        assert stale(record) == []
    assert stale(live[-1], recompute=True) == []
