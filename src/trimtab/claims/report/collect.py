"""Which records there are, and which of them decides a claim."""

import ast
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trimtab
from trimtab.claims.claim import claim_hash
from trimtab.claims.loading import slugs, source
from trimtab.claims.record import find_records, read_record, stale
from trimtab.claims.report.view import View, text
from trimtab.core import TrimtabError, UsageError, cards


@dataclass(frozen=True, eq=False)
class Entry:
    """A record and where it lies.

    Attributes:
        view: what it says.
        path: its file.
        known: whether the installed package has its claim.
        own: whether it is of the claim file beside it, which is none of the package's: a task of one's own.
        stale: why it no longer speaks for the installed package, or "".
        whole: whether it has every arm of its claim and as many seeds as its size asks for.
    """

    view: View
    path: Path
    known: bool = True
    own: bool = False
    stale: str = ""
    whole: bool = True


def packaged() -> Path:
    """The folder of the records that come with trimtab: in the package, or beside ``src`` in a checkout."""
    package = Path(trimtab.__file__).parent
    inside = package / "records"
    return package.parents[1] / "records" if package.parent.name == "src" and not inside.exists() else inside


def plan(slug: str, size: str) -> tuple[tuple[str, ...], int]:
    """The arms of a claim and how many seeds one of its sizes has; none and 0 where the package has no such claim, or its file computes them.

    The file is parsed, not imported: a claim loads torch, and the list of methods should not.

    Example:
        >>> plan("task-hinting", "small")
        (('standard', 'standard-equal-tokens', 'successor', 'count'), 5)
        >>> plan("task-hinting", "no-such-size"), plan("no-such-claim", "small")
        ((('standard', 'standard-equal-tokens', 'successor', 'count'), 0), ((), 0))
    """
    arms: Any = ()
    seeds: Any = 0
    with suppress(UsageError, SyntaxError, ValueError):  # no such claim, no Python, no literal
        calls = [node for node in ast.walk(ast.parse(source(slug).read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        for keyword in next((call.keywords for call in calls if getattr(call.func, "id", "") == "Claim"), ()):
            match keyword:
                case ast.keyword("arms", value):
                    arms = ast.literal_eval(value)
                case ast.keyword("sizes", ast.Dict(names, sizes)):
                    chosen = next((made for name, made in zip(names, sizes, strict=True) if getattr(name, "value", "") == size), None)
                    seeds = next((ast.literal_eval(k.value) for k in getattr(chosen, "keywords", ()) if k.arg == "seeds"), 0)
    return arms, seeds


def read_entry(path: Path) -> Entry:
    """One record.

    Raises:
        DamagedFile: it is not one.
    """
    record = read_record(path)
    arms, seeds = plan(record["slug"], record["size"])
    whole = len(record["seeds"]) >= seeds and {*arms} <= {*record["arms"]}
    known = record["slug"] in slugs()
    own = not known and _beside(path, record)
    return Entry(View(record, arms), path, known, own, "" if own else "; ".join(stale(record)), whole)


def _beside(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether the claim file beside a record is the one that the record was made with. It is read, never run."""
    file = path.parent / "claim.py"
    with suppress(UsageError, OSError, ValueError):
        return file.is_file() and claim_hash(file.read_text(encoding="utf-8"), record["size"]) == record["claim_hash"]
    return False


def near(path: Path) -> str:
    """A path as one would type it from here, on one line whatever its folders are called."""
    here = Path.cwd()
    return text(path.absolute().relative_to(here) if path.absolute().is_relative_to(here) else path)


def gather(folders: Iterable[Path]) -> tuple[list[Entry], list[str]]:
    """All records in some folders, and a line for each file that could not be read.

    Example:
        >>> gather([Path("/nowhere")])
        ([], [])
    """
    entries, problems = [], []
    for path in {os.path.realpath(path): path.absolute() for folder in folders for path in find_records(folder)}.values():
        try:
            entries.append(read_entry(path))
        except (TrimtabError, OSError) as error:  # whatever lies among the records: the others are shown
            problems.append(text(error) if path.name in text(error) else f"{path}: {text(error)}")
    return entries, problems


def method(slug: str) -> str | None:
    """The method that a claim METHOD or METHOD-suffix belongs to.

    Example:
        >>> method("task-hinting-lego"), method("no-such-method")
        ('task-hinting', None)
    """
    return max((card for card in cards() if slug == card or slug.startswith(card + "-")), key=len, default=None)


def rung(size: str) -> int:
    """Place of a size on the ladder.

    Example:
        >>> sorted(["full", "small-2", "smoke", "small"], key=rung)
        ['smoke', 'small', 'small-2', 'full']
    """
    if size == "full":
        return 10**6
    found = re.fullmatch(r"small(?:-(\d{1,4}))?", size)
    return int(found[1] or 1) if found else 0


def rank(entry: Entry) -> tuple[bool, bool, bool, int, str]:
    """Sorts the record that decides to the end: those with a verdict, of them those with all arms and seeds, then the largest rung, then the newest."""
    return not entry.view.superseded, entry.view.verdict is not None, entry.whole, rung(entry.view.size), entry.view.time


def deciding(entries: Iterable[Entry], slug: str) -> Entry | None:
    """The record that decides a claim: of those with a verdict that were not superseded, if possible with all arms and seeds, the newest of the top rung."""
    return max((e for e in entries if e.view.slug == slug and e.view.verdict and not e.view.superseded), key=rank, default=None)
