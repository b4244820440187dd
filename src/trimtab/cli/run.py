"""``trimtab run``."""

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from trimtab.claims import Claim, load, run_claim, slugs
from trimtab.claims.report import Entry, deciding, method, near, read_entry, write_report
from trimtab.cli.progress import Progress
from trimtab.cli.terminal import curves, gathered, mastered, paragraph, statements, verdict
from trimtab.core import UsageError, cards, unknown

Verdict = Literal["reproduced", "partly", "undecided", "contradicted", "invalid"]


def run(
    name: Annotated[str, "METHOD|CLAIM"],
    *,
    size: str = "small",
    seeds: Annotated[str | None, "N|A-B"] = None,
    arm: Annotated[tuple[str, ...], "A"] = (),
    out: Annotated[Path | None, "DIR"] = None,
    device: str = "cpu",
    require: Verdict | None = None,
    workers: int = 2,
    json_: bool = False,
) -> int:
    """Measure a claim: every arm with every seed, then a verdict, a record and a report page.

    Finished runs are kept at once: the same command goes on where it was stopped. Seeds or arms left out can be added by a later call.

    Args:
        name: a method of `trimtab list`, or one of its claims.
        size: smoke (seconds, no verdict), small (a laptop), or another size of the claim.
        seeds: N for seeds 0 to N-1, or A-B; default all of the size. One seed gives no verdict.
        arm: only this arm; may be given several times. Default all.
        out: folder for the record, the report and what is needed to go on; default ./trimtab-runs/CLAIM.
        device: where to compute, such as cpu, cuda or mps.
        require: exit with 3 unless the verdict is this one.
        workers: processes of one thread each.
        json_: print the record as JSON, and nothing else, on stdout.

    Example:
        trimtab run task-hinting --size smoke
        trimtab run task-hinting --seeds 1 --arm standard --arm count
    """
    slug = claim_slug(name)
    folder = out or Path("trimtab-runs") / slug
    record, done = measure(load(slug), size, parse_seeds(seeds) if seeds is not None else None, arm or None, folder, workers, device)
    tell(record, done, folder, json_, lambda lead, entries: _print(lead, deciding(entries, slug)))
    return 3 if require and record["verdict"] != require else 0


def tell(record: dict[str, Any], done: Entry, folder: Path, json_: bool, words: Callable[[Entry, list[Entry]], None]) -> None:
    """Write the report of a claim's folder; say in words, or as JSON, what a run found, and where everything is."""
    entries = [e for e in gathered(folder)[0] if e.view.slug == record["slug"]]
    lead = next(e for e in entries if e.path == done.path)
    page = write_report(entries, folder / "report", lead=lead)
    if json_:
        click.echo(json.dumps(record, indent=1))
    else:
        words(lead, entries)
    places = [("record", lead.path), ("report", page), ("figures", page.parent / "figures")]
    click.echo("".join(f"{what:<9}{near(path)}\n" for what, path in places), err=json_, nl=False)


def parse_seeds(text: str) -> range:
    """The seeds that "N" (0 .. N - 1) or "A-B" (both included) stand for.

    Example:
        >>> parse_seeds("3"), parse_seeds("5-9")
        (range(0, 3), range(5, 10))
    """
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    seeds = range(0) if not found else range(int(found[1]), int(found[2]) + 1) if found[2] else range(int(found[1]))
    if not 0 < len(seeds) <= 1000:
        raise UsageError(f"seeds must be N (seeds 0 to N-1) or A-B with A <= B, and 1 to 1000 of them, got {text!r}; 5 and 5-9 are five seeds each")
    return seeds


def claim_slug(name: str) -> str:
    """The claim that a method's or claim's name means."""
    claims = slugs()
    if name in claims:
        return name
    mine = [slug for slug in claims if method(slug) == name]
    if len(mine) == 1:
        return mine[0]
    if mine:
        raise UsageError(f"{name!r} has several claims; name one of them: {', '.join(mine)}")
    if name in cards():
        raise UsageError(f"{name!r} is planned and has no claim yet; claims: {', '.join(claims)}")
    raise unknown("method", name, sorted({*cards(), *claims}))


def measure(
    claim: Claim, size: str, seeds: Iterable[int] | None, arms: Iterable[str] | None, folder: Path, workers: int, device: str
) -> tuple[dict[str, Any], Entry]:
    """Run a claim with progress on stderr; the record, as it was written and as the report shows it."""
    if workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    claim.size(size)  # an unknown one is refused before anything is written
    writable(folder)
    written: list[Path] = []
    try:
        with Progress(f"{claim.slug}, {size}", workers) as progress:

            def heard(event: dict[str, Any]) -> None:
                if event["event"] == "record":
                    written.append(Path(event["path"]))
                progress(event)

            record = run_claim(claim, size, seeds=seeds, arms=arms, folder=folder, workers=workers, device=device, progress=heard)
    except KeyboardInterrupt as stop:
        click.echo(f"\n{stop}\nTo go on: {shlex.join(['trimtab', *sys.argv[1:]])}", err=True)
        raise
    return record, read_entry(written[0].absolute())


def writable(folder: Path) -> None:
    """Raise UsageError unless files can be written to a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise UsageError(f"out must be a folder that can be written, got {folder}: {why}; choose another with --out") from error


def _print(done: Entry, decides: Entry | None) -> None:
    view = done.view
    click.echo()
    click.secho(paragraph(view.title), bold=True)
    click.echo()
    curves(view)
    mastered(view)
    click.echo()
    statements(view)
    click.echo()
    click.secho(f"Verdict: {verdict(view)}", bold=True)
    if decides is None:
        click.echo("Record that decides this claim: none yet")
    elif decides is not done:  # one lucky seed must not be all that a reader sees
        click.echo()
        click.secho(f"The record that decides this claim: {verdict(decides.view)}, {near(decides.path)}", bold=True)
        click.echo()
        statements(decides.view)
    click.echo()
