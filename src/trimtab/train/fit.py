"""One training loop, to be read from top to bottom.

A step draws ``accumulate`` batches, adds up the gradients of their sums, divides once by the global count, clips, and steps. Everything random in it is a
function of the seed and the step, so a run that was interrupted goes on from its last checkpoint to the bytes it would have had.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trimtab.core import TrimtabError, UsageError, derive, generator, locked, whole
from trimtab.nn.sampling import evaluating
from trimtab.nn.weights import available
from trimtab.optim import param_groups
from trimtab.train import checkpoint
from trimtab.train.average import WeightAverage
from trimtab.train.batches import NO_PROMISE, Batches, seed_global
from trimtab.train.objective import Objective, Sums
from trimtab.train.restoring import own_random_state, own_rates
from trimtab.train.run import Metrics, Run, describe, describe_model, describe_optimizer, enter
from trimtab.train.terminal import Progress, ctrl_c, log

SAVE_SECONDS = 60.0  # between checkpoints, and at least fifty times what the last one took: two per cent of the run
LOGGED = {"step", "loss", "grad_norm", "lr", "seconds"}


class NonFiniteLoss(TrimtabError, FloatingPointError):
    """The loss or the norm of its gradient is NaN or infinite; the weights are those before the step."""


class Moment(NamedTuple):
    """What a hook is handed after each step.

    Attributes:
        step: steps done, 1 .. steps.
        loss, grad_norm: of this step; the norm is the one before clipping.
        line: what was logged at this step, evaluation included; empty where nothing was.
    """

    step: int
    steps: int
    model: nn.Module
    optimizer: Optimizer
    loss: float
    grad_norm: float
    line: Mapping[str, Any]


def fit(
    model: nn.Module,
    objective: Objective,
    source: Any,
    *,
    folder: str | Path,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer] | None = None,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.98),
    schedule: Callable[[int], float] | None = None,
    accumulate: int = 1,
    clip: float | None = 1.0,
    average: float | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    evaluate_every: int | None = None,
    hooks: Sequence[Callable[[Moment], object]] = (),
    checkpoint_every: int | None = None,
    log_every: int | None = None,
    autocast: torch.dtype | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[int, int, Mapping[str, Any]], None] | None = None,
) -> Run:
    """Train a model in place, in a folder that the same call resumes.

    Called again, a finished run is read back and an unfinished one goes on from its last checkpoint, to the same bytes as without the interruption (times in
    the metrics aside). That takes a source with ``batch(seed, step, size)``; an iterable is drawn forward on resume, and :attr:`Run.notes` says what that
    cannot promise. Torch's global random state is a function of seed and step inside the run (dropout is reproducible) and the caller's own again outside it;
    Python's and NumPy's are not touched. Threads of a process share that state, so one fit at a time; several at once take several processes.

    Args:
        model: any module. Its mode on return is eval.
        objective: (model, batch, generator) -> :class:`Sums`.
        source: has ``batch(seed, step, size)``, or iterates over batches and is iterated again when exhausted. A step draws batches step * accumulate + i.
        folder: made where missing; held by one process at a time.
        steps: optimiser steps of the whole run, >= 1.
        batch_size: for a source with ``batch``; an iterable has its own.
        seed: >= 0, of batches, objective and dropout. The model's initial weights are the caller's.
        optimizer: None is AdamW with the next three arguments on :func:`trimtab.optim.param_groups`; or an optimiser; or a callable that makes one of the
            model's trainable parameters.
        lr, weight_decay, betas: of the default optimiser, and only of that.
        schedule: step (from 0) -> multiplier of every group's rate, a pure function; None is a constant rate.
        accumulate: batches a step, >= 1; their sums and counts add up as in one large batch. One that counts nothing leaves the weights, with a warning.
        clip: largest norm of the gradient; None does not clip. The norm is logged either way.
        average: decay of a :class:`WeightAverage`, as 0.999, or None.
        evaluate: model -> values to log. It gets the averaged weights where there are any, in eval mode and without gradients.
        evaluate_every: steps between evaluations; the last step always has one, None only that.
        hooks: called with a :class:`Moment` after each step. A hook with ``state_dict`` and ``load_state_dict`` (tensors and plain values) is in the
            checkpoints; one that changes the model also has ``restore(model, optimizer, state)``, which does so again before weights are loaded.
        checkpoint_every: steps between checkpoints; None is about once a minute. Before the last step there is one where an evaluation or a hook
            follows, which may fail. Two are kept, and one of a finished run.
        log_every: steps between lines of metrics, each the mean since the one before; None is a hundredth of the run, at most 100.
        autocast: ``torch.bfloat16`` runs the objective under autocast; None leaves types alone.
        device: where to move the model, and the batches; None is where the model is.
        progress: called with (step, steps, line) at log times, in place of the bar or the lines on stderr.

    Returns:
        The :class:`Run`: folder, model, averaged model, metrics.

    Raises:
        UsageError: an argument is not allowed, or the folder holds a run of other settings (objects are compared by their repr, those of a class without
            one by their plain attributes, functions by name).
        NonFiniteLoss: with the step, the batch and what to try; also for weights that are no longer finite, which are not saved.
        FolderInUse: another process trains in the folder.
        DamagedFile: no checkpoint in the folder can be read.
        NotWritten: disk full and the like; the checkpoint before is whole.
        KeyboardInterrupt: after Ctrl-C, with a checkpoint of the step it came in.

    Example:
        >>> import tempfile
        >>> from trimtab.train import NextToken, fit
        >>> model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
        >>> ids = torch.arange(5).repeat(4, 1)
        >>> run = fit(model, NextToken(), [{"input_ids": ids, "labels": ids}], folder=tempfile.mkdtemp(), steps=50, lr=0.1)
        >>> run.steps, run.metrics()[-1]["loss"] < 0.1
        (50, True)

    When not to use it: a model that one device cannot hold, several losses with optimisers of their own (a GAN), or a loop you trust: every part works without.
    """
    for name, value, allowed, fine in (
        ("model", model, "a torch.nn.Module", isinstance(model, nn.Module)),
        ("objective", objective, "a callable object, such as NextToken(), and no class", callable(objective) and not isinstance(objective, type)),
        ("source", source, "an object, and no class", not isinstance(source, type)),
        ("folder", folder, "a path in UTF-8, or safetensors cannot open its files", _is_path(folder)),
        ("lr", lr, "a finite number >= 0", isinstance(lr, Real | Tensor) and 0 <= lr < math.inf),
        ("weight_decay", weight_decay, ">= 0 and finite", isinstance(weight_decay, Real) and 0 <= weight_decay < math.inf),
        ("clip", clip, "a finite number > 0, or None", clip is None or (isinstance(clip, Real) and 0 < clip < math.inf)),
        ("schedule", schedule, "a callable of the step, or None", schedule is None or callable(schedule)),
        ("evaluate", evaluate, "a callable of the model, or None", evaluate is None or callable(evaluate)),
        ("evaluate_every", evaluate_every, "left out where there is no evaluate", evaluate is not None or evaluate_every is None),
        ("hooks", hooks, "a sequence of callables", isinstance(hooks, Sequence) and all(map(callable, hooks))),
        ("progress", progress, "a callable of (step, steps, line), or None", progress is None or callable(progress)),
        ("autocast", autocast, "torch.bfloat16 or None (float16 needs a loss scaler, which fit has not)", autocast in (None, torch.bfloat16)),
    ):
        if not fine:
            raise UsageError(f"{name} must be {allowed}, got {value!r}")
    steps, seed, accumulate = whole("steps", steps, 1), whole("seed", seed, 0), whole("accumulate", accumulate, 1)
    evaluate_every = None if evaluate_every is None else whole("evaluate_every", evaluate_every, 1)
    checkpoint_every = None if checkpoint_every is None else whole("checkpoint_every", checkpoint_every, 1)
    log_every = max(1, min(100, steps // 100)) if log_every is None else whole("log_every", log_every, 1)
    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device is not None:
        model.to(place := available(device))
    opt = _optimizer(model, optimizer, lr, weight_decay, betas)
    batches = Batches(source, seed, batch_size, place)
    averages = WeightAverage(average) if average is not None else None
    folder, hooks = Path(folder), tuple(hooks)
    with_state = tuple(hook for hook in hooks if hasattr(hook, "state_dict") or hasattr(hook, "restore"))  # the others may come and go
    bare = getattr(model, "_orig_mod", model)  # torch.compile wraps a model and prefixes the names of its weights
    settings = {
        "model": describe_model(bare), "objective": objective, "source": batches.setting, "optimizer": describe_optimizer(opt),
        "steps": steps, "batch_size": batch_size, "seed": seed, "schedule": schedule, "accumulate": accumulate, "clip": clip, "average": average,
        "evaluate": evaluate, "evaluate_every": evaluate_every, "hooks": with_state, "log_every": log_every, "autocast": autocast,
    }  # fmt: skip

    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        stack.enter_context(own_random_state(place))
        if schedule is not None:
            stack.enter_context(own_rates(opt))
        stop = stack.enter_context(ctrl_c())
        saved = checkpoint.newest(folder) or {"step": 0, "window": {}, "lines": 0}
        start = step = saved["step"]
        window = saved["window"]  # sums and counts since the last line of metrics
        notes = enter(folder, describe(settings), bare, place, () if batches.by_step else (NO_PROMISE,), step, steps)
        if start:
            _restore(saved, model, opt, averages, with_state)
        metrics = stack.enter_context(Metrics(folder / "metrics.jsonl", saved["lines"]))
        del saved  # it is as large as model and optimiser together
        checkpoint.flatten({"hooks": _states(with_state)})  # what cannot be saved is refused now, not a minute later
        show = stack.enter_context(Progress(start, steps, progress))
        next_save, began = time.monotonic() + SAVE_SECONDS, time.monotonic() - metrics.seconds
        model.train()

        while step < steps:
            if schedule is not None:
                if not math.isfinite(share := schedule(step)):
                    raise UsageError(f"schedule must give finite numbers, got {share} for step {step}")
                for group in opt.param_groups:
                    group["lr"] = group.setdefault("initial_lr", float(group["lr"])) * share
            sums = _add_gradients(model, objective, batches, opt, step, accumulate, autocast)
            gradients = [p.grad for group in opt.param_groups for p in group["params"] if p.grad is not None]
            # Several processes would add up the gradients and the sums here: what follows divides once, by the global count.
            total, count = sums["loss"]
            if not 0 <= count < math.inf:
                raise UsageError(f"objective must count what it sums over, a finite number >= 0, got {count} in step {step + 1}")
            loss, norm = (total / count, _norm(gradients) / count) if count else (total, 0.0)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                found = f"the loss is {loss} and its gradient's norm {norm} in step {step + 1}; the step was not taken"
                raise NonFiniteLoss(f"{found}. Its data: {batches.names(step, accumulate)}. {_advice(opt, clip)}")
            if count:
                torch._foreach_mul_(gradients, (min(1.0, clip / (norm + 1e-6)) if clip else 1.0) / count)  # pyright: ignore[reportPrivateImportUsage]
                opt.step()
            else:
                log.warning("step %d left the weights as they are: the objective counted nothing in %s", step + 1, batches.names(step, accumulate))
            if averages:
                averages.update(bare)
            step += 1

            line = {}
            for name, (value, number) in {**sums, "grad_norm": (norm, float(count > 0))}.items():
                before = window.get(name, (0.0, 0.0))
                window[name] = before[0] + value, before[1] + number
            if step % log_every == 0 or step == steps:
                line = {name: value / number if number else None for name, (value, number) in window.items()}
                line["lr"] = float(opt.param_groups[0]["lr"])
                window = {}
            if evaluate and (step == steps or (evaluate_every and step % evaluate_every == 0)):
                seed_global(derive(seed, "global", "evaluate", step), place)
                with averages.swapped(bare) if averages else nullcontext(), evaluating(bare), torch.no_grad():
                    values = {name: float(value) for name, value in evaluate(model).items()}
                _refuse_names("evaluate", values, {*sums, *LOGGED})
                line |= values
            if line:
                line = {"step": step, **line, "seconds": round(time.monotonic() - began, 3)}
                metrics.write(line)
            show(step, line)
            for hook in hooks:
                hook(Moment(step, steps, model, opt, loss, norm, line))

            due = step % checkpoint_every == 0 if checkpoint_every else time.monotonic() >= next_save
            due |= step == steps - 1 and bool(evaluate or hooks)  # an evaluation or a hook that fails after the last step costs that step, not the run
            if due or stop.is_set() or step == steps:
                saving = time.monotonic()
                if spoilt := next((name for name, p in bare.named_parameters() if not bool(p.isfinite().all())), None):
                    found = f"after step {step} the weight {spoilt} is not finite, and no checkpoint is made of it"
                    raise NonFiniteLoss(f"{found}. Its data: {batches.names(step - 1, accumulate)}. {_advice(opt, clip)}")
                metrics.sync()
                state = {
                    "step": step, "window": window, "lines": metrics.lines,
                    "model": bare.state_dict(), "average": averages.state_dict() if averages else None, "optimizer": opt.state_dict(),
                    "hooks": _states(with_state),
                }  # fmt: skip
                checkpoint.save(folder, step, state)
                del state
                next_save = time.monotonic() + max(SAVE_SECONDS, 50 * (time.monotonic() - saving))
            if stop.is_set():
                message = f"stopped after step {step} of {steps}, with a checkpoint in {folder}; make the same call again to go on"
                log.warning(message)
                raise KeyboardInterrupt(message)

        if start < steps or not (folder / "model.safetensors").exists():
            if averages:
                with averages.swapped(bare):
                    checkpoint.export(folder / "averaged.safetensors", bare)
            checkpoint.export(folder / "model.safetensors", bare)  # last: where it lies, the run is finished
        checkpoint.prune(folder, step, 1)
        opt.zero_grad()
        model.eval()
        return Run(folder, model, steps, notes)


def _optimizer(model: nn.Module, given: Any, lr: float, weight_decay: float, betas: tuple[float, float]) -> Optimizer:
    if given is None:
        lr = lr if isinstance(lr, Tensor) else float(lr)
        # fused is the fastest by far for small models, on the CPU too
        return AdamW(param_groups(model, weight_decay), lr=lr, betas=betas, fused=all(p.is_floating_point() for p in model.parameters()))
    if (lr, weight_decay, tuple(betas)) != (1e-3, 0.01, (0.9, 0.98)):
        raise UsageError("lr, weight_decay and betas belong to the default optimizer; set them on the one you hand in, or leave optimizer=None")
    optimizer = given if isinstance(given, Optimizer) else given([p for p in model.parameters() if p.requires_grad])
    own = {id(p) for p in model.parameters()}
    if strangers := sum(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise UsageError(f"optimizer must hold the model's parameters only, {strangers} are not, and checkpoints would miss them; make them part of the model")
    return optimizer


def _add_gradients(
    model: nn.Module, objective: Objective, batches: Batches, optimizer: Optimizer, step: int, accumulate: int, autocast: torch.dtype | None
) -> dict[str, tuple[float, float]]:
    """Leave in ``.grad`` the gradients of the step's sums; return these sums and counts, of the loss and of each part."""
    optimizer.zero_grad()
    found: list[Sums] = []
    for i in range(accumulate):
        n = step * accumulate + i
        batch = batches(n)  # which also seeds what dropout draws from
        with torch.autocast(batches.device.type, autocast) if autocast else nullcontext():
            sums = objective(model, batch, generator(batches.seed, "objective", step, i))
        if not isinstance(sums, Sums) or not all(isinstance(value, Tensor) for value in sums[:2]):
            got = f"Sums of {type(sums.total).__name__} and {type(sums.count).__name__}" if isinstance(sums, Sums) else type(sums).__name__
            raise UsageError(f"objective must return Sums(total, count), two tensors, got {got}")
        if sums.total.ndim or not sums.total.requires_grad:
            got = f"shape {tuple(sums.total.shape)}, requires_grad={sums.total.requires_grad}"
            raise UsageError(f"objective must return a total that has no dimensions and needs a gradient, got {got}; sum it, and look for a detach()")
        sums.total.backward()
        parts = {name: (value.detach(), number.detach()) for name, (value, number) in sums.parts.items()}
        found.append(Sums(sums.total.detach(), sums.count.detach(), parts))  # else every graph of the step stays in memory
    names = {name for sums in found for name in sums.parts}
    _refuse_names("objective", names, LOGGED)
    # Only here are numbers asked for, so that a GPU is waited for once a step.
    added = {"loss": (math.fsum(float(s.total) for s in found), math.fsum(float(s.count) for s in found))}
    for name in sorted(names):
        pairs = [s.parts[name] for s in found if name in s.parts]
        added[name] = (math.fsum(float(t) for t, _ in pairs), math.fsum(float(c) for _, c in pairs))
    return added


def _norm(gradients: list[Tensor]) -> float:
    if not gradients:
        raise UsageError("no parameter of the optimizer got a gradient; look for a detach() in the objective, or parameters that the optimizer was not given")
    device, wide = gradients[0].device, torch.float64 if gradients[0].device.type == "cpu" else torch.float32
    norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
    return float(torch.linalg.vector_norm(torch.stack([norm.to(device, wide) for norm in norms])))


def _refuse_names(parameter: str, names: Iterable[str], taken: Iterable[str]) -> None:
    if clash := set(names) & set(taken):
        raise UsageError(f"{parameter} must not use the names of other logged values, got {', '.join(sorted(clash))}; rename it")


def _advice(optimizer: Optimizer, clip: float | None) -> str:
    lr = optimizer.param_groups[0]["lr"]
    return f"Try a lower rate (now {lr:.3g}), a longer warm-up, a smaller clip (now {clip}), or look at those examples; the same call would end here again"


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and not any("\ud800" <= c <= "\udfff" for c in str(value))


def _states(hooks: Iterable[Any]) -> list[Any]:
    return [hook.state_dict() if hasattr(hook, "state_dict") else None for hook in hooks]


def _restore(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer, averages: WeightAverage | None, hooks: Iterable[Any]) -> None:
    pairs = list(zip(hooks, state["hooks"], strict=True))
    for hook, saved in pairs:
        if hasattr(hook, "restore"):
            hook.restore(model, optimizer, saved)
    bare = getattr(model, "_orig_mod", model)
    try:
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        fix = "A hook that changes the model must do it again in restore(model, optimizer, state)"
        raise UsageError(f"the checkpoint of step {state['step']} does not fit the model: {error}. {fix}") from error
    # load_state_dict casts floating-point state to its parameter's type, which rounds an optimiser's float32 state of bf16 weights
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, saved in state["optimizer"].get("state", {}).items():
        now = optimizer.state.get(parameters[index], {}) if index in range(len(parameters)) else {}
        for name in now.keys() & saved.keys():
            if isinstance(saved[name], Tensor) and saved[name].dtype != now[name].dtype:
                now[name] = saved[name].to(now[name].device)
    if averages:
        averages.load_state_dict(state["average"], bare)
    for hook, saved in pairs:
        if hasattr(hook, "load_state_dict"):
            hook.load_state_dict(saved)
