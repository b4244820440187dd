import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trimtab.claims import find_records, read_record, stale, supersede
from trimtab.claims.record import build_record, drift, record_path, write_record
from trimtab.claims.schema import problems
from trimtab.core import DamagedFile, UsageError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORIGIN = {
    "version": "0.1.0", "commit": "0" * 40, "dirty": False, "libraries": {"python": "3.11.7"}, "device": "cpu", "threads": 1, "machine": {"system": "Linux"},
}  # fmt: skip
GAIN = {"standard": 0.0, "hint": 0.3, "other": 0.2}


def pair(arm, seed, **changes):
    wobble = 0.01 * (-1) ** (seed + len(arm))
    metrics = {"exact@8": 0.99, "exact@16": 0.3 + GAIN[arm] + wobble, "exact@32": 0.1 + GAIN[arm], "edit@2x": 0.5 + GAIN[arm] + wobble}
    return {"arm": arm, "seed": seed, "metrics": metrics | changes, "wall_time": 2.5, "core_minutes": 0.04, "origin": ORIGIN}


def pairs(seeds=range(3), arms=("standard", "hint", "other")):
    return [pair(arm, seed) for seed in seeds for arm in arms]


def built(toy, found=None, size="small", **rest):
    return build_record(toy, size, pairs() if found is None else found, **{"claim_hash": "a" * 64, "argv": ["trimtab", "run", "toy"], "now": NOW} | rest)


@pytest.fixture
def record(toy):
    return built(toy, fingerprint={"weights": "ab", "loss": 2.0})


def test_a_record_says_what_was_found(record):
    assert (record["verdict"], record["note"], record["time"]) == ("reproduced", None, "2026-01-02T03:04:05Z")
    assert record["measured"]["hint"]["1"]["exact@32"] == 0.4
    assert record["seconds"]["other"] == {"0": 2.5, "1": 2.5, "2": 2.5}
    assert (record["wall_time"], record["core_minutes"]) == (22.5, pytest.approx(0.36))
    assert record["mastery"] == {"metric": "exact@8", "threshold": 0.98, "lower_is_better": False, "passed": {"standard": True, "hint": True, "other": True}}
    assert [s["primary"] for s in record["statements"]] == [True, True, False, False, False]
    assert record["statements"][1]["contrast"]["arm"] == "hint"
    assert record["settings"] == {"steps": 3}
    assert problems(record) == []


def test_it_is_a_pure_function_whatever_the_order_of_the_pairs(toy):
    assert json.dumps(built(toy)) == json.dumps(built(toy, pairs()[::-1]))


def test_papers_value_is_the_statements_own_else_the_difference_of_the_arms(altered):
    toy = altered(('paper={"hint": {"exact@32": 0.9}, "standard": {"exact@32": 0.1}}', 'paper={"other": {"edit@2x": 0.9}, "standard": {"edit@2x": 0.1}}'))
    assert [s["paper"] for s in built(toy)["statements"]] == [0.4, None, pytest.approx(0.8), None, None]


def test_one_seed_has_no_verdict(toy):
    record = built(toy, pairs(seeds=[0]))
    assert (record["verdict"], record["note"]) == (None, "1 seed: no verdict")
    assert problems(record) == []


def test_smoke_has_no_verdict_even_with_seeds(toy):
    record = built(toy, size="smoke")
    assert (record["verdict"], record["note"], {s["verdict"] for s in record["statements"]}) == (None, "smoke size: no verdict", {None})
    assert problems(record) == []


def test_a_primary_arm_left_out_has_no_verdict(toy):
    record = built(toy, pairs(arms=("standard", "hint")))
    assert (record["verdict"], record["note"], record["arms"]) == (None, "not run: other", ["standard", "hint"])
    assert record["statements"][0]["verdict"] == "reproduced"
    assert problems(record) == []


def test_an_arm_that_did_not_master_its_training_makes_its_statements_invalid(toy):
    found = [pair(p["arm"], p["seed"], **({"exact@8": 0.97} if (p["arm"], p["seed"]) == ("standard", 1) else {})) for p in pairs()]
    record = built(toy, found)
    assert (record["verdict"], record["mastery"]["passed"]) == ("invalid", {"standard": False, "hint": True, "other": True})
    assert record["statements"][0]["note"] == "standard did not reach exact@8 >= 0.98 (seed 1: 0.97)"
    assert record["statements"][0]["estimate"] == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(("loss", "verdict"), [(1.9, "reproduced"), (2.1, "invalid")])
def test_a_baseline_that_did_not_learn_makes_its_statements_invalid(altered, loss, verdict):
    toy = altered(('mastery=Mastery("exact@8", 0.98)', "least_baseline_loss=2.0"))
    record = built(toy, [pair(p["arm"], p["seed"], **({"loss": loss} if p["arm"] == "standard" else {})) for p in pairs()])
    assert (record["verdict"], record["mastery"]["passed"]) == (verdict, {"standard": verdict == "reproduced"})


@pytest.mark.parametrize(("spread", "sure", "verdict"), [(0.05, True, "partly"), (0.0866, False, "undecided")])
def test_partly_needs_a_level_that_allows_for_the_number_of_primary_statements(toy, spread, sure, verdict):
    """The half-width over three seeds is 4.30 standard errors at 95 % and 6.21 at 97.5 %; at a spread of 0.0866 the margin is 5 away."""
    values = {"standard": [0.3] * 3, "hint": [0.6 - spread, 0.6, 0.6 + spread], "other": [0.0, 0.5, 0.6]}
    found = [pair(arm, seed, **{"exact@16": values[arm][seed], "edit@2x": float(arm == "other")}) for arm in values for seed in range(3)]
    record = built(toy, found)
    assert [(s["verdict"], s["holds_at_adjusted_level"]) for s in record["statements"][:2]] == [("reproduced", sure), ("undecided", False)]
    assert record["verdict"] == verdict


def test_a_hole_in_the_grid_is_refused(toy):
    with pytest.raises(UsageError, match="not run: other seed 2"):
        built(toy, pairs()[:-1])


def test_pairs_from_different_places_are_said_to_be(toy):
    found = pairs()
    found[0] = found[0] | {"origin": ORIGIN | {"commit": "1" * 40, "threads": 2}}
    record = built(toy, found)
    assert (record["commit"], record["mixed"]) == ("0" * 40, ["commit", "threads"])


def test_written_and_read_it_is_the_same_bytes(record, tmp_path):
    path = write_record(tmp_path / "toy", record)
    assert path == record_path(tmp_path / "toy", record) == tmp_path / "toy" / "small-20260102T030405Z.json"
    assert json.dumps(read_record(path)) == json.dumps(record)


def test_two_records_of_a_second_are_both_kept(record, tmp_path):
    first = write_record(tmp_path, record | {"note": "first"})
    second = write_record(tmp_path, record)
    assert first != second
    assert read_record(first)["note"] == "first"


def test_nan_is_not_written(record, tmp_path):
    record["measured"]["hint"]["0"]["exact@8"] = float("nan")
    with pytest.raises(DamagedFile, match=r"measured\.hint\.0\.exact@8 is not a finite number"):
        write_record(tmp_path, record)
    assert list(tmp_path.glob("*.json")) == []


def put(record, path, value):
    *parents, last = path
    for key in parents:
        record = record[key]
    if value is ...:
        del record[last]
    else:
        record[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["slug"], "../../etc/passwd", "slug should be lower-case words joined by '-', is '../../etc/passwd'"),
        (["size"], "../small", "size should be"),
        (["verdict"], "proven", "verdict should be reproduced, partly"),
        (["verdict"], "undecided", "verdict should be 'reproduced' by its statements"),
        (["verdict"], ..., "verdict is missing"),
        (["statements"], {}, "statements should be a list"),
        (["statements", 1, "interval"], [0.4, 0.2], r"statements\[1\]\.interval should be two ascending numbers or null, is \[0\.4, 0\.2\]"),
        (["statements", 0, "estimate"], "0.3", r"statements\[0\]\.estimate should be a number or null"),
        (["statements", 0, "estimate"], 0.9, r"statements\[0\]\.estimate should lie in its interval \[0\.\d+, 0\.\d+\], is 0\.9"),
        (["statements", 0, "estimate"], None, r"statements\[0\]\.estimate should lie in its interval"),
        (["statements", 0, "per_seed"], {"0": "0.3"}, r"statements\[0\]\.per_seed should be a number for each seed"),
        (["statements", 0, "per_seed", "7"], 0.3, r"statements\[0\]\.per_seed should be of the record's seeds, has '7'"),
        (["statements", 0, "estimate"], ..., r"statements\[0\]\.estimate is missing"),
        (["statements", 0, "verdict"], "contradicted", "verdict should be 'contradicted' by its statements"),
        (["statements", 0, "verdict"], ["reproduced"], r"statements\[0\]\.verdict should be"),
        (["statements", 0, "contrast"], "a - b", "contrast should be"),
        (["measured", "hint", "0", "exact@8"], True, "measured should be arm -> seed -> metric -> number"),
        (["measured", "hint", "7"], {}, "measured should have every arm with every seed"),
        (["measured", "hint"], ..., "measured should have every arm"),
        (["measured", "hint", "0", "exact@8"], 10**400, r"measured\.hint\.0\.exact@8 is a whole number beyond"),
        (["arms"], [["hint"]], "arms should be"),
        (["arms"], [], "arms should be"),
        (["seeds"], [0, 1, True], "seeds should be"),
        (["seeds"], [0, 1, 1], "seeds should be one or more different whole numbers"),
        (["curves"], {"hint": {"0": [[1]]}}, "curves should be arm -> seed"),
        (["commit"], "$(rm -rf /)", "commit should be a commit's hash"),
        (["claim_hash"], "a" * 63, "claim_hash should be 64 hexadecimal digits"),
        (["argv"], "trimtab run", "argv should be a list of texts"),
        (["time"], "yesterday", "time should be a UTC time"),
        (["settings"], [], "settings should be an object"),
        (["extra"], 1, "fields that no record has: extra"),
        (["superseded"], True, "superseded_reason is missing"),
    ],
)
def test_a_record_that_is_none_is_refused(record, tmp_path, path, value, message):
    put(record, path, value)
    (tmp_path / "bad.json").write_text(json.dumps(record))
    with pytest.raises(DamagedFile, match=message):
        read_record(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "should be JSON and is not"),
        ("[1, 2]", "should be an object"),
        ('{"slug": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("\ufeff{}", "should be JSON"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path, text, message):
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFile, match=message):
        read_record(tmp_path / "bad.json")


def test_a_number_that_reads_as_infinity_is_refused(record, tmp_path):
    text = json.dumps(record).replace('"exact@32": 0.4', '"exact@32": 1e999', 1)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(DamagedFile, match="is not a finite number"):
        read_record(tmp_path / "bad.json")


def test_half_a_record_is_refused(record, tmp_path):
    path = write_record(tmp_path, record)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DamagedFile, match="should be JSON and is not"):
        read_record(path)


def test_a_huge_file_is_refused_unread(tmp_path):
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(DamagedFile, match="more than a record may have"):
        read_record(tmp_path / "huge.json")


def test_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="there is no record"):
            read_record(path)


def test_texts_are_data(record, tmp_path):
    """What a text says is shown, not judged: whoever shows it escapes it."""
    record["title"] = "<script>alert(1)</script>"
    record["argv"] = ["rm", "-rf", "/"]
    assert read_record(write_record(tmp_path, record))["title"] == "<script>alert(1)</script>"


def test_finding_records(record, tmp_path):
    for slug, size, time in (("b", "small", "2026-01-02T03:04:05Z"), ("a", "small", "2026-01-03T00:00:00Z"), ("a", "small-2", "2026-01-02T00:00:00Z")):
        write_record(tmp_path / slug, record | {"slug": slug, "size": size, "time": time})
    (tmp_path / "a" / "small-01234567" / "pairs").mkdir(parents=True)
    for other in ("a/notes.json", "a/small-01234567/pairs/hint-seed0.json", "small-2026.json"):
        (tmp_path / other).write_text("{}")
    names = ["a/small-2-20260102T000000Z.json", "a/small-20260103T000000Z.json", "b/small-20260102T030405Z.json"]
    assert [str(path.relative_to(tmp_path)) for path in find_records(tmp_path)] == names
    assert [path.name for path in find_records(tmp_path / "b")] == ["small-20260102T030405Z.json"]


def test_superseding_keeps_the_record_and_says_why(record, tmp_path):
    path = write_record(tmp_path, record)
    with pytest.raises(UsageError, match="reason"):
        supersede(path, "")
    supersede(path, "labels were shifted twice")
    assert read_record(path) == record | {"superseded": True, "superseded_reason": "labels were shifted twice"}


@pytest.fixture
def installed(toy, monkeypatch):
    monkeypatch.setattr("trimtab.claims.record.slugs", lambda: ["toy"])
    monkeypatch.setattr("trimtab.claims.record.source", lambda slug: toy.source)
    monkeypatch.setattr("trimtab.claims.record.load", lambda slug: toy)
    return toy


def test_stale(record, installed):
    fresh = record | {"claim_hash": installed.hash("small")}
    assert stale(fresh) == []
    assert stale(record) == ["its claim file has changed since"]
    assert stale(fresh | {"size": "large"}) == ["unknown size 'large'; allowed: smoke, small"]
    assert stale(fresh | {"slug": "gone"}) == ["this version of trimtab has no claim 'gone'"]
    installed.source.write_text(installed.source.read_text().replace("steps=3", "steps=4"))
    assert stale(fresh) == ["its claim file has changed since"]


def test_stale_by_its_fingerprint(record, installed):
    fresh = record | {"claim_hash": installed.hash("small"), "fingerprint": {"weights": "ac", "loss": 2.001}}
    assert stale(fresh) == []
    assert stale(fresh, recompute=True) == ["weights was ac, is ab"]


@pytest.mark.parametrize(
    ("recorded", "now", "found"),
    [
        ({"loss": 2.0}, {"loss": 2.001}, []),
        ({"loss": 2.0}, {"loss": 2.01}, ["loss was 2.0, is 2.01"]),
        ({"loss": 2.0}, {}, ["loss was 2.0, is None"]),
        ({}, {"loss": 2.0}, ["loss was None, is 2.0"]),
        ({"a": "1"}, {"a": 1}, ["a was 1, is 1"]),
    ],
)
def test_drift(recorded, now, found):
    assert drift(recorded, now) == found


def test_every_key_of_the_design_is_there(record):
    design = "slug size verdict statements arms seeds measured paper settings claim_hash fingerprint argv version commit libraries device threads"
    assert {*design.split(), "wall_time", "time"} <= record.keys()
    entry = "name kind metric contrast margin why verdict estimate interval paper primary per_seed"
    assert all(set(entry.split()) <= statement.keys() for statement in record["statements"])


def test_committed_records_hold_and_are_bound_to_their_commit():
    """Also for CI: a record's commit has the claim file that the record was made with."""
    import subprocess

    from trimtab.claims import claim_hash

    root = Path(__file__).parents[2]
    for path in find_records(root / "records"):
        record = read_record(path)
        assert path == record_path(root / "records" / record["slug"], record)
        assert record["verdict"] is not None, path
        file = f"src/trimtab/claims/{record['slug'].replace('-', '_')}.py"
        shown = subprocess.run(["git", "-C", str(root), "show", f"{record['commit']}:{file}"], capture_output=True, text=True)
        if "bad object" in shown.stderr or re.search("not a git repository|invalid object name", shown.stderr):
            continue  # a shallow clone, or no clone
        assert claim_hash(shown.stdout, record["size"]) == record["claim_hash"], path


def test_a_verdict_that_its_interval_does_not_give_is_refused():
    from pathlib import Path

    from trimtab.claims.schema import problems

    committed = read_record(next(Path(__file__).parents[2].glob("records/task-hinting/*.json")))
    forged = {**committed, "verdict": "reproduced", "statements": [{**entry, "verdict": "reproduced"} for entry in committed["statements"]]}
    assert problems(committed) == []
    assert "statements[0].verdict should be 'undecided' by its interval and margin, is 'reproduced'" in problems(forged)
