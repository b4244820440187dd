"""``trimtab doctor``."""

import json
import os
import platform
import re
import shlex
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from trimtab import __version__
from trimtab.claims import read_record, stale
from trimtab.claims.pair import origin
from trimtab.claims.report import gather, near, packaged
from trimtab.claims.report.view import text
from trimtab.cli.terminal import paragraph, table


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
    click.echo(f"{text(found['folder'])} {'can be written' if found['writable'] else 'can NOT be written: go elsewhere or use --out'}")
    for record in found["records"]:
        click.echo(paragraph(f"{near(Path(record['path']))}: {'stale: ' + record['stale'] if record['stale'] else 'up to date'}", "    ", ""))
    for line in found["unreadable"]:
        click.echo(paragraph(f"unreadable: {line}", "    ", ""))
    if not found["records"]:
        click.echo("no records here")
    click.echo()
    if found["to_fix"]:
        click.secho("To fix:", bold=True)
        for line in found["to_fix"]:
            click.echo(paragraph(line, "    ", "  "))
    else:
        click.secho("All fine. An extra that is missing is needed only where an error names it.", bold=True)


def _examine(fingerprints: bool) -> dict[str, Any]:
    needs: dict[str, list[str]] = {}
    for line in requires("trimtab") or []:
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        needs.setdefault(extra[1] if extra else "", []).append(re.match(r"[\w.-]+", line)[0])  # type: ignore[index]  # a requirement starts with a name
    extras = {}
    for name, packages in needs.items():
        if name:
            missing = [package for package in packages if _version(package) is None]
            extras[name] = {"missing": missing, "install": f"pip install {_source(name)}"}
    libraries = {package: _version(package) for package in needs.get("", [])}
    devices, threads = _torch()
    here = origin("cpu")
    entries, unreadable = gather([packaged(), Path("trimtab-runs")])
    reasons = ["; ".join(stale(read_record(e.path), recompute=True)) if fingerprints else e.stale for e in entries]
    records = [{"path": str(e.path), "stale": why} for e, why in zip(entries, reasons, strict=True)]
    to_fix = [f"{package} is missing: pip install {_source()}" for package, found in libraries.items() if not found]
    to_fix += [] if threads else [f"{devices[0]}; install torch again, see https://pytorch.org/get-started"]
    to_fix += [] if _writable() else ["this folder cannot be written: go elsewhere, or give each run a folder with --out"]
    to_fix += [f"unreadable: {line}" for line in unreadable]
    to_fix += [f"stale, measure it again with trimtab run: {near(e.path)}" for e, why in zip(entries, reasons, strict=True) if why]
    return {
        "trimtab": __version__,
        "commit": here["commit"],
        "dirty": here["dirty"],
        "python": f"{platform.python_version()} ({sys.executable})",
        "libraries": {package: found or "MISSING" for package, found in libraries.items()},
        "system": f"{platform.system()} {platform.machine()}, {here['machine']['cpu']}",
        "devices": devices,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "extras": extras,
        "folder": str(Path.cwd()),
        "writable": _writable(),
        "records": records,
        "unreadable": unreadable,
        "to_fix": to_fix,
    }


def _source(extra: str = "") -> str:
    """What pip is to install: the package by its name, or the checkout that it was installed from."""
    told = json.loads(distribution("trimtab").read_text("direct_url.json") or "{}")
    editable = told.get("dir_info", {}).get("editable", False)
    name = near(Path(unquote(urlsplit(told["url"]).path))) if editable else "trimtab"
    return "-e " * editable + shlex.quote(name + (f"[{extra}]" if extra else ""))


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
