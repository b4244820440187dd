from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from trimtab.core import UsageError
from trimtab.tasks import Count, Curriculum, Examples, Lego, PythonCorpus, Sorting, Successor, TaskMixture

SORT = Sorting(vocab=10, lengths=(1, 6))
MIX = TaskMixture(SORT, {Successor(SORT): 0.5, Count(SORT): 0.5})
TASKS = [SORT, MIX, Curriculum(MIX, {0: 2, 3: 6}), Lego(4, 2), PythonCorpus(8, "validation")]


def rows_of(task, steps, size=4):
    """(ids, labels) of each row of the batches, without padding."""
    for step in range(steps):
        batch = task.batch(3, step, size)
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            end = ids.index(task.vocab.pad) if hasattr(task, "vocab") and task.vocab.pad in ids else len(ids)
            yield ids[:end], labels[:end]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_rows_are_those_of_the_batches(task):
    rows = Examples(task, seed=3, size=4, steps=5)
    seen = [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]
    assert seen == list(rows_of(task, 5)) and len(rows) == len(seen)
    assert seen == [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]  # and once more


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_batches_whatever_the_workers(workers):
    rows = Examples(MIX, seed=3, size=4, steps=5)
    loader = DataLoader(rows, batch_size=MIX.rows(4), collate_fn=rows.collate, num_workers=workers)
    batches = list(loader)
    assert len(batches) == len(loader) == 5
    for step, batch in enumerate(batches):
        expected = MIX.batch(3, step, 4)
        width = batch["input_ids"].shape[1]
        for name, fill in (("input_ids", SORT.vocab.pad), ("labels", -100)):
            assert torch.equal(batch[name], expected[name][:, :width]) and (expected[name][:, width:] == fill).all()
        assert torch.equal(batch["attention_mask"], (batch["input_ids"] != SORT.vocab.pad).long())
        assert bool(batch["attention_mask"][:, -1].any())  # no wider than it must be


def test_workers_share_the_rows_at_any_batch_size():
    rows = Examples(MIX, seed=3, size=4, steps=5)
    alone, shared = (
        [row.tolist() for batch in DataLoader(rows, batch_size=3, collate_fn=rows.collate, num_workers=workers) for row in batch["input_ids"]]
        for workers in (0, 2)
    )
    strip = lambda rows: sorted([token for token in row if token != SORT.vocab.pad] for row in rows)  # noqa: E731
    assert strip(alone) == strip(shared) == sorted(ids for ids, _ in rows_of(MIX, 5))


def test_without_end():
    rows = Examples(SORT, seed=3, size=4)
    assert [row["input_ids"].tolist() for row in islice(rows, 30)] == [ids for ids, _ in islice(rows_of(SORT, 8), 30)]
    with pytest.raises(TypeError, match="give it steps"):
        len(rows)


def test_rows_are_the_callers_own():
    rows = Examples(SORT, seed=3, size=4, steps=1)
    first, second = islice(rows, 2)
    kept = second["input_ids"].clone()
    first["input_ids"].fill_(0)
    assert torch.equal(second["input_ids"], kept) and first["input_ids"].untyped_storage().nbytes() == 8 * len(first["input_ids"])


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(("settings", "message"), [({"size": 0}, "size must be .* got 0"), ({"size": 2, "steps": 0}, "steps must be .* got 0")])
def test_what_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Examples(SORT, seed=0, **settings)


@pytest.mark.slow
def test_the_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra lm")
    pytest.importorskip("accelerate", reason="needs the extra lm")
    vocab, seen = SORT.vocab, []
    config = transformers.GPT2Config(
        vocab_size=vocab.size, n_positions=32, n_embd=8, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=vocab.eos, pad_token_id=vocab.pad
    )
    model = transformers.GPT2LMHeadModel(config)
    before = model.transformer.wte.weight.detach().clone()
    rows = Examples(MIX, seed=3, size=4)

    def collate(items):
        seen.append(rows.collate(items))
        return seen[-1]

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=MIX.rows(4), report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    result = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collate).train()
    assert result.global_step == 2 and torch.isfinite(torch.tensor(result.training_loss))
    assert not torch.equal(before, model.transformer.wte.weight)
    for step in range(2):
        width = seen[step]["input_ids"].shape[1]
        assert torch.equal(seen[step]["labels"], MIX.batch(3, step, 4)["labels"][:, :width])
