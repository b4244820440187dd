"""Models to look into: our own in several forms, and small random ones of Hugging Face."""

import pytest
import torch
from torch import nn

from trimtab.core import generator
from trimtab.nn import Transformer

VOCAB = 11

OWN = {
    "plain": {},
    "grouped": {"kv_heads": 2, "positions": "rope", "norm": "rms", "ffn": "swiglu"},
    "learned": {"positions": "learned", "max_length": 16, "tied": True},
    "twice": {"schedule": [0, 1, 0]},
}
FOREIGN = ("llama", "gpt2")


def own(name="plain", **more):
    model = Transformer(VOCAB, dim=16, layers=2, heads=4, generator=generator(0), **OWN[name], **more)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3, generator=generator(1, *parameter.shape))
        else:
            nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1, generator=generator(2, *parameter.shape))
    return model.eval()


def foreign(name, attention="sdpa", **more):
    transformers = pytest.importorskip("transformers", reason="the lm extra is not installed")
    torch.manual_seed(0)
    common = {"vocab_size": VOCAB, "initializer_range": 0.4, "bos_token_id": None, "eos_token_id": None, "attn_implementation": attention, **more}
    if name == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(max_position_embeddings=64, **sizes, **common)).eval()
    if name == "cohere":  # scales its logits
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "logit_scale": 0.25, "pad_token_id": 0}
        return transformers.CohereForCausalLM(transformers.CohereConfig(**sizes, **common)).eval()
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **common)).eval()


@pytest.fixture(scope="session")
def make():
    """Name, and settings -> model; the same weights each time."""
    return lambda name, **more: own(name, **more) if name in OWN else foreign(name, **more)


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (3, 7), generator=generator(5))
