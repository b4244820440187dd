import pytest
import torch

from trimtab.core import UsageError
from trimtab.losses import next_token_loss
from trimtab.losses.next_token import next_token_loss_reference

REDUCTIONS = ("token", "example")


def example(batch=3, tokens=7, vocab=5, masked=0.5, dtype=torch.float64):
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(batch, tokens, vocab, generator=draw, dtype=dtype, requires_grad=True)
    labels = torch.randint(vocab, (batch, tokens), generator=draw)
    return logits, labels.masked_fill(torch.rand(batch, tokens, generator=draw) < masked, -100)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 1, 2), (2, 2, 3), (4, 0, 3), (0, 4, 3)])
@pytest.mark.parametrize("masked", [0.0, 0.5, 1.0])
def test_value_and_gradient_equal_the_reference(reduction, shape, masked):
    logits, labels = example(*shape, masked)
    (a, n), (b, m) = next_token_loss(logits, labels, reduction), next_token_loss_reference(logits, labels, reduction)
    torch.testing.assert_close(a, b)
    assert n == m
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (a, b)))


def test_a_label_is_predicted_from_the_position_before_it():
    logits = torch.full((1, 3, 4), -30.0)
    logits[0, 0, 2] = logits[0, 1, 3] = 30.0  # after the first token comes 2, then 3
    total, count = next_token_loss(logits, torch.tensor([[1, 2, 3]]))
    assert total < 1e-6
    assert count == 2


def test_one_long_example_weighs_as_much_as_one_short_one():
    logits, labels = example(2, 9, masked=0.0)
    labels[1, 3:] = -100
    rows = [next_token_loss(logits[i : i + 1], labels[i : i + 1]) for i in range(2)]
    total, count = next_token_loss(logits, labels, "example")
    torch.testing.assert_close(total, sum(t / n for t, n in rows))
    assert [float(n) for _, n in rows] == [8, 2]
    assert count == 2


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_halves_add_up_to_the_whole(reduction):
    logits, labels = example(6)
    whole, halves = next_token_loss(logits, labels, reduction), [next_token_loss(logits[h], labels[h], reduction) for h in (slice(2), slice(2, 6))]
    for a, b in zip(whole, (sum(h[i] for h in halves) for i in range(2)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_supervised_gives_zero_not_nan(reduction):
    logits, labels = example(masked=1.0)
    total, count = next_token_loss(logits, labels, reduction)
    assert total == count == 0
    assert not torch.autograd.grad(total, logits)[0].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_bfloat16_is_summed_in_float32(reduction):
    logits = torch.zeros(64, 33, 8, dtype=torch.bfloat16)
    total, count = next_token_loss(logits, torch.zeros(64, 33, dtype=torch.int64), reduction)
    assert total.dtype == count.dtype == torch.float32
    torch.testing.assert_close(total / count, torch.tensor(8.0).log())
    assert count == (64 * 32 if reduction == "token" else 64)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("shape", [(2, 6), (2, 7, 1), (3, 7)])
def test_wrong_shape_names_both(shape):
    with pytest.raises(UsageError, match=rf"got labels {str(shape).replace('(', '.').replace(')', '.')} and logits .2, 7, 5."):
        next_token_loss(torch.zeros(2, 7, 5), torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_labels_of_another_whole_type_are_the_same_labels(reduction, dtype):
    logits, labels = example()
    for found, expected in zip(next_token_loss(logits, labels.to(dtype), reduction), next_token_loss(logits, labels, reduction), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_that_are_no_ids(dtype):
    logits, labels = example()
    with pytest.raises(UsageError, match=f"labels must be whole numbers, got {dtype}".replace(".", r"\.")):
        next_token_loss(logits, labels.to(dtype))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label", [5, -1, -99, 2**40])
def test_a_label_outside_the_vocabulary_is_named(reduction, label):
    logits, labels = example(masked=0.0)
    labels[1, 0] = 77  # never predicted, so never looked at
    labels[2, 4] = label
    with pytest.raises(UsageError, match=rf"labels must be in 0 \.\. 4, or -100 where nothing is asked, got {label} at position 4 of row 2"):
        next_token_loss(logits, labels, reduction)


@pytest.mark.usefixtures("annotations_off")
def test_unknown_reduction():
    with pytest.raises(UsageError, match="did you mean 'token'"):
        next_token_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64), "tokens")
