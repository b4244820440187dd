"""The order of hints: read from task-hinting's record where that has it, and the same as it where it is trained here."""

import pytest

from trimtab.claims import PairRun, find_records, load, read_record, task_hinting
from trimtab.claims import task_hinting_order as order
from trimtab.claims.report import packaged

CLAIM = load("task-hinting-order")


@pytest.mark.parametrize("arm", ["standard", "successor", "count"])
def test_an_arm_that_is_trained_here_has_the_values_that_task_hinting_gives_it(tmp_path, arm):
    size = CLAIM.size("smoke")
    here = order.trained(arm, 3, size, PairRun(tmp_path / "a", lambda *_: None))
    assert here == pytest.approx(task_hinting.measure(arm, 3, size, PairRun(tmp_path / "b", lambda *_: None)), rel=1e-6)  # its token shares are float32


@pytest.mark.parametrize("name", ["smoke", "small", "small-2"])
def test_sizes_are_those_of_task_hinting(name):
    assert CLAIM.size(name).settings == load("task-hinting").size(name).settings


def test_arms_of_its_record_are_read_and_fill_is_not_there():
    records = {record["size"]: record for path in find_records(packaged() / "task-hinting") if (record := read_record(path))}
    for name in ("small", "small-2"):
        for arm in ("standard", "successor", "count"):
            assert order.measured_before(arm, 2, CLAIM.size(name)) == records[name]["measured"][arm]["2"]
    assert order.measured_before("fill", 2, CLAIM.size("small")) is None
    assert order.measured_before("count", 7, CLAIM.size("small")) is None
    assert order.measured_before("count", 2, CLAIM.size("smoke")) is None


def test_a_stale_or_superseded_record_is_not_read(monkeypatch):
    monkeypatch.setattr("trimtab.claims.stale", lambda record: ["changed"])
    assert order.measured_before("count", 2, CLAIM.size("small")) is None
