from collections import Counter

import pytest
import torch

from tests.tasks.rows import even, rows
from trimtab.core import UsageError
from trimtab.tasks import (
    MARKS,
    AnswerLength,
    Copy,
    Count,
    Fill,
    Increment,
    Membership,
    PrefixDrop,
    PromptCopy,
    ReversedAnswer,
    Sorting,
    Successor,
    SuffixCompletion,
    TaskMixture,
    WithSpecials,
)
from trimtab.testing import check_task

SORT = WithSpecials(Sorting(vocab=12, lengths=(0, 8)), MARKS)
BASES = [SORT, *(WithSpecials(base, MARKS) for base in (Fill(Sorting(vocab=5, lengths=(1, 8))), Increment(lengths=(1, 8))))]
FORMS = {
    "drop": PrefixDrop,
    "drop 3": lambda task: PrefixDrop(task, keep=3),
    "suffix": SuffixCompletion,
    "length": AnswerLength,
    "length number": lambda task: AnswerLength(task, "number"),
    "member": Membership,
    "member prompt": lambda task: Membership(task, "prompt"),
    "backwards": ReversedAnswer,
    "again": PromptCopy,
}


def parts(task, length, size=50):
    """(prompt, its answer, what stands behind the mark, reply without eos) of each row; that the prompt is one of the task's is checked here."""
    mark, eos = task.vocab.id(task.mark), task.vocab.eos
    plain = [prompt for prompt, _ in rows(task.task, length, size)]
    for (prompt, reply), x in zip(rows(task, length, size), plain, strict=True):
        at = len(x)
        assert prompt[:at] == x and prompt[at] == mark
        y = task.task.answer(x)
        assert y[-1] == eos and reply[-1] == eos and eos not in reply[:-1]
        yield x, y[:-1], prompt[at + 1 :], reply[:-1]


@pytest.mark.parametrize("form", FORMS)
def test_contract(form):
    base = BASES[1] if form == "drop 3" else BASES[2] if form == "suffix" else SORT  # their prompts differ in length, and their answers
    check_task(FORMS[form](base), lengths=(8, base.shortest), seeds=(0, 1))


@pytest.mark.parametrize("length", [0, 1, 5, 11])
def test_replies(length):
    task = {name: form(SORT) for name, form in FORMS.items()}
    for _, y, query, reply in parts(task["suffix"], length):
        assert query + reply == y
    for _, y, query, reply in parts(task["length"], length):
        assert (query, reply) == ([], [SORT.vocab.id("<hint-length>")] * len(y))
    for _, y, query, reply in parts(task["length number"], length):
        assert (query, reply) == ([], [len(y)])
    for name, place in (("member", 1), ("member prompt", 0)):
        for base in BASES if length else [SORT]:  # an increment's answer has other values than its prompt
            for row in parts(FORMS[name](base), length):
                (a,) = row[2]
                assert row[3] == [int(a in row[place])] and 0 <= a < base.vocab.values
    for _, y, query, reply in parts(task["backwards"], length):
        assert (query, reply) == ([], y[::-1])
    for x, _, query, reply in parts(task["again"], length):
        assert (query, reply) == ([], x)


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("base", [*BASES, WithSpecials(Copy(vocab=3), MARKS)], ids=lambda base: base.name)
def test_prefix_drop(base, keep):
    other = 0
    for length in (1, 2, 9):
        for _, y, query, reply in parts(PrefixDrop(base, keep), length):
            assert len(query) == min(keep, len(y))
            places = [end for end in range(len(query), len(y) + 1) if y[end - len(query) : end] == query]
            assert places
            assert reply == [token for token in y[places[0] :] if token not in query][:1]
            other += len(places) > 1
    assert other or (keep > 1 and base is SORT)


def test_prefix_drop_on_sorting_is_the_successor():
    """The rule is the same for every row; lists are the very same; and what is asked for is as uniform."""
    base = Sorting(vocab=30, unique=True, lengths=(1, 30))
    drop, successor = PrefixDrop(WithSpecials(base, MARKS)), Successor(base)
    for length in (1, 2, 7, 30):
        for x, _, (a,), reply in parts(drop, length):
            assert [*reply, base.vocab.eos] == successor.answer([*x[:-1], base.vocab.id("<succ>"), a])
    drop_ids, ids = drop.batch(0, 0, 20_000, 5)["input_ids"], successor.batch(0, 0, 20_000, 5)["input_ids"]
    assert torch.equal(drop_ids[:, :5], ids[:, :5])
    for asked in (drop_ids[:, 7:8], ids[:, 6:7]):
        even((ids[:, :5] < asked).sum(1), 5)  # its rank
        even((ids[:, :5] == asked).long().argmax(1), 5)  # its place


def test_prefix_drop_on_sorting_with_repeats_is_the_successor():
    base = Sorting(vocab=4)
    drop, successor = PrefixDrop(WithSpecials(base, MARKS)), Successor(base)
    pairs = [Counter(), Counter()]
    for x, _, (a,), reply in parts(drop, 3):
        assert [*reply, base.vocab.eos] == successor.answer([*x[:-1], base.vocab.id("<succ>"), a])
    for k, (task, at) in enumerate(((drop, 5), (successor, 4))):
        for ids in task.batch(0, 0, 20_000, 3)["input_ids"].tolist():
            pairs[k][(*sorted(ids[:3]), ids[at])] += 1
    assert pairs[0].keys() == pairs[1].keys()
    chi = sum((pairs[0][key] - pairs[1][key]) ** 2 / (pairs[0][key] + pairs[1][key]) for key in pairs[0])
    assert len(pairs[0]) == 40 and chi < 95  # 39 degrees of freedom at 1e-6


def test_where_an_answer_is_split_is_uniform():
    labels = SuffixCompletion(SORT).batch(0, 0, 20_000, 5)["labels"]
    even(6 - (labels != -100).sum(1), 6)


def test_members_and_others_are_asked_for_alike():
    task = Membership(SORT)
    ids = task.batch(0, 0, 20_000, 6)["input_ids"]
    reply = ids[:, 9]
    even(reply, 2)
    for there in (0, 1):
        even(ids[reply == there, 8], 12)
    for place, form in enumerate((Membership(BASES[2], "prompt"), Membership(BASES[2]))):
        asked = [int(row[2][0] in row[place]) for row in parts(form, 3, size=2000)]
        even(torch.tensor(asked), 2)
    full = Membership(WithSpecials(Sorting(vocab=2), MARKS)).batch(0, 0, 500, 20)["input_ids"]
    assert (full[:, 23] == 1).float().mean() > 0.99  # there is hardly a value to ask for that is not there


def test_they_mix_with_the_main_task():
    hints = [form(SORT) for form in FORMS.values()]
    task = TaskMixture(SORT, dict.fromkeys(hints, 0.5))
    assert torch.equal(task.batch(0, 0, 4, 5)["input_ids"][:4, :12], SORT.batch(0, 0, 4, 5)["input_ids"])
    assert len({repr(hint) for hint in hints}) == len({hint.name for hint in hints}) == len(hints)
    assert all([hint.draw_length(1, step) for step in range(9)] == [SORT.draw_length(1, step) for step in range(9)] for hint in hints)


def test_only_the_first_answer_of_a_packed_row():
    base = Successor(Sorting(vocab=12), queries=3)
    for prompt, reply in rows(ReversedAnswer(WithSpecials(base, MARKS)), 6):
        assert len(prompt) == 9
        assert reply == [b for b in base.answer(prompt[:8]) if b != base.vocab.eos] + [base.vocab.eos]


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrefixDrop(Sorting()), r"task must have <hint-drop> in its vocabulary, got sorting without it; wrap it: WithSpecials\(task, MARKS\)"),
        (lambda: PrefixDrop(SORT, keep=0), "keep must be a whole number >= 1, got 0"),
        (lambda: AnswerLength(SORT, "unari"), "did you mean 'unary'"),
        (lambda: AnswerLength(SORT, "number").batch(0, 0, 1, 12), "answers of sorting must have fewer than 12 tokens where answer='number', got 12"),
        (lambda: Membership(SORT, "promt"), "did you mean 'prompt'"),
        (lambda: Membership(WithSpecials(Sorting(vocab=1), MARKS)), "task must have the values 0 and 1, which are the answers, got 1 value in sorting"),
        (lambda: PromptCopy(WithSpecials(Count(Sorting(5)), MARKS)).batch(0, 0, 1, 0), "got 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
