"""``trimtab length``."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from trimtab.claims import load_file, own_task
from trimtab.cli.run import measure, parse_seeds, tell, writable
from trimtab.cli.terminal import curves, mastered
from trimtab.core import UsageError, write_json, write_text
from trimtab.tasks import SeqTask
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
        hint: a simpler task of the same vocabulary, trained beside yours; may be given several times. auto searches among hints that can be made of any task.
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
    specs = {spec: own_task.load_task(spec, main=main) for spec in hint if spec != "auto"}
    for spec, found in specs.items():
        _check(found, f"the hint {spec}")
    judged = own_task.judged_lengths(main, lengths)
    if judged[-1] <= main.lengths[1]:
        raise UsageError(f"the task must have examples longer than its training lengths, up to {main.lengths[1]}, to be judged by length; it has none")
    slug = "length-" + (re.sub(r"[^a-z0-9]+", "-", main.name.lower()).strip("-") or "task")
    folder = out or Path("trimtab-runs") / slug
    model = {"dim": dim, "layers": layers, "heads": heads, "positions": positions}
    training = {"steps": steps, "lr": lr, "batch_size": batch_size, "share": share}
    if "auto" in hint:
        _search(main, judged, folder / "search", model, training, parse_seeds(seeds), examples)
    names: dict[str, str] = {}
    for spec, found in specs.items():
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", found.name)
        if name in names or name in ("standard", own_task.EQUAL):
            raise UsageError(f"hints must have names of their own, got {found.name!r} twice; set `name` in the class of {spec}")
        names[name] = spec
    hints = {name: _absolute(spec) for name, spec in names.items()}
    settings: dict[str, Any] = {"task": _absolute(task), "hints": hints, "lengths": judged, **model, **training}
    settings |= {"examples": examples, "files": {spec: own_task.digest(spec) for spec in (task, *names.values())}}
    decide = min(judged[1:], key=lambda n: abs(n - 2 * main.lengths[1]))
    wanted = parse_seeds(seeds)
    writable(folder)
    write_text(folder / "claim.py", own_task.claim_text(slug, main.name, settings, seeds=len(wanted), decide=decide))
    record, done = measure(load_file(folder / "claim.py"), "small", wanted, None, folder, workers, device)
    tell(record, done, folder, json_, lambda lead, _: _print(lead.view, record, main, decide))
    return 0


def _check(task: SeqTask, what: str) -> None:
    try:
        check_task(task)
    except CheckFailed as error:
        raise UsageError(f"{what} breaks a rule of its contract: {error}") from error


def _absolute(spec: str) -> str:
    file, _, name = spec.rpartition(":")
    return f"{Path(file).resolve()}:{name}"


def _print(view: Any, record: dict[str, Any], main: SeqTask, decide: int) -> None:
    from trimtab.train.hint_search import verdict

    click.echo()
    click.secho(view.title, bold=True)
    click.echo()
    curves(view)
    mastered(view)
    click.echo()
    longest, measured = main.lengths[1], record["measured"]
    known = min(row[f"exact@{longest}"] for row in measured["standard"].values())
    if known < 0.98:
        click.secho(f"Without a hint {known:.1%} of examples of length {longest} are right: it has not learnt its training lengths; raise --steps.", bold=True)
        click.echo()
        return  # and so nothing can be said about hints
    for hint in view.arms[2:]:
        for other in ("standard", own_task.EQUAL):
            gains = [measured[hint][seed][f"edit@{decide}"] - measured[other][seed][f"edit@{decide}"] for seed in measured[hint]]
            said, mean, interval = verdict(gains, 0.05)
            sure = f"95 % interval {interval[0]:+.3f} to {interval[1]:+.3f}" if interval else "1 seed"
            click.echo(f"{hint} against {other}: {said}, {mean:+.3f} edit similarity at length {decide} ({sure}, {len(gains)} seeds)")
    click.echo()


def _search(main: SeqTask, judged: list[int], folder: Path, model: dict[str, Any], training: dict[str, Any], seeds: range, examples: int) -> None:
    from trimtab.core import generator
    from trimtab.nn import Transformer
    from trimtab.tasks import candidate_hints
    from trimtab.train import search_hints

    wide, hints = candidate_hints(main)
    lengths = [n for n in judged if n > 2 * main.lengths[1]]
    if not lengths:
        raise UsageError(f"--hint auto needs test lengths above {2 * main.lengths[1]}, for it chooses on lengths up to there; got {judged}")
    report = search_hints(
        wide, hints, folder=folder, lengths=lengths, seeds=seeds, examples=examples, **training,
        model=lambda seed: Transformer(
            wide.vocab.size, model["dim"], model["layers"], model["heads"], positions=model["positions"], generator=generator(seed, "weights")
        ),
        progress=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    write_json(folder / "hints.json", {"rows": [dict(row) for row in report.rows], "cost": report.cost, "exhaustive": report.exhaustive})
    click.echo(f"\nHints for {main.name}, best first; the search took {report.cost / report.exhaustive:.0%} of full runs of all\n")
    for row in report.rows:
        gain = f"{row['gain']:+.3f} at lengths {lengths[0]} to {lengths[-1]}" if row["gain"] is not None else f"{row['validation']:+.3f} in round {row['rung']}"
        click.echo(f"  {row['hint']:<20} {row['verdict'] or 'not judged':<12} {gain}")
    click.echo()
