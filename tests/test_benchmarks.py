"""The benchmark harness: turns, ratios, floors and failures. No figure of speed is tested."""

import json
import math
import os
import random
import signal
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Race, Result, run, spread


def _noting(name, seconds):
    """A contestant that writes its name down each time it works, and takes this long."""

    def work():
        with open(os.environ["TURNS"], "a", encoding="utf-8") as turns:
            turns.write(name + "\n")
        time.sleep(seconds)
        return 10.0

    return work


def fast():
    return _noting("fast", 0.002)


def slow():
    return _noting("slow", 0.02)


def middle():
    return _noting("middle", 0.005)


def threads():
    import torch

    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else torch.get_num_threads()
    Path(os.environ["TURNS"]).write_text(f"{torch.get_num_threads()} {pinned}")
    return lambda: 1.0


def absent():
    import a_library_nobody_has  # noqa: F401


def breaks_in_setup():
    raise OSError("no index here")


def breaks_at_work():
    def work():
        raise KeyError("lost")

    return work


def dies():
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def turns(tmp_path, monkeypatch):
    path = tmp_path / "turns"
    monkeypatch.setenv("TURNS", str(path))
    return path


def race(*setups, **settings):
    return Race(subject="a thing", unit="things", contestants={setup.__name__: setup for setup in setups}, **settings)


def test_every_round_gives_each_its_turn_and_another_the_first(turns):
    result = run(race(fast, slow, middle), rounds=7, warmup=2)
    order = turns.read_text().split()
    by_round = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(by_round) == 9
    assert all(sorted(names) == ["fast", "middle", "slow"] for names in by_round)
    firsts = [names[0] for names in by_round]
    assert all(firsts.count(name) == 3 for name in ("fast", "slow", "middle"))
    assert {name: len(rates) for name, rates in result.rates.items()} == {"fast": 7, "slow": 7, "middle": 7}  # no warm-up among them


def test_ratios_are_ours_over_the_peers_within_a_round():
    result = Result(race=race(fast, slow), rates={"fast": [10.0, 40.0, 30.0], "slow": [5.0, 10.0, 60.0]})
    assert result.ratios() == {"slow": [2.0, 4.0, 0.5]}
    assert result.as_dict()["ratios"]["fast / slow"]["median"] == 2.0


def test_a_slower_peer_is_reported_as_slower(turns):
    text = str(run(race(fast, slow)))
    assert "fast / slow" in text
    assert text.endswith("faster")
    assert str(run(race(slow, fast))).endswith("slower")


def test_no_win_is_claimed_when_the_interval_holds_one():
    result = Result(race=race(fast, slow), rates={"fast": [2.0] * 6 + [0.9], "slow": [1.0] * 7})
    assert str(result).endswith("no difference shown")


@pytest.mark.parametrize("n", [7, 8, 9, 12, 20])
def test_the_interval_holds_the_median_of_a_skewed_law_often_enough(n):
    draw = random.Random(0)
    hits = sum(s["low"] <= math.log(2) <= s["high"] for s in (spread([draw.expovariate(1.0) for _ in range(n)]) for _ in range(3000)))
    assert hits / 3000 > 0.94  # at least 95 %, less two standard errors


def test_the_interval_is_no_wider_than_it_must_be():
    assert spread(range(7)) == {"median": 3, "low": 0, "high": 6}
    assert spread(range(9)) == {"median": 4, "low": 1, "high": 7}  # 2 * (1 + 9) / 512 = 3.9 % lie outside
    assert spread([1.0]) == {"median": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize("used", [1, 2])
def test_threads_and_cores_are_pinned(turns, used):
    run(race(threads, threads=used))
    assert turns.read_text() == f"{used} {min(used, harness.cores())}"


def test_a_peer_that_is_not_installed_is_left_out_with_its_reason(turns):
    result = run(race(fast, absent, slow))
    assert list(result.rates) == ["fast", "slow"]
    assert "a_library_nobody_has" in result.missing["absent"] and "trimtab[bench]" in str(result)


def test_ours_missing_is_a_failure(turns):
    with pytest.raises(RuntimeError, match="absent, whose speed this is about"):
        run(race(absent, fast))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (breaks_in_setup, "breaks_in_setup failed in 'a thing':[^$]*OSError: no index here"),
        (breaks_at_work, "breaks_at_work failed in 'a thing':[^$]*KeyError: 'lost'"),
        (dies, "dies died with exit code -9 in 'a thing'"),
    ],
)
def test_a_failing_child_is_named(turns, broken, says):
    with pytest.raises(RuntimeError, match=says):
        run(race(fast, broken))


def test_too_few_rounds():
    with pytest.raises(ValueError, match="rounds must be >= 7, got 6"):
        run(race(fast), rounds=6)


@pytest.mark.parametrize(("floor", "code"), [(None, 0), (1.0, 0), (1e12, 1)])
def test_json_and_exit_code(turns, capsys, floor, code):
    with pytest.raises(SystemExit) as stop:
        harness.main([race(fast, slow, floor=floor)], ["--json"])
    assert stop.value.code == code
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] == version("torch")
    assert report["machine"]["cores"] >= 1
    (row,) = report["races"]
    assert row["held"] == (code == 0)
    assert row["rates"]["fast"]["median"] == statistics.median(row["rates"]["fast"]["rounds"])
    assert len(row["ratios"]["fast / slow"]["rounds"]) == 7


def test_the_tasks_benchmark_holds_ours_to_its_floor():
    from benchmarks import tasks

    (race,) = tasks.RACES
    (ours, _), *peers = race.contestants.items()
    assert ours == "trimtab"
    rates = {name: [1.0] for name, _ in peers}
    assert Result(race=race, rates={ours: [100_000.0], **rates}).held
    assert not Result(race=race, rates={ours: [99_999.0], **rates}).held


def test_the_contestants_of_the_tasks_benchmark_do_the_same_work(monkeypatch):
    from benchmarks import tasks

    monkeypatch.setattr(tasks, "BATCHES", 2)
    for setup in tasks.CONTESTANTS.values():
        assert setup()() == 2 * tasks.SIZE
