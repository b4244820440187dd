"""Cards: what each method is, as static data. Read without importing anything heavy."""

import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from trimtab.core.errors import DamagedFile, unknown

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Card:
    """Static facts about one method.

    Attributes:
        slug: name on the command line.
        name: name in a sentence.
        paper: title of the paper; year and arxiv (id, or "" where there is none) go with it.
        room: where its main public object lives.
        topics: tags for ``trimtab list --topic``.
        line: what it does, in one sentence.
        patents: known patents on it, as text.
        use_when, not_when: when it helps, and when to leave it.
        knobs: setting -> advice.
        deviations: each difference from the paper, with its reason.
    """

    slug: str
    name: str
    paper: str
    year: int
    arxiv: str
    room: str
    topics: tuple[str, ...]
    line: str
    patents: tuple[str, ...] = ()
    use_when: str = ""
    not_when: str = ""
    knobs: dict[str, str] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """"built" once the package holds the method's claim, else "planned"."""
        return "built" if (_PACKAGE / "claims" / f"{self.slug.replace('-', '_')}.py").exists() else "planned"


def _read(path: Path) -> Card:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        lists: dict[str, Any] = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        return Card(**data | lists)
    except (ValueError, TypeError) as error:  # not TOML, not UTF-8, or a field too many or too few
        raise DamagedFile(f"{path.name} is not a card: {error}; allowed fields: {', '.join(f.name for f in fields(Card))}") from error


@cache
def cards() -> dict[str, Card]:
    """Every card by slug, in alphabetical order.

    Example:
        >>> cards()["task-hinting"].arxiv
        '2310.00726'
    """
    found = [_read(path) for path in sorted((_PACKAGE / "cards").glob("*.toml"))]
    return {card.slug: card for card in found}


def card(slug: str) -> Card:
    """One card.

    Raises:
        UsageError: no method of that name; the nearest one is offered.

    Example:
        >>> card("task-hinting").year
        2023
    """
    try:
        return cards()[slug]
    except KeyError:
        raise unknown("method", slug, cards()) from None
