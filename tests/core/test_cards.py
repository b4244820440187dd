import re
import subprocess
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

from trimtab.core.cards import Card, card, cards
from trimtab.core.errors import DamagedFile, UsageError

MODULE = import_module("trimtab.core.cards")  # trimtab.core.cards as an attribute is the function
ROOMS = {"metrics", "losses", "nn", "optim", "tasks", "search", "predict", "decode", "select", "train", "distill", "adapt"}
TOY = """\
slug = "toy"
name = "toy"
paper = "A Toy"
year = 2024
arxiv = ""
room = "losses"
topics = ["evaluation", "vision"]
line = "Do nothing."
"""

every_card = pytest.mark.parametrize("item", cards().values(), ids=cards())


def read_toy(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Card]:
    """The cards of a package that holds this one card only, past the cache."""
    (folder / "cards").mkdir()
    (folder / "cards" / "toy.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(MODULE, "_PACKAGE", folder)
    return cards.__wrapped__()


def test_all_methods_have_a_card():
    # 51 published methods; a method that is added later brings its card, so that more is no error
    assert len(cards()) >= 51
    assert set(cards()) == {Path(entry.name).stem for entry in (files("trimtab") / "cards").iterdir() if entry.name.endswith(".toml")}
    assert list(cards()) == sorted(cards())


def test_names_and_papers_are_unique():
    for field in ("slug", "name", "paper", "line"):
        values = [getattr(item, field).lower() for item in cards().values()]
        assert sorted(set(values)) == sorted(values), field
    ids = [item.arxiv for item in cards().values() if item.arxiv]
    assert len(set(ids)) == len(ids)


@every_card
def test_fields(item: Card):
    assert cards()[item.slug] is item
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item.slug)
    assert item.room in ROOMS
    assert re.fullmatch(r"\d{4}\.\d{4,5}|", item.arxiv)
    if item.arxiv:
        assert item.year == 2000 + int(item.arxiv[:2]), "year is that of the first public version"
    assert len(item.line) <= 140
    assert item.paper
    assert item.name


@every_card
def test_prose(item: Card):
    assert item.use_when, "say when it helps"
    assert item.not_when, "say when to leave it"
    for text in (item.line, item.use_when, item.not_when, *item.deviations):
        assert text.endswith(".")
        assert text[0].isupper()
        assert ". " not in text, "one sentence"
    for text in (item.name, item.paper, item.line, item.use_when, item.not_when, *item.patents, *item.deviations, *item.knobs, *item.knobs.values()):
        assert isinstance(text, str)
        assert text == " ".join(text.split()), "no stray white space"


@every_card
def test_topics(item: Card):
    assert 2 <= len(item.topics) <= 4
    assert len(set(item.topics)) == len(item.topics)
    assert all(re.fullmatch(r"[a-z]+([ -][a-z]+)*", topic) for topic in item.topics)


def test_one_spelling_for_each_topic():
    topics = sorted({topic for item in cards().values() for topic in item.topics})
    for topic in topics:
        assert not get_close_matches(topic, [other for other in topics if other != topic], cutoff=0.85), topic


def test_task_hinting_is_whole():
    item = card("task-hinting")
    assert item.room == "tasks"
    assert item.deviations
    assert {"hints", "share", "queries", "answer", "positions"} <= item.knobs.keys()


def test_known_patent_is_kept():
    assert any("12235845" in text for text in card("ann-autotune").patents)


def test_toy_card_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert read_toy(TOY, tmp_path, monkeypatch)["toy"] == Card(
        slug="toy", name="toy", paper="A Toy", year=2024, arxiv="", room="losses", topics=("evaluation", "vision"), line="Do nothing."
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [(TOY + 'colour = "red"\n', "colour"), (TOY.replace("year = 2024\n", ""), "year"), (TOY + "not toml", "line")],
    ids=["a field too many", "a field too few", "not TOML"],
)
def test_what_is_not_a_card_is_refused_by_file_and_field(text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DamagedFile, match=rf"toy\.toml.*\b{named}\b.*allowed fields:.*\bknobs\b"):
        read_toy(text, tmp_path, monkeypatch)


def test_unknown_method_offers_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'task-hinting'"):
        card("task-hintng")


def test_status_follows_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    toy = read_toy(TOY.replace('"toy"', '"toy-method"', 1), tmp_path, monkeypatch)["toy-method"]
    assert toy.status == "planned"
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "toy_method.py").touch()
    assert toy.status == "built"


def test_reading_cards_loads_nothing_heavy():
    code = "import sys; from trimtab.core.cards import cards; cards(); print(sorted({'torch', 'numpy', 'scipy', 'matplotlib'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
