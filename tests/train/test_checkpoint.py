import json
import math
import zlib

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from tests.train.toys import made
from trimtab.core import DamagedFile, UsageError
from trimtab.train import NotWritten, checkpoint
from trimtab.train.checkpoint import export, flatten, load, newest, prune, read_tree, save, unflatten, write_tree

TREES = [
    {},
    [],
    None,
    3.5,
    {"a": torch.arange(6).view(2, 3), "b": [torch.ones(()), 1, -0.0, True, None, "text"], "c": (1, (2.0,), [])},
    {0: torch.zeros(2), (1, 2): "tuple as key", None: 1, "$tensor": "not one", "x": {"$float": 1}},
    {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
    {"big": 2**70, "best": math.inf, "worst": -math.inf, "third": 1 / 3},
    {"one": torch.arange(20.0).view(4, 5)[2:3, 1:4:3], "other": torch.empty_strided((1,), (7,)).fill_(3)},  # of odd strides
    {"empty": torch.zeros(0, 3), "other": torch.zeros(0, 3)},
    {dtype: torch.ones(3).to(getattr(torch, dtype)) for dtype in ("float64", "float16", "bfloat16", "int8", "bool", "complex64", "uint8")},
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_comes_back_as_it_was(tmp_path, tree):
    assert same(tree, unflatten(*flatten(tree)))
    write_tree(tmp_path / "a", tree)
    assert same(tree, read_tree(tmp_path / "a"))


def test_nan_comes_back():
    assert math.isnan(unflatten(*flatten(math.nan)))


def test_equal_trees_have_equal_bytes(tmp_path):
    for name in "ab":
        write_tree(tmp_path / name, {"z": torch.ones(3), "a": {"b": torch.zeros(2), "c": 1.5}})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_file_is_plain_safetensors_with_json(tmp_path):
    write_tree(tmp_path / "a", {"model": {"weight": torch.ones(2)}, "step": 3})
    assert load_file(tmp_path / "a").keys() == {"model/weight"}
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert json.loads(file.metadata()["trimtab"].split(" ", 1)[1]) == {"model": {"weight": {"$tensor": "model/weight"}}, "step": 3}


def test_tied_weights_are_stored_once_and_views_on_their_own(tmp_path):
    tied = made().state_dict()
    tensors, _ = flatten(tied)
    assert "embed.weight" in tensors and "head.weight" not in tensors
    write_tree(tmp_path / "tied", tied)
    assert same(dict(tied), read_tree(tmp_path / "tied"))
    base = torch.arange(12.0)
    views = {"all": base, "part": base[2:5], "other": base[3:9], "turned": base.view(3, 4).T, "matrix": base.view(3, 4)}
    write_tree(tmp_path / "views", views)
    assert same(views, read_tree(tmp_path / "views"))


def test_what_is_read_does_not_hang_on_the_file(tmp_path):
    write_tree(tmp_path / "a", {"weight": torch.ones(1000)})
    weight = read_tree(tmp_path / "a")["weight"]
    with open(tmp_path / "a", "r+b") as file:
        file.write(b"\xff" * 4000)
    assert (weight == 1).all()


@pytest.mark.parametrize("value", [{1}, b"bytes", object(), 1j, torch.float32, print])
def test_what_a_checkpoint_cannot_hold_is_named(value):
    with pytest.raises(UsageError, match=f"can hold tensors, numbers.*but hooks/0/x is a {type(value).__name__}"):
        flatten({"hooks": [{"x": value}]})
    with pytest.raises(UsageError, match="a key"):
        flatten({"hooks": {torch.float32: 1}})


def test_safetensors_of_another_kind_is_damaged(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a")
    with pytest.raises(DamagedFile, match="should be a checkpoint of trimtab and is not a whole one"):
        read_tree(tmp_path / "a")


def test_memory_that_runs_out_is_no_damage(tmp_path, monkeypatch):
    save(tmp_path, 1, {"step": 1})
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):

        def full(*_, error=error, **__):
            raise error

        monkeypatch.setattr(checkpoint, "safe_open", full)
        with pytest.raises(type(error)):
            newest(tmp_path)


@pytest.mark.parametrize("tree", [[1], {}, {"step": "text"}, {"step": None}, {"step": 2}])
def test_a_whole_file_that_is_no_checkpoint_of_its_step_is_damaged(tmp_path, tree):
    write_tree(tmp_path / "checkpoint-000000003.safetensors", tree)
    with pytest.raises(DamagedFile, match="should be the checkpoint of the step in its name"):
        newest(tmp_path)


def test_json_that_is_nested_too_deeply_is_damaged(tmp_path):
    text = "[" * 200_000
    save_file({}, tmp_path / "a", {"trimtab": f"{zlib.crc32(text.encode()):08x} {text}"})
    with pytest.raises(DamagedFile, match="RecursionError"):
        read_tree(tmp_path / "a")


def test_a_folder_with_the_name_of_a_checkpoint_is_none(tmp_path):
    (tmp_path / "checkpoint-000000010.safetensors").mkdir()
    assert newest(tmp_path) is None
    save(tmp_path, 3, {"step": 3})
    assert newest(tmp_path) == {"step": 3}


def test_every_flipped_bit_and_every_cut_is_seen(tmp_path):
    path = tmp_path / "a"
    write_tree(path, {"a": torch.tensor([1, 2], dtype=torch.int8), "b": "c"})
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        try:
            tree = read_tree(path)
        except DamagedFile:
            continue
        # spaces that pad the header may change without harm
        assert same(tree, {"a": torch.tensor([1, 2], dtype=torch.int8), "b": "c"})
    for i in range(len(whole)):
        path.write_bytes(whole[:i])
        with pytest.raises(DamagedFile):
            read_tree(path)


def test_two_are_kept_and_later_ones_go(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, {"step": step})
    assert newest(tmp_path)["step"] == 30
    assert len(list(tmp_path.iterdir())) == 2
    save(tmp_path, 25, {"step": 25})
    assert newest(tmp_path)["step"] == 25
    prune(tmp_path, 25, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000025.safetensors"]


def test_only_its_own_files_are_looked_at_and_removed(tmp_path):
    for name in ("checkpoint-best.safetensors", "checkpoint-1.safetensors", "model.safetensors"):
        (tmp_path / name).write_text("mine")
    assert newest(tmp_path) is None
    save(tmp_path, 1, {"step": 1})
    prune(tmp_path, 1, 1)
    assert len(list(tmp_path.iterdir())) == 4


def test_an_export_is_read_by_safetensors_own_loader(tmp_path):
    model, other = made(), made(seed=1)
    export(tmp_path / "model.safetensors", model)
    load_model(other, tmp_path / "model.safetensors")
    assert same(dict(model.state_dict()), dict(other.state_dict()))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert load_file(tmp_path / "model.safetensors").keys() == dict(model.named_parameters()).keys() | dict(model.named_buffers()).keys()


def test_an_export_that_fails_names_the_file(tmp_path):
    with pytest.raises(NotWritten, match=r"could not write .*missing/model.safetensors: .*No such file"):
        export(tmp_path / "missing" / "model.safetensors", nn.Linear(1, 1))


class Views(nn.Module):
    """Buffers that share memory in part, tied weights, and state that is no tensor."""

    def __init__(self, value=0.0):
        super().__init__()
        base = torch.full((6,), value)
        self.register_buffer("left", base[:4])
        self.register_buffer("right", base[2:])
        self.one, self.two, self.told = nn.Linear(2, 2), nn.Linear(2, 2), []
        self.two.weight = self.one.weight

    def get_extra_state(self):
        return {"text": "mine"}

    def set_extra_state(self, state):
        self.told.append(state)


def test_an_export_is_read_back_whatever_the_model_is_made_of(tmp_path):
    export(path := tmp_path / "model.safetensors", model := Views(2.0))
    load(path, other := Views())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items() if name != "_extra_state")
    assert other.told == [{"text": "mine"}] and other.two.weight is other.one.weight


def test_an_export_of_another_model_or_a_damaged_one_is_refused(tmp_path):
    export(path := tmp_path / "model.safetensors", nn.Linear(2, 3))
    with pytest.raises(DamagedFile, match=r"should have the weights of this Linear and has not: it differs in bias"):
        load(path, nn.Linear(2, 3, bias=False))
    with pytest.raises(DamagedFile, match="it has other shapes of weight"):
        load(path, nn.Linear(4, 3))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=r"has not: .*restore it from a copy"):
        load(path, nn.Linear(2, 3))
