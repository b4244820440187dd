import base64
import copy
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trimtab.claims import read_record
from trimtab.claims.report import Entry, View, deciding, gather, near, read_entry, write_report
from trimtab.claims.report.collect import plan
from trimtab.claims.report.figures import pictures
from trimtab.claims.report.view import number, text
from trimtab.core import UsageError

VOID = {"meta", "br", "link", "img", "input"}


def record(**changes):
    """Two arms, three seeds, one curve, one single number."""
    edit = {"standard": (0.2, 0.3, 0.4), "hint": (0.7, 0.8, 0.9)}
    base = {
        "slug": "toy",
        "title": "Does a hint help?",
        "about": "A made-up measurement.",
        "size": "small",
        "verdict": "reproduced",
        "note": None,
        "statements": [
            {
                "name": "hint over standard",
                "kind": "superior",
                "metric": "edit@5x",
                "contrast": {"arm": "hint", "against": "standard", "best_of": None},
                "margin": 0.05,
                "why": "one token in twenty",
                "primary": True,
                "verdict": "reproduced",
                "note": None,
                "estimate": 0.5,
                "interval": [0.4, 0.6],
                "paper": 0.926,
                "per_seed": {"0": 0.5, "1": 0.5, "2": 0.5},
            }
        ],
        "mastery": {"metric": "exact@1x", "threshold": 0.98, "lower_is_better": False, "passed": {"standard": True, "hint": True}},
        "arms": ["standard", "hint"],
        "seeds": [0, 1, 2],
        "measured": {arm: {str(k): {"exact@1x": 1.0, "edit@1x": 1.0, "edit@5x": v, "loss": 0.01} for k, v in enumerate(vs)} for arm, vs in edit.items()},
        "paper": {"hint": {"edit@5x": 0.95}},
        "settings": {"steps": 3000, "lengths": [1, 8]},
        "claim_hash": "3f" * 32,
        "argv": ["trimtab", "run", "toy"],
        "version": "0.1.0",
        "commit": "0" * 40,
        "libraries": {"torch": "2.13.0"},
        "device": "cpu",
        "threads": 1,
        "machine": {"system": "Linux"},
        "time": "2026-01-02T03:04:05Z",
        "wall_time": 12.5,
        "core_minutes": 0.5,
    }
    return base | changes


def entry(**changes):
    made = record(**changes)
    return Entry(View(made), Path("records") / str(made["slug"]).replace("/", "-") / f"{made['size']}.json")


class Page(HTMLParser):
    """What a browser would build: elements, attributes, and the text that is not script or style."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.attributes, self.inside, self.data = [], [], [], {}
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.inside.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attrs = self.inside[-1] if self.inside else ("", {})
        key = (tag, attrs.get("type")) if tag in ("script", "style") else "text"
        self.data[key] = self.data.get(key, "") + data


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([entry()], out)
    return {path.name: path.read_text(encoding="utf-8") for path in out.glob("*.html")}


# What a record says


def test_means_and_intervals_of_a_curve():
    (curve,) = View(record()).curves
    assert (curve.name, curve.suffix, curve.points, curve.trained) == ("edit", "x", [1.0, 5.0], 1.0)
    mean, low, high = curve.bands["hint"][5.0]
    half = 4.302652730 * 0.1 / math.sqrt(3)  # t with two degrees of freedom
    assert (mean, low, high) == pytest.approx((0.8, 0.8 - half, 0.8 + half))
    assert curve.seeds["hint"] == {"0": {1.0: 1.0, 5.0: 0.7}, "1": {1.0: 1.0, 5.0: 0.8}, "2": {1.0: 1.0, 5.0: 0.9}}
    assert curve.paper == {"hint": {5.0: 0.95}}


def test_numbers_of_a_table_have_the_same_decimals(tmp_path):
    measured = {"standard": {str(k): {"edit@1x": 1.0, "edit@5x": 2e-4 * k} for k in range(3)}}
    view = View(record(measured=measured, arms=["standard"], paper={}))
    assert view.curves[0].scale == 1.0
    write_report([Entry(view, Path("x.json"))], tmp_path)
    assert "1×1.000 ± 0.000 5×0.000 ± 0.000" in " ".join(Page((tmp_path / "toy.html").read_text()).data["text"].split())
    statement = record()["statements"][0] | {"estimate": 1e-4, "interval": [-0.2, 0.2]}
    assert View(record(statements=[statement])).statements[0].measured == "+0.000 [−0.200, +0.200]"


def test_a_table_has_a_column_for_each_arm_and_the_papers_value_below_the_measured(pages):
    words = " ".join(Page(pages["toy.html"]).data["text"].split())
    assert "lengthstandardhint 1×1.000 ± 0.0001.000 ± 0.000 5×0.300 ± 0.2480.800 ± 0.248paper 0.950" in words
    assert "metricstandardhint exact@1x1.000 ± 0.0001.000 ± 0.000 loss0.010 ± 0.0000.010 ± 0.000" in words
    assert "1× is the longest length in training" in words


def test_a_curve_of_one_point_is_a_number():
    view = View(record())
    assert [f.name for f in view.families if not f.points] == ["exact@1x", "loss"]
    assert view.families[0].bands["hint"][0.0][0] == 1.0


def test_lengths_and_multiples_are_different_curves():
    measured = {"standard": {"0": {"edit@1x": 1.0, "edit@5x": 0.5, "edit@8": 0.9, "edit@16": 0.8}}}
    view = View(record(measured=measured, arms=["standard"], seeds=[0], paper={}, mastery={"metric": "edit@8", "threshold": 0.5, "passed": {}}))
    assert [(f.suffix, f.points, f.trained) for f in view.curves] == [("x", [1.0, 5.0], 1.0), ("", [8.0, 16.0], 8.0)]


def test_one_seed_has_no_interval():
    one = record(seeds=[0], measured={"standard": {"0": {"edit@1x": 1.0, "edit@5x": 0.5}}}, verdict=None, note="1 seed: no verdict")
    view = View(one)
    assert view.curves[0].bands["standard"][5.0] == (0.5, None, None)
    assert view.headline == "1 seed: no verdict."


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, 1e300])
def test_what_cannot_be_drawn_is_no_number(value):
    assert number(value) is None
    assert number(1) == 1.0


def test_text_can_always_be_written():
    assert text("a\x1b[31mb\ud800\x00c") == "a [31mb? c"


def test_the_command_names_size_seeds_and_the_arms_of_a_part():
    every = record()["arms"]
    assert View(record(), every).command == "trimtab run toy --size small --seeds 3"
    assert View(record(seeds=[5, 6]), every).command == "trimtab run toy --size small --seeds 5-6"
    assert View(record(slug="a; rm -rf /")).command.startswith("trimtab run 'a; rm -rf /' ")
    part = "trimtab run toy --size small --seeds 3 --arm standard --arm hint"
    assert View(record(), [*every, "other"]).command == part
    assert View(record()).command == part  # the claim's arms are not known


def test_seeds_that_no_option_names_are_left_to_replay(tmp_path):
    assert View(record(seeds=[0, 2, 5])).command == ""
    write_report([entry(seeds=[0, 2, 5])], tmp_path)
    source = (tmp_path / "toy.html").read_text()
    assert "<code>trimtab run" not in source
    assert "<code>trimtab replay records/toy/small.json" in source


def test_replay_names_a_record_below_this_folder_by_its_place_and_another_by_its_name(tmp_path):
    for path, said in ((Path.cwd() / "made" / "small.json", "made/small.json"), (Path("/elsewhere/small.json"), "small.json")):
        write_report([Entry(View(record()), path)], tmp_path / "pages")
        source = (tmp_path / "pages" / "toy.html").read_text()
        assert f"trimtab replay {said}<" in source
        assert str(path.parent) not in source


def test_an_arm_keeps_its_colour_whichever_others_were_run():
    alone = record(arms=["hint"], measured={"hint": record()["measured"]["hint"]})
    assert [View(alone, claimed).place("hint") for claimed in ((), ("standard", "hint"), ("a", "b", "hint"))] == [0, 1, 2]
    assert View(record(), ["hint"]).place("standard") == 1  # an arm that the claim has no more
    assert "s-arm1" in pictures(View(alone, ["standard", "hint"]))[0].svg
    assert "s-arm0" not in pictures(View(alone, ["standard", "hint"]))[0].svg


# Which record decides


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], "small 2026-01-02"),
        ([{"time": "2026-02-01T00:00:00Z"}], "small 2026-02-01"),
        ([{"time": "2026-02-01T00:00:00Z", "superseded": True}], "small 2026-01-02"),
        ([{"time": "2026-02-01T00:00:00Z", "verdict": None}], "small 2026-01-02"),
        ([{"time": "2025-02-01T00:00:00Z", "size": "small-2"}], "small-2 2025-02-01"),
        ([{"size": "small-10"}, {"size": "small-9"}], "small-10 2026-01-02"),
        ([{"size": "small-3"}, {"size": "full"}], "full 2026-01-02"),
        ([{"slug": "other", "size": "full"}], "small 2026-01-02"),
    ],
)
def test_the_newest_of_the_largest_rung_decides(others, expected):
    found = deciding([entry(), *(entry(**other) for other in others)], "toy")
    assert f"{found.view.size} {found.view.time[:10]}" == expected


@pytest.mark.parametrize("later", [{"time": "2026-02-01T00:00:00Z"}, {"size": "small-2"}])
def test_a_part_of_the_arms_or_seeds_does_not_displace_a_whole_record(later):
    part = record(**later)
    assert deciding([entry(), Entry(View(part), Path("part.json"), whole=False)], "toy").whole
    assert deciding([Entry(View(part), Path("part.json"), whole=False)], "toy").path == Path("part.json")


@pytest.mark.parametrize(
    ("changes", "whole"),
    [({}, True), ({"seeds": [5, 6, 7, 8, 9, 10]}, True), ({"seeds": [0, 1]}, False), ({"arms": ["standard", "count"]}, False), ({"size": "small-2"}, True)],
)
def test_a_record_is_whole_by_the_arms_and_seeds_of_its_claim(monkeypatch, changes, whole):
    made = record(slug="task-hinting", seeds=[0, 1, 2, 3, 4], arms=["standard", "standard-equal-tokens", "successor", "count"]) | changes
    monkeypatch.setattr("trimtab.claims.report.collect.read_record", lambda path: made)
    found = read_entry(Path("x.json"))
    assert found.whole == whole
    assert found.view.place("count") == 3


@pytest.mark.parametrize("text", ["", "CLAIM = (", "CLAIM = Claim()", "CLAIM = Claim(arms=ARMS, sizes=SIZES)", "CLAIM = Claim(sizes={'small': SMALL})"])
def test_a_claim_file_that_computes_its_plan_says_nothing(monkeypatch, tmp_path, text):
    (tmp_path / "toy.py").write_text(text)
    monkeypatch.setattr("trimtab.claims.report.collect.source", lambda slug: tmp_path / "toy.py")
    assert plan("toy", "small") == ((), 0)


def test_nothing_decides_without_a_verdict():
    assert deciding([entry(verdict=None), entry(superseded=True)], "toy") is None


def test_gather_names_what_it_could_not_read(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "small-20260102T030405Z.json").write_text('{"slug": NaN}')
    entries, problems = gather([tmp_path])
    assert not entries
    assert len(problems) == 1
    assert "small-20260102T030405Z.json" in problems[0]


@pytest.mark.parametrize("kind", ["dangling", "folder", "fifo", "loop", "unreadable"])
def test_a_bad_neighbour_is_named_and_hides_no_record(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("trimtab.claims.report.collect.read_record", lambda path: record() if "0102" in path.name else read_record(path))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "small-20260102T030405Z.json").touch()
    bad = tmp_path / "toy" / "small-20260101T000000Z.json"
    {
        "dangling": lambda: bad.symlink_to(tmp_path / "nowhere"),
        "folder": bad.mkdir,
        "fifo": lambda: os.mkfifo(bad),
        "loop": lambda: bad.symlink_to(bad),
        "unreadable": lambda: bad.write_bytes(b"\xff\x00"),
    }[kind]()
    entries, problems = gather([tmp_path])
    assert [e.path.name for e in entries] == ["small-20260102T030405Z.json"]
    assert len(problems) == 1
    assert bad.name in problems[0]


def test_names_are_told_without_their_control_characters(tmp_path):
    folder = tmp_path / "a\x1b[31mb"
    folder.mkdir()
    (folder / "small-20260101T000000Z.json").write_text("{")
    assert "a [31mb" in gather([folder])[1][0]
    assert near(folder / "x.json").endswith("a [31mb/x.json")


# Pages


def test_pages_load_nothing_and_fit_phones(pages):
    assert set(pages) == {"index.html", "toy.html"}
    for source in pages.values():
        page = Page(source)
        assert ("meta", "name", "viewport") in page.attributes
        assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.elements)
        assert not [a for a in page.attributes if a[1] in ("src", "style", "srcset") or a[1].startswith("on")]
        assert {value.split(":")[0] for _, name, value in page.attributes if name == "href" and "://" in value} <= {"https"}


def test_the_policy_allows_this_style_and_this_script_only(pages):
    for source in pages.values():
        page = Page(source)
        policy = next(value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "default-src" in value)

        def digest(content):
            return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

        assert "default-src 'none'" in policy
        assert f"style-src 'sha256-{digest(page.data['style', None])}'" in policy
        assert f"script-src 'sha256-{digest(page.data['script', None])}'" in policy
        assert "unsafe" not in policy


def test_the_record_is_in_the_page_unchanged(pages):
    assert json.loads(Page(pages["toy.html"]).data["script", "application/json"]) == record()


def test_verdict_and_numbers_are_text(pages):
    for source in pages.values():
        words = Page(source).data["text"]
        assert "reproduced" in words
        assert "hint over standard" in words
        assert re.search(r"\+0\.500\s+\[\+0\.400, \+0\.600\]", words)
        assert "0.926" in words


def test_ids_are_unique_and_references_lead_somewhere(pages):
    page = Page(pages["toy.html"])
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = {value[1:] for _, name, value in page.attributes if name == "href" and value.startswith("#")}
    used |= {m for _, name, value in page.attributes if name == "clip-path" for m in re.findall(r"#([^)]+)", value)}
    assert used
    assert used <= set(ids)


def test_figures_speak_and_carry_no_colours_of_their_own(pages):
    page = Page(pages["toy.html"])
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == 2
    assert "hint: 1 at 1x, 0.8 at 5x." in labels[0]
    assert "+0.500 [+0.400, +0.600], margin 0.05" in labels[1]
    paint = {value for _, name, value in page.attributes if name in ("fill", "stroke")}
    assert paint <= {"none", "currentColor"}


def test_the_same_record_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_report([entry()], tmp_path / name)
    files = [{path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.*"))} for folder in (tmp_path / "a", tmp_path / "b")]
    assert len(files[0]) == 4
    assert files[0] == files[1]


def test_other_records_and_staleness_are_shown(tmp_path):
    old = entry(time="2025-01-01T00:00:00Z", superseded=True, verdict="contradicted")
    main = Entry(View(record()), Path("x.json"), stale="its claim file has changed since")
    write_report([old, main], tmp_path)
    words = Page((tmp_path / "toy.html").read_text()).data["text"]
    assert "Stale: its claim file has changed since" in words
    assert "2025-01-01T00:00:00Z" in words
    assert "superseded: a bug was found later" in words
    assert "stale" in Page((tmp_path / "index.html").read_text()).data["text"]


def test_a_run_just_ended_leads_and_names_the_record_that_decides(tmp_path):
    lead = entry(verdict=None, note="1 seed: no verdict", seeds=[0], time="2026-03-01T00:00:00Z")
    write_report([entry(), lead], tmp_path, lead=lead)
    words = Page((tmp_path / "toy.html").read_text()).data["text"]
    assert "1 seed: no verdict." in words
    assert re.search(r"record that decides this claim says\s+reproduced\s+\(small, 3 seeds, 2026-01-02\)", words)
    assert re.search(r"decided by another record:\s+reproduced", Page((tmp_path / "index.html").read_text()).data["text"])


@pytest.mark.parametrize("name", ["index.html", "toy.html"])
def test_a_page_that_trimtab_did_not_write_is_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} trimtab did not write; choose another"):
        write_report([entry()], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_no_record_still_gives_an_index(tmp_path):
    page = write_report([], tmp_path, problems=["<b>odd</b> file"])
    words = Page(page.read_text()).data["text"]
    assert "no record yet" in words
    assert "<b>odd</b> file" in words


def test_paper_values_and_all_arms_are_drawn():
    with_paper, without = (pictures(View(record(paper=paper)))[0].svg for paper in (record()["paper"], {}))
    assert with_paper.count("<use") == without.count("<use") + 1
    assert all(f">{arm}</text>" in with_paper for arm in ("standard", "hint"))


def test_an_interval_cut_at_the_end_of_a_share_is_told():
    wide = {"hint": {str(k): {"edit@1x": 1.0, "edit@5x": v} for k, v in enumerate((0.1, 0.5, 0.9))}}
    notes = [pictures(View(record(arms=["hint"], paper={}, measured=measured)))[0].note for measured in (wide, {"hint": record()["measured"]["hint"]})]
    assert ["cut at 0 and 1" in note for note in notes] == [True, True]
    narrow = {"hint": {str(k): {"edit@1x": 0.5, "edit@5x": 0.5 + k / 1000} for k in range(3)}}
    assert "cut" not in pictures(View(record(arms=["hint"], paper={}, measured=narrow)))[0].note


def test_of_many_curves_those_of_statements_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("trimtab.claims.report.figures.MOST", 2)
    measured = {arm: {"0": {f"{name}@{k}x": 0.5 for name in "abcd" for k in (1, 5)} | {"edit@1x": 1.0, "edit@5x": 0.5}} for arm in ("standard", "hint")}
    view = View(record(measured=measured, seeds=[0], paper={}))
    assert [picture.title for picture in pictures(view)] == ["edit by length", "a by length", "Statements"]
    write_report([Entry(view, Path("x.json"))], tmp_path)
    words = Page((tmp_path / "toy.html").read_text()).data["text"]
    assert "3 more curves: see the tables." in words
    assert re.search(r"\bd\s+length", words)


def test_one_panel_a_metric_in_the_plot_of_statements():
    second = copy.deepcopy(record()["statements"][0]) | {"name": "not worse", "kind": "not_worse", "metric": "loss"}
    drawn = pictures(View(record(statements=[*record()["statements"], second])))[-1]
    assert ">advantage in edit@5x</text>" in drawn.svg
    assert ">advantage in loss</text>" in drawn.svg


# A record from somebody who means harm

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"--><style>*{}</style>{{7*7}}$\\frac{\x00\ud83d\ud800]]>"


def spoilt(value):
    """The same shape with markup in every text, and in place of every null."""
    if isinstance(value, dict):
        return {key: spoilt(v) for key, v in value.items()}
    if isinstance(value, list):
        return [spoilt(v) for v in value]
    return f"{value}{EVIL}" if isinstance(value, str) or value is None else value


def hostile():
    arms = [f"standard{EVIL}", f"hint{EVIL}"]
    values = {"0": 0.1, f"1{EVIL}": 0.2, "2": float("nan"), "3": float("inf")}
    measured = {arm: {seed: {f"edit{EVIL}@1x": v, f"edit{EVIL}@5x": v, EVIL: v} for seed, v in values.items()} for arm in arms}
    names = {"settings": {EVIL: EVIL}, "libraries": {EVIL: [EVIL]}, "machine": {EVIL: {EVIL: EVIL}}, "paper": {arms[0]: {f"edit{EVIL}@5x": 0.5, EVIL: 1e999}}}
    mastery = {"metric": EVIL, "threshold": float("nan"), "passed": {arm: False for arm in arms}}
    return spoilt(record()) | names | {"arms": arms, "seeds": [0, f"1{EVIL}", float("nan")], "measured": measured, "mastery": mastery, "verdict": "reproduced"}


@pytest.mark.parametrize("slug", [f"toy{EVIL}", "../../escaped", "index", "a" * 5000, None])
def test_a_hostile_record_is_only_text(tmp_path, pages, slug):
    out = tmp_path / "deep" / "report"
    write_report([Entry(View(hostile() | {"slug": slug}), Path(f"records/{EVIL}"), stale=EVIL)], out, problems=[EVIL])
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert all(path.parts[:2] == ("deep", "report") for path in written)
    assert len([path for path in written if path.suffix == ".html"]) == 2
    usual = {attribute[:2] for source in pages.values() for attribute in Page(source).attributes} | {("p", "class"), ("li", "class")}
    for path in out.glob("*.html"):
        page = Page(path.read_text(encoding="utf-8"))
        assert page.elements.count("script") == (1 if path.name == "index.html" else 2)
        assert page.elements.count("style") == 1
        assert "img" not in page.elements
        assert {attribute[:2] for attribute in page.attributes} <= usual
        assert "<img src=x onerror=alert(2)>" in page.data["text"]
        assert "{{7*7}}" in page.data["text"]
        assert not set("<>&") & set(page.data.get(("script", "application/json"), ""))


@pytest.mark.parametrize("key", sorted(record()))
@pytest.mark.parametrize("value", [None, [], {}, "text", -1, float("nan"), [None, 3], {"a": 1}, [[{}]], {"a": {"b": {"c": "d"}}}], ids=repr)
def test_any_field_may_be_of_a_wrong_type(key, value):
    view = View(record(**{key: value}))
    assert isinstance(view.headline + view.command + view.condition + view.key, str)
    assert all(isinstance(s.sentence, str) for s in view.statements)


@pytest.mark.parametrize("value", ["text", {"a": {"b": {"c": 1}}}], ids=repr)
@pytest.mark.parametrize("key", ["statements", "measured", "arms", "seeds", "mastery", "paper", "settings"])
def test_a_page_of_a_damaged_record_is_still_written(tmp_path, key, value):
    write_report([entry(**{key: value})], tmp_path)
    assert "<h1>" in (tmp_path / "toy.html").read_text()


def test_a_field_may_be_missing(tmp_path):
    write_report([Entry(View({}), Path("x.json"))], tmp_path)
    assert len([*tmp_path.glob("*.html")]) == 2


@pytest.mark.parametrize(
    ("kind", "zone"), [("superior", (0.05, math.inf)), ("trend", (0.05, math.inf)), ("not_worse", (-0.05, math.inf)), ("equal", (-0.05, 0.05))]
)
def test_the_shaded_zone_is_where_a_statement_of_its_kind_is_reproduced(kind, zone):
    shown = record()
    shown["statements"][0]["kind"] = kind
    assert View(shown).statements[0].zone == zone
