import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

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
    loaded = Transformer.load(tmp_path)
    assert "head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded(IDS).sum().backward()
    assert loaded.tokens.weight.grad is not None
    loaded.save(tmp_path)  # over the old one


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
        (lambda c: c.update(vocab_size=10**12), r"should hold tokens\.weight of shape \(1000000000000, 8\), and has \(11, 8\)"),
        (lambda c: c.update(ffn_dim=10**12), r"blocks\.0\.ffn\.down\.weight of shape \(8, 1000000000000\)"),
        (lambda c: c.update(positions="learned", max_length=10**12), r"positions\.table\.weight of shape \(1000000000000, 8\), and has none"),
        (lambda c: c.update(kv_heads=1), r"4 differ\): blocks\.0\.attention\.qkv\.bias: expected \(16,\), found \(24,\)"),
        (lambda c: c.update(tied=True), r"head\.weight: expected nothing, found \(11, 8\)"),
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
    with pytest.raises(DamagedFile, match=r"2 differ\): extra: expected nothing, found \(8,\); norm.weight: expected \(8,\), found nothing"):
        Transformer.load(tmp_path)


def test_a_failed_save_leaves_the_old_model(tmp_path, monkeypatch):
    model = make()
    model.save(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.nn.saving.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        make(positions="rope").save(tmp_path)
    assert torch.equal(Transformer.load(tmp_path)(IDS), model(IDS))
