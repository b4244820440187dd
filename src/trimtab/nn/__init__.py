"""Layers and models."""

from trimtab.nn.cache import KVCache
from trimtab.nn.layers import Attention, Block, FeedForward, SwiGLU
from trimtab.nn.positions import Learned, Positions, Rotary
from trimtab.nn.scope import Scope
from trimtab.nn.transformer import Transformer

__all__ = ["Attention", "Block", "FeedForward", "KVCache", "Learned", "Positions", "Rotary", "Scope", "SwiGLU", "Transformer"]
