"""``trimtab list``."""

import json
from collections import Counter

import click

from trimtab.claims.report.collect import Entry, deciding
from trimtab.cli.terminal import MARKS, gathered, paragraph, table, width
from trimtab.core import UsageError, cards, unknown


def list(*, topic: str | None = None, room: str | None = None, json_: bool = False) -> None:
    """All methods, whether each is built, and the verdict of its claim.

    The verdict is that of the newest record of the largest size that has one, among the records that come with trimtab and those in ./trimtab-runs.

    Args:
        topic: only methods with this tag, such as "language models"; without it they are listed.
        room: only methods of this room, such as "losses".
        json_: print a list of objects with slug, name, room, topics, status and verdict.

    Example:
        trimtab list --topic "language models"
    """
    chosen = [*cards().values()]
    topics, rooms = sorted({t for card in chosen for t in card.topics}), sorted({card.room for card in chosen})
    if topic is not None and topic not in topics:
        raise UsageError(f"{unknown('topic', topic, topics)}: {', '.join(topics)}")
    if room is not None and room not in rooms:
        raise unknown("room", room, rooms)
    chosen = [card for card in chosen if topic in (None, *card.topics) and room in (None, card.room)]
    entries, _ = gathered()
    found = [(card, deciding(entries, card.slug)) for card in chosen]
    if json_:
        keys = ("slug", "name", "room", "topics", "status", "line")
        click.echo(
            json.dumps([{key: getattr(card, key) for key in keys} | {"verdict": entry.view.verdict if entry else None} for card, entry in found], indent=1)
        )
        return
    found.sort(key=lambda pair: pair[0].status)  # what is built comes first
    rows = [(card.slug, card.room, card.status, _word(entry), card.line) for card, entry in found]
    if width() < 100:  # no room for a last column
        for slug, *words, line in rows:
            click.echo(paragraph(f"{slug}  {', '.join(filter(None, words))}", "  ", ""))
            click.echo(paragraph(line, "    "))
    else:
        table(["method", "room", "status", "verdict", "what it does"], rows)
    click.echo()
    click.echo(", ".join(f"{count} {status}" for status, count in Counter(card.status for card, _ in found).items()))
    if topic is None and room is None:
        click.echo(paragraph(f"Topics: {', '.join(topics)}", "  ", ""))


def _word(entry: Entry | None) -> str:
    if not entry or not entry.view.verdict:
        return ""
    return f"{MARKS[entry.view.verdict]} {entry.view.verdict}{', stale' if entry.stale else ''}"
