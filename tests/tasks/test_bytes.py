"""The bytes of one batch of every task that has no older test of its bytes."""

import hashlib

import pytest

from trimtab.tasks import (
    MARKS,
    AnswerLength,
    CarryMask,
    Copy,
    Curriculum,
    DigitAt,
    DigitCopy,
    Fill,
    Increment,
    IndexHints,
    Lego,
    LegoOneHop,
    LegoParent,
    LegoRelation,
    Membership,
    Parity,
    Predecessor,
    PrefixDrop,
    PromptCopy,
    RandomLabels,
    Reverse,
    ReversedAddition,
    ReversedAnswer,
    Scratchpad,
    Sorting,
    SuffixCompletion,
    TrailingNines,
    WithSpecials,
)

SORT = Sorting(12, lengths=(1, 8))
MARKED = WithSpecials(SORT, MARKS)
NUMBERS = Increment(lengths=(1, 8))
TASKS = [Predecessor(SORT), Parity(SORT), Fill(SORT), Copy(12), Reverse(12), Scratchpad(SORT), RandomLabels(SORT), Curriculum(SORT, {0: 3})]
TASKS += [NUMBERS, CarryMask(NUMBERS), TrailingNines(NUMBERS), TrailingNines(NUMBERS, "number"), DigitAt(NUMBERS), DigitCopy(NUMBERS), ReversedAddition()]
TASKS += [form(MARKED) for form in (PrefixDrop, SuffixCompletion, AnswerLength, Membership, ReversedAnswer, PromptCopy)]
TASKS += [Lego(), *(hint(Lego()) for hint in (LegoOneHop, LegoRelation, LegoParent)), IndexHints(Copy(12), 30)]

GOLDEN = {
    "predecessor": "5cdf1a3bb7b2abc8",
    "parity": "ebe753bb8f3a74d3",
    "fill": "7b658997698b53f8",
    "copy": "aff43065c724469c",
    "reverse": "ad75c9f85f3a5696",
    "sorting-scratchpad": "df4051379fe6a99e",
    "random labels of sorting": "950b195e5843b021",
    "sorting, lengths up to 3": "c41040b48688d7a8",
    "increment": "dc765ca6a6d7a3f5",
    "carry-mask": "1f09bacd34ffc969",
    "trailing-nines-unary": "ce9009a49034f902",
    "trailing-nines-number": "e6bd781ff4351d6e",
    "digit-at": "ef5f7b6e93419c78",
    "digit-copy": "21b3147e5357ca3b",
    "reversed-addition": "53875450fc19515f",
    "prefix-drop-1 of sorting": "62a5ff49ef56ddc8",
    "suffix of sorting": "c92d6278d9264c43",
    "length-unary of sorting": "072ba36a7af27767",
    "member-answer of sorting": "999398efee767894",
    "backwards of sorting": "df568cfebd276e7d",
    "prompt of sorting": "926bf262238acd2b",
    "lego": "04d7d8220fb2041e",
    "lego-one-hop": "5d46b33e4a15cf4a",
    "lego-relation": "69fd0e605462ce76",
    "lego-parent": "7b16e8a35b19462c",
    "indexed copy": "0dbaf26a676e3096",
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_bytes_do_not_change_between_versions_of_this_package(task):
    """A change here makes every record of a claim on these tasks stale; then it needs a reason in the changelog."""
    batch = task.batch(seed=0, step=1, size=32)
    digest = hashlib.sha256(b"".join(batch[name].numpy().astype("<i8").tobytes() for name in ("input_ids", "labels"))).hexdigest()
    assert digest[:16] == GOLDEN[task.name]


def test_each_task_has_its_bytes():
    assert sorted(GOLDEN) == sorted(task.name for task in TASKS) and len(set(GOLDEN.values())) == len(GOLDEN)
