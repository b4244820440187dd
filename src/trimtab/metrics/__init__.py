"""Measures: pure functions of outputs and truths."""

from trimtab.metrics.edit import edit_similarity, levenshtein, levenshtein_reference
from trimtab.metrics.sequence import before_eos, exact_match, free_running, token_accuracy

__all__ = ["before_eos", "edit_similarity", "exact_match", "free_running", "levenshtein", "levenshtein_reference", "token_accuracy"]
