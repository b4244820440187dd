import sys

import pytest

import trimtab
import trimtab.claims
from tests.cli.toys import TOY
from trimtab.claims import loading
from trimtab.cli import main


@pytest.fixture
def toy(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(loading, "_HERE", folder)
    monkeypatch.setattr(trimtab.claims, "__path__", [*trimtab.claims.__path__, str(folder)])
    for module in ("terminal", "doctor"):
        monkeypatch.setattr(f"trimtab.cli.{module}.packaged", lambda: folder / "records")
    yield folder
    sys.modules.pop("trimtab.claims.toy", None)


@pytest.fixture(autouse=True)
def _few_figures(request, monkeypatch):
    """Drawing takes most of the time, and has its own tests."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("trimtab.claims.report.figures.pictures", lambda view: [])


@pytest.fixture
def drawn():
    """Asks for real figures."""


@pytest.fixture
def call(capsys):
    def run(*args):
        with pytest.raises(SystemExit) as end:
            main([*map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return end.value.code, out, err

    return run
