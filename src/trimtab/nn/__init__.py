"""Layers and models."""

from trimtab.nn.cache import KVCache
from trimtab.nn.layers import Attention, Block, FeedForward, SwiGLU
from trimtab.nn.positions import Learned, Positions, Rotary
from trimtab.nn.scope import Scope
from trimtab.nn.sorting_construction import sorting_construction
from trimtab.nn.tempered import Tempered, tempered_scale
from trimtab.nn.tempering import temper_, untemper_
from trimtab.nn.transformer import Transformer

__all__ = [
    "Attention",
    "Block",
    "FeedForward",
    "KVCache",
    "Learned",
    "Positions",
    "Rotary",
    "Scope",
    "SwiGLU",
    "Tempered",
    "Transformer",
    "sorting_construction",
    "temper_",
    "tempered_scale",
    "untemper_",
]
