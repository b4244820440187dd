"""The rules of the house that no single room can hold: what the sources may not do, and that the files around the package agree with it."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import trimtab
from trimtab.core import cards

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "trimtab").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IN_CI = ("search", "lm", "track", "docs", "dev")

# A method is one file of 100 to 300 lines. A file that has to be longer stands here with its reason.
LONG: dict[str, str] = {}

PICKLERS = {"pickle", "dill", "cloudpickle", "joblib", "marshal"}
GLOBAL_DRAWS = re.compile(r"(torch\.(cuda\.)?(manual_seed|seed)\w*|(np|numpy)\.random\.(?!default_rng|Generator|SeedSequence)\w+|random\.(?!Random\b)\w+)$")
OPEN_ENDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|raise NotImplemented")


def offences(source: str, *, testing: bool = False) -> list[str]:
    """What a library file does that none may, each with its line and what to do instead; suites may assert, and watch the global random state."""
    found = [f"{n}: open end; finish it, or leave it out" for n, line in enumerate(source.splitlines(), 1) if OPEN_ENDS.search(line)]
    tree = ast.parse(source)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if {"jaxtyping", "__future__"} <= imported:
        found.append("1: postponed annotations hide shapes from the check in tests; drop the __future__ import")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and not testing:
            found.append(f"{node.lineno}: assert; python -O drops it: raise UsageError for what a user gave")
        if isinstance(node, ast.ImportFrom) and node.module in PICKLERS:
            found.append(f"{node.lineno}: unpickling runs code from the file; use safetensors, npz or JSON")
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called == "torch.load" or called.partition(".")[0] in PICKLERS:
            found.append(f"{node.lineno}: {called} runs code from the file; use safetensors, npz or JSON")
        if any(k.arg in ("allow_pickle", "trust_remote_code") and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in node.keywords):
            found.append(f"{node.lineno}: runs code from a file; leave it False")
        if GLOBAL_DRAWS.match(called) and not testing:
            found.append(f"{node.lineno}: {called} reads or changes global random state; draw from core.generator")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_sources(path):
    source = path.read_text(encoding="utf-8")
    found = offences(source, testing="testing" in path.parts)
    name = str(path.relative_to(ROOT))
    if (lines := source.count("\n")) > 400 and name not in LONG:
        found.append(f"{lines} lines; split it, or give the reason in LONG in tests/test_house.py")
    assert not found, "\n".join(f"{name}:{offence}" for offence in found)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(x):\n    assert x > 0", "2: assert"),
        ("import torch\ntorch.load('a.pt')", "2: torch.load runs code"),
        ("joblib.load(p)", "1: joblib.load runs code"),
        ("from pickle import loads", "1: unpickling"),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", "2: runs code from a file"),
        ("AutoModel.from_pretrained(p, trust_remote_code=flag)", "1: runs code from a file"),
        ("torch.manual_seed(0)", "global random state"),
        ("x = np.random.rand(3)", "global random state"),
        ("random.shuffle(x)", "global random state"),
        ("# TO" "DO: later", "1: open end"),
        ("def f():\n    raise NotImplemented" "Error", "2: open end"),
        ("from __future__ import annotations\nfrom jaxtyping import Float", "postponed annotations"),
    ],
)
def test_each_offence_is_found(source, says):
    (found,) = offences(source)
    assert says in found


@pytest.mark.parametrize(
    "source",
    [
        "rng = np.random.default_rng(0)\nrng.random(3)",
        "random.Random(0).shuffle(x)",
        "torch.rand(3, generator=generator)",
        "np.load(f, allow_pickle=False)",
        "from __future__ import annotations\nimport torch",
        "x = 'assert'",
    ],
)
def test_what_is_allowed_is_no_offence(source):
    assert offences(source) == []


def test_a_suite_may_assert():
    assert offences("assert True", testing=True) == []


def project_files():
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in filter(None, listed.stdout.split("\0")) if (path := ROOT / name).is_file()]


def test_no_file_speaks_of_one_machine():
    # In pieces, so that this file is clean too: folders, hosts and tools of a machine that the project was once worked on.
    folders = [r"(?<![\w.*})\]])/" + name for name in ("wo" "rk/", "ro" "ot/", "home/" "[a-z]", "tmp/" "venv")]  # from the root of the disk
    others = ["sub" "agent", "find-" "links", r"py" r"pi\.org/simple", "registry\\." "npm", "deb\\." "debian"]
    pattern = re.compile("|".join(folders + others), re.I)
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{n}: {line.strip()[:80]}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    assert not found, "\n".join(found)


def test_no_large_file_in_git():
    assert not [str(path) for path in project_files() if path.stat().st_size > 1 << 20]


def test_one_version():
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert citation.group(1) == newest.group(1) == trimtab.__version__ == str(Version(trimtab.__version__))


def test_the_licence_is_apache_2():
    assert PROJECT["license"] == "Apache-2.0"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_constraints_hold_what_ci_installs():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    assert not [name for name, pin in pins.items() if "+" in pin]  # a local build exists on one machine only
    wanted = [Requirement(text) for text in PROJECT["dependencies"] + [text for extra in IN_CI for text in PROJECT["optional-dependencies"][extra]]]
    for need in wanted:
        assert need.name.lower() in pins, f"{need.name} has no version in constraints.txt"
        assert need.specifier.contains(pins[need.name.lower()]), f"{need} against {pins[need.name.lower()]} in constraints.txt"


def test_dependencies_have_lower_bounds_and_no_caps():
    for text in [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]:
        assert all(clause.operator == ">=" for clause in Requirement(text).specifier), text


# The Makefile, without installing anything.


def make(*arguments, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))} | environment
    return subprocess.run(["make", "-C", ROOT, "--no-print-directory", *arguments], capture_output=True, text=True, env=clean, stdin=subprocess.DEVNULL)


def stub(folder, before):
    """An interpreter that is this one after ``before`` has run."""
    path = folder / "python-stub"
    path.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -c \'import sys; {before}; exec(sys.argv[1])\' "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def installed(tmp_path):
    """A folder that make takes for an environment in which everything is installed."""
    venv = tmp_path / "venv"
    venv.mkdir()
    for stamp in (".created", ".installed-base", ".installed-dev", ".installed-lm"):
        (venv / stamp).touch()
    return f"VENV={venv}"


def test_every_target_that_is_spoken_of_exists(installed):
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")]
    targets = {"demo", "test", "lint", "bench", "models", "clean", "help"} | set(re.findall(r"(?:^|`)make ([a-z]+)", "\n".join(pages), re.M))
    for target in targets:
        assert make("-n", target, installed).returncode == 0, target


def test_a_second_demo_installs_nothing(installed):
    assert make("-n", "demo", installed).stdout.split("\n", 1)[0].endswith("trimtab run task-hinting --arm standard --arm successor --arm count --seeds 1")


def test_a_changed_dependency_installs_again(installed):
    os.utime(Path(installed[5:]) / ".installed-base", (0, 0))
    assert "pip" in make("-n", "demo", installed).stdout


def test_the_torch_index_is_for_torch_alone(installed):
    os.utime(Path(installed[5:]) / ".installed-base", (0, 0))
    commands = [line for line in make("-n", "demo", installed, "TORCH_INDEX=https://example.org/cpu").stdout.splitlines() if " pip" in line]
    first, second = commands
    assert "--index-url https://example.org/cpu torch" in first and "--no-deps" in first
    assert "--index-url" not in second
    assert all("-c constraints.txt" in command for command in commands)


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("sys.version_info = (3, 9, 1)", "trimtab needs Python 3.11 or newer, and .*python-stub is 3.9; name a newer one: make PYTHON=python3.12"),
        ('sys.modules["ensurepip"] = None', "cannot make virtual environments: .* apt install python3-venv"),
    ],
)
def test_an_interpreter_that_will_not_do_is_refused_before_anything_is_made(tmp_path, before, says):
    result = make("demo", f"PYTHON={stub(tmp_path, before)}", f"VENV={tmp_path / 'venv'}")
    assert result.returncode == 2 and re.search(says, result.stdout + result.stderr)
    assert not (tmp_path / "venv").exists()


def test_no_interpreter_at_all(tmp_path):
    result = make("demo", "PYTHON=python9.9", f"VENV={tmp_path / 'venv'}")
    assert "python9.9 is not on the PATH; install Python 3.11 or newer" in result.stdout


def test_what_is_downloaded_is_said_first(tmp_path):
    venv = f"VENV={tmp_path / 'venv'}"
    torch = re.search("^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.M).group(1)
    plain, chosen = make("-n", "demo", venv).stdout, make("-n", "demo", venv, "TORCH_INDEX=https://example.org/cpu").stdout
    assert plain.index(f"torch {torch} as your default index has it") < plain.index("-m venv") and "TORCH_INDEX=URL" in plain
    assert chosen.index(f"torch {torch} from https://example.org/cpu") < chosen.index("-m venv")


def test_ci_runs_on_a_plain_shell():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_the_wheel_is_whole(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")  # pure Python
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "trimtab/py.typed" in names
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "trimtab").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert source <= set(names)
    records = {str(path.relative_to(ROOT)) for path in (ROOT / "records").rglob("*.json")}
    assert {f"trimtab/{record}" for record in records} <= set(names)
    assert not [name for name in names if not name.startswith(("trimtab/", "trimtab-"))]
    listed = subprocess.run(
        [sys.executable, "-c", "import trimtab; from trimtab.core import cards; print(trimtab.__file__, len(cards()))"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == [str(tmp_path / "site" / "trimtab" / "__init__.py"), str(len(cards()))]
