import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import trimtab
import trimtab.claims
from tests.cli.toys import TOY


@pytest.fixture
def recorded(toy, call):
    call("run", "toy", "--out", "made")
    return next(Path("made").glob("small-*.json"))


def test_replay_agrees_and_measures_again(recorded, call):
    code, out, err = call("replay", recorded)
    assert code == 0
    assert "They agree." in out
    assert "Next: trimtab show toy" in out
    assert "6 runs, 0 finished before" in err
    code, out, _ = call("replay", recorded, "--json")
    assert json.loads(out).items() >= {"slug": "toy", "agree": True, "recorded": "reproduced", "replayed": "reproduced", "same_claim": True}.items()


def test_replay_takes_seeds_and_arms_of_the_record(toy, call):
    call("run", "toy", "--seeds", "1-2", "--arm", "hint", "--out", "made")
    _, out, _ = call("replay", next(Path("made").glob("small-*.json")), "--json")
    again = json.loads(Path(json.loads(out)["record"]).read_text())
    assert (again["seeds"], again["arms"], again["size"]) == ([1, 2], ["hint"], "small")


def test_replay_tells_another_verdict_and_another_claim(toy, recorded, call):
    (toy / "toy.py").write_text(TOY.replace('"hint": 0.6', '"hint": 0.31'))
    sys.modules.pop("trimtab.claims.toy")
    code, out, _ = call("replay", recorded)
    assert code == 0
    assert "They do NOT agree." in out
    assert "The claim file is not the one" in out
    assert "Next: compare versions and machines" in out


def test_replay_of_a_smoke_record_has_nothing_to_agree_with(toy, call):
    call("run", "toy", "--size", "smoke", "--out", "made")
    _, out, _ = call("replay", next(Path("made").glob("smoke-*.json")))
    assert "The record has no verdict to agree with." in out
    assert "Next: trimtab run toy measures" in out


def test_replay_executes_nothing_of_the_record(recorded, call):
    record = json.loads(recorded.read_text())
    record |= {"argv": ["touch", "harm"], "settings": {"steps": "__import__('os').system('touch harm')"}, "commit": None}
    recorded.write_text(json.dumps(record))
    assert call("replay", recorded)[0] == 0
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"slug": "other"}, 2, "which this version of trimtab does not have; claims: toy"),
        ({"size": "full"}, 2, "unknown size 'full'"),
        ({"slug": "../toy"}, 1, "slug should be"),
        ({"seeds": "012"}, 1, "seeds should be"),
        (None, 1, "should be JSON and is not"),
    ],
)
def test_replay_of_a_damaged_or_foreign_record(recorded, call, changes, code, says):
    text = recorded.read_text()
    recorded.write_text(text[:99] if changes is None else json.dumps(json.loads(text) | changes))
    found, out, err = call("replay", recorded)
    assert (found, out) == (code, "")
    assert says in err


def test_report_takes_packaged_records_and_those_of_this_folder(toy, call):
    call("run", "toy", "--out", toy / "records" / "toy")
    call("run", "toy", "--seeds", "1")
    code, out, _ = call("report", "--out", "pages")
    assert code == 0
    assert Path(out.strip()) == Path("pages/index.html").resolve()
    assert "reproduced" in Path("pages/index.html").read_text()
    assert "Other records of this claim" in Path("pages/toy.html").read_text()


def test_a_record_that_cannot_be_read_is_a_warning(recorded, call):
    folder = Path("trimtab-runs/toy")
    folder.mkdir(parents=True)
    (folder / "small-20260101T000000Z.json").write_text("{")
    (folder / "small-20260102T000000Z.json").symlink_to("nowhere")
    for args in (("report",), ("list",), ("show", "task-hinting"), ("doctor",)):
        code, out, err = call(*args)
        assert code == 0
        for name in ("small-20260101T000000Z.json", "small-20260102T000000Z.json"):
            assert name in (out if args == ("doctor",) else err)
    assert "small-20260101T000000Z.json" in Path("trimtab-report/index.html").read_text()


def test_report_opens_a_browser_when_asked(toy, call, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    call("report")
    assert not opened
    call("report", "--open")
    assert opened == [Path("trimtab-report/index.html").resolve().as_uri()]


def test_doctor_names_versions_extras_and_records(toy, call):
    call("run", "toy")
    code, out, err = call("doctor", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["trimtab"] == trimtab.__version__
    assert found["libraries"]["torch"]
    assert "cpu" in found["devices"]
    assert found["to_fix"] == []
    assert [record["stale"] for record in found["records"]] == [""]
    assert found["writable"] is True
    assert "All fine." in call("doctor")[1]
    (toy / "toy.py").write_text(TOY.replace("0.05", "0.06"))
    _, out, _ = call("doctor")
    assert "stale: its claim file has changed since" in " ".join(out.split())
    assert "To fix: stale, measure it again with trimtab run: trimtab-runs/toy/small-" in " ".join(out.split())
    assert "All fine." not in out


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        (None, "pip install 'trimtab[lm]'"),
        ({"url": "file:///tmp/trimtab.whl", "archive_info": {}}, "pip install 'trimtab[lm]'"),
        ({"url": "file:///src/tt%20x", "dir_info": {"editable": True}}, "pip install -e '/src/tt x[lm]'"),
    ],
)
def test_doctor_says_how_to_install_from_where_trimtab_came(toy, call, monkeypatch, origin, advice):
    monkeypatch.setattr("trimtab.cli.doctor.distribution", lambda name: SimpleNamespace(read_text=lambda file: origin and json.dumps(origin)))
    assert json.loads(call("doctor", "--json")[1])["extras"]["lm"]["install"] == advice


def test_doctor_says_what_to_fix(toy, call, monkeypatch):
    monkeypatch.setattr("trimtab.cli.doctor._version", lambda package: None if package == "scipy" else "1.0")
    monkeypatch.setattr("trimtab.cli.doctor._torch", lambda: (["none, for torch does not load: no CUDA"], None))
    monkeypatch.setattr("trimtab.cli.doctor._writable", lambda: False)
    Path("trimtab-runs").mkdir()
    Path("trimtab-runs/small-20260101T000000Z.json").write_text("{")
    found = json.loads(call("doctor", "--json")[1])["to_fix"]
    for said, start in zip(found, ("scipy is missing: pip install", "none, for torch does not load: no CUDA", "this folder cannot", "unreadable"), strict=True):
        assert said.startswith(start)


def test_an_error_shows_no_escape_sequences_of_a_name(call):
    assert "there is no record a [31m .json" in call("replay", "a\x1b[31m\x07.json")[2]
