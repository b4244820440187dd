import random
from functools import partial

import pytest

from tests.claims.toys import altered_toy
from trimtab.testing import CheckFailed, check_claim

PAPER = "the paper's values are of measured arms and metrics"
START = '    draw = random.Random(f"{arm} {seed}")\n'


@pytest.fixture
def toy(tmp_path):
    return partial(altered_toy, tmp_path, ("seeds=2, core_minutes=12", "seeds=5, core_minutes=12"))


def test_a_good_claim_passes_and_leaves_the_random_state(toy):
    random.seed(5)
    before = random.getstate()
    check_claim(toy(), card=False)
    check_claim(toy(), "small", card=False)
    assert random.getstate() == before


BUGS = {
    "no card": ("the method has a card",),
    "no title": ("a title", ('title="Does a hint help a toy?"', 'title=""')),
    "no small size": ("sizes smoke and small", ('"small": Size', '"medium": Size')),
    "two seeds": ("seeds and cost of small", ("seeds=5", "seeds=2")),
    "no cost": ("seeds and cost of small", (", core_minutes=12", "")),
    "sizes by a name": ("records can be bound to the file", ("sizes={", "sizes={} or {")),
    "a metric is missing": ("every arm is measured", ('"edit@2x": level', '"edit": level')),
    "the mastery metric is missing": ("every arm is measured", ('Mastery("exact@8"', 'Mastery("exact@1"')),
    "one point is no curve": ("every arm is measured", ('trend("exact"', 'trend("edit@x"')),
    "nan": ("every arm is measured", ("level / 2 + 0.01", 'float("nan") + 0.01')),
    "the paper has another arm": (PAPER, ('paper={"hint"', 'paper={"hints"')),
    "the paper has another metric": (PAPER, ('"hint": {"exact@32"', '"hint": {"accuracy"')),
    "state between pairs": (
        "the same pair gives the same numbers",
        ("LEVEL = ", "COUNT = []\nLEVEL = "),
        (START, START + "    COUNT.append(1)\n"),
        ("level / 2", "level / 2 + len(COUNT)"),
    ),
    "global state is drawn from": ("no global random state", ("level + 0.05 * draw", "level + 0.05 * random")),
    "global state is seeded": ("no global random state", (START, START + "    random.seed(seed)\n")),
    "torch's global state is seeded": ("no global random state", (START, START + "    import torch\n\n    torch.manual_seed(seed)\n")),
    "global state is drawn from and put back": (
        "the same pair gives the same numbers",
        (START, START + "    state = random.getstate()\n    luck = random.random()\n    random.setstate(state)\n"),
        ("level / 2", "luck + level / 2"),
    ),
    "the folder is read": ("a finished folder gives the same numbers", ("level / 2", "len((run.folder / 'metrics.jsonl').read_text()) / 1e4 + level / 2")),
    "the environment is changed": ("the process is left as it was", (START, START + '    os.environ["TOY"] = str(time.monotonic())\n')),
    "the precision is changed": ("the process is left as it was", (START, START + "    import torch\n\n    torch.set_default_dtype(torch.float64)\n")),
    "the fingerprint moves": ("the fingerprint is stable", ('"loss": 2.0}', '"loss": time.monotonic()}')),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found_by_their_rule(toy, bug, monkeypatch):
    import torch

    rule, *replacements = BUGS[bug]
    monkeypatch.setenv("TOY", "")
    dtype = torch.get_default_dtype()
    try:
        with pytest.raises(CheckFailed) as caught:
            check_claim(toy(*replacements), card=bug == "no card")
    finally:
        torch.set_default_dtype(dtype)
    assert caught.value.rule == rule, str(caught.value)
