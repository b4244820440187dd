"""Where things are in a language model: its blocks, their attention and feed-forward, the last norm and the projection to the vocabulary.

Two kinds of model are known by the names of their parts, and none by its class: those that look like :class:`trimtab.nn.Transformer`, and causal language
models of Hugging Face transformers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trimtab.core import UsageError

ATTENTION = ("attention", "self_attn", "attn", "self_attention")
MLP = ("ffn", "mlp", "feed_forward")
NORM = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")


class Anatomy(NamedTuple):
    """The parts of a model.

    Attributes:
        embed: ids -> token embeddings.
        blocks: in the order they are called; a block that a schedule names twice is there twice.
        attention, mlp: of each block, None where it has none.
        norm: behind the last block.
        unembed: what a block leaves -> logits, the last norm included.
    """

    embed: nn.Module
    blocks: list[nn.Module]
    attention: list[nn.Module | None]
    mlp: list[nn.Module | None]
    norm: nn.Module
    unembed: Callable[[Tensor], Tensor]


def anatomy(model: Any, schedule: Any = None) -> Anatomy:
    """Find the parts of a model.

    Args:
        schedule: order of blocks, where the call that is to be looked at has its own.

    Raises:
        UsageError: a part is not where it was looked for; the message says where that was.
    """
    if all(hasattr(model, name) for name in ("tokens", "blocks", "norm", "unembed")):
        order = schedule or getattr(model, "schedule", None) or range(len(model.blocks))
        blocks = [model.blocks[index] for index in order]
        return Anatomy(model.tokens, blocks, _children(blocks, ATTENTION), _children(blocks, MLP), model.norm, model.unembed)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise UsageError(
            f"model must have the parts tokens, blocks, norm and unembed, as a trimtab Transformer has, or get_output_embeddings(), as a causal language model "
            f"of Hugging Face has; {type(model).__name__} has neither. Give the model itself, not what wraps it or its trunk"
        )
    trunk = getattr(model, "base_model", model)
    lists = {path: part for path, part in trunk.named_modules() if isinstance(part, nn.ModuleList) and any(_child(block, ATTENTION) for block in part)}
    if len(lists) != 1:
        found = f"found {', '.join(lists)}" if lists else "found none"
        raise UsageError(f"model must have one list of blocks with a part named {', '.join(ATTENTION)}; looked in {type(trunk).__name__} and {found}")
    ((path, stack),) = lists.items()
    holder = trunk.get_submodule(path.rpartition(".")[0])
    norm = _child(holder, NORM)
    if norm is None:
        raise UsageError(f"model must have a last norm beside its blocks; looked in {type(holder).__name__} for {', '.join(NORM)} and found none")
    blocks = list(stack)
    return Anatomy(model.get_input_embeddings(), blocks, _children(blocks, ATTENTION), _children(blocks, MLP), norm, lambda x: head(norm(x)))


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((part for name in names if isinstance(part := getattr(module, name, None), nn.Module)), None)


def _children(blocks: list[nn.Module], names: tuple[str, ...]) -> list[nn.Module | None]:
    return [_child(block, names) for block in blocks]


def widest(x: Tensor) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if x.device.type == "mps" else torch.float64


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and without gradients; afterwards each part is in the mode it was in."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():
            part.training = training
