"""``trimtab list``."""

import json
from pathlib import Path

import click

from trimtab.claims.report.library import Entry, deciding, gather, packaged
from trimtab.cli.terminal import MARKS, table, width
from trimtab.core import cards, unknown


def list(*, topic: str | None = None, room: str | None = None, json_: bool = False) -> None:
    """All methods, whether each is built, and the verdict of its claim.

    The verdict is that of the newest record of the largest size that has one, among the records that come with trimtab and those in ./trimtab-runs.

    Args:
        topic: only methods with this tag, such as "language models".
        room: only methods of this room, such as "losses".
        json_: print a list of objects with slug, name, room, topics, status and verdict.

    Example:
        trimtab list --topic "language models"
    """
    chosen = [*cards().values()]
    topics, rooms = sorted({t for card in chosen for t in card.topics}), sorted({card.room for card in chosen})
    if topic is not None and topic not in topics:
        raise unknown("topic", topic, topics)
    if room is not None and room not in rooms:
        raise unknown("room", room, rooms)
    chosen = [card for card in chosen if topic in (None, *card.topics) and room in (None, card.room)]
    entries, problems = gather([packaged(), Path("trimtab-runs")])
    for line in problems:
        click.echo(f"Warning: {line}", err=True)
    found = [(card, deciding(entries, card.slug)) for card in chosen]
    if json_:
        keys = ("slug", "name", "room", "topics", "status", "line")
        click.echo(
            json.dumps([{key: getattr(card, key) for key in keys} | {"verdict": entry.view.verdict if entry else None} for card, entry in found], indent=1)
        )
        return
    rows = [(card.slug, card.room, card.status, _word(entry), card.line) for card, entry in found]
    if width() < 90:
        table(["method", "status", "verdict"], [(slug, status, word) for slug, _, status, word, _ in rows])
    else:
        table(["method", "room", "status", "verdict", "what it does"], rows)


def _word(entry: Entry | None) -> str:
    if not entry or not entry.view.verdict:
        return ""
    return f"{MARKS[entry.view.verdict]} {entry.view.verdict}{', stale' if entry.stale else ''}"
