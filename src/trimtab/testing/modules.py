"""The contract of a layer or model, to run on your own."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.core import UsageError, unknown
from trimtab.testing.errors import CheckFailed
from trimtab.testing.global_state import own_random_state, scramble, states

RULES = (
    "it has a repr",
    "inputs are left alone",
    "evaluation is repeatable",
    "no global random state",
    "the state dict holds all of it",
    "rows do not see each other",
    "gradients reach every parameter",
    "no silent cast",
    "the seed decides the weights",
    "device and dtype are kept to",
    "no look ahead",
)
T = TypeVar("T")
_SEEDS = ("generator", "seed", "random_state")


def check_module(module: nn.Module | Callable[..., nn.Module], *inputs: Any, causal: bool = False, skip: Mapping[str, str] | None = None) -> None:
    """Raise unless a module keeps the contract of every layer and model here.

    In evaluation mode the same inputs give the same outputs, whatever the global random state, which stays as it was; inputs stay as they were; a row's
    output does not change with the other rows; a state dict carries everything to another instance. Every trainable parameter gets a gradient. In float64
    and bfloat16 the outputs have that type and nothing is rounded to a narrower one on the way, or the module refuses in words. Of a factory also: the same
    seed gives the same weights, and device and dtype, where it takes them, are those of every parameter and buffer.

    Args:
        module: a module, which is copied, or what makes one: a class, a function, a ``functools.partial``. A factory with a parameter ``generator``, ``seed``,
            ``random_state``, ``device`` or ``dtype`` is called with it too.
        inputs: of its forward. Tensors have the batch first, at least two rows that differ; anything else is passed on as it is.
        causal: also check that an output at one position, on axis 1, does not change with later inputs.
        skip: rule -> the reason why it does not apply to this module.

    Raises:
        CheckFailed: with the rule, what it asks for, and what was seen.
        UsageError: no tensor with two different rows among the inputs, or a rule that is not there.

    Example:
        >>> check_module(lambda **where: nn.Linear(3, 4, **where), torch.randn(5, 3))
        >>> check_module(nn.Dropout(0.5), torch.randn(5, 3))
        >>> check_module(nn.BatchNorm1d(3), torch.randn(5, 3))

    When not to use it: to show that a layer computes what its paper says; compare it with a reference for that.
    """
    skip = {} if skip is None else skip
    for rule in skip:
        if rule not in RULES:
            raise unknown("rule", rule, RULES)
    rows = next((len(value) for value in inputs if isinstance(value, Tensor) and value.dim()), 0)
    if rows < 2 or all(torch.equal(value, value.flip(0)) for value in _batched(inputs, rows)):
        raise UsageError(f"inputs must have a tensor with at least two rows that differ, got {rows} rows; the first and the last must not be equal")
    checks: dict[str, Callable[[], None]] = {}
    with own_random_state():
        if isinstance(module, nn.Module):
            whole = deepcopy(module).eval()
        else:
            make = _factory(module)
            whole = make(0).eval()
            checks |= {"the seed decides the weights": lambda: _check_seed(module, make), "device and dtype are kept to": lambda: _check_where(module, make)}
        checks |= {
            "it has a repr": lambda: _check_repr(whole),
            "inputs are left alone": lambda: _check_inputs(whole, inputs),
            "evaluation is repeatable": lambda: _check_repeatable(whole, inputs),
            "no global random state": lambda: _check_random_state(whole, inputs),
            "the state dict holds all of it": lambda: _check_state(whole, inputs),
            "rows do not see each other": lambda: _check_rows(whole, inputs, rows),
            "gradients reach every parameter": lambda: _check_gradients(whole, inputs),
            "no silent cast": lambda: _check_casts(whole, inputs),
        }
        if causal:
            checks["no look ahead"] = lambda: _check_causal(whole, inputs, rows)
        for rule in RULES:
            if rule in checks and rule not in skip:
                checks[rule]()


def _factory(module: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    takes = _takes(module)

    def make(seed: int, **where: Any) -> nn.Module:
        scramble(seed)
        seeds: dict[str, Any] = {name: torch.Generator().manual_seed(seed) if name == "generator" else seed for name in _SEEDS if name in takes}
        made = module(**seeds, **where)
        if not isinstance(made, nn.Module):
            raise UsageError(f"module must be an nn.Module or make one, got {type(made).__name__}")
        return made

    return make


def _takes(factory: Callable[..., nn.Module]) -> set[str]:
    """Names that a factory may be called with; one with ``**names`` takes device and dtype."""
    parameters = inspect.signature(factory).parameters.values()
    open_ended = {"device", "dtype"} if any(p.kind is p.VAR_KEYWORD for p in parameters) else set()
    return open_ended | {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def _inside(value: Any, kind: type[T]) -> Iterator[T]:
    """Objects of a kind in an output or attribute: one, or in tuples, lists and mappings."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _inside(part, kind)


def _run(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    return list(_inside(module(*inputs), Tensor))


@torch.no_grad()
def _outputs(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    return [value.clone() for value in _run(module, _copied(inputs))]


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs)


def _batched(values: Any, rows: int) -> list[Tensor]:
    return [value for value in _inside(values, Tensor) if _is_batched(value, rows)]


def _is_batched(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _gap(a: list[Tensor], b: list[Tensor]) -> str:
    return f"outputs that differ by up to {max(((x.double() - y.double()).abs().max().item() for x, y in zip(a, b, strict=True) if x.numel()), default=0):.3g}"


def _check_repr(module: nn.Module) -> None:
    try:
        shown = repr(module)
    except Exception as error:
        raise CheckFailed("it has a repr", "repr(module) to be a text", f"{type(error).__name__}: {error}") from error
    if type(module).__name__ not in shown:
        raise CheckFailed("it has a repr", f"the name {type(module).__name__} in it", shown[:100])


def _check_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    for mode in (False, True):
        given = _copied(inputs)
        deepcopy(module).train(mode)(*given)
        for number, (before, after) in enumerate(zip(inputs, given, strict=True)):
            if isinstance(before, Tensor) and not torch.equal(before, after):
                when = "training" if mode else "evaluation"
                raise CheckFailed("inputs are left alone", f"input {number} as it was before the call, in {when}", "other values")


def _check_repeatable(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    scramble(0)
    first = _outputs(module, inputs)
    scramble(0)  # a draw from the global state is the next rule's finding
    second = _outputs(module, inputs)
    if not _same(first, second):
        raise CheckFailed("evaluation is repeatable", "the outputs of the first call in the second", _gap(first, second))


def _check_random_state(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    rule = "no global random state"
    scramble(1)
    before = states()
    first = _outputs(module, inputs)
    after = states()
    if changed := [name for name in ("torch", "numpy") if before[name] != after[name]]:
        raise CheckFailed(rule, "evaluation to leave it as it was", f"that of {', '.join(changed)} changed")
    scramble(2)
    second = _outputs(module, inputs)
    if not _same(first, second):
        raise CheckFailed(rule, "the same outputs whatever it is", _gap(first, second))


def _check_state(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    rule = "the state dict holds all of it"
    usual = vars(nn.Module()).keys()
    known = {id(one) for one in (*module.parameters(), *module.buffers(), *module.modules())}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in usual:
                continue
            where = f"{path}.{name}".lstrip(".")
            if any(id(one) not in known for one in _inside(value, Tensor)):
                raise CheckFailed(rule, "every tensor to be a parameter or a buffer", f"the plain tensor {where}, which is neither saved nor moved")
            if any(id(one) not in known for one in _inside(value, nn.Module)):
                raise CheckFailed(rule, "every module to be registered, as in an nn.ModuleList", f"modules in the plain {type(value).__name__} {where}")
    other, used = deepcopy(module), deepcopy(module)
    used.train()(*_copied(inputs))  # what training changes must be saved too
    used.eval()
    with torch.no_grad():
        for value in _inside(other.state_dict(), Tensor):
            value.copy_(torch.randn(value.shape).to(value.dtype))
    try:
        other.load_state_dict(deepcopy(used.state_dict()))
    except Exception as error:
        raise CheckFailed(rule, "another instance to load it", f"{type(error).__name__}: {error}") from error
    if not _same(first := _outputs(used, inputs), second := _outputs(other, inputs)):
        raise CheckFailed(rule, "another instance that loaded it to give the same outputs", _gap(first, second))


def _shaken(module: nn.Module) -> nn.Module:
    """A copy with every parameter moved: weights that start at zero hide what flows through them, and keep gradients from others."""
    module, source = deepcopy(module), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter += 0.1 * torch.randn(parameter.shape, generator=source).to(parameter)
    return module


def _check_rows(module: nn.Module, inputs: tuple[Any, ...], rows: int) -> None:
    module = _shaken(module)
    first = _outputs(module, inputs)
    for row in (0, rows - 1):
        second = _outputs(module, tuple(value[row : row + 1].expand_as(value) if _is_batched(value, rows) else value for value in inputs))
        a, b = ([value[row] for value in _batched(outputs, rows)] for outputs in (first, second))
        if not _near(a, b):
            raise CheckFailed("rows do not see each other", f"the output of row {row} not to change with the other rows", _gap(a, b))


def _near(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in zip(a, b, strict=True))


def _check_gradients(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    module, source = _shaken(module).train(), torch.Generator().manual_seed(0)
    for seed in range(3):  # dropout may spare a small part once
        scramble(seed)
        outputs = [value for value in _run(module, _copied(inputs)) if value.requires_grad]
        if outputs:
            sum((value * torch.randn(value.shape, generator=source).to(value)).sum() for value in outputs).backward()  # pyright: ignore[reportAttributeAccessIssue]
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()):
            seen = "none" if parameter.grad is None else "only zeros" if parameter.grad.isfinite().all() else "infinities or NaN"
            raise CheckFailed("gradients reach every parameter", f"a gradient of {name}", seen)


class _Narrowing(TorchDispatchMode):
    """Notes every operation that rounds float64 to a narrower type."""

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            if source.dtype == torch.float64 and result.is_floating_point() and result.dtype != torch.float64:
                self.seen.append(f"values rounded to {result.dtype} on the way".replace("torch.", ""))
        return result


def _check_casts(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    rule = "no silent cast"
    for dtype in (torch.float64, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        cast = deepcopy(module).to(dtype)
        given = tuple(value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value for value in inputs)
        watch = _Narrowing()
        try:
            with watch:
                outputs = _outputs(cast, given)
        except Exception as error:
            if isinstance(error, ValueError | TypeError | NotImplementedError) and name in str(error):
                continue
            raise CheckFailed(rule, f"{name} to work, or a ValueError or TypeError that names it", f"{type(error).__name__}: {error}") from error
        for value in outputs:
            if value.is_floating_point() and value.dtype != dtype:
                raise CheckFailed(rule, f"outputs in {name} where parameters and inputs are", str(value.dtype).removeprefix("torch."))
        if watch.seen:
            raise CheckFailed(rule, f"{name} to be kept from input to output", watch.seen[0])


def _check_seed(factory: Callable[..., nn.Module], make: Callable[..., nn.Module]) -> None:
    rule = "the seed decides the weights"
    a, b, c = (list(made.state_dict().values()) for made in (make(0), make(0), make(1)))
    if not _same(a, b):
        raise CheckFailed(rule, "equal weights from equal seeds", "different ones")
    if not (names := [name for name in _SEEDS if name in _takes(factory)]):
        return
    if a and _same(a, c):
        raise CheckFailed(rule, f"other weights from another {names[0]}", "equal ones")
    given: Any = torch.Generator().manual_seed(0) if names[0] == "generator" else 0
    scramble(5)
    before = states()
    made = factory(**{names[0]: given})
    after = states()
    if changed := [name for name in ("torch", "numpy") if before[name] != after[name]]:
        raise CheckFailed(rule, f"a {names[0]} to be all that is drawn from", f"the global random state of {', '.join(changed)} changed")
    if not _same(a, list(made.state_dict().values())):
        raise CheckFailed(rule, f"a {names[0]} to be all that is drawn from", "weights that change with the global random state")


def _check_where(factory: Callable[..., nn.Module], make: Callable[..., nn.Module]) -> None:
    rule, takes = "device and dtype are kept to", _takes(factory)
    for name, value in (("dtype", torch.float64), ("device", torch.device("meta"))):
        if name not in takes:
            continue
        try:
            made = make(0, **{name: value})
        except Exception as error:
            raise CheckFailed(rule, f"{name}={value} to work", f"{type(error).__name__}: {error}") from error
        for kind, tensors in (("parameter", made.named_parameters()), ("buffer", made.named_buffers())):
            for path, tensor in tensors:
                if getattr(tensor, name) != value and (name == "device" or tensor.is_floating_point()):
                    raise CheckFailed(rule, f"{name} {value} of {kind} {path}", getattr(tensor, name))


def _check_causal(module: nn.Module, inputs: tuple[Any, ...], rows: int) -> None:
    sequences = [value for value in _batched(inputs, rows) if value.dim() > 1]
    tokens = max((value.shape[1] for value in sequences), default=0)
    if tokens < 2:
        raise UsageError("causal needs an input [batch, tokens, ...] with at least two tokens")
    module = _shaken(module)
    first = _outputs(module, inputs)
    for start in sorted({1, tokens // 2, tokens - 1}):
        other = []
        for value in inputs:
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[:2] == (rows, tokens):
                later = value.clone()
                later[:, start:] = value.flip(0, 1)[:, start:]  # values the module takes: its own, from elsewhere
                value = later
            other.append(value)
        second = _outputs(module, tuple(other))
        a, b = ([value[:, :start] for value in _batched(outputs, rows) if value.dim() > 1] for outputs in (first, second))
        if not _near(a, b):
            raise CheckFailed("no look ahead", f"outputs before position {start} not to change with inputs from there on", _gap(a, b))
