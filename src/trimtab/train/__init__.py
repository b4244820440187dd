"""Training: one readable loop, the folder of a run, and what is minimised."""

from trimtab.train.average import WeightAverage
from trimtab.train.checkpoint import NotWritten
from trimtab.train.fit import Moment, NonFiniteLoss, fit
from trimtab.train.objective import NextToken, Objective, Sums
from trimtab.train.run import Run

__all__ = ["Moment", "NextToken", "NonFiniteLoss", "NotWritten", "Objective", "Run", "Sums", "WeightAverage", "fit"]
