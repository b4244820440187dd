import functools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.core import DamagedFile
from trimtab.optim import warmup_cosine
from trimtab.train import NextToken, NotWritten, Run
from trimtab.train.run import Metrics, describe, describe_model, describe_optimizer, enter


def test_metrics_are_cut_back_to_a_number_of_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, 0) as metrics:
        for step in (1, 2, 3):
            metrics.write({"step": step, "seconds": step / 2})
        metrics.sync()
        assert metrics.lines == 3
    with path.open("a") as file:
        file.write('{"step": 4, "sec')
    with Metrics(path, 2) as metrics:
        assert metrics.seconds == 1.0
        metrics.write({"step": 30, "seconds": 9})
    assert [line["step"] for line in Run(tmp_path, nn.Identity(), 3).metrics()] == [1, 2, 30]
    with Metrics(path, 0):
        assert path.read_text() == ""
    with pytest.raises(DamagedFile, match=r"should have the 1 lines .* and has 0"):
        Metrics(path, 1)


def test_what_is_not_finite_is_null_and_a_cut_last_line_is_left_out(tmp_path):
    with Metrics(tmp_path / "metrics.jsonl", 0) as metrics:
        metrics.write({"step": 1, "a": float("nan"), "b": -float("inf"), "c": "größe"})
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text == '{"step": 1, "a": null, "b": null, "c": "größe"}\n'
    (tmp_path / "metrics.jsonl").write_text(text + '{"step"', encoding="utf-8")
    assert Run(tmp_path, nn.Identity(), 1).metrics() == [{"step": 1, "a": None, "b": None, "c": "größe"}]


class Thing:
    def __init__(self, inner=None, **others):
        self.inner = [inner]
        vars(self).update(others)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, 0.1),
        (float("inf"), "inf"),
        ((1, [None, True]), [1, [None, True]]),
        (NextToken("token"), "NextToken(reduction='token')"),
        (warmup_cosine(9, warmup=2), "_WarmupCosine(steps=9, warmup=2, floor=0.0)"),
        (torch.bfloat16, "torch.bfloat16"),
        (describe, "<function describe>"),
        (functools.partial(describe, 3), "functools.partial(<function describe>, 3)"),
    ],
)
def test_describe(value, expected):
    assert describe(value) == expected
    json.dumps(describe(value), allow_nan=False)


def test_describe_has_no_addresses_and_no_pages():
    assert describe(Thing()) == describe(Thing()) == f"<{__name__}.Thing object>"
    assert describe(Thing(_calls=3, model=nn.Identity())) == describe(Thing())  # neither state nor pages
    assert describe(Thing(best=0.5, state_dict=dict)) == describe(Thing())  # what moves in a run is in its checkpoints
    expected = {"class": f"<{__name__}.Thing object>", "rate": 0.5, "sizes": [1, [None, "a"]]}
    assert describe(Thing(rate=0.5, sizes=(1, (None, "a")), mixed=(1, print))) == expected
    big, bigger = (nn.ModuleList(nn.Linear(2, 2) for _ in range(n)) for n in (100, 101))
    wide = [describe(nn.Sequential(*(nn.Linear(i + n, 2) for i in range(60)))) for n in (1, 2)]
    assert max(map(len, wide)) < 300 and wide[0] != wide[1]
    assert describe(big) != describe(bigger)


def test_a_model_is_told_by_names_shapes_and_types():
    models = [nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Linear(2, 3, dtype=torch.float64), nn.Sequential(nn.Linear(2, 3))]
    assert len({describe_model(model) for model in models}) == 5
    assert describe_model(nn.Linear(2, 3)) == describe_model(models[0])
    assert describe_model(models[0]).startswith("Linear with 9 parameters")
    assert describe_model(nn.Dropout(0.1)) != describe_model(nn.Dropout(0.2))  # which no tensor shows
    other = nn.Linear(2, 3)
    other.settings = {"heads": 2}
    assert describe_model(other) != describe_model(models[0])
    other.settings, before = {"heads": 4}, describe_model(other)
    assert describe_model(other) != before


def test_an_optimizer_is_told_by_what_it_does_not_how():
    model = nn.Linear(2, 2)

    def text(**options):
        return describe_optimizer(torch.optim.AdamW(model.parameters(), **options))

    assert text() == text(fused=True) == text(foreach=False)
    assert text() != text(weight_decay=0.5) != text(betas=(0.5, 0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = describe_optimizer(optimizer)
    optimizer.param_groups[0] |= {"initial_lr": 0.1, "lr": 0.003}  # a schedule is at work
    assert describe_optimizer(optimizer) == before


@pytest.mark.parametrize("seconds", ["null", '"soon"', "[1]", "1e999"])
def test_a_line_without_its_seconds_is_damaged(tmp_path, seconds):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "seconds": ' + seconds + "}\n")
    with pytest.raises(DamagedFile, match=r"line 1 of .*metrics.jsonl should have the run's seconds, a number, and has"):
        Metrics(tmp_path / "metrics.jsonl", 1)


@pytest.mark.parametrize("line", ["[]", "3", "\x00", "[" * 200_000, '{"a": '])
def test_a_line_that_is_no_object_is_damaged(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "seconds": 1}\n' + line + "\n")
    with pytest.raises(DamagedFile, match=r"line 2 of .*metrics.jsonl should be a JSON object and is not"):
        Run(tmp_path, nn.Identity(), 2).metrics()


def test_a_disk_that_is_full_is_reported_once_and_in_words(tmp_path):
    with pytest.raises(NotWritten, match=r"could not write .*metrics.jsonl: No space left on device"), Metrics(tmp_path / "metrics.jsonl", 0) as metrics:
        metrics._file.close()
        metrics._file = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115
        metrics.write({"step": 1})


@pytest.mark.parametrize("name", ["settings", "conditions", "notes", "initial_weights"])
@pytest.mark.parametrize("value", [None, 3, {1: 2}, "text", ["x"]])
def test_settings_of_the_wrong_type_are_damaged(tmp_path, name, value):
    settings = {"steps": 2}
    enter(tmp_path, settings, nn.Identity(), torch.device("cpu"), (), 0, 2)
    saved = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**saved, name: value}))
    if type(saved[name]) is type(value):
        return
    with pytest.raises(DamagedFile, match=rf"run.json should have .*{name} \({type(saved[name]).__name__}\).* and has not"):
        enter(tmp_path, settings, nn.Identity(), torch.device("cpu"), (), 1, 2)
