"""The contract of a task, to run on your own."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from trimtab.core import UsageError
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks import Batch, SeqTask, Task, Vocab
from trimtab.tasks.base import checked_lengths
from trimtab.testing.errors import CheckFailed
from trimtab.testing.global_state import own_random_state, scramble, states

_SIZE = 64
_Make = Callable[[int, int, int], Batch]


def check_task(task: Task, *, lengths: Sequence[int] | None = None, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Raise unless a task keeps its contract.

    Of any task it checks shapes, types and size of batches; that ids are in the vocabulary, labels are ids or -100, padding is on the right and not supervised;
    that a batch depends on seed and step and on nothing else, the global random state included, which stays as it was; and that batches are the caller's own.
    Of a :class:`trimtab.tasks.SeqTask` also that every run of supervised ids is what ``answer`` says must follow the ids before it, that training lengths are
    kept to, and that ``score`` gives true answers 1 and wrong ones 0.

    Args:
        task: anything with ``batch`` and ``score``.
        lengths: of a SeqTask, the lengths to try; default its longest, middle and shortest training length.
        seeds: at least two.

    Raises:
        CheckFailed: with the rule, what it asks for, and what was seen.
        UsageError: too few seeds, lengths for a task that has none, or what the task itself refuses in words.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> check_task(Sorting(vocab=10))

    When not to use it: to show that a generator's distribution is right; it sees that examples are valid, not that they are likely enough.
    """
    if len(set(seeds)) < 2:
        raise UsageError(f"seeds must be at least two different ones, got {tuple(seeds)}: one seed cannot show that another changes the batch")
    _check_attributes(task)
    if lengths is not None and not isinstance(task, SeqTask):
        raise UsageError(f"lengths must be left out for {task.name}, which is no SeqTask and draws its own")
    with own_random_state():
        if not isinstance(task, SeqTask):
            make = _named(task.batch, "")
            _check_batches(task, make, seeds)
            _check_differences(make, seeds)
            return
        low, high = _check_lengths(task, seeds)
        tried = sorted(set(lengths or (low, (low + high) // 2, high)), reverse=True)
        for length in tried:
            make = _at_length(task, length)
            _check_batches(task, make, seeds)
            for seed in seeds:
                batch = make(seed, 0, _SIZE)
                _check_answers(task, batch, f"of seed {seed}, step 0, length {length}")
                _check_score(task, batch)
        _check_differences(_at_length(task, tried[0]), seeds)  # short problems may have one example only
        _check_batches(task, _named(task.batch, ""), seeds)
        for step in range(3):
            drawn = task.draw_length(seeds[0], step)
            if not _same(task.batch(seeds[0], step, _SIZE), _at_length(task, drawn)(seeds[0], step, _SIZE)):
                raise CheckFailed("training lengths", f"batch({seeds[0]}, {step}, {_SIZE}) to be the one of length = draw_length = {drawn}", "another batch")


def _check_attributes(task: Any) -> None:
    rule = "it has what a task has"
    wanted = ("name", "batch", "score") + (("vocab", "lengths") if isinstance(task, SeqTask) else ())
    if missing := [name for name in wanted if not hasattr(task, name)]:
        raise CheckFailed(rule, f"the attributes {', '.join(wanted)}", f"no {' and no '.join(missing)}")
    if isinstance(task, SeqTask) and not isinstance(task.vocab, Vocab):
        raise CheckFailed(rule, "vocab to be a Vocab", f"{task.vocab!r}, {type(task.vocab).__name__}")


def _named(make: Callable[..., Batch], how: str, **settings: int) -> _Make:
    """A batch maker whose errors say which call failed. A refusal in words stays a UsageError."""

    def call(seed: int, step: int, size: int) -> Batch:
        try:
            return make(seed, step, size, **settings)
        except UsageError:
            raise
        except Exception as error:
            raise CheckFailed("batches can be made", f"a batch from batch({seed}, {step}, {size}{how})", f"{type(error).__name__}: {error}") from error

    return call


def _at_length(task: SeqTask, length: int) -> _Make:
    return _named(task.batch, f", length={length}", length=length)


def _check_lengths(task: SeqTask, seeds: Sequence[int]) -> tuple[int, int]:
    rule = "training lengths"
    try:
        low, high = checked_lengths(task.lengths, 0)
    except UsageError:
        raise CheckFailed(rule, "lengths, whole numbers (shortest, longest) with 0 <= shortest <= longest", task.lengths) from None
    drawn = {task.draw_length(seed, step) for seed in seeds for step in range(32)}
    if not all(low <= n <= high for n in drawn) or (low < high and len(drawn) == 1):
        raise CheckFailed(rule, f"draw_length to vary in {low} .. {high}", sorted(drawn))
    return low, high


def _check_batches(task: Task, make: _Make, seeds: Sequence[int]) -> None:
    _check_form(task, make(seeds[0], 0, _SIZE), _SIZE)
    for size in (7, 1):
        try:
            batch = make(seeds[0], 0, size)
        except UsageError:  # a task may refuse, in words, a batch too small for it
            continue
        _check_form(task, batch, size)
    _check_random_state(make, seeds[0])
    _check_ownership(make, seeds)


def _check_differences(make: _Make, seeds: Sequence[int]) -> None:
    for rule, batches in (
        ("other seeds give other examples", {f"seed {seed}": make(seed, 0, _SIZE) for seed in seeds}),
        ("other steps give other examples", {f"step {step}": make(seeds[0], step, _SIZE) for step in range(3)}),
    ):
        for (a, first), (b, second) in combinations(batches.items(), 2):
            if _same(first, second):
                raise CheckFailed(rule, f"different batches for {a} and {b}", "the same bytes")


def _check_form(task: Task, batch: Batch, size: int) -> None:
    if not isinstance(batch, dict) or not {"input_ids", "labels"} <= batch.keys() or not all(isinstance(values, Tensor) for values in batch.values()):
        seen = {name: type(values).__name__ for name, values in batch.items()} if isinstance(batch, dict) else type(batch).__name__
        raise CheckFailed("a batch is a dict of tensors", "the keys input_ids and labels", seen)
    ids, labels = batch["input_ids"], batch["labels"]
    for key in ("input_ids", "labels"):
        if batch[key].dtype != torch.int64 or batch[key].ndim != 2:
            raise CheckFailed("shape and type", f"{key} to be int64 [rows, tokens]", f"{batch[key].dtype} {list(batch[key].shape)}")
    if ids.shape != labels.shape:
        raise CheckFailed("shape and type", f"labels in the shape of the ids, {list(ids.shape)}", list(labels.shape))
    rows: Any = task.rows(size) if hasattr(task, "rows") else size  # pyright: ignore[reportAttributeAccessIssue] - a mixture's hints are rows too
    if len(ids) != rows:
        raise CheckFailed("size", f"{rows} rows for size {size}", f"{len(ids)} rows")
    asked = labels != IGNORE
    vocab = getattr(task, "vocab", None)
    count = vocab.size if vocab is not None else getattr(task, "vocab_size", 2**63 - 1)
    _require((ids >= 0) & (ids < count), batch, "ids are in the vocabulary", f"ids in 0 .. {count - 1}")
    _require(~asked | (labels == ids), batch, "labels are ids", "every label to be the id at its place, or -100")
    _require(asked.any(1, keepdim=True), batch, "every row is supervised", "a label other than -100 in each row")
    _require(~asked[:, :1], batch, "the first token is not supervised", "label -100 at position 0, which nothing predicts")
    if vocab is not None:
        pad = ids == vocab.pad
        _require(~(pad & asked), batch, "pads are not supervised", f"label -100 on <pad>, id {vocab.pad}")
        _require(pad[:, 1:] | ~pad[:, :-1], batch, "padding is on the right", f"nothing but <pad>, id {vocab.pad}, after the first")


def _require(fine: Tensor, batch: Batch, rule: str, expected: str) -> None:
    if not bool(fine.all()):
        row, column = (int(i) for i in (~fine).nonzero()[0])
        seen = f"ids {batch['input_ids'][row].tolist()} with labels {batch['labels'][row].tolist()}, at position {column} of row {row}"
        raise CheckFailed(rule, expected, seen)


def _check_random_state(make: _Make, seed: int) -> None:
    rule = "no global random state"
    scramble(1)
    before, first, after = states(), _copy(make(seed, 0, _SIZE)), states()
    scramble(1)
    again = _copy(make(seed, 0, _SIZE))
    scramble(2)
    other, after_other = make(seed, 0, _SIZE), states()
    changed = [name for name in ("torch", "numpy") if before[name] != after[name]]
    # checkers of annotations draw from random, so only a state that was set, and no longer depends on the one before, is the task's doing
    changed += ["random"] * (after["random"] == after_other["random"])
    if changed:
        raise CheckFailed(rule, f"the states of {', '.join(before)} as they were before the call", f"that of {', '.join(changed)} changed")
    if not _same(first, again):
        raise CheckFailed("the same arguments give the same batch", "the bytes of the first call in the second", _difference(first, again))
    if not _same(first, other):
        raise CheckFailed(rule, "the same batch whatever the global random state is", _difference(first, other))


def _check_ownership(make: _Make, seeds: Sequence[int]) -> None:
    rule = "a batch belongs to its caller"
    batch = make(seeds[0], 0, _SIZE)
    kept = _copy(batch)
    make(seeds[1], 1, _SIZE)
    if not _same(kept, batch):
        raise CheckFailed(rule, "a batch unchanged by the next call", _difference(kept, batch))
    for name, values in batch.items():
        try:
            values.fill_(0)
        except RuntimeError as error:
            raise CheckFailed(rule, f"{name} to be writable", error) from error
    if not _same(kept, again := make(seeds[0], 0, _SIZE)):
        raise CheckFailed(rule, "a fresh batch after the caller wrote to the last one", _difference(kept, again))


def _copy(batch: Batch) -> Batch:
    return {name: values.clone() for name, values in batch.items()}


def _same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _difference(a: Batch, b: Batch) -> str:
    for name in a:
        if a[name].shape != b[name].shape:
            return f"{name} of shape {list(b[name].shape)} instead of {list(a[name].shape)}"
        if not torch.equal(a[name], b[name]):
            row = int((a[name] != b[name]).any(1).nonzero()[0])
            return f"row {row} of {name} {b[name][row].tolist()} instead of {a[name][row].tolist()}"
    return "other keys"


def _check_answers(task: SeqTask, batch: Batch, name: str) -> None:
    """Every run of supervised ids against the task's oracle."""

    def follows(prompt: list[int], run: list[int]) -> tuple[bool, str]:
        try:
            answer = list(task.answer(list(prompt)))
        except Exception as error:  # an oracle may choke on a prompt that is none: the caller says what that means
            return False, f"answer() raised {type(error).__name__}: {error}"
        return answer == run, f"answer() gives {task.vocab.show(answer)}"

    show = task.vocab.show
    for row, (ids, labels) in enumerate(zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)):
        asked = [label != IGNORE for label in labels]
        starts = [k for k in range(1, len(ids)) if asked[k] and not asked[k - 1]]
        for start in starts:
            end = next((k for k in range(start, len(ids)) if not asked[k]), len(ids))
            fits, said = follows(ids[:start], ids[start:end])
            if fits:
                continue
            seen = f"{show(ids[:start])} => {show(ids[start:end])} in row {row} {name}"
            for cut in range(start + 1, end):
                if follows(ids[:cut], ids[cut:end])[0]:
                    raise CheckFailed("the prompt is not supervised", f"label -100 on {show(ids[start:cut])}, which stands before the answer", seen)
            before = [(cut, end) for cut in range(start - 1, 0, -1)]
            after = [(start, stop) for stop in range(end + 1, len(ids) + 1)]
            for first, stop in before + after:
                if follows(ids[:first], ids[first:stop])[0]:
                    raise CheckFailed("the whole answer is supervised", f"labels on all of {show(ids[first:stop])}", seen)
            raise CheckFailed("supervised ids are the answer", said, seen)


def _check_score(task: SeqTask, batch: Batch) -> None:
    rule, kept, truth = "score", _copy(batch), task.targets(batch)
    right = task.score(truth.clone(), batch)
    if not all(isinstance(value, float) for value in right.values()):
        raise CheckFailed(rule, "a float for each name", {name: type(value).__name__ for name, value in right.items()})
    for name, value in {"exact": 1, "edit": 1, "early": 0, "late": 0}.items():
        if right.get(name, value) != value:
            raise CheckFailed(rule, f"{name} = {value} for the true answers", right)
    wrong = truth.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % task.vocab.size
    if (seen := task.score(wrong, batch)).get("exact", 0) != 0:
        raise CheckFailed(rule, "exact = 0 for answers whose first token is another", seen)
    if not _same(batch, kept):
        raise CheckFailed(rule, "the batch as it was before", _difference(kept, batch))
