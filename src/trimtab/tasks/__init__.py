"""Seeded worlds: tasks that make batches as a pure function of (seed, step) and judge outputs."""

from trimtab.tasks.arithmetic import CarryMask, DigitAt, DigitCopy, Increment, ReversedAddition, TrailingNines
from trimtab.tasks.base import Batch, LengthTask, SeqTask, Task, Vocab, cost
from trimtab.tasks.candidates import candidate_hints
from trimtab.tasks.copying import Copy, Reverse
from trimtab.tasks.corpus import PythonCorpus
from trimtab.tasks.dataset import Examples
from trimtab.tasks.forms import Curriculum, RandomLabels, Scratchpad, WithSpecials
from trimtab.tasks.generic_hints import MARKS, AnswerLength, Membership, PrefixDrop, PromptCopy, ReversedAnswer, SuffixCompletion
from trimtab.tasks.index_hints import IndexHints
from trimtab.tasks.lego import Lego, LegoOneHop, LegoParent, LegoRelation, chain_places
from trimtab.tasks.list_hints import Fill, Parity, Predecessor
from trimtab.tasks.mixture import TaskMixture
from trimtab.tasks.sorting import Count, Sorting, Successor

__all__ = [
    "MARKS",
    "AnswerLength",
    "Batch",
    "CarryMask",
    "Copy",
    "Count",
    "Curriculum",
    "DigitAt",
    "DigitCopy",
    "Examples",
    "Fill",
    "Increment",
    "IndexHints",
    "Lego",
    "LegoOneHop",
    "LegoParent",
    "LegoRelation",
    "LengthTask",
    "Membership",
    "Parity",
    "Predecessor",
    "PrefixDrop",
    "PromptCopy",
    "PythonCorpus",
    "RandomLabels",
    "Reverse",
    "ReversedAddition",
    "ReversedAnswer",
    "Scratchpad",
    "SeqTask",
    "Sorting",
    "Successor",
    "SuffixCompletion",
    "Task",
    "TaskMixture",
    "TrailingNines",
    "Vocab",
    "WithSpecials",
    "candidate_hints",
    "chain_places",
    "cost",
]
