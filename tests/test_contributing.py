"""CONTRIBUTING.md, followed to the letter on a copy of the project: four new files and one place make a method that everything accepts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```$", TEXT, re.M | re.S))
IMPORT = re.search(r"^from trimtab\.nn\.dynamic_tanh import (.+)$", TEXT, re.M)


def run(*words, folder):
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def project(tmp_path):
    """A copy of the project with the method of the page in it."""
    for name in ("src", "tests", "benchmarks", "scripts", "records"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    for name, text in FILES.items():
        assert not (tmp_path / name).exists(), f"{name} is not new"
        (tmp_path / name).write_text(text, encoding="utf-8")
    room = tmp_path / "src" / "trimtab" / "nn" / "__init__.py"
    names = "".join(f'"{name.strip()}", ' for name in IMPORT.group(1).split(","))
    before = room.read_text(encoding="utf-8")
    room.write_text(before.replace("\n__all__ = [", f"{IMPORT.group(0)}\n\n__all__ = [{names}", 1), encoding="utf-8")
    run("-m", "ruff", "check", "--fix", str(room), folder=tmp_path)
    return tmp_path


def test_the_page_has_the_four_files():
    kinds = {"src/trimtab/cards/dynamic-tanh.toml", "src/trimtab/nn/dynamic_tanh.py", "tests/nn/test_dynamic_tanh.py", "src/trimtab/claims/dynamic_tanh.py"}
    assert set(FILES) == kinds


@pytest.mark.slow
def test_the_method_of_the_page_is_accepted(project):
    tests = re.search(r'^make test ARGS="(.+)"$', TEXT[TEXT.index("### 5.") :], re.M).group(1).split()
    run("-m", "pytest", "-q", *tests, "src/trimtab/nn/dynamic_tanh.py", folder=project)
    run("-m", "ruff", "check", *FILES.keys() - {"src/trimtab/cards/dynamic-tanh.toml"}, folder=project)
    run("-m", "pyright", "--pythonpath", sys.executable, *[name for name in FILES if name.startswith("src") and name.endswith(".py")], folder=project)
    run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache", folder=project)
    main = "import sys; from trimtab.cli import main; main(sys.argv[1:])"
    record = json.loads(run("-c", main, "run", "dynamic-tanh", "--size", "smoke", "--json", folder=project))
    assert record["slug"] == "dynamic-tanh"
    assert record["verdict"] is None
    assert "2503.10622" in run("-c", main, "show", "dynamic-tanh", folder=project)
    (row,) = [row for row in json.loads(run("-c", main, "list", "--json", folder=project)) if row["slug"] == "dynamic-tanh"]
    assert row["status"] == "built"
