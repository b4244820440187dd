"""Optimisers, and the parameter groups and schedules they are used with."""

from trimtab.optim.groups import param_groups
from trimtab.optim.schedules import warmup_cosine

__all__ = ["param_groups", "warmup_cosine"]
