"""The contracts of an objective and of a run, to check on your own."""

import json
import math
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trimtab.core import UsageError, generator, unknown
from trimtab.testing.errors import CheckFailed
from trimtab.testing.global_state import own_random_state, scramble, states
from trimtab.train import Moment, Objective, Run, Sums
from trimtab.train.checkpoint import read_tree
from trimtab.train.fit import LOGGED

OBJECTIVE_RULES = (
    "it returns sums and counts",
    "parts have names of their own",
    "no global random state",
    "the generator decides the draws",
    "the batch is left alone",
    "the model is left alone",
    "halves add up",
    "what is masked adds nothing",
    "no narrow sums",
    "the gradient is the total's",
)
_NARROW = (torch.bfloat16, torch.float16)
_DRAWS = 64  # of a random objective; its halves are then held to five standard errors


def check_objective(objective: Objective, model: nn.Module, batch: Any, *, skip: Mapping[str, str] | None = None) -> None:
    """Raise unless an objective keeps its contract.

    It returns :class:`trimtab.train.Sums`: a total and a count that halves of the batch add up to, and parts likewise; nothing comes from rows whose labels
    are all -100; sums are float32 at least, and float64 for a float64 model. The same generator gives the same sums whatever the global random state, which
    stays as it was, like the batch and the model: weights, buffers, gradients, mode. The gradient agrees with a finite difference of the total.

    Args:
        objective: (model, batch, generator) -> Sums.
        model: is copied, and run in eval mode except to see that its mode is left alone.
        batch: tensors, or a mapping or sequence of them, with at least two rows; small, for it is run some dozens of times.
        skip: rule -> the reason why it does not apply. An objective that compares rows with each other does not add up over halves, and one that stops a
            gradient on purpose differs from the finite difference.

    Raises:
        CheckFailed: with the rule, what it asks for, and what was seen.
        UsageError: fewer than two rows, or a rule that is not there.

    Example:
        >>> from trimtab.train import NextToken
        >>> ids = torch.tensor([[1, 2, 3], [4, 5, 0], [2, 2, 2]])
        >>> check_objective(NextToken(), nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)), {"input_ids": ids, "labels": ids})

    When not to use it: to show that a loss is the one you mean; compare it with a reference for that.
    """
    skip = {} if skip is None else skip
    for rule in skip:
        if rule not in OBJECTIVE_RULES:
            raise unknown("rule", rule, OBJECTIVE_RULES)
    rows = {len(value) for value in _tensors(batch) if value.ndim}
    if len(rows) != 1 or min(rows) < 2:
        raise UsageError(f"batch must have tensors with the same number of rows, at least two, got {sorted(rows)}")
    kept = deepcopy(model)

    def call(what: Any = batch, seed: int = 0, on: nn.Module | None = None) -> Sums:
        return objective(deepcopy(kept).eval() if on is None else on, deepcopy(what), generator(seed, "check"))

    with own_random_state():
        checks: dict[str, Callable[[], None]] = {
            "it returns sums and counts": lambda: _check_form(call()),
            "parts have names of their own": lambda: _check_names(call()),
            "no global random state": lambda: _check_global_state(call),
            "the generator decides the draws": lambda: _check_repeatable(call),
            "the batch is left alone": lambda: _check_batch(objective, kept, batch),
            "the model is left alone": lambda: _check_model(call, kept),
            "halves add up": lambda: _check_halves(call, batch, min(rows)),
            "what is masked adds nothing": lambda: _check_masked(call, batch),
            "no narrow sums": lambda: _check_width(call, kept, batch, min(rows)),
            "the gradient is the total's": lambda: _check_gradient(call, kept, batch),
        }
        for rule in OBJECTIVE_RULES:
            if rule not in skip:
                checks[rule]()


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        made = copy(value)  # of its own kind: some are read by attribute
        made.update({name: _map(part, change) for name, part in value.items()})
        return made
    if isinstance(value, list | tuple):
        parts = [_map(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(value, lambda tensor: found.append(tensor) or tensor)
    return found


def _numbers(sums: Sums) -> dict[str, float]:
    """A Sums as numbers by name."""
    named = {"total": sums.total, "count": sums.count}
    for name, (value, number) in sums.parts.items():
        named |= {f"sum of part {name!r}": value, f"count of part {name!r}": number}
    return {name: float(value.detach()) for name, value in named.items()}


def _halves(batch: Any, rows: int) -> tuple[Any, Any]:
    cut = max(1, rows // 3)  # uneven, so that a mean does not add up by chance
    return _map(batch, lambda t: t[:cut] if t.ndim else t), _map(batch, lambda t: t[cut:] if t.ndim else t)


def _check_form(sums: Sums) -> None:
    rule = "it returns sums and counts"
    if not isinstance(sums, Sums):
        raise CheckFailed(rule, "trimtab.train.Sums", type(sums).__name__)
    for name, pair in {"total and count": sums[:2], **{f"part {name!r}": pair for name, pair in sums.parts.items()}}.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(value, Tensor) and value.ndim == 0 for value in pair):
            seen = [f"shape {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in (pair if isinstance(pair, tuple) else (pair,))]
            raise CheckFailed(rule, f"two tensors without dimensions for {name}, a sum and a count", ", ".join(seen))
        numbers = [float(value.detach()) for value in pair]
        if not all(map(math.isfinite, numbers)) or numbers[1] < 0:
            raise CheckFailed(rule, f"finite numbers for {name}, the count not negative", numbers)
    if not sums.total.requires_grad or sums.count.requires_grad:
        raise CheckFailed(rule, "a gradient for the total and none for the count", f"requires_grad {sums.total.requires_grad} and {sums.count.requires_grad}")
    if not sums.count > 0:
        raise CheckFailed(rule, "something counted in this batch", float(sums.count))


def _check_names(sums: Sums) -> None:
    if taken := sorted(str(name) for name in sums.parts if not isinstance(name, str) or name in LOGGED):
        raise CheckFailed("parts have names of their own", f"texts other than {', '.join(sorted(LOGGED))}", ", ".join(taken))


def _check_global_state(call: Callable[..., Sums]) -> None:
    rule = "no global random state"
    scramble(1)
    before, first, after = states(), _numbers(call()), states()
    if changed := [name for name in before if before[name] != after[name]]:
        raise CheckFailed(rule, f"the state of {', '.join(before)} as it was before the call", f"that of {', '.join(changed)} changed")
    if (repeated := _numbers(call())) == first:  # else it changes by itself, which is another rule's
        scramble(2)
        if (other := _numbers(call())) != first:
            raise CheckFailed(rule, f"the same sums whatever the global random state: {repeated}", other)


def _check_repeatable(call: Callable[..., Sums]) -> None:
    first, second = _numbers(call()), _numbers(call())
    if first != second:
        raise CheckFailed("the generator decides the draws", f"the same sums for a generator in the same state: {first}", second)


def _check_batch(objective: Objective, kept: nn.Module, batch: Any) -> None:
    mine = deepcopy(batch)
    objective(deepcopy(kept).eval(), mine, generator(0, "check"))
    if isinstance(batch, Mapping) and list(mine) != list(batch):
        raise CheckFailed("the batch is left alone", f"the keys {', '.join(map(str, batch))}", ", ".join(map(str, mine)))
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(_tensors(batch), _tensors(mine), strict=True)):
        raise CheckFailed("the batch is left alone", "its tensors as they were before the call", "other values")


def _check_model(call: Callable[..., Sums], kept: nn.Module) -> None:
    rule = "the model is left alone"
    for training in (True, False):
        model = deepcopy(kept).train(training)
        before = deepcopy(model)
        call(on=model)
        for (name, now), old in zip(model.named_modules(), before.modules(), strict=True):
            if now.training != old.training:
                mode = {True: "train", False: "eval"}
                raise CheckFailed(rule, f"{name or 'the model'} in {mode[old.training]} mode as before", f"{mode[now.training]} mode")
        for (name, now), old in zip(model.named_parameters(), before.parameters(), strict=True):
            if now.grad is not None or now.requires_grad != old.requires_grad:
                raise CheckFailed(rule, f"{name} without .grad and with requires_grad={old.requires_grad}; who calls it takes the gradient", "another state")
        names = dict(model.named_parameters()) if training else model.state_dict()  # a norm may move its buffers in training
        if changed := [name for name, value in names.items() if isinstance(value, Tensor) and not torch.equal(value, before.state_dict()[name])]:
            raise CheckFailed(rule, "weights and buffers as they were before the call", f"{', '.join(changed)} changed")


def _check_halves(call: Callable[..., Sums], batch: Any, rows: int, tolerance: float = 1e-4, rule: str = "halves add up", on: nn.Module | None = None) -> None:
    halves = _halves(batch, rows)
    seeds = range(_DRAWS if _numbers(call(batch, 0, on)) != _numbers(call(batch, 1, on)) else 1)
    whole = [_numbers(call(batch, seed, on)) for seed in seeds]
    parts = [[_numbers(call(half, _DRAWS + 2 * seed + k, on)) for k, half in enumerate(halves)] for seed in seeds]
    for name in whole[0]:
        a = torch.tensor([w[name] for w in whole], dtype=torch.float64)
        b = torch.tensor([[p.get(name, 0.0) for p in pair] for pair in parts], dtype=torch.float64)
        allowed = tolerance * max(float(a.abs().mean()), float(b.abs().sum(1).mean())) + 1e-12
        if len(seeds) > 1:  # a random objective: its means over many draws are compared
            allowed += 5 * float(((a.var() + b.sum(1).var()) / len(seeds)).sqrt())
        if not abs(float(a.mean() - b.sum(1).mean())) <= allowed:
            seen = f"{a.mean():.6g} for all and {b[:, 0].mean():.6g} + {b[:, 1].mean():.6g} for {max(1, rows // 3)} and {rows - max(1, rows // 3)} rows"
            raise CheckFailed(rule, f"the {name} of a batch to be the sum over its halves: a sum, not a mean", seen)


def _check_masked(call: Callable[..., Sums], batch: Any) -> None:
    """Where the convention of -100 is in use; a random objective draws otherwise for another number of rows and is not asked."""
    rule = "what is masked adds nothing"
    if not isinstance(batch, MutableMapping) or not isinstance(batch.get("labels"), Tensor) or not (batch["labels"] == -100).any():
        return
    empty = copy(batch)
    empty["labels"] = torch.full_like(batch["labels"], -100)
    if any(_numbers(sums := call(empty)).values()):
        raise CheckFailed(rule, "zeros for a batch whose labels are all -100", _numbers(sums))
    if (plain := _numbers(call())) != _numbers(call(seed=1)):
        return
    row = iter(_tensors(_map(empty, lambda t: t[:1] if t.ndim else t)))
    more = _numbers(call(_map(batch, lambda t: torch.cat([t, next(row)]) if t.ndim else next(row))))
    if not all(math.isclose(plain[name], more.get(name, 0.0), rel_tol=1e-4) for name in plain):
        raise CheckFailed(rule, f"{plain} also with one more row whose labels are all -100", more)


def _check_width(call: Callable[..., Sums], kept: nn.Module, batch: Any, rows: int) -> None:
    rule = "no narrow sums"
    for dtype, allowed in ((torch.bfloat16, (torch.float32, torch.float64)), (torch.float64, (torch.float64,))):
        model = deepcopy(kept).to(dtype).eval()
        cast = _map(batch, lambda t, to=dtype: t.to(to) if t.is_floating_point() else t)
        try:
            sums = call(cast, on=model)
        except (RuntimeError, TypeError) as error:
            raise CheckFailed(rule, f"an objective that runs on a model in {dtype}", error) from error
        if sums.total.dtype not in allowed:
            raise CheckFailed(rule, f"a total in {' or '.join(map(str, allowed))} for a model in {dtype}", sums.total.dtype)
        if sums.count.dtype in _NARROW:
            raise CheckFailed(rule, "a count in integers or float32: bfloat16 cannot count past 256", sums.count.dtype)
        if dtype == torch.float64:  # a total that was rounded on its way does not add up here
            _check_halves(call, cast, rows, 1e-6, rule, model)


def _check_gradient(call: Callable[..., Sums], kept: nn.Module, batch: Any) -> None:
    rule, step = "the gradient is the total's", 1e-6
    model = deepcopy(kept).double().eval()
    cast = _map(batch, lambda t: t.double() if t.is_floating_point() else t)
    weights = [p for p in model.parameters() if p.requires_grad]
    draw = generator(0, "check", "direction")
    direction = [torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.device) for p in weights]
    gradients = torch.autograd.grad(call(cast, on=model).total, weights, allow_unused=True)
    slope = sum(float((g * v).sum()) for g, v in zip(gradients, direction, strict=True) if g is not None)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(weights, direction, strict=True):
                p.add_(v, alpha=step * (sign if sign == 1 else -2))
        ends.append(float(call(cast, on=model).total.detach()))
    measured = (ends[0] - ends[1]) / (2 * step)
    if not math.isclose(slope, measured, rel_tol=1e-3, abs_tol=1e-6 * (1 + abs(ends[0]))):
        raise CheckFailed(rule, f"the slope of the total along a random direction, {measured:.6g}", f"{slope:.6g} from its gradient: is a part of it detached?")


class _Killed(BaseException):
    """Ends a run where it is, as SIGKILL would: no checkpoint is written."""


class _Interrupt:
    def __init__(self, step: int | None = None, kill: bool = False):
        self.step, self.kill, self.calls = step, kill, 0

    def __call__(self, moment: Moment) -> None:
        self.calls += 1
        if moment.step == self.step:
            if self.kill:
                raise _Killed
            signal.raise_signal(signal.SIGINT)

    def __repr__(self) -> str:
        return "check_resume"  # one of the settings that a run compares


def check_resume(run: Callable[[Path, Callable[[Moment], None]], Run], *, at: Sequence[int] | None = None, folder: str | Path | None = None) -> None:
    """Raise unless a training run that is interrupted ends in the same bytes as one that is not.

    For each step of ``at`` the run is stopped there as by Ctrl-C, taken up, killed further on, and taken up again; then its folder must hold the same files as
    that of a run in one go: weights, averaged weights, optimiser, states of the hooks and metrics, times aside. A finished run that is called again must change
    nothing.

    Args:
        run: (folder, interrupt) -> Run. Makes model, source, objective, hooks and all anew and calls :func:`trimtab.train.fit` in that folder, with
            ``interrupt`` as the last of its hooks. Short: about ten steps.
        at: steps to stop after, each before the last; default the first, the middle and the last but one.
        folder: where to run; default a temporary one.

    Raises:
        CheckFailed: with the rule, what it asks for, and what was seen.
        UsageError: steps out of range, or not called from the main thread, which alone sees Ctrl-C.

    Example:
        >>> from trimtab.train import NextToken, fit
        >>> ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
        >>> def run(folder, interrupt):
        ...     torch.manual_seed(0)
        ...     model = nn.Sequential(nn.Embedding(6, 4), nn.Dropout(0.1), nn.Linear(4, 6))
        ...     return fit(model, NextToken(), [{"input_ids": ids, "labels": ids}], folder=folder, steps=6, hooks=[interrupt])
        >>> check_resume(run)

    When not to use it: on a GPU, where the bytes of two whole runs may differ already; compare those first.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        raise UsageError("check_resume must be called from the main thread, with Python's own handler of SIGINT in place: it stops runs as Ctrl-C would")
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary if folder is None else folder)
        whole, steps = base / "whole", run(base / "whole", _Interrupt()).steps
        at = sorted({1, steps // 2, steps - 1}) if at is None else at
        if not at or not all(1 <= step < steps for step in at):
            raise UsageError(f"at must hold steps from 1 to {steps - 1}, before the last, got {list(at)}")
        _check_finished(run, whole)
        for step in at:
            broken = base / f"stopped-{step}"
            _stop(run, broken, step, kill=False)
            later = (step + steps) // 2
            if later > step:
                _stop(run, broken, later, kill=True)
            _resumed(run, broken, _Interrupt(), step)
            _compare(whole, broken, f"stopped after step {step}" + (f" and killed after step {later}" if later > step else ""))


def _resumed(run: Callable[..., Run], folder: Path, interrupt: _Interrupt, step: int) -> None:
    try:
        run(folder, interrupt)
    except Exception as error:
        raise CheckFailed("it resumes", f"a run stopped after step {step} to go on", f"{type(error).__name__}: {error}") from error


def _stop(run: Callable[..., Run], folder: Path, step: int, kill: bool) -> None:
    interrupt = _Interrupt(step, kill)
    try:
        _resumed(run, folder, interrupt, step)
    except (KeyboardInterrupt, _Killed):
        return
    raise CheckFailed("it can be interrupted", f"interrupt handed to fit as a hook, and an end after step {step}", f"{interrupt.calls} calls, to its end")


def _check_finished(run: Callable[..., Run], folder: Path) -> None:
    before, interrupt = {path.name: path.read_bytes() for path in _files(folder)}, _Interrupt()
    _resumed(run, folder, interrupt, 0)
    after = {path.name: path.read_bytes() for path in _files(folder)}
    if interrupt.calls or before != after:
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        seen = f"{interrupt.calls} more steps; changed: {', '.join(changed) or 'nothing'}"
        raise CheckFailed("a finished run is only read", "no step and no change when it is called again", seen)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _compare(whole: Path, broken: Path, how: str) -> None:
    """Metrics first: the first line that differs says most about where it went wrong."""
    ours, theirs = ([path.name for path in _files(folder)] for folder in (whole, broken))
    if ours != theirs:
        raise CheckFailed("the same files", f"{', '.join(ours)} in a run {how}", ", ".join(theirs))
    for name in sorted(ours, key=lambda name: not name.endswith(".jsonl")):
        if difference := next(_differences(_content(whole / name), _content(broken / name), ""), None):
            path, expected, seen = difference
            rule = "the same metrics" if name.endswith(".jsonl") else "the same state" if name.startswith("checkpoint") else f"the same {name}"
            raise CheckFailed(rule, f"{path.removeprefix('/')} = {expected} in {name} of a run {how}", seen)


def _content(path: Path) -> Any:
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".safetensors":
        return read_tree(path) if path.name.startswith("checkpoint") else load_file(path)
    return path.read_bytes()


def _differences(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in [*a, *(b.keys() - a.keys())]:
            yield from _differences(a.get(name), b.get(name), f"{path}/{name}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{path} length", len(a), len(b)
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _differences(x, y, f"{path}/{i}")
    elif isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype:
        if not torch.equal(a, b):
            worst = int((a != b).flatten().int().argmax())
            yield path, f"... {a.flatten()[worst].item()!r} ...", f"... {b.flatten()[worst].item()!r} ..."
    elif isinstance(a, Tensor) or isinstance(b, Tensor) or a != b:
        yield path, a, b
