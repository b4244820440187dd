"""Measures: pure functions of outputs and truths, and tools that look inside a model."""

from trimtab.metrics.attention import EntropyByLength, OffsetProfile, attention_entropy, attention_offset_profile
from trimtab.metrics.edit import edit_similarity, levenshtein, levenshtein_reference
from trimtab.metrics.hooks import Hook, hook_names, run_with_cache, run_with_hooks
from trimtab.metrics.interventions import Patched, ablate_heads, patch
from trimtab.metrics.lens import hidden_states, identity_successor_scores, logit_lens
from trimtab.metrics.pictures import (
    plot_ablation,
    plot_attention,
    plot_entropy,
    plot_identity_successor,
    plot_logit_lens,
    plot_offset_profile,
    plot_patch,
    plot_probes,
)
from trimtab.metrics.probes import probe_layers
from trimtab.metrics.sequence import before_eos, exact_match, free_running, token_accuracy
from trimtab.metrics.sorted_rows import SortingTargets, predicting_positions, sorting_targets

__all__ = [
    "EntropyByLength",
    "Hook",
    "OffsetProfile",
    "Patched",
    "SortingTargets",
    "ablate_heads",
    "attention_entropy",
    "attention_offset_profile",
    "before_eos",
    "edit_similarity",
    "exact_match",
    "free_running",
    "hidden_states",
    "hook_names",
    "identity_successor_scores",
    "levenshtein",
    "levenshtein_reference",
    "logit_lens",
    "patch",
    "plot_ablation",
    "plot_attention",
    "plot_entropy",
    "plot_identity_successor",
    "plot_logit_lens",
    "plot_offset_profile",
    "plot_patch",
    "plot_probes",
    "predicting_positions",
    "probe_layers",
    "run_with_cache",
    "run_with_hooks",
    "sorting_targets",
    "token_accuracy",
]
