"""Tempered softmax in models that are there already: a :class:`Transformer`, or a causal language model of Hugging Face transformers.

Paper and deviations: see tempered.py. Hugging Face models call their attention by a name in their configuration. Here that name becomes one of ours, whose
function scales the queries of layers that have a :class:`Tempered` and hands all on to SDPA. The number of keys that a query sees is read off the mask, which
knows of padding, windows and caches with room to spare. A prompt's length cannot be read off the mask: a hook before the model's trunk reads it off the ids and
passes it down as an argument, so that nothing stays behind on the model and gradient checkpointing, which runs layers twice, gets it again.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.core import UsageError, require, unknown
from trimtab.nn.layers import Attention
from trimtab.nn.saving import described
from trimtab.nn.tempered import _NOTE, Tempered, items_before
from trimtab.nn.transformer import Transformer

SDPA, TEMPERED = "sdpa", "trimtab_tempered_sdpa"
_READER = "_trimtab_prompt_reader"
_GUARD = "_trimtab_guard"
_ITEMS = "trimtab_prompt_items"


def temper_(
    model: nn.Module,
    kind: str = "logn",
    *,
    length: str = "context",
    per: str = "layer",
    delimiters: Sequence[int] = (),
    n_train: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> list[dict[str, Any]]:
    """Give every self-attention layer of a model a trained temperature, in place; until it is trained, outputs stay as they were.

    The new parameters are the model's: they train, and its state dict has them as ``...score_scale.a`` and the like. So temper before an optimiser is made and
    before the model is wrapped for several devices. To load a tempered model: make it, temper it likewise, and load the state dict. A :class:`Transformer` is
    loaded with ``Transformer.load(folder, score_scale=lambda layer, heads: Tempered(...))``.

    Args:
        model: a :class:`Transformer`, a causal language model of Hugging Face transformers (those that use its attention interface: Llama, GPT-2 and nearly all
            since) on SDPA, or a module that holds one of these.
        kind, length, delimiters, n_train: as of :class:`Tempered`.
        per: "layer", one temperature a layer, or "head".
        device, dtype: of the parameters; default each layer's own.

    Returns:
        One row a layer: its ``layer`` (path in the model), ``kind``, ``length``, and ``parameters`` (how many).

    Raises:
        UsageError: no layer that can be tempered, or one that cannot be, or is already; a model not on SDPA; a wrong argument.

    Example:
        >>> model = Transformer(11, dim=8, layers=2, heads=2)
        >>> temper_(model, per="head")[1]
        {'layer': 'blocks.1.attention', 'kind': 'logn', 'length': 'context', 'parameters': 4}

    When not to use it: a Hugging Face model whose rows hold several prompts, with ``length="prompt"``; or beam search whose beams write different first
    delimiters (a delimiter in the prompt is fine): transformers reorders what a cache holds without telling us.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """
    if per not in ("layer", "head"):
        raise unknown("per", per, ("layer", "head"))
    layers = dict(_layers(model))
    if not layers:
        raise UsageError(
            f"model must hold self-attention of trimtab.nn or of Hugging Face transformers, and {type(model).__name__} has none; "
            "for your own attention, multiply its queries by a Tempered"
        )
    for path, layer in layers.items():
        if getattr(layer, "score_scale", None) is not None:
            raise UsageError(f"model must have plain attention, and {path} has a score scale already; call untemper_ first, or make the model without one")
    made: dict[str, Tempered] = {}
    for path, layer in layers.items():
        weight = next(layer.parameters())
        where: dict[str, Any] = {"device": weight.device if device is None else device, "dtype": weight.dtype if dtype is None else dtype}
        made[path] = Tempered(1 if per == "layer" else _heads(layer), kind, length=length, delimiters=delimiters, n_train=n_train, **where)
    foreign = [layer for layer in layers.values() if not isinstance(layer, Attention)]
    if foreign:
        _route(model, foreign, tuple(delimiters))  # may refuse, so it comes before any change
    for path, layer in layers.items():
        layer.score_scale = made[path]
    for layer in foreign:
        setattr(layer, _GUARD, layer.register_forward_pre_hook(_check_route))
    _describe(model, described(Tempered))
    return [{"layer": path, "kind": kind, "length": length, "parameters": sum(p.numel() for p in made[path].parameters())} for path in layers]


def untemper_(model: nn.Module) -> list[dict[str, Any]]:
    """Take out what :func:`temper_` put in, in place: plain attention again, and the trained temperatures are gone.

    Args:
        model: tempered.

    Returns:
        One row a layer, as of :func:`temper_`.

    Raises:
        UsageError: nothing in the model is tempered.

    Example:
        >>> model = Transformer(11, dim=8, layers=1, heads=2)
        >>> table = temper_(model)
        >>> untemper_(model) == table
        True

    When not to use it: on a model that was trained with a temperature; plain attention is another function then.
    """
    tempered = {path: layer for path, layer in model.named_modules() if isinstance(getattr(layer, "score_scale", None), Tempered)}
    if not tempered:
        raise UsageError(f"model must hold a tempered layer, and {type(model).__name__} has none; temper_ makes some")
    table = []
    for path, layer in tempered.items():
        scale: Any = layer.score_scale
        table.append({"layer": path, "kind": scale.kind, "length": scale.length, "parameters": sum(p.numel() for p in scale.parameters())})
        if isinstance(layer, Attention):
            layer.score_scale = None
        else:
            del layer.score_scale
            getattr(layer, _GUARD).remove()
            delattr(layer, _GUARD)
            config: Any = layer.config
            config._attn_implementation = SDPA
    for part in model.modules():
        reader = getattr(part, _READER, None)
        if reader is not None:
            reader.remove()
            delattr(part, _READER)
    _describe(model, None)
    return table


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        if isinstance(module, Transformer):
            for index, block in enumerate(module.blocks):
                if not isinstance(block.attention, Attention):
                    kind = type(block.attention).__name__
                    raise UsageError(f"model must have the built-in attention in every block, and block {index} has {kind}; scale its queries there")
        if isinstance(module, Attention):
            yield path, module
        elif "Attention" in type(module).__name__ and hasattr(module, "layer_idx") and not getattr(module, "is_cross_attention", False):
            files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
            if not any(hasattr(file, "ALL_ATTENTION_FUNCTIONS") for file in files):
                raise UsageError(f"model must use the attention interface of transformers, and {path} ({type(module).__name__}) does not; update transformers")
            yield path, module


def _heads(layer: Any) -> int:
    return layer.heads if isinstance(layer, Attention) else layer.config.num_attention_heads


def _describe(model: nn.Module, scale: Any) -> None:
    """What a saved folder says of the seam."""
    for module in model.modules():
        if isinstance(module, Transformer):
            module._settings["score_scale"] = scale


# Hugging Face transformers


def _route(model: nn.Module, layers: list[Any], delimiters: tuple[int, ...]) -> None:
    """Send the layers' attention through ours, and prompts' lengths with it."""
    transformers = require("transformers", "lm")
    attention, masks = (getattr(transformers, name, None) for name in ("AttentionInterface", "AttentionMaskInterface"))
    if attention is None or masks is None:
        raise UsageError(f"tempering needs transformers 4.53 or newer, got {transformers.__version__}; run: pip install -U transformers")
    configs = {id(layer.config): layer.config for layer in layers}.values()
    for config in configs:
        if config._attn_implementation not in (SDPA, TEMPERED):  # ours: the configuration of a model that shares it
            name = config._attn_implementation
            raise UsageError(f"model must run on SDPA, got attn_implementation={name!r}; load it with attn_implementation='sdpa'")
    if delimiters:
        trunk: Any = next(part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)).base_model
        parameters = inspect.signature(trunk.forward).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise UsageError(f'length="prompt" needs a model that hands arguments down to its layers, {type(trunk).__name__} does not; update transformers')
        setattr(trunk, _READER, _PromptReader(trunk, delimiters, list(parameters)))
    attention.register(TEMPERED, partial(_tempered_sdpa, attention()[SDPA]))
    masks.register(TEMPERED, masks()[SDPA])
    for config in configs:
        config._attn_implementation = TEMPERED


def _check_route(layer: Any, args: Any) -> None:
    """Another attention function, set later, would leave out the temperature and not say so."""
    if layer.config._attn_implementation != TEMPERED:
        name = layer.config._attn_implementation
        raise UsageError(f"a tempered model must stay on the attention that temper_ set, got attn_implementation={name!r}; call untemper_ before you change it")


def _tempered_sdpa(plain: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any) -> Any:
    """Attention as transformers calls it, before ``plain``, which is its SDPA."""
    items = settings.pop(_ITEMS, None)
    scale = getattr(module, "score_scale", None)
    if scale is not None:
        causal = settings.get("is_causal")
        n = _visible(query.shape[2], key.shape[2], attention_mask, getattr(module, "is_causal", True) if causal is None else causal, query.device)
        if scale.delimiters:
            if items is None:
                raise UsageError('length="prompt" needs the token ids: call the whole model, with input_ids, not one of its layers')
            n = torch.minimum(n, items)
        query = scale(query, n)
    return plain(module, query, key, value, attention_mask, **settings)


def _allowed(mask: Tensor) -> Tensor:
    """[batch, tokens, keys]: where a mask, boolean or added to scores, lets a query look."""
    return (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2).any(1)


def _visible(tokens: int, keys: int, mask: Tensor | None, causal: bool, device: torch.device) -> Tensor:
    """How many keys each query sees, [1 or batch, tokens]."""
    if mask is not None:
        return _allowed(mask).sum(-1)
    if causal and tokens > 1:  # transformers makes no mask only where all keys are new; room to spare behind them is not looked at
        return torch.arange(1, tokens + 1, device=device)[None]
    return torch.full((1, tokens), keys, device=device)


class _PromptReader:
    """Reads the prompts' lengths off what a trunk is called with, and hands them down to its layers."""

    def __init__(self, trunk: nn.Module, delimiters: tuple[int, ...], names: list[str]):
        self.delimiters, self.names = delimiters, names
        self.handles = [trunk.register_forward_pre_hook(self.before, with_kwargs=True), trunk.register_forward_hook(self.after, with_kwargs=True)]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def before(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs | {_ITEMS: self.read(self.given(args, kwargs))}

    def after(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A cache that the trunk made itself has to remember too."""
        values = output.values() if hasattr(output, "values") else output
        made: Any = next((value for value in values if hasattr(value, "get_seq_length")), None)
        given = self.given(args, kwargs)
        if made is not None and not hasattr(made, _NOTE):
            if (cache := _cache(given)) is not None:  # which the trunk has wrapped
                setattr(made, _NOTE, getattr(cache, _NOTE))
            else:
                self.read(given, made)

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self.names, args, strict=False)) | kwargs

    def read(self, given: dict[str, Any], made: Any = None) -> Tensor:
        ids = given.get("input_ids")
        if ids is None:
            raise UsageError('length="prompt" needs input_ids, in which it looks for the delimiter; got none')
        cache, columns = _cache(given), given.get("cache_position")
        if columns is None:
            past = 0 if cache is None else cache.get_seq_length()
            columns = past + torch.arange(ids.shape[1], device=ids.device)
        else:  # where transformers 4 says it, it is to be trusted: its static caches do not count padding
            past = columns[0]
        mask = given.get("attention_mask")
        if isinstance(mask, dict):  # one for each type of layer
            mask = mask.get("full_attention", next(iter(mask.values())))
        if mask is None:
            positions, real = columns[None], None
        elif mask.dim() == 2:
            real = mask.bool()
            positions, real = real.cumsum(1)[:, columns] - 1, real[:, columns]
        else:
            allowed = _allowed(mask)
            positions = allowed.sum(-1) - 1
            real = allowed.gather(2, columns[None, :, None].expand(len(allowed), -1, 1))[..., 0]
        if real is not None:
            ids = ids.masked_fill(~real, -1)
        return items_before(self.delimiters, ids, positions.clamp(min=0), made if cache is None else cache, past)


def _cache(given: dict[str, Any]) -> Any:
    """Under the name it has, or had before transformers 5."""
    return next((given[name] for name in ("cache", "past_key_values") if given.get(name) is not None), None)
