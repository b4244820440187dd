"""What the tests of several tasks look at."""

import torch


def rows(task, length, size=200, seed=0):
    """(prompt, answer) of each row, pads dropped; that labels are one run of ids at the end of the row, and pads behind it, is checked here."""
    batch = task.batch(seed, 0, size, length)
    assert len(batch["input_ids"]) == size
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        end = ids.index(task.vocab.pad) if task.vocab.pad in ids else len(ids)
        assert set(ids[end:]) <= {task.vocab.pad}
        start = next(k for k, label in enumerate(labels) if label != -100)
        assert labels == [-100] * start + ids[start:end] + [-100] * (len(ids) - end)
        yield ids[:start], ids[start:end]


def even(drawn, choices):
    """Assert that whole numbers 0 .. choices - 1 were drawn alike: their chi-square, made normal by Wilson and Hilferty, is within five deviations."""
    counts = torch.bincount(drawn, minlength=choices).double()
    assert len(counts) == choices, counts
    expected, freedom = len(drawn) / choices, choices - 1
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert ((chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5 < 5, counts
