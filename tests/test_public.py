"""The walk over every room's public names: each has its words, its example and its test, and each class has passed the suite of its kind.

A new method needs nothing here: what a class is decides its suite. Only a class that is neither of a kind nor a plain record is
named in ``WITHOUT_SUITE``, with the reason.
"""

import ast
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from sklearn.base import BaseEstimator
from torch import nn, optim

import trimtab
from trimtab import claims, testing

TESTS = Path(__file__).parent
ROOMS = [room.name for room in pkgutil.iter_modules(trimtab.__path__) if room.ispkg]

WITHOUT_SUITE: dict[str, str] = {
    "claims.Size": "settings with a name; tests/claims hold its few rules",
    "tasks.Examples": "a torch dataset over a task; tests/tasks/test_dataset.py holds its rows against the batches of the task",
    "train.HintReport": "what a search hands back; tests/train/test_hint_search.py holds what is in it",
    "nn.KVCache": "a part of the Transformer, whose tests compare cached generation with the parallel forward",
    "train.WeightAverage": "a hook inside fit; the resume tests of fit hold its state",
}


def _is_objective(kind: type) -> bool:
    return "__call__" in vars(kind) and list(inspect.signature(kind.__call__).parameters)[1:4] == ["model", "batch", "generator"]


# The first row that fits says which suite an object of the class has to pass.
SUITES: list[tuple[str, Callable[[type], bool]]] = [
    ("check_module", lambda kind: issubclass(kind, nn.Module)),
    ("check_optimizer", lambda kind: issubclass(kind, optim.Optimizer)),
    ("check_estimator", lambda kind: issubclass(kind, BaseEstimator)),
    ("check_task", lambda kind: hasattr(kind, "batch") and hasattr(kind, "score")),
    ("check_objective", _is_objective),
    ("check_index", lambda kind: hasattr(kind, "add") and hasattr(kind, "search")),
]


def suite_of(kind: type) -> str | None:
    """The suite of a class; "" where it has none and needs a reason.

    None needs no reason: errors and records (dataclasses, named tuples) of no kind do nothing, and protocols and abstract classes have no objects.
    """
    if issubclass(kind, BaseException) or getattr(kind, "_is_protocol", False) or inspect.isabstract(kind):
        return None
    record = is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    return next((suite for suite, fits in SUITES if fits(kind)), None if record else "")


def own_words(value: object) -> str:
    """The docstring that someone wrote for it: not one inherited, nor the signature that dataclass and NamedTuple put there."""
    words = (vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)) or ""
    return "" if inspect.isclass(value) and words.startswith(f"{value.__name__}(") else words


def names_used(file: ast.AST) -> tuple[set[str], set[str]]:
    """What a file reads of what it imports, and what it calls of that, each by its full name: ``trimtab.nn.Transformer``, however it was imported."""
    imported: dict[str, str] = {}
    for node in ast.walk(file):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]  # the name that an import without "as" brings
                imported[alias.asname or top] = alias.name if alias.asname else top

    def full(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{before}.{node.attr}" if (before := full(node.value)) else ""
        return imported.get(node.id, "") if isinstance(node, ast.Name) else ""

    nodes = list(ast.walk(file))
    return {full(node) for node in nodes} - {""}, {full(node.func) for node in nodes if isinstance(node, ast.Call)} - {""}


def gaps(room: ModuleType, tests: Path, without_suite: dict[str, str], suites: object = testing) -> list[str]:
    """What is missing for the public names of a room, each with what to add.

    Args:
        room: the package; its last name is the room's.
        tests: the folder that holds a folder of tests for each room.
        without_suite: "room.Class" -> why no suite fits.
        suites: what holds the suites.
    """
    short = room.__name__.rpartition(".")[2]
    folder = f"tests/{short}"
    if not hasattr(room, "__all__"):
        return [f"{short}: no __all__; list its public names in its __init__.py"]
    used = [names_used(ast.parse(path.read_text(encoding="utf-8"))) for path in sorted((tests / short).rglob("*.py"))]  # what tests share, too
    found = [] if own_words(room) else [f"{short}: the room has no docstring; say in its __init__.py what its files offer"]

    for name in room.__all__:
        if not hasattr(room, name):
            found.append(f"{short}.{name} is in __all__ and does not exist; import it in the room's __init__.py, or drop it")
            continue
        value = getattr(room, name)
        spellings = {f"{room.__name__}.{name}", f"{getattr(value, '__module__', None)}.{name}"}
        tested = any(spellings & names for names, _ in used)
        if inspect.isclass(value):
            suite, reason = suite_of(value), without_suite.get(f"{short}.{name}")
            if not own_words(value):
                found.append(f"{short}.{name} has no docstring; write one")
            if suite == "" and not reason:
                found.append(f"{short}.{name} is of no kind that a suite checks; name it in WITHOUT_SUITE in tests/test_public.py, with the reason")
            elif suite and reason:
                found.append(f"{short}.{name} has a suite, {suite}; drop it from WITHOUT_SUITE in tests/test_public.py")
            elif suite and not hasattr(suites, suite):
                found.append(f"{short}.{name} should pass {suite}, which trimtab.testing lacks; write the suite")
            elif suite and not any(f"trimtab.testing.{suite}" in calls and spellings & names for names, calls in used):
                found.append(f"{short}.{name} has not passed its suite; call trimtab.testing.{suite} on one in a test file of {folder}")
            elif (reason or issubclass(value, BaseException)) and not tested:  # a record is used where it is handed out
                found.append(f"{short}.{name} is in no test; use it in a test file of {folder}")
        elif inspect.isfunction(inspect.unwrap(value)):
            if ">>> " not in own_words(value):
                found.append(f"{short}.{name} has no example; add one to its docstring (>>> {name}(...))")
            if not tested:
                found.append(f"{short}.{name} is in no test; use it in a test file of {folder}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_covered(room):
    found = gaps(import_module(f"trimtab.{room}"), TESTS, WITHOUT_SUITE)
    assert not found, "\n".join(found)


def test_the_table_of_exceptions_names_only_what_is_there():
    there = {f"{room}.{name}" for room in ROOMS for name in getattr(import_module(f"trimtab.{room}"), "__all__", ())}
    assert not WITHOUT_SUITE.keys() - there
    assert all(len(reason) > 20 for reason in WITHOUT_SUITE.values())


@pytest.mark.parametrize("slug", claims.slugs())
def test_every_claim_keeps_its_contract(slug):
    testing.check_claim(claims.load(slug))


def test_the_lazy_rooms_are_the_rooms():
    assert sorted(name for name in trimtab.__all__ if not name.startswith("_")) == sorted(ROOMS)


# What follows tests the walk itself: a toy room with nothing missing, and one thing taken away at a time.

ROOM = '''
"""A room for this test."""
from torch import nn

__all__ = ["SIZES", "Layer", "Settings", "double"]
SIZES = (1, 2)

def double(x):
    """Twice x.

    Example:
        >>> double(2)
        4
    """
    return 2 * x

class Layer(nn.Module):
    """A layer."""

class Settings:
    """Of no kind."""
'''
TEST = """
from trimtab.toy import Layer, Settings, double
from trimtab.testing import check_module

def test_all():
    assert double(2) == 4
    assert Settings()
    check_module(Layer)
"""


REASONS = {"toy.Settings": "there is one of it, and its own tests"}


def walk_over(folder, room=ROOM, test=TEST, reasons=REASONS):
    module = ModuleType("trimtab.toy")
    exec(room, vars(module))
    (folder / "toy").mkdir()
    (folder / "toy" / "test_toy.py").write_text(test)
    return gaps(module, folder, reasons, suites=SimpleNamespace(check_module=None))


def test_a_covered_room_has_no_gaps(tmp_path):
    assert walk_over(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (">>> double(2)", "double(2)", "toy.double has no example"),
        ('"double"]', '"double", "triple"]', "toy.triple is in __all__ and does not exist"),
        ('"""A layer."""', "pass", "toy.Layer has no docstring"),  # the one that nn.Module has does not count
        ('class Settings:\n    """Of no kind."""', "from typing import NamedTuple\nclass Settings(NamedTuple):\n    x: int", "toy.Settings has no docstring"),
        ('"""A room for this test."""', "", "toy: the room has no docstring"),
        ("__all__", "names", "toy: no __all__"),
        ("class Settings:", "class Settings(nn.Module):", "toy.Settings has a suite, check_module; drop it from WITHOUT_SUITE"),
        ("Layer(nn.Module)", "Layer", "toy.Layer is of no kind that a suite checks; name it in WITHOUT_SUITE"),
        ("Layer(nn.Module)", "Layer(__import__('torch').optim.Optimizer)", "toy.Layer should pass check_optimizer, which trimtab.testing lacks"),
    ],
)
def test_the_walk_finds_what_a_room_lacks(tmp_path, old, new, says):
    (found,) = walk_over(tmp_path, room=ROOM.replace(old, new))
    assert says in found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("assert double(2) == 4", "pass", "toy.double is in no test; use it in a test file of tests/toy"),  # to import it is not enough
        ("double(2)", "json.double(2)", "toy.double is in no test"),  # another's function of that name
        ("double(2)", "Layer.double(2)", "toy.double is in no test"),
        ("import Layer, Settings, double", "import Layer, Settings\nfrom json import double", "toy.double is in no test"),
        ("assert Settings()", "pass", "toy.Settings is in no test"),
        ("check_module(Layer)", "Layer()", "toy.Layer has not passed its suite; call trimtab.testing.check_module on one in a test file of tests/toy"),
        ("check_module(Layer)", "check_module(Linear)", "toy.Layer has not passed its suite"),
        ("check_module(Layer)", "Layer.check_module()", "toy.Layer has not passed its suite"),
        ("check_module(Layer)", "print(check_module, Layer)", "toy.Layer has not passed its suite"),
    ],
)
def test_the_walk_finds_what_the_tests_lack(tmp_path, old, new, says):
    (found,) = walk_over(tmp_path, test=TEST.replace(old, new))
    assert says in found


@pytest.mark.parametrize(
    ("imports", "prefix"),
    [
        ("from trimtab import testing, toy", ("toy.", "testing.")),
        ("from trimtab import testing as t, toy as room", ("room.", "t.")),
        ("import trimtab", ("trimtab.toy.", "trimtab.testing.")),
        ("import trimtab.toy, trimtab.testing", ("trimtab.toy.", "trimtab.testing.")),
        ("import trimtab.toy as room\nimport trimtab.testing as t", ("room.", "t.")),
    ],
)
def test_the_walk_knows_a_name_however_it_was_imported(imports, prefix, tmp_path):
    room, suites = prefix
    test = f"{imports}\n\ndef test_all():\n    assert {room}double(2) == 4\n    {room}Settings()\n    {suites}check_module({room}Layer)\n"
    assert walk_over(tmp_path, test=test) == []


def test_kinds():
    from abc import ABC, abstractmethod
    from typing import Protocol

    class Duck:
        def batch(self, seed, step, size): ...

        def score(self, output, batch): ...

    class Pond(Protocol):
        def batch(self, seed, step, size): ...

        def score(self, output, batch): ...

    class Egg(Duck, ABC):
        @abstractmethod
        def hatch(self): ...

    class Objective:
        def __call__(self, model, batch, generator): ...

    class Function:
        def __call__(self, x): ...

    @dataclass
    class Record:
        x: int

    @dataclass
    class Layer(nn.Module):
        x: int

    kinds = {Duck: "check_task", Pond: None, Egg: None, KeyError: None, Record: None, Function: ""}
    kinds |= {Objective: "check_objective", nn.Linear: "check_module", Layer: "check_module", optim.SGD: "check_optimizer"}
    assert {kind: suite_of(kind) for kind in kinds} == kinds
