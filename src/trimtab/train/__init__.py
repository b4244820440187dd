"""Training: one readable loop, the folder of a run, what is minimised; training with hints, models judged by length, and the search for a hint."""

from trimtab.train.average import WeightAverage
from trimtab.train.checkpoint import NotWritten
from trimtab.train.fit import Moment, NonFiniteLoss, fit
from trimtab.train.hint_scores import beyond, gradient_scores
from trimtab.train.hint_search import HintReport, search_hints
from trimtab.train.hinting import fit_with_hints
from trimtab.train.lengths import evaluate_lengths
from trimtab.train.objective import NextToken, Objective, Sums, TokenClassification
from trimtab.train.run import Run

__all__ = [
    "HintReport",
    "Moment",
    "NextToken",
    "NonFiniteLoss",
    "NotWritten",
    "Objective",
    "Run",
    "Sums",
    "TokenClassification",
    "WeightAverage",
    "beyond",
    "evaluate_lengths",
    "fit",
    "fit_with_hints",
    "gradient_scores",
    "search_hints",
]
