"""Seeded worlds: tasks that make batches as a pure function of (seed, step) and judge outputs."""

from trimtab.tasks.base import Batch, SeqTask, Task, Vocab, cost
from trimtab.tasks.corpus import PythonCorpus
from trimtab.tasks.mixture import TaskMixture
from trimtab.tasks.sorting import Count, Sorting, Successor

__all__ = ["Batch", "Count", "PythonCorpus", "SeqTask", "Sorting", "Successor", "Task", "TaskMixture", "Vocab", "cost"]
