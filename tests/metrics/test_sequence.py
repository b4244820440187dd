import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from trimtab.core import UsageError
from trimtab.metrics import before_eos, exact_match, free_running, token_accuracy

PAD, EOS, SIZE = 4, 5, 6


def one_hot(ids):
    return torch.eye(SIZE)[torch.tensor(ids)]


def drawn(rows=50, tokens=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(SIZE, (rows, tokens), generator=g).masked_fill(torch.rand(rows, tokens, generator=g) < 0.6, -100)
    labels[:, -1] = torch.randint(SIZE, (rows,), generator=g)
    return torch.randn(rows, tokens, SIZE, generator=g) + 3 * torch.eye(SIZE)[labels.clamp(min=0).roll(-1, 1)], labels


def test_equals_a_loop_over_positions():
    logits, labels = drawn()
    right = [[int(logits[i, t - 1].argmax()) == int(labels[i, t]) for t in range(1, 7) if labels[i, t] != -100] for i in range(50)]
    exact = exact_match(logits, labels)
    assert exact.tolist() == [all(row) for row in right]
    assert 0 < exact.sum() < 50
    hits, count = token_accuracy(logits, labels)
    assert (hits, count) == (sum(map(sum, right)), sum(map(len, right)))


def test_token_counts_of_halves_add_up():
    logits, labels = drawn()
    parts = [token_accuracy(a, b) for a, b in zip(logits.split(20), labels.split(20), strict=True)]
    assert tuple(sum(p) for p in zip(*parts, strict=True)) == token_accuracy(logits, labels)


def test_logits_predict_the_next_token():
    labels = torch.tensor([[-100, 1, 2, 3]])
    assert exact_match(one_hot([[1, 2, 3, 0]]), labels)
    assert not exact_match(one_hot([[0, 1, 2, 3]]), labels)


def test_the_first_column_and_unsupervised_tokens_do_not_count():
    assert exact_match(one_hot([[3, 0, 0]]), torch.tensor([[2, 3, -100]]))


def test_a_row_without_supervised_tokens_is_refused():
    with pytest.raises(UsageError, match="none in row 1"):
        exact_match(one_hot([[1, 2], [1, 2]]), torch.tensor([[0, 1], [0, -100]]))


@pytest.mark.usefixtures("annotations_off")
def test_shapes_that_disagree():
    with pytest.raises(UsageError, match=r"got \(2, 3, 4\) and \(2, 4\)"):
        exact_match(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(UsageError, match="as many rows, got 2 and 1"):
        free_running(torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long), eos=1)


def next_token(prefix, answers, prompt_length, mistakes):
    """A model that depends on its prefix and nothing else: mostly right while on the path of the answer."""
    draw = random.Random(repr(prefix))
    answer = answers[tuple(prefix[:prompt_length])]
    done = len(prefix) - prompt_length
    if done < len(answer) and list(prefix[prompt_length:]) == answer[:done] and draw.random() > mistakes:
        return answer[done]
    return draw.choice([0, 1, 2, 3, EOS])


@pytest.mark.parametrize("mistakes", [0, 0.1, 0.3, 1])
def test_exact_match_of_one_forward_is_exact_match_of_greedy_decoding(mistakes):
    draw = random.Random(0)
    prompts = [[draw.randrange(4) for _ in range(6)] for _ in range(200)]
    answers = {tuple(p): [*sorted(p)[: draw.randrange(7)], EOS] for p in prompts}
    width = 6 + 7

    rows = [[*p, *answers[tuple(p)]] for p in prompts]
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    labels = torch.tensor([[-100] * 6 + row[6:] + [-100] * (width - len(row)) for row in rows])
    forward = one_hot([[next_token(row[: t + 1], answers, 6, mistakes) if t >= 5 else 0 for t in range(width)] for row in ids.tolist()])

    outputs = []
    for p in prompts:
        text = list(p)
        while len(text) < width + 3:
            text.append(PAD if EOS in text else next_token(text, answers, 6, mistakes))
        outputs.append(text[6:])
    target = torch.tensor([answers[tuple(p)] + [PAD] * (7 - len(answers[tuple(p)])) for p in prompts])
    lengths = torch.tensor([len(answers[tuple(p)]) for p in prompts])
    exact = exact_match(forward, labels)
    assert torch.equal(exact, free_running(torch.tensor(outputs), target, lengths, eos=EOS).exact)
    assert mistakes in (0, 1) or 0 < exact.sum() < 200


def judged(output, target):
    """One row, from the definition: (exact, edit, early, late)."""
    closed = bool(target) and target[-1] == EOS
    answer = target[:-1] if closed else target
    ended = EOS in output
    text = output[: output.index(EOS)] if ended else output
    if not closed:
        text = text[: len(answer)]
        return text == answer, Levenshtein.normalized_similarity(text, answer), len(text) < len(answer), False
    late = not ended or len(text) > len(answer)
    return ended and text == answer, Levenshtein.normalized_similarity(text, answer), ended and len(text) < len(answer), late


answers = st.builds(lambda values, closed: values + [EOS] * closed, st.lists(st.integers(0, 2), max_size=5), st.booleans())


@given(st.lists(st.tuples(st.lists(st.sampled_from([0, 1, 2, EOS]), min_size=6, max_size=6), answers), min_size=1, max_size=8))
def test_free_running_equals_the_definition_row_by_row(rows):
    output = torch.tensor([row[0] for row in rows])
    target = torch.tensor([row[1] + [PAD] * (6 - len(row[1])) for row in rows])
    outcome = free_running(output, target, torch.tensor([len(row[1]) for row in rows]), eos=EOS)
    seen = list(zip(*(values.tolist() for values in outcome), strict=True))
    for a, b in zip(seen, (judged(*row) for row in rows), strict=True):
        assert a == pytest.approx(b)
    exact, edit, early, late = outcome
    assert not (early & late).any()
    assert not (exact & (early | late)).any()
    assert torch.equal(edit[exact], torch.ones(int(exact.sum()), dtype=torch.float64))


@pytest.mark.parametrize(
    ("output", "exact", "edit", "early", "late"),
    [
        ([1, 2, EOS, PAD], True, 1, False, False),
        ([1, 2, EOS, 1], True, 1, False, False),  # what follows the first eos does not count
        ([1, EOS, 2, EOS], False, 0.5, True, False),
        ([EOS, PAD, PAD, PAD], False, 0, True, False),
        ([1, 2, 2, EOS], False, 2 / 3, False, True),
        ([1, 2, 2, 2], False, 0.5, False, True),  # the cap was reached
        ([1, 2], False, 1, False, True),  # it was reached just before the eos: wrong all the same
        ([2, 1, EOS, PAD], False, 0, False, False),
        ([1, PAD, EOS, PAD], False, 0.5, False, False),  # a pad the model wrote is a wrong token, not an end
        ([], False, 0, False, True),
    ],
)
def test_endings(output, exact, edit, early, late):
    outcome = free_running(torch.tensor([output], dtype=torch.long).reshape(1, -1), torch.tensor([[1, 2, EOS]]), eos=EOS)
    assert [float(v) for v in outcome] == pytest.approx([float(v) for v in (exact, edit, early, late)])


def test_an_answer_of_eos_alone():
    outcome = free_running(torch.tensor([[EOS, PAD], [1, EOS]]), torch.tensor([[EOS], [EOS]]), eos=EOS)
    assert outcome.exact.tolist() == [True, False]
    assert outcome.edit.tolist() == [1, 0]
    assert outcome.late.tolist() == [False, True]


def test_length_outside_the_target():
    with pytest.raises(UsageError, match=r"target_lengths must be in 0 \.\. 2"):
        free_running(torch.tensor([[1]]), torch.tensor([[1, EOS]]), torch.tensor([3]), eos=EOS)


def test_before_eos():
    assert before_eos(torch.tensor([[EOS, 1], [1, EOS], [1, 1]]), EOS).tolist() == [0, 1, 2]
    assert before_eos(torch.empty(2, 0, dtype=torch.long), EOS).tolist() == [0, 0]


def test_nan_is_never_right():
    labels = torch.tensor([[-100, 0, 0]])
    for measure in (exact_match, token_accuracy):
        with pytest.raises(ValueError, match="logits must not be NaN"):
            measure(torch.full((1, 3, 4), float("nan")), labels)
