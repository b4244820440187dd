from pathlib import Path

import pytest

from tests.claims.toys import SOURCE
from trimtab.claims import Claim, Size, claim_hash, load, load_file, slugs, superior
from trimtab.core import UsageError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LEVEL = ", "# a comment\n\n\nLEVEL = "),
        ('"""A toy with', '"""Another toy with'),
        ('"""Draw a few numbers."""', '"""Draw some."""'),
        ("Size(steps=1, seeds=1)", "Size(steps=7, seeds=1)"),
        ('sizes={"smoke"', 'sizes={"large": Size(seeds=9, steps=9), "smoke"'),
        ("core_minutes=12", "core_minutes=15"),
        (", core_minutes=12", ""),
        ("Does a hint help a toy?", "Does it?"),
        ('    about="Three arms of made-up numbers.",\n', ""),
        ("draw = random.Random(f", "draw = random.Random (  f"),
    ],
)
def test_what_decides_nothing_leaves_the_hash(old, new):
    assert SOURCE.count(old) == 1
    assert claim_hash(SOURCE.replace(old, new), "small") == claim_hash(SOURCE, "small")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('over="standard", margin=0.05, why="one in twenty", paper=0.4', 'over="standard", margin=0.04, why="one in twenty", paper=0.4'),
        ("level / 2", "level / 3"),
        ('"standard": 0.3', '"standard": 0.2'),
        ("steps=3", "steps=4"),
        ("seeds=2", "seeds=3"),
        ('superior("exact@16", "hint"', 'not_worse("exact@16", "hint"'),
        ('Mastery("exact@8", 0.98)', 'Mastery("exact@8", 0.97)'),
        ('arms=("standard", "hint", "other")', 'arms=("standard", "other", "hint")'),
    ],
)
def test_what_decides_something_changes_the_hash(old, new):
    assert SOURCE.count(old) == 1
    assert claim_hash(SOURCE.replace(old, new), "small") != claim_hash(SOURCE, "small")


def test_sizes_have_hashes_of_their_own():
    assert claim_hash(SOURCE, "small") != claim_hash(SOURCE, "smoke")


def test_the_hash_is_the_same_everywhere():
    """Golden: it must not move with the Python version, or every record would be stale there."""
    text = '"""Doc."""\nCLAIM = Claim(slug="a", x=[1, 2.5, None, True, f"{y!r:>{3}} b", -1], sizes={"s": Size(seeds=1)})\nasync def f(*, a: int = 1): ...\n'
    assert claim_hash(text, "s") == "8abaa4b0049e57925f96bb77a308964510e795055a18a0a70abc735c4be71841"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CLAIM = Claim(sizes=SIZES)", "dict literal"),
        ("CLAIM = Claim(sizes={**COMMON})", "dict literal"),
        ("CLAIM = Claim(slug='a')", "dict literal"),
        ("CLAIM = Claim(sizes={'small': Size(seeds=1)})", "unknown size 'smal'; did you mean 'small'"),
        ("CLAIM = (", "not Python"),
    ],
)
def test_a_file_that_binds_nothing_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        claim_hash(text, "smal")


def test_a_claims_own_hash(toy):
    assert toy.hash("small") == claim_hash(SOURCE, "small")
    with pytest.raises(UsageError, match="did you mean 'small'"):
        toy.hash("smal")


def test_a_full_size_that_is_not_made_yet_is_said_to_be(toy):
    with pytest.raises(UsageError, match="unknown size 'full'; allowed: smoke, small; toy has no full size yet"):
        toy.size("full")


def test_size_is_frozen_and_its_settings_are_json():
    size = Size(seeds=2, lengths=(1, 8), lr=0.1)
    assert (size.lengths, size.settings) == ((1, 8), {"lengths": [1, 8], "lr": 0.1})
    with pytest.raises(AttributeError, match="frozen"):
        size.lr = 1
    with pytest.raises(AttributeError, match="no setting 'length'; it has: lengths, lr"):
        size.length  # noqa: B018
    size.settings["lr"] = 5
    assert size.lr == 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 0}, "at least 1, got 0"),
        ({"seeds": 1, "core_minutes": 0}, "above 0"),
        ({"seeds": 1, "x": object()}, "must be JSON values"),
        ({"seeds": 1, "x": float("nan")}, "must be JSON values"),
    ],
)
def test_size_refuses(arguments, message):
    with pytest.raises(UsageError, match=message):
        Size(**arguments)


def claim(**changes):
    one = superior("x", "hint", over="standard", margin=1, why="w")
    return Claim(**{"slug": "toy", "measure": lambda *_: {}, "arms": ("standard", "hint"), "primary": (one,), "sizes": {"smoke": Size(seeds=1)}} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slug": "Toy Claim"}, "lower-case words"),
        ({"arms": ("standard", "hint", "../etc")}, "become file names.*'../etc'"),
        ({"sizes": {"a/b": Size(seeds=1)}}, "become file names.*'a/b'"),
        ({"arms": ("standard", "hint", "hint")}, "different names"),
        ({"arms": ("standard", "hnt")}, "unknown arm 'hint'; did you mean 'hnt'"),
        ({"baseline": "std"}, "unknown arm 'std'"),
        ({"primary": ()}, "one to three primary statements, got 0"),
        ({"primary": tuple(superior("x", "hint", over="standard", margin=1, why="w", name=str(k)) for k in range(4))}, "got 4"),
        ({"secondary": (superior("x", "hint", over="standard", margin=2, why="w"),)}, "two statements are called 'hint over standard: x'"),
    ],
)
def test_claim_refuses(changes, message):
    with pytest.raises(UsageError, match=message):
        claim(**changes)


def test_mastery_or_a_least_loss_but_not_both(altered):
    with pytest.raises(UsageError, match="got both"):
        altered(("    mastery=", "    least_baseline_loss=2.0,\n    mastery="))


def test_a_claim_without_a_file_is_not_run():
    made = eval("claim(measure=lambda *_: {})", {"claim": claim})
    with pytest.raises(UsageError, match=r"save it as \.py"):
        made.hash("smoke")


def test_what_an_arm_lacks(toy):
    assert toy.lacks("hint", ["exact@8", "exact@16", "edit@2x"]) == []
    assert toy.lacks("hint", ["exact@16"]) == ["'edit@2x'", "'exact@8'"]
    assert toy.lacks("standard", ["exact@16", "edit@2x"]) == ["'exact@8'", "two points of the curve 'exact'"]
    by_loss = claim(least_baseline_loss=2.0)
    assert (by_loss.lacks("standard", ["x"]), by_loss.lacks("hint", ["x"])) == (["'loss'"], [])


@pytest.mark.parametrize("slug", ["task-hintng", "../records/x", "claim", "statements", "trimtab.claims.run", ""])
def test_an_unknown_claim_is_never_imported(slug):
    with pytest.raises(UsageError, match="unknown claim"):
        load(slug)


def test_a_planned_method_is_named_as_such(monkeypatch):
    monkeypatch.setattr("trimtab.claims.loading.cards", lambda: {"some-method": None})
    with pytest.raises(UsageError, match="'some-method' is planned"):
        load("some-method")


def test_the_machinery_is_no_claim():
    assert not {"claim", "run", "record", "statements", "worker", "pair"} & set(slugs())


def test_load_file_refuses(tmp_path, altered):
    with pytest.raises(UsageError, match="no claim file"):
        load_file(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match=r"must define CLAIM = Claim\(\.\.\.\), got NoneType"):
        load_file(tmp_path / "empty.py")
    (tmp_path / "a.txt").write_text("x = 1\n")
    with pytest.raises(UsageError, match=r"must be a \.py file"):
        load_file(tmp_path / "a.txt")
    (tmp_path / "borrowed.py").write_text(f"from trimtab.claims import load_file\nCLAIM = load_file({str(Path(__file__).with_name('toy_claim.py'))!r})\n")
    with pytest.raises(UsageError, match=r"own file borrowed\.py, .* got one from toy_claim\.py"):
        load_file(tmp_path / "borrowed.py")


def test_importing_the_room_loads_nothing_heavy():
    import subprocess
    import sys

    code = "import sys, trimtab.claims; print([m for m in ('torch', 'numpy', 'scipy', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
