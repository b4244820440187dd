import hashlib
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from trimtab.core import UsageError
from trimtab.tasks import PythonCorpus, corpus
from trimtab.testing import check_task

SPLITS = ("train", "validation", "test")


@pytest.fixture
def folder(tmp_path):
    for k in range(40):
        path = tmp_path / ("package" if k % 2 else "") / f"module{k}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"x = {k}\n".encode())
    for name in ("site-packages/a.py", "package/test/b.py", "tests/c.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not part of it")
    return tmp_path


def test_every_file_is_in_one_split_and_each_split_has_some(folder):
    texts = [corpus.read_source(folder, split) for split in SPLITS]
    files = [name for text in texts for name in text.files]
    assert len(files) == len(set(files)) == 40
    assert all(text.files for text in texts)
    assert all(corpus.split_of(name) == split for split, text in zip(SPLITS, texts, strict=True) for name in text.files)


def test_files_are_joined_by_zero_bytes_in_the_order_of_their_names(folder):
    text = corpus.read_source(folder, "train")
    assert list(text.files) == sorted(text.files)
    assert text.content.split(b"\0") == [(folder / name).read_bytes() for name in text.files]


def test_only_the_modules_asked_for(folder):
    files = [name for split in SPLITS for name in corpus.read_source(folder, split, frozenset({"package", "module4"})).files]
    assert sorted(files) == sorted(["module4.py", *(f"package/module{k}.py" for k in range(1, 40, 2))])


def test_a_file_that_cannot_be_read_is_skipped(folder):
    name = corpus.read_source(folder, "test").files[0]
    (folder / name).unlink()
    (folder / name).symlink_to(folder / "gone.py")
    text = corpus.read_source(folder, "test")
    assert text.skipped == (name,)
    assert name not in text.files


def test_the_folder_is_only_read(folder):
    def state():
        return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in sorted(folder.rglob("*"))}

    before = state()
    corpus.read_source(folder, "train")
    assert state() == before


def test_shares_of_the_splits():
    counts = dict.fromkeys(SPLITS, 0)
    for k in range(5000):
        counts[corpus.split_of(f"package/module{k}.py")] += 1
    assert abs(counts["train"] - 4000) < 150
    assert abs(counts["validation"] - 500) < 110


def test_splits_of_the_standard_library_share_no_file():
    texts = {split: PythonCorpus(split=split).text for split in SPLITS}
    files = [name for text in texts.values() for name in text.files]
    assert len(files) == len(set(files)) > 300
    assert {name.split("/")[0].removesuffix(".py") for name in files} <= sys.stdlib_module_names
    assert "pydoc_data/topics.py" in files
    assert {"argparse.py", "json/decoder.py"} <= set(files)
    assert not any("test" in Path(name).parts[:-1] for name in files)
    for text in texts.values():
        assert len(text.content.split(b"\0")) == len(text.files)  # no file has a zero byte of its own


def test_fingerprint_and_facts():
    task = PythonCorpus(split="validation")
    assert task.fingerprint == hashlib.sha256(task.text.content).hexdigest() == PythonCorpus(64, "validation").fingerprint
    assert task.fingerprint != PythonCorpus(split="test").fingerprint
    assert task.bytes == len(task.text.content) > 100_000
    assert task.licence == "PSF-2.0"


def test_nothing_is_read_before_it_is_needed_and_then_once(monkeypatch):
    calls = []
    read = corpus.read_source
    monkeypatch.setattr(corpus, "read_source", lambda *args: calls.append(args) or read(*args))
    corpus._standard_library.cache_clear()
    tasks = [PythonCorpus(length, "validation") for length in (8, 16)]
    assert calls == []
    for task in tasks:
        task.batch(0, 0, 4)
        _ = task.fingerprint
    assert len(calls) == 1


def test_windows_are_pieces_of_the_text_with_all_but_the_first_byte_supervised():
    task = PythonCorpus(50, "validation")
    batch = task.batch(0, 0, 30)
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        assert bytes(ids) in task.text.content
        assert labels == [-100, *ids[1:]]


def test_every_place_can_begin_a_window(monkeypatch):
    text = corpus.Text(b"abcdef", ("a.py",), ())
    monkeypatch.setattr(corpus, "_standard_library", lambda split: (text, torch.frombuffer(bytearray(text.content), dtype=torch.uint8)))
    windows = {bytes(row) for row in PythonCorpus(4).batch(0, 0, 200)["input_ids"].tolist()}
    assert windows == {b"abcd", b"bcde", b"cdef"}
    assert bytes(PythonCorpus(6).batch(0, 0, 1)["input_ids"][0].tolist()) == b"abcdef"
    with pytest.raises(UsageError, match="at most the 6 bytes of the train split, got 7"):
        PythonCorpus(7).batch(0, 0, 1)


def test_a_python_without_source(monkeypatch, tmp_path):
    corpus._standard_library.cache_clear()
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UsageError, match="without the source of its standard library"):
        PythonCorpus().batch(0, 0, 1)


@pytest.mark.parametrize("split", SPLITS)
def test_contract(split):
    check_task(PythonCorpus(16, split))


@pytest.mark.parametrize("vocab", [256, 300])
def test_score(vocab):
    task = PythonCorpus(20, "validation")
    batch = task.batch(0, 0, 5)
    logits = torch.randn(5, 20, vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_p = logits.log_softmax(-1)
    places = [(i, t) for i in range(5) for t in range(1, 20)]
    nats = sum(-float(log_p[i, t - 1, batch["input_ids"][i, t]]) for i, t in places) / len(places)
    right = sum(int(logits[i, t - 1].argmax()) == int(batch["input_ids"][i, t]) for i, t in places) / len(places)
    assert task.score(logits, batch) == pytest.approx({"nats per byte": nats, "byte accuracy": right})


def test_score_of_the_truth_and_of_no_idea():
    task = PythonCorpus(20, "validation")
    batch = task.batch(0, 0, 5)
    truth = 100 * functional.one_hot(batch["input_ids"].roll(-1, 1), 256).to(torch.bfloat16)
    assert task.score(truth, batch) == {"nats per byte": pytest.approx(0, abs=1e-6), "byte accuracy": 1}
    assert task.score(torch.zeros(5, 20, 256), batch)["nats per byte"] == pytest.approx(math.log(256))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PythonCorpus(1), "length must be a whole number >= 2"),
        (lambda: PythonCorpus(split="valid"), "did you mean 'validation'"),
        (lambda: corpus.read_source(".", "valid"), "did you mean 'validation'"),
        (lambda: PythonCorpus(8, "test").batch(0, 0, 0), "size must be a whole number >= 1, got 0"),
        (lambda: PythonCorpus(8, "test").score(torch.zeros(1, 8, 255), PythonCorpus(8, "test").batch(0, 0, 1)), "got 255"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
