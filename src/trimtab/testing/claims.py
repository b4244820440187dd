"""The contract of a claim, to run on your own."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trimtab.claims import Claim, PairRun, curve_point
from trimtab.claims.pair import finite, run_pair
from trimtab.claims.record import build_record
from trimtab.claims.schema import problems
from trimtab.core import TrimtabError, UsageError, cards
from trimtab.testing.errors import CheckFailed
from trimtab.testing.global_state import own_random_state, scramble, states


def check_claim(claim: Claim, size: str = "smoke", *, card: bool = True) -> None:
    """Raise unless a claim keeps its contract: what it says of itself, one seed of every arm, and one pair twice more.

    It checks that the method has a card and the claim a title; that the sizes "smoke" and "small" are there as literals, and "small" has its cost and
    three seeds at least; that every arm gives finite numbers and all that the statements and the mastery condition need; that the paper's values are of
    measured arms and metrics; that a pair gives the same numbers again, in a new folder, in the folder it has finished in, and whatever the global random
    state is, which stays as it was like the rest of the process; that the fingerprint is stable; and that a valid record comes out.

    Args:
        claim: loaded from its file.
        size: to measure at; seconds an arm.
        card: False for a claim of your own whose method has no card.

    Raises:
        CheckFailed: with the rule, what it asks for, and what was seen.

    Example:
        >>> from trimtab.claims import load
        >>> check_claim(load("task-hinting"))  # doctest: +SKIP

    When not to use it: to show that a comparison is fair. It cannot see that arms share their data, their evaluation draws and their budget.
    """
    if card and not any(claim.slug == slug or claim.slug.startswith(f"{slug}-") for slug in cards()):
        raise CheckFailed("the method has a card", "a slug METHOD or METHOD-suffix with METHOD among the cards", repr(claim.slug))
    if not claim.title:
        raise CheckFailed("a title", "one question, for people", "none")
    _check_sizes(claim)
    with tempfile.TemporaryDirectory() as folder, own_random_state():
        with _no_trace():
            first = {arm: _measure(claim, size, arm, Path(folder)) for arm in claim.arms}
        measured = {arm: pair["metrics"] for arm, pair in first.items()}
        _check_paper(claim, measured)
        _check_again(claim, size, claim.arms[0], measured[claim.arms[0]], Path(folder, "again"))
        fingerprints = [dict(claim.fingerprint()) for _ in range(2)] if claim.fingerprint else [{}, {}]
        if fingerprints[0] != fingerprints[1]:
            raise CheckFailed("the fingerprint is stable", fingerprints[0], fingerprints[1])
        record = build_record(claim, size, list(first.values()), claim_hash=claim.hash(size), fingerprint=fingerprints[0])
    if wrong := problems(record):
        raise CheckFailed("a valid record", "no problem", "; ".join(wrong))


def _check_sizes(claim: Claim) -> None:
    if missing := {"smoke", "small"} - claim.sizes.keys():
        raise CheckFailed("sizes smoke and small", "both among the sizes", f"no {missing.pop()!r} in {', '.join(claim.sizes)}")
    small = claim.size("small")
    if small.seeds < 3 or small.core_minutes is None:
        raise CheckFailed("seeds and cost of small", "three seeds at least, five as a rule, and core_minutes", small)
    for size in claim.sizes:
        try:
            claim.hash(size)
        except UsageError as error:
            raise CheckFailed("records can be bound to the file", "Claim(..., sizes={...}) as a literal in the claim's file", error) from error


def _measure(claim: Claim, size: str, arm: str, folder: Path) -> dict[str, Any]:
    try:
        return run_pair(claim, size, arm, 0, folder=folder, claim_hash=claim.hash(size))
    except TrimtabError as error:
        raise CheckFailed("every arm is measured", f"finite numbers under the names that the statements need, from {arm!r}", error) from error


def _check_paper(claim: Claim, measured: Mapping[str, Mapping[str, float]]) -> None:
    rule = "the paper's values are of measured arms and metrics"
    for arm, values in claim.paper.items():
        if arm not in claim.arms:
            raise CheckFailed(rule, f"arms among {', '.join(claim.arms)}", repr(arm))
        curves = {curve_point(name)[0] for name in measured[arm]}  # the paper's points need not be those of this size
        if strange := [name for name in values if curve_point(name)[0] not in curves]:
            raise CheckFailed(rule, f"for {arm!r} some of {', '.join(measured[arm])}", repr(strange[0]))


def _state() -> dict[str, Any]:
    flags = torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
    # torch sets some of its compiler's variables itself, when an optimizer first loads that
    variables = {f"variable {name}": value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR_", "TRITON_"))}
    return {"working folder": os.getcwd(), "torch settings": flags, **variables}


@contextmanager
def _no_trace() -> Iterator[None]:
    """A worker measures many pairs: what one leaves behind in the process, the next one starts from."""
    before, draws = _state(), states()
    yield
    after, drawn = _state(), states()
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        name = changed[0]
        raise CheckFailed("the process is left as it was", f"{name} = {before.get(name)}", after.get(name))
    if changed := [name for name in draws if draws[name] != drawn[name]]:
        raise CheckFailed("no global random state", f"the states of {', '.join(draws)} as they were before", f"that of {', '.join(changed)} changed")


def _check_again(claim: Claim, size: str, arm: str, expected: Mapping[str, float], folder: Path) -> None:
    """Once more in a new folder, then in the same one."""
    folder.mkdir()
    run = PairRun(folder, lambda step, steps, values: None)
    for number, rule in enumerate(("the same pair gives the same numbers", "a finished folder gives the same numbers")):
        scramble(number + 71)  # not a seed that somebody sets before the check
        with _no_trace():
            seen = finite(claim.measure(arm, 0, claim.size(size), run))
        if different := [name for name in {**expected, **seen} if expected.get(name) != seen.get(name)]:
            name = different[0]
            raise CheckFailed(rule, f"{name} = {expected.get(name)} for {arm!r} again", seen.get(name))
