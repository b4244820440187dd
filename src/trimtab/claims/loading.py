"""Find claims by name, and load them from their files."""

import re
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from trimtab.claims.claim import Claim
from trimtab.core import UsageError, cards, unknown

_HERE = Path(__file__).parent


def slugs() -> list[str]:
    """The claims of this package, found by reading their files: none is imported.

    Example:
        >>> "claim" in slugs()
        False
    """
    found = [path for path in sorted(_HERE.glob("*.py")) if re.search(r"^CLAIM\b", path.read_text(encoding="utf-8"), re.M)]
    return [path.stem.replace("_", "-") for path in found]


def source(slug: str) -> Path:
    """The file of a claim.

    Raises:
        UsageError: there is none of that name; the nearest one is offered.
    """
    if slug in (known := slugs()):  # looked up, never joined to a path: a slug may come from a record
        return _HERE / f"{slug.replace('-', '_')}.py"
    if slug in cards():
        raise UsageError(f"{slug!r} is planned and has no claim yet; claims: {', '.join(known)}")
    raise unknown("claim", slug, known)


def load(slug: str) -> Claim:
    """A claim of this package. Imports its file, and with it what it measures with.

    Raises:
        UsageError: there is none of that name; the nearest one is offered.

    Example:
        >>> load("task-hinting").baseline
        'standard'
    """
    claim = load_file(source(slug))
    if claim.slug != slug:
        raise UsageError(f"the claim in {source(slug).name} must have the slug {slug!r}, got {claim.slug!r}")
    return claim


def run_file(path: Path) -> ModuleType:
    """A Python file as a module of its own."""
    name = f"trimtab_claim_{path.stem}"
    if path.suffix != ".py" or not (spec := spec_from_file_location(name, path)) or not spec.loader:
        raise UsageError(f"a claim file must be a .py file, got {path}")
    module = sys.modules[name] = module_from_spec(spec)  # known before it runs: dataclasses of the file look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_file(path: str | Path) -> Claim:
    """The claim in a Python file, which is run as a module.

    Args:
        path: a file with a constant ``CLAIM``; a claim of one's own need not lie in the package.

    Raises:
        UsageError: the file is not there, or holds no claim whose ``measure`` it defines.

    Example:
        >>> load_file(Path(__file__).with_name("task_hinting.py")).slug
        'task-hinting'
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"there is no claim file {path}")
    module = import_module(f"trimtab.claims.{path.stem}") if path.parent == _HERE else run_file(path)
    claim = getattr(module, "CLAIM", None)
    if not isinstance(claim, Claim):
        raise UsageError(f"{path} must define CLAIM = Claim(...), got {type(claim).__name__}")
    if claim.source.resolve() != path:
        raise UsageError(f"measure must be defined in the claim's own file {path.name}, to which its records are bound, got one from {claim.source.name}")
    return claim
