import pytest
import torch

from tests.tasks.rows import even, rows
from trimtab.core import UsageError
from trimtab.tasks import CarryMask, DigitAt, DigitCopy, Increment, ReversedAddition, TaskMixture, TrailingNines
from trimtab.testing import check_task

BASES = (2, 10)
LENGTHS = (1, 2, 25)


def family(base=10, lengths=(1, 8), carries="uniform"):
    main = Increment(base, lengths, carries)
    return [main, CarryMask(main), TrailingNines(main), TrailingNines(main, "number"), DigitAt(main), DigitCopy(main)]


def number(digits, base):
    return int("".join(map(str, digits)), base)


def digits(value, base):
    text = ""
    while value or not text:
        value, digit = divmod(value, base)
        text = str(digit) + text
    return [int(c) for c in text]


def nines(x, base):
    return len(x) - len("".join(map(str, x)).rstrip(str(base - 1)))


def parts(task, base, length):
    """(digits, what stands behind the mark, answer without eos) of each row; that the digits are a number of that length is checked here."""
    for prompt, answer in rows(task, length, size=100):
        at = next(k for k, token in enumerate(prompt) if token >= base)
        assert at == length and answer[-1] == task.vocab.eos
        assert length == 1 or prompt[0] != 0
        yield prompt[:at], prompt[at + 1 :], answer[:-1]


@pytest.mark.parametrize("task", [*family(), *family(3)[:2], ReversedAddition(), ReversedAddition(3)], ids=lambda t: f"{t.name}{t.vocab.values}")
def test_contract(task):
    check_task(task, lengths=(25, 3), seeds=(3, 4))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("carries", ["uniform", "digits"])
def test_increment(base, length, carries):
    longer = 0
    for x, query, answer in parts(Increment(base, carries=carries), base, length):
        assert query == []
        assert answer == digits(number(x, base) + 1, base)
        assert len(answer) == length + (set(x) == {base - 1})
        longer += len(answer) > length
    assert longer or carries == "digits"


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_hints(base, length):
    _, carry, unary, count, at, copy = family(base)
    for x, _, answer in parts(carry, base, length):
        after = digits(number(x, base) + 1, base)[-length:]
        assert answer == [int(a != b) for a, b in zip(x, after, strict=True)]
        # the mask is what is added to each digit
        assert [(d + c) % base for d, c in zip(x, answer, strict=True)] == after
    for x, _, answer in parts(unary, base, length):
        assert answer == [base - 1] * nines(x, base)
    for x, _, answer in parts(count, base, length):
        assert answer == digits(nines(x, base), base)
    seen = set()
    for x, query, answer in parts(at, base, length):
        place = number(query, base)
        assert query == digits(place, base) and 1 <= place <= length
        assert answer == [x[place - 1]]
        seen.add(place)
    assert len(seen) > length / 2
    for x, _, answer in parts(copy, base, length):
        assert answer == x


def test_nines_and_no_nines_at_all():
    task = Increment()
    assert task.changed(torch.tensor([[9, 9, 9], [1, 9, 8], [8, 9, 9]])).tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]]
    assert task.answer([9, task.vocab.id("<inc>")]) == [1, 0, task.vocab.eos]
    assert task.answer([0, task.vocab.id("<inc>")]) == [1, task.vocab.eos]
    assert task.answer([9] * 2000 + [task.vocab.id("<inc>")]) == [1, *[0] * 2000, task.vocab.eos]


def trailing(task, length):
    x = task.batch(0, 0, 20_000, length)["input_ids"][:, :length]
    return x, (x == task.base - 1).long().flip(1).cumprod(1).sum(1)


def test_carries_are_uniform_and_the_digits_before_them_too():
    x, count = trailing(Increment(), 5)
    even(count, 6)
    for t in range(4):
        even(x[count == t, 4 - t], 9)
    even(x[count == 4, 0] - 1, 8)  # neither 0 nor 9
    even(x[count == 0, 0] - 1, 9)
    even(x[count == 0, 2], 10)


def test_uniform_digits_make_long_carries_rare():
    x, count = trailing(Increment(carries="digits"), 5)
    even(x[:, 0] - 1, 9)
    for k in range(1, 5):
        even(x[:, k], 10)
    assert [round(float((count >= t).double().mean()), 2) for t in (1, 2, 3)] == [0.1, 0.01, 0]


def test_every_number_of_one_digit_is_drawn():
    x, count = trailing(Increment(), 1)
    even(count, 2)
    even(x[count == 0, 0], 9)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_addition(base, length):
    task, longer = ReversedAddition(base), 0
    for prompt, answer in rows(task, length, size=100):
        a, b = prompt[:length], prompt[length + 1 : -1]
        assert [prompt[length], prompt[-1]] == [task.vocab.id("+"), task.vocab.id("=")] and len(b) == length
        assert length == 1 or 0 not in (a[0], b[0])
        assert answer == [*digits(number(a, base) + number(b, base), base)[::-1], task.vocab.eos]
        longer += len(answer) > length + 1
    assert longer > 0


def test_a_carry_goes_through_all_places():
    task, pad = ReversedAddition(), ReversedAddition().vocab.pad
    a, b = torch.tensor([[9, 9, 9], [4, 4, 5], [4, 4, 4], [9, 9, 9], [5, 0, 5]]), torch.tensor([[0, 0, 1], [5, 5, 5], [5, 5, 5], [9, 9, 9], [4, 9, 4]])
    assert task.added(a, b).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [9, 9, 9, pad], [8, 9, 9, 1], [9, 9, 9, pad]]


def test_operands_are_uniform():
    ids = ReversedAddition().batch(0, 0, 20_000, 3)["input_ids"]
    for k in range(3):
        even(ids[:, k] - int(k == 0), 10 - (k == 0))
        even(ids[:, k + 4] - int(k == 0), 10 - (k == 0))
    even(ids[:, 2] * 10 + ids[:, 6], 100)  # one tells nothing of the other


def test_one_vocabulary_for_increment_and_its_hints():
    main, *hints = family(lengths=(2, 9))
    assert len({task.vocab for task in (main, *hints)}) == 1 and {task.lengths for task in (main, *hints)} == {(2, 9)}
    assert TaskMixture(main, dict.fromkeys(hints, 0.5)).batch(0, 0, 4)["input_ids"].shape[0] == 14


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Increment(base=1), "base must be a whole number >= 2, got 1"),
        (lambda: Increment(base=2.5), "base must be a whole number >= 2, got 2.5"),
        (lambda: ReversedAddition(base=1), "base must be a whole number >= 2, got 1"),
        (lambda: Increment(lengths=(0, 3)), "1 <= shortest"),
        (lambda: Increment(carries="uniformly"), "did you mean 'uniform'"),
        (lambda: TrailingNines(Increment(), "unari"), "did you mean 'unary'"),
        (lambda: ReversedAddition().batch(0, 0, 1, 0), "length of reversed-addition must be a whole number >= 1, got 0"),
        (lambda: DigitAt(Increment()).batch(0, 0, 1, 0), "length of digit-at must be a whole number >= 1, got 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
