"""The report: records as static HTML that opens from disk, loads nothing and trusts nothing.

What a record holds is shown as text, whatever it is. The content-security policy names the pages' own style sheet and script by hash and
allows nothing else.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab import __version__
from trimtab.claims.report.collect import Entry, deciding, gather, method, near, packaged, rank, read_entry
from trimtab.claims.report.view import VERDICTS, View, exact, items, mapping, number, shown, text
from trimtab.core import Card, UsageError, cards, replacing, write_text

__all__ = ["Entry", "View", "deciding", "gather", "method", "near", "packaged", "read_entry", "write_report"]

_TEMPLATES = Path(__file__).parent / "templates"
_SIGNATURE = b'<meta name="generator" content="trimtab'


def write_report(entries: Iterable[Entry], out: Path, *, lead: Entry | None = None, problems: Sequence[str] = ()) -> Path:
    """Write an index and a page for each claim, with its figures also as PNG.

    Args:
        entries: the records to show; the one that decides a claim is shown in full, the others of that claim are listed under it.
        out: folder, made if it is not there. Pages of an earlier report are replaced, pages that are none are not.
        lead: a record to show in full although it does not decide its claim, such as the run that has just ended.
        problems: lines about files that could not be read.

    Returns:
        Path of the index.

    Raises:
        UsageError: there is a page of that name which trimtab did not write; nothing is written.
    """
    by_slug: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=rank, reverse=True):
        by_slug.setdefault(entry.view.slug, []).append(entry)
    for page in (out / "index.html", *(out / f"{found[0].view.key}.html" for found in by_slug.values())):
        if page.exists() and _SIGNATURE not in page.read_bytes()[:4000]:
            raise UsageError(f"out must be a new folder or one with an earlier report, got {out}, whose {page.name} trimtab did not write; choose another one")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    render = _renderer(sum(map(len, by_slug.values())))
    pages = []
    for slug, found in sorted(by_slug.items()):
        decides = deciding(found, slug)
        main = lead if lead in found else decides or found[0]
        others = [other for other in found if other is not main]
        file = f"{main.view.key}.html"
        decides = decides if decides is not main else None
        write_text(out / file, _page(render, main, others, decides, out / "figures"))
        order = (*VERDICTS, None).index(main.view.verdict)
        pages.append({"view": main.view, "file": file, "stale": main.stale, "card": _card(slug), "order": order, "decides": decides and decides.view})
    write_text(out / "index.html", render("index.html", pages=pages, problems=problems))
    return out / "index.html"


def _page(render: Any, entry: Entry, others: Sequence[Entry], decides: Entry | None, figures: Path) -> str:
    from trimtab.claims.report.figures import MOST, pictures

    view = entry.view
    drawn = pictures(view)
    for picture in drawn:
        with replacing(figures / f"{view.key}-{picture.name}.png") as temporary:
            temporary.write_bytes(picture.png)
    scalars = [f for f in view.families if not f.points]
    every_seed = [
        (f"{f.name}@{x:g}{f.suffix}" if f.points else f.name, arm, [f.seeds[arm].get(seed, {}).get(x) for seed in view.seeds])
        for f in view.families
        for x in f.points or [0.0]
        for arm in view.arms
        if arm in f.seeds
    ]
    return render(
        "claim.html",
        view=view,
        card=_card(view.slug),
        stale=entry.stale,
        committed=decides.view if decides else None,
        pictures=drawn,
        undrawn=max(0, len(view.curves) - MOST),
        scalars=scalars,
        every_seed=every_seed,
        settings=_settings(view.record),
        runnable=entry.known,
        own=entry.own,
        file=entry.path.name,
        # by its place where that is below this folder; elsewhere by its name alone, for the page may be sent
        replay=shlex.join(["trimtab", "replay", entry.path.name if Path(near(entry.path)).is_absolute() else near(entry.path)]),
        others=others,
        embedded=_script_safe(view.record),
    )


def _renderer(count: int) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; form-action 'none'"
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # the three that are no text of a record: our own files, and a policy whose quotes must stay
    environment.globals.update(version=__version__, count=count, style=Markup(style), script=Markup(script), policy=Markup(policy), shown=shown, exact=exact)
    # halves of characters, which a file's name may hold, cannot be written
    return lambda name, **values: environment.get_template(name).render(**values).encode("utf-8", "replace").decode()


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _script_safe(record: Any) -> Any:
    """JSON that no HTML parser can leave: without "<", ">" and "&", in ASCII, and with null for what JSON cannot hold."""
    from markupsafe import Markup

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return number(value) if isinstance(value, float) else value

    source = json.dumps(plain(record), indent=1, default=str)
    return Markup(source.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _card(slug: str) -> Card | None:
    return cards().get(method(slug) or "")


def _settings(record: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What else is needed to judge the numbers, as titled lists of lines."""

    def lines(values: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [(text(name).replace("_", " "), _line(value)) for name, value in values.items() if value is not None]

    def some(*names: str) -> dict[str, Any]:
        return {name: record.get(name) for name in names}

    run = some("version", "commit", "claim_hash", "time", "core_minutes") | {"wall time, s": record.get("wall_time")}
    run["command"] = shlex.join(map(text, items(record.get("argv")))) or None
    run["not in the commit"] = "the package had changes" if record.get("dirty") is True else None
    run["differs between runs"] = ", ".join(map(text, items(record.get("mixed")))) or None
    groups = [
        ("Settings", lines(mapping(record.get("settings")))),
        ("Libraries", lines(mapping(record.get("libraries")))),
        ("Machine", lines(mapping(record.get("machine")) | some("device", "threads"))),
        ("Run", lines(run)),
    ]
    return [group for group in groups if group[1]]


def _line(value: Any) -> str:
    if isinstance(value, list | dict):
        return text(json.dumps(value, default=str))
    return exact(number(value)) if isinstance(value, float) else text(value)
