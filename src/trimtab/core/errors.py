"""The errors trimtab raises on purpose. Each message names the parameter, what is allowed, what came, and the fix."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from operator import index
from types import ModuleType
from typing import Any


class TrimtabError(Exception):
    """Base of every error that trimtab raises on purpose; the command line prints it without a traceback."""


class UsageError(TrimtabError, ValueError):
    """An argument is not allowed. The command line exits with 2."""


class DamagedFile(TrimtabError, ValueError):
    """A file is not what it should be: cut short, foreign, or edited."""


class FolderInUse(TrimtabError, RuntimeError):
    """Another process holds the run folder."""


class MissingExtra(TrimtabError, ImportError):
    """An optional dependency is not installed."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UsageError:
    """The error for a name that was looked up and not found, with the nearest ones.

    Example:
        >>> print(unknown("arm", "sucessor", ["standard", "successor"]))
        unknown arm 'sucessor'; did you mean 'successor'? allowed: standard, successor
    """
    options = list(options)
    near = get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(options) if len(options) <= 12 else f"one of {len(options)} names"
    return UsageError(f"unknown {kind} {name!r}; {hint}allowed: {shown}")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    Example:
        >>> require("json", "lm").__name__
        'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the dependency is there and is itself broken: its own message is the useful one
        raise MissingExtra(f"{module} is not installed and this needs it; run: pip install 'trimtab[{extra}]'") from error


def whole(name: str, value: Any, least: int) -> int:
    """A whole number as an int, be it one of NumPy's, or an error that says what is wrong with it.

    Raises:
        UsageError: it is no whole number (a bool is none), or below the least.

    Example:
        >>> whole("size", 3, least=1)
        3
        >>> whole("size", True, least=1)
        Traceback (most recent call last):
            ...
        trimtab.core.errors.UsageError: size must be a whole number >= 1, got True
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(f"{name} must be a whole number >= {least}, got {value!r}")
    return number
