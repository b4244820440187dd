"""The decoder-only Transformer that every claim on text uses.

What methods change are seams, filled by objects: the position scheme, the attention score scale, attention itself, the feed-forward, the norm, and the order in
which blocks run. A new method brings an object; this file does not know it.

Initial weights as in GPT-2: normal with standard deviation 0.02, and in each projection that ends a residual branch that over the square root of the number of
branches.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.core import UsageError
from trimtab.nn import saving, seams
from trimtab.nn.cache import KVCache
from trimtab.nn.layers import Block
from trimtab.nn.positions import Positions
from trimtab.nn.sampling import evaluating, sample
from trimtab.nn.scope import Scope, look
from trimtab.nn.weights import STD, available, drawn


class Transformer(nn.Module):
    """Decoder-only Transformer: token embeddings, pre-norm blocks, a last norm and a projection to the vocabulary.

    Args:
        vocab_size: number of token ids.
        dim: width, a multiple of ``heads``.
        layers: number of blocks.
        heads: attention heads.
        kv_heads: key and value heads, a divisor of ``heads``; default as many.
        ffn_dim: inner width of the feed-forwards; default ``4 * dim``.
        max_length: rows of the table of ``positions="learned"``; nothing else has one.
        positions: "none", "learned", "rope", a :class:`Positions` object that all blocks share, or a sequence of them, one a block.
        norm: "layer", "rms" or a factory (dim) -> module.
        ffn: "gelu", "swiglu" or a factory (dim, ffn_dim) -> module.
        score_scale: factory (layer, heads) -> module (q [batch, heads, tokens, head_dim], visible [1 or batch, tokens]) -> q. ``visible`` is how many keys each
            query sees; scaling a query by tau(visible) gives softmax(tau q k), cached or not. A module with a method ``count`` (:class:`Scope`) is handed what
            that returns in place of ``visible``.
        attention: factory (layer, dim, heads) -> module (x, :class:`Scope`) -> x, in place of :class:`Attention`.
        schedule: order in which blocks run; a block named twice runs twice with the same weights. Default: each once.
        tied: whether the token embeddings are the output projection too.
        bias: whether linear layers and layer norms have biases; the output projection never has.
        dropout: of embeddings, attention weights and residual branches, in training; drawn from torch's global stream, as all of torch's dropout is.
        causal: False lets each token see later ones too: an encoder, which cannot generate.
        generator: of the initial weights, on the CPU; None draws from torch's global stream.
        device, dtype: of what a name chose. Objects, and what factories make, keep their own device, type and initial weights.

    Raises:
        UsageError: sizes that do not fit together, an unknown name, or a device that this machine has not.

    Example:
        >>> model = Transformer(11, dim=8, layers=2, heads=2, generator=torch.Generator().manual_seed(0))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> model(ids).shape
        torch.Size([1, 3, 11])
        >>> model.generate(ids, max_new_tokens=2).shape
        torch.Size([1, 5])

    When not to use it: to run published checkpoints; Hugging Face transformers has their architectures.

    References:
        Attention Is All You Need, 2017, arXiv 1706.03762. Pre-norm blocks and initial weights: Language Models are Unsupervised Multitask Learners, 2019.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        layers: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        ffn_dim: int | None = None,
        max_length: int | None = None,
        positions: str | Positions | Sequence[Positions] = "none",
        norm: str | Callable[[int], nn.Module] = "layer",
        ffn: str | Callable[[int, int], nn.Module] = "gelu",
        score_scale: Callable[[int, int], nn.Module] | None = None,
        attention: Callable[[int, int, int], nn.Module] | None = None,
        schedule: Sequence[int] | None = None,
        tied: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = True,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        vocab_size, dim, layers, heads = seams.sizes(vocab_size=vocab_size, dim=dim, layers=layers, heads=heads)
        kv_heads, ffn_dim = seams.sizes(kv_heads=heads if kv_heads is None else kv_heads, ffn_dim=4 * dim if ffn_dim is None else ffn_dim)
        if max_length is not None:
            (max_length,) = seams.sizes(max_length=max_length)
        if dim % heads:
            raise UsageError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}; dim={(dim // heads + 1) * heads} would do")
        if heads % kv_heads:
            raise UsageError(f"kv_heads must divide heads, got kv_heads={kv_heads} and heads={heads}; kv_heads=1 and kv_heads={heads} always do")
        for name, flag in (("tied", tied), ("bias", bias), ("causal", causal)):
            if not isinstance(flag, bool):
                raise UsageError(f"{name} must be True or False, got {flag!r}")
        (dropout,) = seams.share(dropout=dropout)
        self._settings: dict[str, Any] = {
            **{"vocab_size": vocab_size, "dim": dim, "heads": heads, "kv_heads": kv_heads, "ffn_dim": ffn_dim, "max_length": max_length},
            **{"positions": saving.described(positions), "norm": saving.described(norm), "ffn": saving.described(ffn)},
            **{"score_scale": saving.described(score_scale), "attention": saving.described(attention)},
            **{"tied": tied, "bias": bias, "dropout": dropout, "causal": causal},
        }
        self.vocab_size, self.causal = vocab_size, causal
        self.schedule = None if schedule is None else seams.order(schedule, layers)

        drawing: dict[str, Any] = {"generator": generator, "device": device, "dtype": dtype}
        made = {"bias": bias, "out_std": STD / (2 * len(self.schedule or range(layers))) ** 0.5, **drawing}
        make_attention = seams.make_attention(attention, score_scale, kv_heads, {"dropout": dropout, **made})
        make_ffn = seams.make_ffn(ffn, made)
        make_norm = seams.make_norm(norm, bias, {"device": device, "dtype": dtype})
        self.positions, own = seams.make_positions(positions, (dim, heads, layers), max_length, drawing)

        self.tokens = drawn(nn.Embedding, vocab_size, dim, **drawing)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(make_attention(layer, dim, heads), make_ffn(dim, ffn_dim), make_norm(dim), make_norm(dim), positions=own[layer], dropout=dropout)
            for layer in range(layers)
        )
        self.norm = make_norm(dim)
        self.head = None if tied else drawn(nn.Linear, dim, vocab_size, bias=False, **drawing)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make this model anew, weights aside: ``layers`` counts the blocks it has now, and of an object there is the kind."""
        return {**self._settings, "layers": len(self.blocks), "schedule": self.schedule}

    @property
    def max_length(self) -> int | None:
        """Longest sequence that the position scheme can place, or None."""
        schemes = [self.positions, *(block.positions for block in self.blocks if block.positions is not None)]
        limits = [scheme.max_length for scheme in schemes if scheme.max_length is not None]
        return min(limits) if limits else None

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        *,
        attention_mask: Bool[Tensor, "batch keys"] | Int[Tensor, "batch keys"] | None = None,
        cache: KVCache | None = None,
        schedule: Sequence[int] | None = None,
    ) -> Float[Tensor, "batch tokens vocab"]:
        """Logits of the next token at every position.

        Rows padded on the right need no mask: a causal model's real tokens come before the padding and cannot see it.

        Args:
            input_ids: in 0 .. vocab_size - 1.
            attention_mask: true at real tokens, of cached and new positions together. Positions count real tokens only; what is returned at padding has no
                meaning.
            cache: holds what came before, and takes in what is new. From :meth:`new_cache`.
            schedule: order of blocks for this call, in place of the model's.

        Raises:
            UsageError: no rows or tokens, a mask of the wrong shape, a block that is not there, or more tokens than the position scheme or the cache can hold.
                An id outside the vocabulary is torch's IndexError.
        """
        return self.unembed(self.states(input_ids, attention_mask=attention_mask, cache=cache, schedule=schedule))

    def states(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        *,
        attention_mask: Bool[Tensor, "batch keys"] | Int[Tensor, "batch keys"] | None = None,
        cache: KVCache | None = None,
        schedule: Sequence[int] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """What the last block leaves, before the last norm. :meth:`unembed` turns it, or what any block leaves, into logits. Arguments as :meth:`forward`."""
        order = (self.schedule or range(len(self.blocks))) if schedule is None else seams.order(schedule, len(self.blocks))
        keep = _sound(input_ids, attention_mask, cache, self.max_length)
        if cache is not None and not self.causal:
            raise UsageError("a cache needs a causal model, and this one was made with causal=False: its earlier tokens would have to see the later ones")
        if cache is not None and cache.places != len(order):
            raise UsageError(f"the cache is for a schedule of {cache.places} blocks, this call runs {len(order)}; make it with new_cache(capacity, schedule)")
        how = {"causal": self.causal, "device": input_ids.device, "dtype": self.tokens.weight.dtype}
        shared = look(self.positions, input_ids.shape[1], keep, cache, **how)
        own: dict[int, Scope] = {}
        ids = input_ids if keep is None else input_ids.masked_fill(~keep[:, -input_ids.shape[1] :], -1)
        x = self.dropout(self.positions.embed(self.tokens(input_ids), shared.positions))
        for place, index in enumerate(order):
            block: Any = self.blocks[index]
            if block.positions is not None and index not in own:
                own[index] = look(block.positions, input_ids.shape[1], keep, cache, **how)
            x = block(x, own.get(index, shared)._replace(place=place, ids=ids))
        if cache is not None:
            cache.advance(input_ids.shape[1], masked=keep is not None)
        return x

    def unembed(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of a residual stream: last norm, then the output projection."""
        return F.linear(self.norm(x), self.tokens.weight if self.head is None else self.head.weight)

    def new_cache(self, capacity: int, schedule: Sequence[int] | None = None) -> KVCache:
        """An empty cache for ``capacity`` positions of this model under its schedule, or the given one."""
        return KVCache(len(schedule or self.schedule or self.blocks), capacity)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "batch prompt"],
        *,
        max_new_tokens: int,
        eos: int | None = None,
        pad: int | None = None,
        attention_mask: Bool[Tensor, "batch prompt"] | Int[Tensor, "batch prompt"] | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        schedule: Sequence[int] | None = None,
    ) -> Int[Tensor, "batch total"]:
        """Prompts with what follows them, token by token; in evaluation mode, without gradients, and with a cache.

        Args:
            input_ids: prompts; of mixed lengths where they are padded on the left and a mask says so.
            max_new_tokens: >= 1. The result always is this much wider than the prompt; work stops once every row has ended.
            eos: token that ends a row; None: no row ends early.
            pad: what fills a row behind its ``eos``; default ``eos``.
            attention_mask: true at the prompts' real tokens.
            temperature: 0 takes the likeliest token; above 0 it draws.
            generator: of the draws, on the CPU; None draws from torch's global stream.
            schedule: order of blocks, in place of the model's.

        Raises:
            UsageError: ids outside the vocabulary, right-padded prompts, a model that is not causal, one whose logits are NaN, or as :meth:`forward`.

        Example:
            >>> model = Transformer(5, dim=4, layers=1, heads=1)
            >>> model.generate(torch.tensor([[0, 3, 1], [2, 4, 1]]), attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]]), max_new_tokens=4).shape
            torch.Size([2, 7])
        """
        if not self.causal:
            raise UsageError("generate needs a causal model, and this one was made with causal=False")
        (max_new_tokens,) = seams.sizes(max_new_tokens=max_new_tokens)
        if not (temperature >= 0 and isfinite(temperature)):
            raise UsageError(f"temperature must be finite and >= 0, got {temperature}; 0 takes the likeliest token")
        pad = eos if pad is None else pad
        keep = _sound(input_ids, attention_mask, None, self.max_length)
        rows, prompt = input_ids.shape
        total = prompt + max_new_tokens
        if self.max_length is not None and total - 1 > self.max_length:  # the last token is not read
            most = self.max_length + 1 - prompt
            raise UsageError(f"max_new_tokens must be <= {most} behind a prompt of {prompt}, since positions end at {self.max_length}; got {max_new_tokens}")
        for name, low, high in (("input_ids", int(input_ids.min()), int(input_ids.max())), ("eos", eos or 0, eos or 0), ("pad", pad or 0, pad or 0)):
            if low < 0 or high >= self.vocab_size:
                raise UsageError(f"{name} must be in 0 .. {self.vocab_size - 1}, got {low if low < 0 else high}")
        if keep is not None:
            if not keep[:, -1].all():
                raise UsageError("prompts must be padded on the left: attention_mask is false at a row's last position, from where the next token is predicted")
            keep = F.pad(keep, (0, max_new_tokens), value=True)

        ids = input_ids.new_full((rows, total), 0 if pad is None else pad)
        ids[:, :prompt] = input_ids
        ended = torch.zeros(rows, dtype=torch.bool, device=ids.device)
        cache, start = self.new_cache(total, schedule), 0
        with evaluating(self):
            for end in range(prompt, total):
                x = self.states(ids[:, start:end], attention_mask=None if keep is None else keep[:, :end], cache=cache, schedule=schedule)
                token = sample(self.unembed(x[:, -1]), temperature, generator)
                if eos is not None:
                    token = torch.where(ended, ids[:, end], token)
                    ended |= token == eos
                ids[:, end] = token
                if eos is not None and ended.all():
                    break
                start = end
        return ids

    def save(self, folder: str | Path) -> None:
        """Write the weights (model.safetensors) and what makes the model anew (config.json) into a folder.

        Both are written before either takes the place of an older one: where that fails, the old model stays.
        """
        saving.save(folder, type(self).__name__, self.settings, self.state_dict())

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | str | None = None, **objects: Any) -> "Transformer":
        """The model that :meth:`save` wrote: same logits, to the bit. Nothing that the files name is imported or run.

        It is in evaluation mode, as Hugging Face's ``from_pretrained`` has it; call ``train()`` to train on. Each weight has the type it was saved in. Every
        size is compared with the weights that are there before memory is taken for it.

        Args:
            folder: what :meth:`save` was given.
            device: where the weights go; those of objects stay where the objects have them.
            objects: what the model was made with for ``positions``, ``norm``, ``ffn``, ``score_scale`` or ``attention`` and no name stands for; the files hold
                only their weights.

        Raises:
            UsageError: no model there, such an object is missing or too many (the message says which), or a device that this machine has not.
            DamagedFile: the files are cut short, foreign, edited or not of one model.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> model = Transformer(5, dim=4, layers=1, heads=1, dropout=0.1).eval()
            >>> model.save(folder)
            >>> torch.equal(Transformer.load(folder)(torch.tensor([[1, 2]])), model(torch.tensor([[1, 2]])))
            True
        """
        settings, tensors = saving.read(folder, cls.__name__, objects)
        return saving.fill(lambda: cls(**settings, device="meta"), tensors, folder, available(device)).eval()

    def extra_repr(self) -> str:
        given = {name: value["object"] if isinstance(value, dict) else repr(value) for name, value in self.settings.items() if value is not None}
        return ", ".join(f"{name}={value}" for name, value in given.items())


def _sound(input_ids: Tensor, attention_mask: Tensor | None, cache: KVCache | None, longest: int | None) -> Tensor | None:
    """The mask as booleans, of a call that can run."""
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        raise UsageError(f"input_ids must be [batch, tokens] with at least one of each, got {tuple(input_ids.shape)}")
    rows, tokens = input_ids.shape
    keys = tokens if cache is None else cache.length + tokens
    if longest is not None and keys > longest:
        raise UsageError(f"the model's positions end at max_length={longest}, got {keys} tokens; use shorter rows or a scheme without a table")
    if attention_mask is None:
        if cache is not None and cache.masked:
            raise UsageError("attention_mask was given when the cache was filled, and must be given again, with the new tokens appended")
        return None
    if attention_mask.shape != (rows, keys):
        raise UsageError(f"attention_mask must be [batch, cached + new tokens] = {(rows, keys)}, got {tuple(attention_mask.shape)}")
    return attention_mask.bool()
