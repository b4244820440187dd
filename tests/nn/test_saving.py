import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.core import DamagedFile, UsageError, generator
from trimtab.nn import FeedForward, Positions, Transformer

IDS = torch.randint(11, (3, 6), generator=generator(0, "ids"))


class Slope(Positions):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.rand(2, generator=generator(0)))

    def bias(self, q_positions, k_positions):
        return -self.slope[:, None, None] * (q_positions[:, None, :, None] - k_positions[:, None, None, :])


class Scale(nn.Module):
    def __init__(self, layer=0, heads=2):
        super().__init__()
        self.factor = nn.Parameter(torch.full((heads, 1, 1), 1.5 + layer))

    def forward(self, q, visible):
        return q * self.factor


def make(**settings):
    return Transformer(11, 8, 2, 2, generator=generator(0), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tied": True, "bias": False, "norm": "rms", "ffn": "swiglu", "ffn_dim": 5},
        {"positions": "learned", "max_length": 6, "kv_heads": 1},
        {"positions": "rope", "schedule": (0, 1, 0), "dropout": 0.1, "causal": False},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
    ],
)
def test_logits_are_the_same_to_the_bit(settings, tmp_path):
    model = make(**settings).eval()
    model.save(tmp_path / "new" / "folder")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    loaded = Transformer.load(tmp_path / "new" / "folder").eval()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(loaded(IDS), model(IDS))
    assert loaded.settings == model.settings
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["config.json", "model.safetensors"]


def test_each_weight_keeps_its_type(tmp_path):
    model = make(dtype=torch.bfloat16)
    model.norm.float()
    model.save(tmp_path)
    loaded = Transformer.load(tmp_path)
    assert loaded.norm.weight.dtype == torch.float32
    assert loaded.tokens.weight.dtype == torch.bfloat16


def test_trained_weights_come_back_and_train_on(tmp_path):
    model = make(tied=True)
    nn.init.normal_(model.tokens.weight)
    model.save(tmp_path)
    loaded = Transformer.load(tmp_path).train()
    assert "head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded(IDS).sum().backward()
    assert loaded.tokens.weight.grad is not None
    loaded.save(tmp_path)  # over the old one


def test_a_loaded_model_is_in_evaluation_mode(tmp_path):
    model = make(dropout=0.5, norm=lambda dim: nn.Sequential(nn.LayerNorm(dim), nn.Dropout(0.5)))
    model.save(tmp_path)
    loaded = Transformer.load(tmp_path, norm=lambda dim: nn.Sequential(nn.LayerNorm(dim), nn.Dropout(0.5)))
    assert not any(part.training for part in loaded.modules())
    assert torch.equal(loaded(IDS), model.eval()(IDS))


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])  # no machine has either
def test_a_device_that_is_not_there(device, tmp_path):
    make().save(tmp_path)
    for call in (lambda: Transformer.load(tmp_path, device=device), lambda: make(device=device)):
        with pytest.raises(UsageError, match=rf"device must be one that this machine has \(cpu.*\), got '{device}'"):
            call()


OBJECTS = {
    "positions": Slope,
    "norm": lambda: nn.LayerNorm,
    "ffn": lambda: lambda dim, ffn_dim: FeedForward(dim, ffn_dim, act=nn.ReLU()),
    "score_scale": lambda: Scale,
}


def test_objects_are_handed_back(tmp_path):
    model = make(**{name: one() for name, one in OBJECTS.items()})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_()
    model.save(tmp_path)
    loaded = Transformer.load(tmp_path, **{name: one() for name, one in OBJECTS.items()})
    assert torch.equal(loaded(IDS), model(IDS))
    message = r"positions \(Slope\) and ffn \(<lambda>\) and score_scale \(Scale\); hand them back: load\(folder, positions=\.\.\., ffn="
    with pytest.raises(UsageError, match=message) as error:
        Transformer.load(tmp_path, norm=nn.LayerNorm)
    assert "norm" not in str(error.value)


def test_one_scheme_a_block_and_shared_memory(tmp_path):
    one, two = Slope(), Slope()
    two.slope = one.slope
    model = make(positions=[one, two])
    model.save(tmp_path)
    loaded = Transformer.load(tmp_path, positions=[Slope(), Slope()])
    assert torch.equal(loaded(IDS), model(IDS))
    with pytest.raises(UsageError, match=r"positions \(a sequence of Slope\)"):
        Transformer.load(tmp_path)
    one, two = Slope(), Slope()
    two.slope = one.slope
    Transformer.load(tmp_path, positions=[one, two])
    assert two.slope is one.slope  # an object that is handed back is filled, and stays what it was


def test_what_a_name_stands_for_is_not_taken(tmp_path):
    make().save(tmp_path)
    with pytest.raises(UsageError, match="positions must be left out: the model was saved with positions='none'"):
        Transformer.load(tmp_path, positions=Slope())
    with pytest.raises(UsageError, match="unknown object 'position'; did you mean 'positions'"):
        Transformer.load(tmp_path, position=Slope())


def test_no_model_there(tmp_path):
    with pytest.raises(UsageError, match=r"has no config\.json"):
        Transformer.load(tmp_path / "nowhere")


def rewrite(folder, change, both=True):
    """Change the settings, in both files where the two are to agree."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    if both:
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors, folder / "model.safetensors", metadata={"config": json.dumps(config, sort_keys=True)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(model="other.Model"), r"should describe a trimtab\.nn\.Transformer, version 1, and has .*other\.Model"),
        (lambda c: c.update(version=2), "version 1, and has"),
        (lambda c: c.pop("dim"), "has no dim"),
        (lambda c: c.update(dim="8"), "has dim='8'"),
        (lambda c: c.update(layers=True), "has layers=True"),
        (lambda c: c.update(tied="yes"), "has tied='yes'"),
        (lambda c: c.update(heads=3), "cannot be made: dim must be a multiple of heads"),
        (lambda c: c.update(norm="batch"), "cannot be made: unknown norm 'batch'"),
        (lambda c: c.update(schedule=["os.system"]), "cannot be made: schedule must hold"),
        (lambda c: c.update(layers=10**9), "should hold 1000000000 blocks, and holds 2"),
        (lambda c: c.update(vocab_size=10**12), r"2 differ\): .*tokens\.weight: expected float \(1000000000000, 8\), found float \(11, 8\)"),
        (lambda c: c.update(ffn_dim=10**12), r"blocks\.0\.ffn\.down\.weight: expected float \(8, 1000000000000\)"),
        (lambda c: c.update(positions="learned", max_length=10**12), r"positions\.table\.weight: expected float \(1000000000000, 8\), found nothing"),
        (lambda c: c.update(dim=10**12), "cannot be made: .*overflow"),
        (lambda c: c.update(ffn_dim=10**30), "cannot be made: .*[Oo]verflow"),
        (lambda c: c.update(kv_heads=1), r"4 differ\): blocks\.0\.attention\.qkv\.bias: expected float \(16,\), found float \(24,\)"),
        (lambda c: c.update(tied=True), r"head\.weight: expected nothing, found float \(11, 8\)"),
        (lambda c: c.update(bias=False), "differ"),
        (lambda c: c.update(norm=None), "has norm=None"),
        (lambda c: c.update(score_scale="os.system"), "has score_scale='os.system'"),
    ],
)
@pytest.mark.usefixtures("annotations_off")
def test_settings_that_do_not_fit_are_damage(change, message, tmp_path):
    make().save(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(DamagedFile, match=message):
        Transformer.load(tmp_path)


class Largest(TorchDispatchMode):
    """The most bytes that one operation filled, memory without storage aside."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta:
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def test_a_small_folder_that_asks_for_a_large_model_is_refused_before_memory_is_taken(tmp_path):
    """The sizes that are easily compared agree, and what grows with the square of the width does not."""
    dim = 512
    Transformer(1, dim, 1, 1, ffn_dim=1, generator=generator(0)).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: value if value.numel() < 4 * dim else torch.zeros(1) for name, value in tensors.items()}
    metadata = {"config": json.dumps(json.loads((tmp_path / "config.json").read_text()), sort_keys=True)}
    save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
    message = r"2 differ\): blocks\.0\.attention\.out\.weight: expected float \(512, 512\), found float \(1,\)"
    with Largest() as taken, pytest.raises(DamagedFile, match=message):
        Transformer.load(tmp_path)
    assert taken.bytes <= (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_weights_of_a_foreign_type(dtype, tmp_path):
    make(positions=Slope()).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    config = (tmp_path / "config.json").read_text()
    for name in ("norm.weight", "positions.slope"):
        spoilt = tensors | {name: tensors[name].to(dtype)}
        save_file(spoilt, weights, metadata={"config": json.dumps(json.loads(config), sort_keys=True)})
        with pytest.raises(DamagedFile, match=rf"1 differ\): {name}: expected float \(\d,\), found {str(dtype).removeprefix('torch.')} "):
            Transformer.load(tmp_path, positions=Slope())


def test_a_buffer_keeps_the_type_that_its_module_gives_it(tmp_path):
    class Counted(nn.LayerNorm):
        def __init__(self, dim):
            super().__init__(dim)
            self.register_buffer("calls", torch.tensor(3))

    make(norm=Counted).save(tmp_path)
    assert Transformer.load(tmp_path, norm=Counted).norm.calls.dtype == torch.int64

    class Other(Counted):
        def __init__(self, dim):
            super().__init__(dim)
            self.calls = self.calls.bool()

    with pytest.raises(DamagedFile, match=r"5 differ\): .*norm\.calls: expected bool \(\), found int64 \(\)"):
        Transformer.load(tmp_path, norm=Other)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"model": "trimtab.nn.Transformer"', "null", "\0\1"])
def test_a_config_that_is_none(text, tmp_path):
    make().save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DamagedFile, match="config"):
        Transformer.load(tmp_path)


def test_files_of_two_models_are_told_apart(tmp_path):
    make(positions="rope").save(tmp_path / "a")
    make().save(tmp_path / "b")  # same names and shapes: without a check this would load and be wrong
    (tmp_path / "a" / "config.json").write_bytes((tmp_path / "b" / "config.json").read_bytes())
    with pytest.raises(DamagedFile, match="two files saved together"):
        Transformer.load(tmp_path / "a")
    make().save(tmp_path / "c")
    rewrite(tmp_path / "c", lambda c: c.update(dropout=0.5), both=False)
    with pytest.raises(DamagedFile, match="two files saved together"):
        Transformer.load(tmp_path / "c")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:4],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: struct.pack("<Q", 10**15) + data[8:],
        lambda data: b"PK\3\4" + data[4:],
    ],
)
def test_weights_that_are_damaged(spoil, tmp_path):
    make().save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(spoil(weights.read_bytes()))
    with pytest.raises(DamagedFile, match="should be a whole safetensors file and is not"):
        Transformer.load(tmp_path)


def test_weights_that_are_missing(tmp_path):
    make().save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DamagedFile, match="should be a whole safetensors file and is not"):
        Transformer.load(tmp_path)


def test_a_weight_that_is_missing_and_one_too_many(tmp_path):
    make().save(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    tensors["extra"] = tensors.pop("norm.weight")
    config = (tmp_path / "config.json").read_text()
    save_file(tensors, weights, metadata={"config": json.dumps(json.loads(config), sort_keys=True)})
    with pytest.raises(DamagedFile, match=r"2 differ\): extra: expected nothing, found float \(8,\); norm.weight: expected float \(8,\), found nothing"):
        Transformer.load(tmp_path)


@pytest.mark.parametrize("writer", ["save_file", "write_json"])
def test_a_failed_save_leaves_the_old_model(writer, tmp_path, monkeypatch):
    model = make()
    model.save(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"trimtab.nn.saving.{writer}", full)
    with pytest.raises(OSError, match="No space left"):
        make(positions="rope").save(tmp_path)
    assert torch.equal(Transformer.load(tmp_path)(IDS), model(IDS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.usefixtures("annotations_off")
def test_numpy_settings_are_saved_as_plain_numbers(tmp_path):
    sizes = {"kv_heads": np.int32(1), "ffn_dim": np.uint8(5), "max_length": np.int64(6), "dropout": np.float32(0.25), "schedule": np.array([1, 0])}
    model = Transformer(np.int64(11), np.int64(8), np.int16(2), np.int64(2), positions="learned", generator=generator(0), **sizes)
    plain = {"vocab_size": 11, "dim": 8, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_dim": 5, "max_length": 6, "dropout": 0.25, "schedule": (1, 0)}
    assert {name: model.settings[name] for name in plain} == plain
    assert all(type(model.settings[name]) is type(value) for name, value in plain.items())
    model.save(tmp_path)
    assert torch.equal(Transformer.load(tmp_path)(IDS), model.eval()(IDS))
