import json

import numpy as np
import pytest
import torch

from trimtab.core import UsageError
from trimtab.metrics import exact_match, token_accuracy
from trimtab.nn import Transformer
from trimtab.tasks import Fill, Scratchpad, Sorting
from trimtab.train import evaluate_lengths

TASK = Sorting(vocab=4, lengths=(1, 3))


class Sorter(torch.nn.Module):
    """Sorts by rule, but for lists longer than ``fails_above``, whose first answer it gets wrong."""

    def __init__(self, fails_above=10**9):
        super().__init__()
        self.fails_above, self.weight = fails_above, torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        out = torch.zeros(*ids.shape, TASK.vocab.size)
        for row, line in enumerate(ids.tolist()):
            n = line.index(TASK.vocab.id("<sort>"))
            answer = [*sorted(line[:n]), TASK.vocab.eos]
            if n > self.fails_above:
                answer[0] = TASK.vocab.pad
            for k, token in enumerate(answer):
                if n + k < ids.shape[1]:
                    out[row, n + k, token] = 1
        return out

    def generate(self, ids, *, max_new_tokens, eos, pad, attention_mask=None):
        assert attention_mask is None and not self.training
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


def test_a_model_that_is_right_scores_one_and_one_that_fails_on_long_lists_shows_where():
    rows = evaluate_lengths(Sorter(fails_above=3), TASK, [2, 3, 5], examples=6)
    assert [row["length"] for row in rows] == [2, 3, 5]
    assert [row["exact"] for row in rows] == [1, 1, 0]
    assert [row["edit"] for row in rows][:2] == [1, 1]
    assert rows[2]["edit"] == pytest.approx(0.8) and rows[2]["token"] == pytest.approx(5 / 6)
    assert all(row["early"] == row["late"] == 0 and row["examples"] == 6 for row in rows)


def test_scores_are_those_of_one_large_batch_whatever_the_batch_size():
    model = Transformer(TASK.vocab.size, dim=8, layers=1, heads=1, generator=torch.Generator().manual_seed(0))
    (row,) = evaluate_lengths(model, TASK, [4], examples=7, batch_size=4, seed=5)
    batches = [TASK.batch(5, 0, 4, 4), TASK.batch(5, 1, 3, 4)]
    ids, labels = (torch.cat([batch[name] for batch in batches]) for name in ("input_ids", "labels"))
    model.eval()
    right, asked = token_accuracy(model(ids), labels)
    assert row["token"] == pytest.approx(float(right / asked))
    assert row["exact"] == pytest.approx(float(exact_match(model(ids), labels).double().mean()))


@pytest.mark.parametrize("training", [True, False])
def test_the_modes_are_left_as_they_were_even_on_an_error(training, monkeypatch):
    model = Sorter().train(training)
    model.frozen = torch.nn.Dropout().train(not training)
    evaluate_lengths(model, TASK, [2], examples=2)
    assert (model.training, model.frozen.training) == (training, not training)
    monkeypatch.setattr(model, "generate", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate_lengths(model, TASK, [2], examples=2)
    assert (model.training, model.frozen.training) == (training, not training)


def test_an_impossible_length_is_refused_before_any_work(monkeypatch):
    with pytest.raises(UsageError, match="length of sorting must be a whole number >= 0, got -1"):
        evaluate_lengths(None, TASK, [2, -1], examples=2)
    with pytest.raises(UsageError, match="task must be one of prompt and answer, a SeqTask, got 'sorting'"):
        evaluate_lengths(None, "sorting", [2])


def test_what_comes_back_is_json():
    (row,) = evaluate_lengths(Sorter(), TASK, [np.int64(2)], examples=np.int64(3))
    assert json.loads(json.dumps(row)) == row


def test_the_task_is_the_judge_of_exact():
    class Copies(Sorter):
        """Sorts, and says of every number that 3 copies are still to come."""

        def forward(self, ids):
            out = torch.zeros(*ids.shape, TASK.vocab.size)
            for row, line in enumerate(ids.tolist()):
                n = line.index(TASK.vocab.id("<sort>"))
                pairs = [token for value in sorted(line[:n]) for token in (value, 3)]
                for k, token in enumerate([*pairs, TASK.vocab.eos]):
                    if n + k < ids.shape[1]:
                        out[row, n + k, token] = 1
            return out

    (row,) = evaluate_lengths(Copies(), Scratchpad(TASK), [3], examples=6)
    assert row["exact"] == row["edit"] == 1 and row["token"] < 1


def test_prompts_of_unequal_length_are_padded_and_masked():
    model = Transformer(TASK.vocab.size, dim=8, layers=1, heads=1, positions="rope", generator=torch.Generator().manual_seed(0)).eval()
    task = Fill(TASK)
    batch = task.batch(0, 0, 16, 3)
    (row,) = evaluate_lengths(model, task, [3], examples=16)
    alone = []
    for k in range(16):
        one = {name: values[k : k + 1] for name, values in batch.items()}
        prompt, _ = task.prompts(one)
        out = model.generate(prompt[:, : int((prompt != task.vocab.pad).sum())], max_new_tokens=2 * task.targets(batch).shape[1], eos=task.vocab.eos)
        alone.append(task.score(out[:, prompt.shape[1] :], one)["edit"])
    assert row["edit"] == pytest.approx(sum(alone) / 16)
    assert len({len(task.prompts({n: v[k : k + 1] for n, v in batch.items()})[0][0]) for k in range(16)}) > 1


def test_an_output_may_be_twice_as_long_as_the_right_one():
    class Endless(Sorter):
        def forward(self, ids):
            return torch.nn.functional.one_hot(torch.zeros_like(ids), TASK.vocab.size).float()

        def generate(self, ids, *, max_new_tokens, **how):
            assert max_new_tokens == 2 * 4  # three numbers and <eos>
            return torch.cat([ids, torch.zeros(len(ids), max_new_tokens, dtype=torch.int64)], 1)

    (row,) = evaluate_lengths(Endless(), TASK, [3], examples=4)
    assert row["late"] == 1 and row["exact"] == 0


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"examples": True}, {"batch_size": 0}, {"batch_size": 1.5}])
def test_bad_numbers_are_named(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be a whole number >= 1, got {next(iter(wrong.values()))}"):
        evaluate_lengths(Sorter(), TASK, [2], **wrong)
