"""What every room may use: errors, seeded streams, whole files, cards. Loads no torch."""

from trimtab.core.cards import Card, card, cards
from trimtab.core.errors import DamagedFile, FolderInUse, MissingExtra, TrimtabError, UsageError, require, unknown
from trimtab.core.files import locked, read_json, replacing, write_json, write_text
from trimtab.core.seeding import derive, generator

__all__ = [
    "Card",
    "DamagedFile",
    "FolderInUse",
    "MissingExtra",
    "TrimtabError",
    "UsageError",
    "card",
    "cards",
    "derive",
    "generator",
    "locked",
    "read_json",
    "replacing",
    "require",
    "unknown",
    "write_json",
    "write_text",
]
