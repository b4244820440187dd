"""The pages keep their word: each Python fence runs as it stands, offline, and each command that is shown exists."""

import re
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from trimtab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_python_fences_run(page):
    # CONTRIBUTING.md is followed as a whole, in test_contributing.py.
    # One namespace a page: what an earlier fence made, a later one may use.
    for example in Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(page):
        example.evaluate()


@pages
def test_commands_that_are_shown_exist(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?:^|[`/$] ?)trimtab ([a-z-]+)", text, re.M):
        assert name in COMMANDS, f"{page.name} shows 'trimtab {name}'"


@pages
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
