"""Look at what a model computes on its way, and change it, under the names that users of TransformerLens know.

No paper. One mechanism for a :class:`trimtab.nn.Transformer` and for causal language models of Hugging Face: PyTorch's own hooks on blocks, attention,
feed-forwards and the last norm, and a torch function mode that sees each call of scaled_dot_product_attention. Nothing in the model is replaced, and what
nobody asked about runs as fast as ever. Names and shapes are TransformerLens's, l counting blocks as they are called:

    hook_embed                                    [batch, tokens, dim]
    blocks.{l}.hook_resid_pre                     [batch, tokens, dim]             what goes into the block
    blocks.{l}.attn.hook_q, hook_k, hook_v        [batch, tokens, heads, head_dim]
    blocks.{l}.attn.hook_pattern                  [batch, heads, tokens, keys]     in float32 at least
    blocks.{l}.attn.hook_z                        [batch, tokens, heads, head_dim]
    blocks.{l}.hook_attn_out, hook_mlp_out        [batch, tokens, dim]             what the attention or feed-forward module returns
    blocks.{l}.hook_resid_post                    [batch, tokens, dim]             what comes out of the block
    ln_final.hook_normalized                      [batch, tokens, dim]

Deviations: q and k are those that attention gets, turned by rotary positions and tempered. k and v have a row for each query head also where heads share them,
so that each head can be changed alone. Weights are not folded or centred.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from trimtab.core import UsageError, unknown
from trimtab.metrics.anatomy import Anatomy, anatomy

LOGITS = "logits"
INSIDE = ("hook_q", "hook_k", "hook_v", "hook_pattern", "hook_z")  # what only SDPA's arguments show


class Hook(NamedTuple):
    """Where a hook function is called.

    Attributes:
        name: of the hook.
    """

    name: str

    def layer(self) -> int:
        """The block, counted from 0."""
        return int(self.name.split(".")[1])


HookFunction = Callable[..., Tensor | None]


def hook_names(model: nn.Module) -> list[str]:
    """Every name that :func:`run_with_cache` can record and :func:`run_with_hooks` can change, in the order of the forward pass.

    Args:
        model: a :class:`trimtab.nn.Transformer` or a causal language model of Hugging Face.

    Raises:
        UsageError: a model whose parts are not where they were looked for.

    Example:
        >>> from trimtab.nn import Transformer
        >>> hook_names(Transformer(5, dim=4, layers=1, heads=1))[:4]
        ['hook_embed', 'blocks.0.hook_resid_pre', 'blocks.0.attn.hook_q', 'blocks.0.attn.hook_k']
    """
    return _names(anatomy(model))


def _names(parts: Anatomy) -> list[str]:
    names = ["hook_embed"]
    for layer, (attention, mlp) in enumerate(zip(parts.attention, parts.mlp, strict=True)):
        inner = ["hook_resid_pre"]
        if attention is not None:
            inner += [*(f"attn.{name}" for name in INSIDE), "hook_attn_out"]
        inner += ["hook_mlp_out"] * (mlp is not None) + ["hook_resid_post"]
        names += [f"blocks.{layer}.{name}" for name in inner]
    return [*names, "ln_final.hook_normalized"]


def run_with_cache(
    model: nn.Module,
    ids: Int[Tensor, "batch tokens"],
    names: str | Iterable[str] | Callable[[str], bool] | None = None,
    *,
    hooks: Mapping[str, HookFunction] | None = None,
    **forward: Any,
) -> dict[str, Tensor]:
    """One forward pass, and what was asked for of what it computed.

    Modes are left alone: call ``model.eval()`` first where the model has dropout, and ``torch.no_grad()`` where no gradient is wanted. What is handed out are
    the tensors of the pass itself, so gradients reach them.

    Args:
        model: a :class:`trimtab.nn.Transformer`, or a causal language model of Hugging Face on SDPA.
        ids: token ids.
        names: one name, several, a function that says of each name whether it is wanted, or None for all; :func:`hook_names` lists them. "logits" is one too.
        hooks: as of :func:`run_with_hooks`; what is recorded is what they left.
        forward: passed on to the model: ``attention_mask`` and the like.

    Returns:
        name -> tensor, shapes as in the head of this file.

    Raises:
        UsageError: an unknown name; a model whose parts are not where they were looked for; q, k, v, pattern or z of a model that does not run on SDPA.

    Example:
        >>> from trimtab.nn import Transformer
        >>> model = Transformer(5, dim=4, layers=2, heads=2)
        >>> cache = run_with_cache(model, torch.tensor([[0, 3, 1]]), lambda name: name.endswith("pattern"))
        >>> {name: tuple(value.shape) for name, value in cache.items()}
        {'blocks.0.attn.hook_pattern': (1, 2, 3, 3), 'blocks.1.attn.hook_pattern': (1, 2, 3, 3)}

    When not to use it: all names of a large model on long rows; patterns alone take layers x heads x tokens squared numbers.
    """
    parts = anatomy(model, forward.get("schedule"))
    known = [*_names(parts), LOGITS]
    if names is None:
        wanted = known
    elif isinstance(names, str):
        wanted = [names]
    elif callable(names):
        wanted = [name for name in known if names(name)]
    else:
        wanted = list(names)
    _check("names", wanted, known)
    if not wanted:
        raise UsageError("names must choose at least one hook, and chose none; hook_names(model) lists them")
    hooks = dict(hooks or {})
    _check("hooks", hooks, known[:-1])
    run = _Run(parts, set(wanted), hooks, ids.shape[1])
    if not hasattr(model, "unembed"):
        forward = {"use_cache": False} | forward
    with run.listening():
        output = model(ids, **forward)
    run.check()
    logits = output if isinstance(output, Tensor) else output.logits
    return {name: logits if name == LOGITS else run.cache[name] for name in wanted}


def run_with_hooks(
    model: nn.Module, ids: Int[Tensor, "batch tokens"], hooks: Mapping[str, HookFunction], **forward: Any
) -> Float[Tensor, "batch tokens vocab"]:
    """Logits of a forward pass that was changed on its way.

    Args:
        model, ids, forward: as of :func:`run_with_cache`.
        hooks: name -> function (value, hook), called as ``f(value, hook=Hook(name))``; what it returns takes the value's place. It may change the value where
            it is, and return nothing: it has a copy. One that does neither leaves the logits as they were, to the bit.

    Raises:
        UsageError: as :func:`run_with_cache`, or a function that returns another shape.

    Example:
        >>> from trimtab.nn import Transformer
        >>> model = Transformer(5, dim=4, layers=2, heads=2)
        >>> def without_head_1(z, hook):
        ...     z[:, :, 1] = 0
        >>> run_with_hooks(model, torch.tensor([[0, 3, 1]]), {"blocks.0.attn.hook_z": without_head_1}).shape
        torch.Size([1, 3, 5])
    """
    return run_with_cache(model, ids, LOGITS, hooks=hooks, **forward)[LOGITS]


def _check(what: str, names: Collection[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(f"name in {what}", str(name), known)


class _Run:
    """One forward pass that is looked at."""

    def __init__(self, parts: Anatomy, wanted: set[str], hooks: dict[str, HookFunction], tokens: int):
        self.parts, self.wanted, self.hooks, self.tokens = parts, wanted, hooks, tokens
        self.active = (wanted | set(hooks)) - {LOGITS}
        self.cache: dict[str, Tensor] = {}
        self.met: set[str] = set()
        self.layer: int | None = None  # the block that is running
        self.begun, self.attended = 0, False

    def see(self, name: str, value: Tensor) -> tuple[Tensor, bool]:
        """The value as its hook leaves it, and whether that is another."""
        if name in self.met:
            raise UsageError(f"{name} came twice in one forward pass, so that its name does not say which; hook this block's parts with PyTorch's own hooks")
        self.met.add(name)
        changed = False
        if name in self.hooks:
            given = value.clone()
            new = self.hooks[name](given, hook=Hook(name))
            if new is None and not torch.equal(given, value):
                new = given
            if new is not None:
                if not isinstance(new, Tensor) or new.shape != value.shape:
                    seen = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
                    raise UsageError(f"the hook at {name} must return a tensor of shape {tuple(value.shape)}, or None, got {seen}")
                value, changed = new.to(value.dtype), True
        if name in self.wanted:
            self.cache[name] = value
        return value, changed

    @contextmanager
    def listening(self) -> Iterator[None]:
        handles = []
        try:
            for block in dict.fromkeys(self.parts.blocks):
                handles.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
                handles.append(block.register_forward_hook(self._leave))
            for name, modules in (("attn_out", self.parts.attention), ("mlp_out", self.parts.mlp)):
                if any(active.endswith(f"hook_{name}") for active in self.active):
                    handles += [module.register_forward_hook(self._branch(name)) for module in dict.fromkeys(modules) if module is not None]
            for name, module in (("hook_embed", self.parts.embed), ("ln_final.hook_normalized", self.parts.norm)):
                if name in self.active:
                    handles.append(module.register_forward_hook(self._outside(name)))
            if any(".attn." in name for name in self.active):
                with _Listener(self):
                    yield
            else:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def check(self) -> None:
        """What was asked for has to have come by: a hook that never ran would look like one that did nothing."""
        missed = [name for name in self.active if name not in self.met]
        if any(".attn." in name for name in missed) and not self.attended:
            raise UsageError(
                'model must run its attention through torch\'s scaled_dot_product_attention, and it was not called; load it with attn_implementation="sdpa", '
                "and not compiled"
            )
        if missed:
            raise UsageError(f"{', '.join(sorted(missed))} did not come by in the forward pass; leave it out, or call the model itself, not a compiled one")

    def _at(self, name: str) -> str:
        return f"blocks.{self.layer}.hook_{name}"

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.layer = self.begun
        self.begun += 1
        if (name := self._at("resid_pre")) not in self.active:
            return None
        if args:
            return (self.see(name, args[0])[0], *args[1:]), kwargs
        if "hidden_states" not in kwargs:
            raise UsageError(f"{type(module).__name__} must be given its residual stream first, or as hidden_states; it was called with {', '.join(kwargs)}")
        return args, kwargs | {"hidden_states": self.see(name, kwargs["hidden_states"])[0]}

    def _leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        name, self.layer = self._at("resid_post"), None
        return self._out(name, output)

    def _out(self, name: str, output: Any) -> Any:
        """What a module returns, with its first tensor seen; None, as a hook's answer, leaves all as it is."""
        if name not in self.active:
            return None
        if isinstance(output, Tensor):
            return self.see(name, output)[0]
        return (self.see(name, output[0])[0], *output[1:])

    def _branch(self, name: str) -> Callable[..., Any]:
        return lambda module, args, output: None if self.layer is None else self._out(self._at(name), output)

    def _outside(self, name: str) -> Callable[..., Any]:
        return lambda module, args, output: self._out(name, output) if self.layer is None else None

    def attend(self, plain: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **settings: Any) -> Tensor:
        """Attention of the running block."""
        self.attended = True
        names = {name: f"blocks.{self.layer}.attn.{name}" for name in INSIDE}
        if self.active.isdisjoint(names.values()):
            return plain(q, k, v, attn_mask=attn_mask, **settings)
        if q.dim() != 4 or q.shape[2] != self.tokens:
            raise UsageError(f"attention must be given queries [batch, heads, tokens={self.tokens}, head_dim], got {tuple(q.shape)} in block {self.layer}")
        groups = q.shape[1] // k.shape[1]
        state, changed = {"q": q, "k": k, "v": v}, False
        for key, name in zip(state, INSIDE, strict=False):
            if names[name] in self.active or names["hook_pattern"] in self.active:
                value = state[key] if key == "q" or groups == 1 else state[key].repeat_interleave(groups, 1)
                state[key] = value
                if names[name] in self.active:
                    new, touched = self.see(names[name], value.transpose(1, 2))
                    state[key], changed = new.transpose(1, 2), changed or touched
        if changed:  # a head that was changed may no longer share its keys and values
            q, k, v = (x if x.shape[1] == q.shape[1] else x.repeat_interleave(groups, 1) for x in state.values())
        z = None
        if names["hook_pattern"] in self.active:
            pattern = attention_pattern(state["q"], state["k"], attn_mask, settings.get("is_causal", False), settings.get("scale"))
            pattern, touched = self.see(names["hook_pattern"], pattern)
            if touched:
                z = F.dropout(pattern, settings.get("dropout_p", 0.0)).to(v.dtype) @ state["v"]
        z = plain(q, k, v, attn_mask=attn_mask, **settings) if z is None else z
        return z if names["hook_z"] not in self.active else self.see(names["hook_z"], z.transpose(1, 2))[0].transpose(1, 2)


class _Listener(TorchFunctionMode):
    """Hands SDPA's calls to a run; what is called meanwhile is not seen, so the run may call SDPA itself."""

    def __init__(self, run: _Run):
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is not F.scaled_dot_product_attention or self.run.layer is None:
            return func(*args, **(kwargs or {}))
        # its arguments may come by place or by name
        named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | (kwargs or {})
        return self.run.attend(func, named.pop("query"), named.pop("key"), named.pop("value"), **named)


def attention_pattern(
    q: Float[Tensor, "batch heads tokens head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch heads tokens keys"]:
    """The weights that scaled_dot_product_attention gives to values, for the same arguments; in float32 at least, 0 where a query may look at nothing."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.to(wide).transpose(-1, -2)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    pattern = scores.softmax(-1)
    return pattern if mask is None else pattern.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
