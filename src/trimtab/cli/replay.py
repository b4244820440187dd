"""``trimtab replay``."""

import json
from pathlib import Path
from typing import Annotated

import click

from trimtab.claims import load, read_record, slugs
from trimtab.claims.report import near
from trimtab.claims.report.view import View
from trimtab.cli.run import measure
from trimtab.cli.terminal import paragraph, statements, table, verdict
from trimtab.core import UsageError


def replay(record: Path, *, out: Annotated[Path | None, "DIR"] = None, device: str = "cpu", workers: int = 2, json_: bool = False) -> None:
    """Run the claim that a record names, with its size, seeds and arms, and compare the verdicts.

    The claim is the installed one; nothing that the record holds is executed. Machines agree by verdict, not by digit.

    Args:
        record: a JSON file that `trimtab run` wrote, here or elsewhere.
        out: folder for the new record; default ./trimtab-runs/CLAIM/replay-NAME.
        device: where to compute.
        workers: processes of one thread each.
        json_: print agreement (null where the record has no verdict), both verdicts and the new record's path as JSON.

    Example:
        trimtab replay records/task-hinting/small-20261201T120000Z.json
    """
    if not record.is_file():
        raise UsageError(f"there is no record {record}; trimtab doctor lists those that are here")
    old = read_record(record)
    slug = old["slug"]
    if slug.startswith("length-"):
        raise UsageError(f"{record} is of a task of your own; trimtab length, called as before, goes on from what is finished")
    if slug not in slugs():
        raise UsageError(f"{record} is of the claim {slug!r}, which this version of trimtab does not have; claims: {', '.join(slugs())}")
    folder = out or Path("trimtab-runs") / slug / f"replay-{record.stem}"
    new, done = measure(load(slug), old["size"], old["seeds"], old["arms"], folder, workers, device)
    before = {s["name"]: s["verdict"] for s in old["statements"] if s["primary"]}
    after = {s["name"]: s["verdict"] for s in new["statements"] if s["primary"]}
    agree = old["verdict"] == new["verdict"] and before == after if old["verdict"] else None
    same_claim = old["claim_hash"] == new["claim_hash"]
    if json_:
        found = {"slug": slug, "agree": agree, "recorded": old["verdict"], "replayed": new["verdict"], "same_claim": same_claim, "record": str(done.path)}
        click.echo(json.dumps(found, indent=1))
        return
    click.echo()
    statements(done.view)
    click.echo()
    rows = [(name, before.get(name) or "no verdict", after.get(name) or "no verdict") for name in {**before, **after}]
    table(["primary statement", "recorded", "replayed"], rows)
    click.echo()
    click.echo(f"recorded: {verdict(View(old))}\nreplayed: {verdict(done.view)}")
    click.echo()
    click.secho({True: "They agree.", False: "They do NOT agree.", None: "The record has no verdict to agree with."}[agree], bold=True)
    if not same_claim:
        click.echo("The claim file is not the one that the record was made with, so the two may differ for that reason.")
    following = {
        True: f"Next: trimtab show {slug} has what the claim says, trimtab report --open the pages of all records here.",
        False: "Next: compare versions and machines in the two records; a third run on other seeds, trimtab run --seeds, tells chance from a bug.",
        None: f"Next: trimtab run {slug} measures the claim with the seeds and arms that a verdict needs.",
    }
    click.echo(paragraph(following[agree]))
    click.echo(f"record   {near(done.path)}")
