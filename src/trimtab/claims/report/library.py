"""Which records there are, and which of them decides a claim."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import trimtab
from trimtab.claims.loading import slugs
from trimtab.claims.record import find_records, read_record, stale
from trimtab.claims.report.view import View
from trimtab.core import DamagedFile, cards


@dataclass(frozen=True, eq=False)
class Entry:
    """A record and where it lies.

    Attributes:
        view: what it says.
        path: its file.
        known: whether the installed package has its claim.
        stale: why it no longer speaks for the installed package, or "".
    """

    view: View
    path: Path
    known: bool = True
    stale: str = ""


def packaged() -> Path:
    """The folder of the records that come with trimtab: in the package, or beside ``src`` in a checkout."""
    package = Path(trimtab.__file__).parent
    inside = package / "records"
    return package.parents[1] / "records" if package.parent.name == "src" and not inside.exists() else inside


def read_entry(path: Path) -> Entry:
    """One record.

    Raises:
        DamagedFile: it is not one.
    """
    record = read_record(path)
    return Entry(View(record), path, record["slug"] in slugs(), "; ".join(stale(record)))


def gather(folders: Iterable[Path]) -> tuple[list[Entry], list[str]]:
    """All records in some folders, and a line for each file that could not be read.

    Example:
        >>> gather([Path("/nowhere")])
        ([], [])
    """
    entries, problems = [], []
    for path in dict.fromkeys(path.resolve() for folder in folders for path in find_records(folder)):
        try:
            entries.append(read_entry(path))
        except (DamagedFile, OSError) as error:
            problems.append(str(error))
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


def rank(entry: Entry) -> tuple[bool, bool, int, str]:
    """Sorts the record that decides to the end: whole ones with a verdict, then the largest rung, then the newest."""
    return not entry.view.superseded, entry.view.verdict is not None, rung(entry.view.size), entry.view.time


def deciding(entries: Iterable[Entry], slug: str) -> Entry | None:
    """The record that decides a claim: of those with a verdict that were not superseded the newest of the largest rung."""
    return max((e for e in entries if e.view.slug == slug and e.view.verdict and not e.view.superseded), key=rank, default=None)
