import re

import numpy as np
import pytest
import torch

from trimtab.core import DamagedFile, FolderInUse, MissingExtra, TrimtabError, UsageError, require, unknown, whole


def test_what_a_caller_may_catch():
    # Someone who knows nothing of trimtab catches the built-in errors; the command line catches one.
    for kind, builtin in ((UsageError, ValueError), (DamagedFile, ValueError), (FolderInUse, RuntimeError), (MissingExtra, ImportError)):
        assert issubclass(kind, builtin) and issubclass(kind, TrimtabError)


@pytest.mark.parametrize(("name", "near"), [("sucessor", "successor"), ("Standard", "standard"), ("standrd", "standard")])
def test_unknown_offers_the_nearest_name(name, near):
    error = unknown("arm", name, ("standard", "successor"))
    assert isinstance(error, UsageError)
    assert str(error) == f"unknown arm {name!r}; did you mean {near!r}? allowed: standard, successor"


def test_unknown_offers_nothing_far_off():
    assert str(unknown("arm", "zzz", ["standard"])) == "unknown arm 'zzz'; allowed: standard"


def test_unknown_does_not_print_a_long_list():
    assert str(unknown("method", "zzz", map(str, range(51)))) == "unknown method 'zzz'; allowed: one of 51 names"


def test_require_gives_the_module():
    import json

    assert require("json", "lm") is json


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_require_names_the_extra_and_the_command(module):
    with pytest.raises(MissingExtra, match=r"no_such_package.* is not installed .* pip install 'trimtab\[search\]'"):
        require(module, "search")


def test_require_leaves_a_broken_dependency_its_own_message(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import the_thing_it_lacks")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="the_thing_it_lacks") as caught:
        require("broken_package", "lm")
    assert not isinstance(caught.value, MissingExtra)


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_a_whole_number_of_any_library_is_an_int(value):
    assert type(whole("size", value, 3)) is int and whole("size", value, 3) == 3


@pytest.mark.parametrize("value", [2, True, 3.0, "3", None, [3]])
def test_what_is_no_such_number_is_named(value):
    with pytest.raises(UsageError, match=re.escape(f"size must be a whole number >= 3, got {value!r}")):
        whole("size", value, 3)
