"""``trimtab length``."""

import hashlib
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from trimtab.claims import load_file, own_task
from trimtab.claims.report import near
from trimtab.claims.report.view import View
from trimtab.cli.run import measure, parse_seeds, tell, writable
from trimtab.cli.terminal import curves, mastered, paragraph
from trimtab.core import UsageError, whole, write_json, write_text
from trimtab.nn import Transformer
from trimtab.tasks import RandomLabels, SeqTask, TaskMixture, candidate_hints
from trimtab.testing import CheckFailed, check_task


def length(
    task: Annotated[str, "FILE.py:CLASS"],
    *,
    hint: Annotated[tuple[str, ...], "FILE.py:CLASS|auto"] = (),
    lengths: Annotated[tuple[int, ...], "N"] = (),
    steps: int = 3000,
    seeds: Annotated[str, "N|A-B"] = "3",
    share: float = 0.5,
    lr: float = 1e-3,
    batch_size: int = 64,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    positions: Literal["none", "rope"] = "none",
    examples: int = 1000,
    out: Annotated[Path | None, "DIR"] = None,
    device: str = "cpu",
    workers: int = 2,
    json_: bool = False,
) -> int:
    """Train a transformer on your own task, with hints or without, and judge it on longer examples than it was trained on.

    Your class is a trimtab.tasks.SeqTask: a name, a vocabulary, the training lengths, and two methods, sample and answer. It is checked first. Finished runs
    are kept: the same command goes on where it was stopped.

    Args:
        task: your task: a file and a class in it.
        hint: a simpler task of the same vocabulary, trained beside yours; may be given several times. auto gives short runs to hints that can be made of any
            task, and full ones to the best.
        lengths: a test length; may be given several times. Default 1 to 5 times the longest training length.
        steps: optimiser steps of a run; enough that the model masters its training lengths.
        seeds: N for seeds 0 to N-1, or A-B. Three or more for a verdict worth having.
        share: rows of a hint for each row of your task.
        lr: learning rate.
        batch_size: rows of your task a step.
        dim: width of the model.
        layers: its blocks.
        heads: its attention heads.
        positions: its position encoding.
        examples: test rows a length.
        out: folder for records, report and what is needed to go on; default ./trimtab-runs/length-NAME.
        device: where to compute, such as cpu, cuda or mps.
        workers: processes of one thread each.
        json_: print the record as JSON, and nothing else, on stdout.

    Example:
        trimtab length my_task.py:MyTask --steps 2000
        trimtab length my_task.py:MyTask --hint my_task.py:MyHint
    """
    main = own_task.load_task(task)
    _check(main, f"the task {task}")
    hints: dict[str, str] = {}
    for spec in hint:
        if spec != "auto":
            found = own_task.load_task(spec, main=main)
            _check(found, f"the hint {spec}")
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", found.name).strip("-.")
            if not name or name in (*hints, own_task.STANDARD, own_task.EQUAL):
                raise UsageError(f"hints must have names of their own, got {found.name!r} twice or for an arm; set `name` in the class of {spec}")
            hints[name] = spec
    judged = own_task.judged_lengths(main, lengths)
    longer = [n for n in judged if n > main.lengths[1]]
    if not longer:
        what = "lengths must hold one" if lengths else f"{task} must have examples"
        raise UsageError(f"{what} longer than its training lengths, up to {main.lengths[1]}, or there is nothing to judge; got {judged}")
    model = {"dim": dim, "layers": layers, "heads": heads, "positions": positions}
    training = {"steps": whole("steps", steps, 1), "lr": lr, "batch_size": whole("batch_size", batch_size, 1), "share": share}
    wanted = parse_seeds(seeds)
    whole("examples", examples, 1)
    if not 0 < lr < math.inf or not 0 < share < math.inf:
        raise UsageError(f"lr and share must be finite numbers > 0, got {lr} and {share}")
    Transformer(main.vocab.size, dim, layers, heads, positions=positions, device="meta")  # sizes that do not fit together are refused here
    TaskMixture(main, {main: share}).rows(batch_size)  # and a share of no rows

    slug = "length-" + (re.sub(r"[^a-z0-9]+", "-", main.name.lower()).strip("-") or "task")
    folder = out or Path("trimtab-runs") / slug
    writable(folder)
    if "auto" in hint:
        best = _search(main, folder, {**model, **training}, own_task.digest(task), examples, device, json_)
        hints[best] = own_task.AUTO + best
    specs = {name: spec if spec.startswith(own_task.AUTO) else _absolute(spec) for name, spec in hints.items()}
    settings: dict[str, Any] = {"task": _absolute(task), "hints": specs, "lengths": judged, **model, **training, "examples": examples}
    settings["files"] = {spec: own_task.digest(spec) for spec in (task, *(spec for spec in hints.values() if not spec.startswith(own_task.AUTO)))}
    decide = min(longer, key=lambda n: abs(n - 2 * main.lengths[1]))
    write_text(folder / "claim.py", own_task.claim_text(slug, main.name, settings, seeds=len(wanted), longest=main.lengths[1], decide=decide))
    record, done = measure(load_file(folder / "claim.py"), "small", wanted, None, folder, workers, device)
    tell(record, done, folder, json_, lambda lead, _: _print(lead.view, record, main))
    return 0


def _check(task: SeqTask, what: str) -> None:
    try:
        check_task(task)
    except CheckFailed as error:
        raise UsageError(f"{what} breaks a rule of its contract: {error}") from error


def _absolute(spec: str) -> str:
    file, _, name = spec.rpartition(":")
    return f"{Path(file).resolve()}:{name}"


def _print(view: View, record: dict[str, Any], main: SeqTask) -> None:
    click.echo()
    click.secho(paragraph(view.title), bold=True)
    click.echo()
    curves(view)
    click.echo("exact: whole answers right; edit: similarity of what is written and what is right; token: right tokens after right ones; early, late: ends too")
    click.echo(f"soon or too late. The longest training length is {main.lengths[1]}.\n")
    mastered(view)
    click.echo()
    if not all(view.mastered.values()):
        click.secho("An arm that has not learnt its training lengths says nothing about longer ones: raise --steps, or try another --lr or --dim.\n", bold=True)
    for entry in record["statements"]:
        click.echo(paragraph(f"{entry['name']}: {_said(entry)}", "  ", ""))
    click.echo()


def _said(entry: dict[str, Any]) -> str:
    """A statement's verdict in the words of a job: nobody published this one."""
    low, high = entry["interval"] or (None, None)
    falls = entry["kind"] == "trend"
    no = "no" if falls else "no, it harms" if high is not None and high < -entry["margin"] else "not by more than the margin"
    word = {"reproduced": "yes", "contradicted": no, "undecided": "undecided", "invalid": "not decided", None: "no verdict"}[entry["verdict"]]
    sure = f" (95 % interval {low:+.3f} to {high:+.3f})" if low is not None else ""
    unit = f" {entry['metric']} for each more item" if falls else f" {entry['metric']}"
    estimate = "" if entry["estimate"] is None else f", {-entry['estimate'] if falls else entry['estimate']:+.3f}{'' if falls else sure}{unit}"
    return f"{word}{estimate}, margin {entry['margin']:g}" + (f"; {entry['note']}" if entry["note"] else "")


def _search(main: SeqTask, folder: Path, settings: dict[str, Any], task: str, examples: int, device: str, quiet: bool) -> str:
    """The name of the generic hint that does best in short runs. Its full runs, and its verdict, are the claim's."""
    from trimtab.core import generator
    from trimtab.train import search_hints

    wide, hints = candidate_hints(main)
    sizes = {name: settings.pop(name) for name in ("dim", "layers", "heads", "positions")}
    key = hashlib.sha256(repr((task, sizes, settings, examples)).encode()).hexdigest()[:8]  # another task or setting is another search
    report = search_hints(
        wide, hints, folder=folder / f"search-{key}", seeds=(), examples=examples, device=device,
        model=lambda seed: Transformer(wide.vocab.size, **sizes, generator=generator(seed, "weights"), device=device), **settings,
        progress=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    write_json(folder / f"search-{key}" / "hints.json", {"rows": [dict(row) for row in report.rows], "steps": report.cost})
    click.echo(f"\nHints for {main.name} in short runs: gain in edit similarity on lengths up to {2 * main.lengths[1]}\n", err=quiet)
    for row in report.rows:
        gain = "diverged" if row["validation"] is None else f"{row['validation']:+.3f}"
        kind = type(hints[row["hint"]])
        about = "Answers of random values: a control." if kind is RandomLabels else (kind.__doc__ or "").partition("\n")[0]
        click.echo(paragraph(f"round {row['rung']}  {gain}  {row['hint']}: {about}", " " * 10, "  "), err=quiet)
    click.echo(f"\n{report.rows[0]['hint']} comes to full runs. All of it is in {near(folder / f'search-{key}' / 'hints.json')}\n", err=quiet)
    return report.rows[0]["hint"]
