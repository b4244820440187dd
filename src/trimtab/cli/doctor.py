"""``trimtab doctor``."""

import json
import os
import platform
import re
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click

from trimtab import __version__
from trimtab.claims import read_record, stale
from trimtab.claims.pair import origin
from trimtab.claims.report import gather, packaged
from trimtab.cli.terminal import near, paragraph, table


def doctor(*, fingerprints: bool = False, json_: bool = False) -> None:
    """What is installed here, what is missing and how to get it, and whether the records speak for this version.

    Args:
        fingerprints: also train each claim's first steps again, to see whether the code under it has drifted; takes seconds a claim.
        json_: print it as JSON.
    """
    found = _examine(fingerprints)
    if json_:
        click.echo(json.dumps(found, indent=1))
        return
    commit = f", commit {found['commit'][:12]}{' with changes' if found['dirty'] else ''}" if found["commit"] else ""
    rows = [("trimtab", found["trimtab"] + commit), ("python", found["python"]), *found["libraries"].items(), ("system", found["system"])]
    rows += [("devices", ", ".join(found["devices"])), ("cores", str(found["cores"])), ("threads", str(found["threads"]))]
    table(["what", "found"], rows)
    click.echo()
    states = {
        name: f"missing {', '.join(state['missing'])}; {state['install']}" if state["missing"] else "installed" for name, state in found["extras"].items()
    }
    table(["extra", "state"], [*states.items()])
    click.echo()
    click.echo(f"{found['folder']} {'can be written' if found['writable'] else 'can NOT be written: go elsewhere or use --out'}")
    for record in found["records"]:
        click.echo(paragraph(f"{near(Path(record['path']))}: {'stale: ' + record['stale'] if record['stale'] else 'up to date'}", "    ", ""))
    for line in found["unreadable"]:
        click.echo(paragraph(f"unreadable: {line}", "    ", ""))
    if not found["records"]:
        click.echo("no records here")


def _examine(fingerprints: bool) -> dict[str, Any]:
    needs: dict[str, list[str]] = {}
    for line in requires("trimtab") or []:
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        needs.setdefault(extra[1] if extra else "", []).append(re.match(r"[\w.-]+", line)[0])  # type: ignore[index]  # a requirement starts with a name
    extras = {}
    for name, packages in needs.items():
        if name:
            missing = [package for package in packages if _version(package) is None]
            extras[name] = {"missing": missing, "install": f"pip install 'trimtab[{name}]'"}
    devices, threads = _torch()
    here = origin("cpu")
    entries, unreadable = gather([packaged(), Path("trimtab-runs")])
    records = [{"path": str(e.path), "stale": "; ".join(stale(read_record(e.path), recompute=True)) if fingerprints else e.stale} for e in entries]
    return {
        "trimtab": __version__,
        "commit": here["commit"],
        "dirty": here["dirty"],
        "python": f"{platform.python_version()} ({sys.executable})",
        "libraries": {package: _version(package) or "MISSING" for package in needs.get("", [])},
        "system": f"{platform.system()} {platform.machine()}, {here['machine']['cpu']}",
        "devices": devices,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "extras": extras,
        "folder": str(Path.cwd()),
        "writable": _writable(),
        "records": records,
        "unreadable": unreadable,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch() -> tuple[list[str], int | None]:
    try:
        import torch
    except ImportError as error:
        return [f"none, for torch does not load: {error}"], None
    cuda = [f"cuda:{k} ({torch.cuda.get_device_name(k)})" for k in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])], torch.get_num_threads()


def _writable() -> bool:
    try:
        with tempfile.TemporaryFile(dir="."):
            return True
    except OSError:
        return False
