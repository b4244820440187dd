"""A task as a dataset: rows for a DataLoader, and so for the Trainer of Hugging Face or anyone else's loop.

No paper.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from trimtab.core import whole
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch, Task


class Examples(IterableDataset):
    """The rows of a task's batches, in their order, without padding.

    A loader with ``batch_size`` = rows of a batch and :meth:`collate` gives the task's batches, step after step, for any number of workers: worker k of n makes
    the batches k, k + n, .. Another batch size gives the same rows, in an order that depends on the number of workers. Every iteration begins at step 0.

    Args:
        task: any task or mixture.
        seed: of its batches.
        size: of its batches; a mixture adds its hints' rows.
        steps: how many batches; default without end.

    Raises:
        UsageError: a size or number of steps below 1.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from trimtab.tasks import Sorting
        >>> rows = Examples(Sorting(vocab=10), seed=0, size=4, steps=3)
        >>> [sorted(batch) for batch in DataLoader(rows, batch_size=4, collate_fn=rows.collate)][:1]
        [['attention_mask', 'input_ids', 'labels']]

    In Hugging Face: ``Trainer(model, args, train_dataset=rows, data_collator=rows.collate)``. Its loss weighs all supervised tokens alike, so hints with short
    answers count for less there than under ``NextToken("example")``.

    When not to use it: with :func:`trimtab.train.fit`, which takes the task itself.
    """

    def __init__(self, task: Task, *, seed: int, size: int, steps: int | None = None):
        self.task, self.seed, self.size, self.steps = task, seed, whole("size", size, 1), None if steps is None else whole("steps", steps, 1)
        vocab = getattr(task, "vocab", None)
        self._pad = None if vocab is None else vocab.pad

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("Examples without steps has no length; give it steps, or the loop that uses it a number of its own (max_steps)")
        rows = getattr(self.task, "rows", None)  # what a mixture has
        return self.steps * (self.size if rows is None else rows(self.size))

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        step, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while self.steps is None or step < self.steps:
            batch = self.task.batch(self.seed, step, self.size)
            ids = batch["input_ids"]
            ends = [ids.shape[1]] * len(ids) if self._pad is None else (ids != self._pad).sum(1).tolist()
            for row, end in enumerate(ends):
                yield {name: values[row, :end].clone() for name, values in batch.items()}
            step += stride

    def collate(self, rows: list[Batch]) -> Batch:
        """Rows as a batch: padded on the right, with -100 for their labels, and an ``attention_mask`` that is 1 at real tokens."""
        fills = {name: IGNORE if name == "labels" else self._pad or 0 for name in rows[0]}
        batch = {name: _padded([row[name] for row in rows], fill) for name, fill in fills.items()}
        return batch | {"attention_mask": _padded([torch.ones_like(row["input_ids"]) for row in rows], 0)}


def _padded(rows: list[Tensor], fill: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)
