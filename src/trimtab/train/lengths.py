"""A model judged by length: beside the lengths it was trained on, the longer ones.

No paper; the measures are those of :mod:`trimtab.metrics.sequence`. The task judges what the model writes by itself, as it does everywhere: a scratchpad by its
list alone, an indexed answer without its numbers. Token accuracy, a diagnostic, comes from one parallel forward.
"""

from collections.abc import Iterable
from typing import Any

import torch

from trimtab.core import UsageError, whole
from trimtab.metrics import token_accuracy
from trimtab.nn.sampling import evaluating
from trimtab.tasks import Batch, SeqTask


def evaluate_lengths(
    model: Any, task: SeqTask, lengths: Iterable[int], *, examples: int = 2000, seed: int = 0, batch_size: int = 2000
) -> list[dict[str, float]]:
    """Scores of a model on a task, one row a length.

    Args:
        model: maps ids [rows, tokens] to logits and has ``generate`` as :class:`trimtab.nn.Transformer` has it. It is used in eval mode and left as it was.
        task: whose examples are asked; their streams are those of ``seed``, so models that are compared see the same.
        lengths: of the problem, each once.
        examples: rows a length, >= 1.
        seed: >= 0; one that no training used.
        batch_size: rows at a time, >= 1.

    Returns:
        ``{"length", "examples", "exact", "edit", "token", "early", "late"}`` for each length, shares of 1: exact match, edit similarity and token accuracy, and
        outputs that end too early or too late.

    Raises:
        UsageError: a length that the task has no examples of, no examples, or a model whose logits are NaN.

    Example:
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=5)
        >>> rows = evaluate_lengths(Transformer(task.vocab.size, dim=8, layers=1, heads=1), task, [2, 4], examples=10)
        >>> [row["length"] for row in rows], sorted(rows[0])
        ([2, 4], ['early', 'edit', 'exact', 'examples', 'late', 'length', 'token'])

    When not to use it: to choose between models by the lengths they are then judged on; choose on other lengths, or at least with another seed.
    """
    if not isinstance(task, SeqTask):
        raise UsageError(f"task must be one of prompt and answer, a SeqTask, got {task!r}")
    examples, batch_size, seed = whole("examples", examples, 1), whole("batch_size", batch_size, 1), whole("seed", seed, 0)
    chosen = [whole(f"length of {task.name}", length, task.shortest) for length in lengths]
    for length in chosen:  # before the work on the others
        task.check_length(length)
    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    with evaluating(model), torch.no_grad():
        return [_at(model, task, length, examples, seed, batch_size, place) for length in chosen]


def _at(model: Any, task: SeqTask, length: int, examples: int, seed: int, batch_size: int, place: torch.device) -> dict[str, float]:
    added = dict.fromkeys(("exact", "edit", "early", "late"), 0.0)
    right = asked = 0
    for step, start in enumerate(range(0, examples, batch_size)):
        rows = min(batch_size, examples - start)
        batch = {name: value.to(place) for name, value in task.batch(seed, step, rows, length).items()}
        logits = model(batch["input_ids"])
        hits, tokens = token_accuracy(logits, batch["labels"])
        right, asked = right + int(hits), asked + int(tokens)
        written = write(model, task, batch)
        for name in added:
            added[name] += rows * written[name]
    return {"length": length, "examples": examples, **{name: value / examples for name, value in added.items()}, "token": right / asked}


def write(model: Any, task: SeqTask, batch: Batch) -> dict[str, float]:
    """``task.score`` of what a model writes after the prompts, with room for twice as many tokens as the longest right answer has.

    Example:
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=5)
        >>> sorted(write(Transformer(task.vocab.size, dim=8, layers=1, heads=1), task, task.batch(0, 0, 4, 3)))
        ['early', 'edit', 'exact', 'late']
    """
    prompt, real = task.prompts(batch)
    room = 2 * task.targets(batch).shape[1]
    mask = None if bool(real.all()) else real
    output = model.generate(prompt, attention_mask=mask, max_new_tokens=room, eos=task.vocab.eos, pad=task.vocab.pad)
    return task.score(output[:, prompt.shape[1] :].cpu(), {name: value.cpu() for name, value in batch.items()})
