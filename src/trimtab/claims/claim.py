"""A claim: arms, a measurement, and what is said about it, all fixed before the first run."""

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trimtab.claims.statements import Statement
from trimtab.core import UsageError, unknown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")  # arms and sizes become file names
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Size:
    """How large a run of a claim is. Frozen; settings are read as attributes.

    Args:
        seeds: how many seeds a full run has, 0 .. seeds - 1.
        core_minutes: what all arms and seeds cost on one core, an estimate shown before the run; it may be corrected without making records stale.
        **settings: anything JSON holds; a claim's ``measure`` reads them.

    Example:
        >>> size = Size(seeds=5, core_minutes=80, steps=3000, lengths=(1, 8))
        >>> size.steps, size.seeds, size.settings
        (3000, 5, {'steps': 3000, 'lengths': [1, 8]})
        >>> size.step
        Traceback (most recent call last):
            ...
        AttributeError: this size has no setting 'step'; it has: steps, lengths
    """

    seeds: int
    core_minutes: float | None

    def __init__(self, *, seeds: int, core_minutes: float | None = None, **settings: Any):
        if seeds < 1:
            raise UsageError(f"seeds must be at least 1, got {seeds}")
        if core_minutes is not None and not core_minutes > 0:
            raise UsageError(f"core_minutes must be above 0, got {core_minutes}; leave it out if it is not known")
        try:
            json.dumps(settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the settings of a size go into its record and must be JSON values: {error}") from error
        self.__dict__.update(seeds=seeds, core_minutes=core_minutes, _settings=MappingProxyType(settings))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON has them (tuples are lists)."""
        return json.loads(json.dumps(dict(self._settings)))

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(f"this size has no setting {name!r}; it has: {', '.join(settings)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a size is frozen, {name!r} cannot be set; make another Size")

    def __repr__(self) -> str:
        rest = "".join(f", {key}={value!r}" for key, value in self._settings.items())
        return f"Size(seeds={self.seeds}, core_minutes={self.core_minutes}{rest})"


@dataclass(frozen=True)
class Mastery:
    """What an arm must reach before its comparison means anything: an arm that did not learn its training range says nothing about other ranges.

    Args:
        metric: measured on the training distribution, on 2,000 examples at least.
        threshold: least value on every seed.
    """

    metric: str
    threshold: float = 0.98


@dataclass(frozen=True)
class PairRun:
    """What ``measure`` is handed beside its arm, seed and size.

    Attributes:
        folder: the pair's own folder, for checkpoints and logs; JSON lines and figures in it are kept, weights go when the pair is done.
        progress: callable (step, steps, values), to hand to ``fit``.
        device: where to compute.
    """

    folder: Path
    progress: Callable[[int, int, Mapping[str, float]], None]
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published result as a runnable experiment.

    Args:
        slug: METHOD or METHOD-suffix; the claim is the constant ``CLAIM`` of ``claims/<slug with _>.py``.
        title: one question, for people.
        measure: (arm, seed, size, run) -> metric -> value, a pure function but for what it writes in ``run.folder``. Evaluation draws are
            shared by the arms of a seed and differ between seeds. Metrics named ``name@8`` or ``name@5x`` form a curve.
        arms: what is compared; the order is the report's.
        primary: at most three statements, which decide the verdict.
        secondary: statements that are only shown.
        sizes: name -> :class:`Size`; a dict literal, "smoke" and "small" among its keys.
        mastery: condition on every arm (claims about generalisation).
        least_baseline_loss: what the metric "loss" of the baseline must come down to on every seed (claims about optimisation or language models).
        baseline: the arm without the method.
        paper: arm -> metric -> the paper's value, under the same keys as the measured ones.
        fingerprint: () -> name -> hash or number (initial weights, first batch, loss at step 10 of the smoke size); it shows when the code below has drifted.
        about: a paragraph for the report.

    Raises:
        UsageError: a statement about an arm that is not there, more than three primary statements, names that cannot be file names.

    Example:
        >>> from trimtab.claims import superior
        >>> claim = Claim(
        ...     slug="toy",
        ...     measure=lambda arm, seed, size, run: {"score": float(arm == "hint") + seed / 100},
        ...     arms=("standard", "hint"),
        ...     primary=(superior("score", "hint", over="standard", margin=0.5, why="half the range"),),
        ...     sizes={"smoke": Size(seeds=1)},
        ... )
        >>> claim.size("smoke").seeds
        1
    """

    slug: str
    measure: Callable[[str, int, Size, PairRun], Mapping[str, float]]
    arms: tuple[str, ...]
    primary: tuple[Statement, ...]
    sizes: Mapping[str, Size]
    secondary: tuple[Statement, ...] = ()
    mastery: Mastery | None = None
    least_baseline_loss: float | None = None
    baseline: str = "standard"
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fingerprint: Callable[[], Mapping[str, str | float]] | None = None
    title: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        if not _SLUG.fullmatch(self.slug):
            raise UsageError(f"slug must be lower-case words joined by '-', got {self.slug!r}")
        if bad := [name for name in (*self.arms, *self.sizes) if not _NAME.fullmatch(name)]:
            raise UsageError(f"arms and sizes become file names: letters, digits, '.', '_', '-', got {bad[0]!r}")
        if len(set(self.arms)) < max(1, len(self.arms)):
            raise UsageError(f"arms must be one or more different names, got {self.arms!r}")
        if self.mastery and self.least_baseline_loss is not None:
            raise UsageError("a claim has a mastery condition or a least baseline loss, got both; keep the one that fits what it compares")
        if not 1 <= len(self.primary) <= 3:
            raise UsageError(f"a claim has one to three primary statements, got {len(self.primary)}; the others are secondary")
        names = [statement.name for statement in self.statements]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two statements are called {twice.pop()!r}; give one a name")
        for arm in (self.baseline, *(arm for statement in self.statements for arm in statement.arms())):
            self.check_arm(arm)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Primary, then secondary."""
        return (*self.primary, *self.secondary)

    @property
    def source(self) -> Path:
        """The file that defines it: where ``measure`` is."""
        path = Path(inspect.getfile(self.measure))
        if not path.is_file():
            raise UsageError(f"a claim is run from its file, to which its record is bound; the measure of {self.slug!r} comes from {path}, save it as .py")
        return path

    def hash(self, size: str) -> str:
        """:func:`claim_hash` of its file."""
        self.size(size)
        return claim_hash(self.source.read_text(encoding="utf-8"), size)

    def size(self, name: str) -> Size:
        """One of its sizes; an unknown name raises UsageError with the nearest one."""
        if name not in self.sizes:
            error = unknown("size", name, self.sizes)
            raise UsageError(f"{error}; {self.slug} has no full size yet") if name == "full" else error
        return self.sizes[name]

    def check_arm(self, name: str) -> str:
        """The name, if it is an arm; an unknown one raises UsageError with the nearest one."""
        if name not in self.arms:
            raise unknown("arm", name, self.arms)
        return name

    def lacks(self, arm: str, metrics: Iterable[str]) -> list[str]:
        """What the statements and the mastery condition need of an arm and these metrics do not have, in words."""
        names = set(metrics)
        lacking = [text for statement in self.statements for text in statement.lacks(arm, names)]
        if self.mastery and self.mastery.metric not in names:
            lacking.append(repr(self.mastery.metric))
        if self.least_baseline_loss is not None and arm == self.baseline and "loss" not in names:
            lacking.append("'loss'")
        return list(dict.fromkeys(lacking))


def _canonical(node: Any) -> Any:
    """A syntax tree as nested lists. Not ast.dump or ast.unparse: the text that those give differs between Python versions, and so would hashes."""
    if isinstance(node, ast.AST):
        return [type(node).__name__, *([name, _canonical(value)] for name, value in ast.iter_fields(node) if value is not None and value != [])]
    return [_canonical(item) for item in node] if isinstance(node, list) else repr(node)


class _Keep(ast.NodeTransformer):
    """Leaves what was decided before the run: no docstrings, one size, no texts and no cost estimate."""

    def __init__(self, size: str):
        self.size, self.found = size, False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        return super().generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) in ("Claim", "Size"):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("title", "about", "core_minutes")]
            for keyword in node.keywords:
                if keyword.arg == "sizes":
                    keyword.value = self._one(keyword.value)
        return self.generic_visit(node)

    def _one(self, sizes: ast.expr) -> ast.expr:
        if not isinstance(sizes, ast.Dict) or not all(isinstance(key, ast.Constant) for key in sizes.keys):
            raise UsageError("sizes must be a dict literal with text keys in the call of Claim, so that a record can be bound to the settings of its size")
        entries = {key.value: value for key, value in zip(sizes.keys, sizes.values, strict=True) if isinstance(key, ast.Constant)}
        if self.size not in entries:
            raise unknown("size", self.size, map(str, entries))
        self.found = True
        return entries[self.size]


def claim_hash(source: str, size: str) -> str:
    """What a record is bound to: SHA-256 of the syntax of a claim file, as far as it decides what is measured and said.

    Comments, layout, docstrings, the claim's ``title`` and ``about``, ``core_minutes`` and the other sizes do not count; everything else does.
    The file is parsed, never imported.

    Args:
        source: text of the claim file.
        size: the size that was run.

    Raises:
        UsageError: the file has no call ``Claim(sizes={...})`` with a dict literal, or no such size.

    Example:
        >>> text = "CLAIM = Claim(slug='toy', sizes={'smoke': Size(steps=2), 'small': Size(steps=9)})"
        >>> claim_hash(text, "small") == claim_hash(text.replace("steps=2", "steps=3") + "  # a comment", "small")
        True
        >>> claim_hash(text, "small") == claim_hash(text.replace("steps=9", "steps=8"), "small")
        False
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise UsageError(f"the claim file is not Python: {error}") from error
    keep = _Keep(size)
    tree = keep.visit(tree)
    if not keep.found:
        raise UsageError("the claim file must hold CLAIM = Claim(..., sizes={...}) with a dict literal; none was found")
    return hashlib.sha256(json.dumps(_canonical(tree)).encode()).hexdigest()
