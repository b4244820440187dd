"""Claims: published results as experiments with a verdict. One file a claim, loaded by its slug; importing the room loads none, and no torch."""

from trimtab.claims.claim import Claim, Mastery, PairRun, Size, claim_hash
from trimtab.claims.loading import load, load_file, slugs
from trimtab.claims.record import find_records, read_record, stale, supersede
from trimtab.claims.run import ClaimIncomplete, estimate, run_claim
from trimtab.claims.statements import BestOf, Statement, best_of, claim_verdict, curve_point, equal, evaluate, not_worse, superior, trend

__all__ = [
    "BestOf",
    "Claim",
    "ClaimIncomplete",
    "Mastery",
    "PairRun",
    "Size",
    "Statement",
    "best_of",
    "claim_hash",
    "claim_verdict",
    "curve_point",
    "equal",
    "estimate",
    "evaluate",
    "find_records",
    "load",
    "load_file",
    "not_worse",
    "read_record",
    "run_claim",
    "slugs",
    "stale",
    "superior",
    "supersede",
    "trend",
]
