"""What every room may use: errors, seeded streams, whole files, cards, intervals. Loads no torch."""

from trimtab.core.cards import Card, card, cards
from trimtab.core.errors import DamagedFile, FolderInUse, MissingExtra, TrimtabError, UsageError, require, unknown, whole
from trimtab.core.files import locked, read_json, replacing, write_json, write_text
from trimtab.core.intervals import coverage, paired_t
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
    "coverage",
    "derive",
    "generator",
    "locked",
    "paired_t",
    "read_json",
    "replacing",
    "require",
    "unknown",
    "whole",
    "write_json",
    "write_text",
]
