"""Train and judge a task of one's own by length: what ``trimtab length`` runs.

Its claim file is written for the task (:func:`claim_text`), so that workers, resuming, records and the report are those of any claim.
"""

import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

from trimtab.claims.claim import PairRun, Size
from trimtab.claims.loading import run_file
from trimtab.core import UsageError, derive, generator, unknown
from trimtab.nn import Transformer
from trimtab.tasks import MARKS, LengthTask, SeqTask, WithSpecials, candidate_hints
from trimtab.train import evaluate_lengths, fit_with_hints
from trimtab.train.hint_search import EQUAL, MASTERED, STANDARD

AUTO = "auto:"  # before the name of a hint that can be made of any task


def _class(spec: str, what: str) -> tuple[ModuleType, type]:
    """The class that FILE.py:NAME means."""
    file, colon, name = spec.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py" or not name.isidentifier():
        raise UsageError(f"{what} must be FILE.py:CLASS, got {spec!r}")
    if not path.is_file():
        raise UsageError(f"{what} must be in a file that exists, and there is no {file}")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # its neighbours can be imported, as where Python runs the file
    try:
        module = run_file(path.resolve())
    except Exception as error:  # whatever stands in the user's file
        raise UsageError(f"{what}: {file} cannot be imported: {type(error).__name__}: {error}") from error
    found = {key: value for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__}
    if name not in found:
        near = unknown("class", name, found) if found else UsageError("it defines no class")
        raise UsageError(f"{what}: {file} has no class {name!r}; {str(near).partition('; ')[2] or near}")
    return module, found[name]


def load_task(spec: str, *, main: SeqTask | None = None) -> SeqTask:
    """A task, or a hint for one, from a file of the user's.

    Args:
        spec: FILE.py:CLASS. A task's class is called without arguments; a hint's with the main task if its constructor takes one.
        main: the task that a hint is for.

    Raises:
        UsageError: no such file or class, a file that cannot be imported, a class that is no :class:`trimtab.tasks.SeqTask` or cannot be made, or a hint with
            another vocabulary than the task's.

    Example:
        >>> load_task("nowhere.py:Task")
        Traceback (most recent call last):
            ...
        trimtab.core.errors.UsageError: the task must be in a file that exists, and there is no nowhere.py
    """
    what = "the task" if main is None else "the hint"
    _, kind = _class(spec, what)
    if not issubclass(kind, SeqTask):
        raise UsageError(f"{what} {spec} must be a subclass of trimtab.tasks.SeqTask, which has batch(seed, step, size); got a plain class")
    takes = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(takes) > (main is not None):
        raise UsageError(f"{what} {spec} must be made {'with the task alone' if main else 'without arguments'}, its constructor needs {takes[-1].name!r}")
    try:
        made: Any = kind(*[main] if takes else [])
    except Exception as error:
        raise UsageError(f"{what} {spec} cannot be made: {type(error).__name__}: {error}") from error
    for name in ("name", "vocab", "lengths"):
        if not hasattr(made, name):
            raise UsageError(f"{what} {spec} must have the attribute {name!r}; see trimtab.tasks.SeqTask")
    if not isinstance(made.name, str) or not made.name.isprintable() or not 0 < len(made.name) <= 60:
        raise UsageError(f"{what} {spec} must have a name of 1 to 60 printable characters, got {made.name!r}")
    if main is not None and made.vocab != main.vocab:
        raise UsageError(f"{what} {spec} must have the task's vocabulary, {main.vocab}, got {made.vocab}; give both all special tokens of either")
    return made


def judged_lengths(task: SeqTask, asked: Sequence[int] = ()) -> list[int]:
    """The lengths that a task is judged on: those that are asked for, or 1 to 5 times its longest training length as far as it has examples of them.

    Raises:
        UsageError: the task has no examples of a length that is asked for, or of none beyond its training lengths.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> judged_lengths(Sorting(lengths=(1, 8)))
        [8, 12, 16, 20, 24, 32, 40]
        >>> judged_lengths(Sorting(vocab=10, unique=True, lengths=(1, 8)))
        [8]
    """
    longest = task.lengths[1]
    if asked:
        for length in asked:
            task.check_length(length)
        return sorted({longest, *asked})
    found = sorted({round(times * longest) for times in (1, 1.5, 2, 2.5, 3, 4, 5)})
    return [length for length in found if task.has_length(length)]


def arms(task: str, hints: Mapping[str, str]) -> tuple[SeqTask, dict[str, LengthTask]]:
    """The main task and its hints, as a claim's settings name them. With a generic hint, the vocabulary of all arms is wider by the marks of these."""
    main = load_task(task)
    found: dict[str, LengthTask] = {name: load_task(spec, main=main) for name, spec in hints.items() if not spec.startswith(AUTO)}
    if len(found) < len(hints):
        wide, generic = candidate_hints(main)
        found = {name: WithSpecials(hint, MARKS) for name, hint in found.items() if isinstance(hint, SeqTask)}
        return wide, {name: found[name] if name in found else generic[spec.removeprefix(AUTO)] for name, spec in hints.items()}
    return main, found


def measure(arm: str, seed: int, size: Size, run: PairRun) -> dict[str, float]:
    """Train one arm and judge it; ``size`` has the settings that :func:`claim_text` wrote."""
    main, hints = arms(size.task, size.hints)
    model = Transformer(
        main.vocab.size, size.dim, size.layers, size.heads, positions=size.positions, generator=generator(seed, "weights"), device=run.device
    )
    mix = {{EQUAL: main, **hints}[arm]: size.share} if arm != STANDARD else {}
    trained = fit_with_hints(
        model, main, mix, folder=run.folder, steps=size.steps, batch_size=size.batch_size, lr=size.lr, seed=derive(seed, "training"), device=run.device,
        progress=run.progress,
    ).averaged  # fmt: skip
    rows = evaluate_lengths(trained, main, size.lengths, examples=size.examples, seed=derive(seed, "test"))
    return {f"{name}@{row['length']}": row[name] for row in rows for name in ("exact", "edit", "token", "early", "late")}


def digest(spec: str) -> str:
    """SHA-256 of the file of FILE.py:CLASS, so that a record is bound to the task it was made with."""
    return hashlib.sha256(Path(spec.rpartition(":")[0]).read_bytes()).hexdigest()


def claim_text(slug: str, name: str, settings: Mapping[str, Any], *, seeds: int, longest: int, decide: int) -> str:
    """The claim file of a task of one's own.

    Args:
        slug: of the claim.
        name: of the task, for people.
        settings: what :func:`measure` reads, ``lengths`` and ``hints`` (arm -> FILE.py:CLASS) among them.
        seeds: how many.
        longest: training length, whose examples a model must have learnt.
        decide: the length whose edit similarity decides.
    """
    hints = list(settings["hints"])
    arms = (STANDARD, EQUAL, *hints) if hints else (STANDARD,)
    why = '"margin": 0.05, "why": "one token in twenty: less would not change what anyone trains"'
    contrasts = [
        f'superior("edit@{decide}", {hint!r}, over={other!r}, name={f"{hint} helps, against {other}"!r}, **_MARGIN),' for hint in hints for other in arms[:2]
    ]
    falls = 'trend("edit", "standard", lower_is_better=True, name="edit similarity falls with length", margin=0.001, why="a hundredth over ten more items"),'
    primary, secondary = (contrasts[:2], contrasts[2:]) if hints else ([falls], [])
    title = f"Does a hint make {name} hold on longer examples?" if hints else f"Does {name} get worse on longer examples than it was trained on?"
    # built from an indented text: in this file no line begins as that of a claim does
    text = f'''
        """The claim of a task of one's own. Written by `trimtab length`, which runs it."""

        from trimtab.claims import Claim, Mastery, PairRun, Size, own_task, superior, trend


        def measure(arm: str, seed: int, size: Size, run: PairRun) -> dict[str, float]:
            return own_task.measure(arm, seed, size, run)


        _MARGIN = {{{why}}}

        CLAIM = Claim(
            slug={slug!r},
            title={title!r},
            measure=measure,
            arms={arms!r},
            primary=({" ".join(primary)}),
            secondary=({" ".join(secondary)}),
            mastery=Mastery("exact@{longest}", threshold={MASTERED}),
            sizes={{"small": Size(seeds={seeds}, **{dict(settings)!r})}},
        )
    '''
    return dedent(text).lstrip()
