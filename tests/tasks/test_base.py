import numpy as np
import pytest
import torch

from trimtab.core import UsageError
from trimtab.tasks import Count, PythonCorpus, SeqTask, Sorting, Successor, Task, TaskMixture, Vocab, cost
from trimtab.tasks.base import checked_lengths


def test_ids_of_a_vocabulary():
    vocab = Vocab(3, ("<a>", "<b>"))
    assert (vocab.pad, vocab.eos, vocab.id("<a>"), vocab.id("<b>"), vocab.size) == (3, 4, 5, 6, 7)
    assert (vocab.id("<pad>"), vocab.id("<eos>")) == (vocab.pad, vocab.eos)
    assert vocab.show([0, 2, 3, 4, 5, 6, 7, -100]) == "0 2 <pad> <eos> <a> <b> _ _"
    assert vocab.show(torch.tensor([1, 4])) == "1 <eos>"
    assert vocab == Vocab(3, ("<a>", "<b>"))
    assert vocab != Vocab(3, ("<b>", "<a>"))


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(("values", "specials"), [(0, ()), (-1, ()), (1.5, ()), (True, ()), (3, ("<a>", "<a>")), (3, ("<eos>",))])
def test_vocabularies_that_are_refused(values, specials):
    with pytest.raises(UsageError, match=r"values must be|specials must differ"):
        Vocab(values, specials)


def test_an_unknown_special_token_offers_the_nearest():
    with pytest.raises(UsageError, match="did you mean '<sort>'"):
        Sorting().vocab.id("<sorted>")


@pytest.mark.parametrize("task", [Sorting(), Successor(Sorting()), TaskMixture(Sorting(), {}), PythonCorpus()], ids=lambda t: t.name)
def test_these_are_tasks(task):
    assert isinstance(task, Task)


def test_drawn_lengths_are_the_training_lengths_and_even():
    task = Sorting(lengths=(3, 7))
    drawn = torch.tensor([task.draw_length(seed, step) for seed in range(10) for step in range(500)])
    counts = torch.bincount(drawn, minlength=8)
    assert counts[:3].sum() == 0
    assert ((counts[3:].double() - 1000) ** 2 / 1000).sum() < 35  # chi-square at 1e-6, 4 degrees of freedom
    assert {Sorting(lengths=(4, 4)).draw_length(0, step) for step in range(20)} == {4}


def test_the_drawn_length_is_the_default():
    task = Sorting()
    for step in range(20):
        drawn, asked = task.batch(5, step, 4), task.batch(5, step, 4, task.draw_length(5, step))
        assert torch.equal(drawn["input_ids"], asked["input_ids"])


def test_other_seeds_steps_and_lengths_are_unrelated():
    task = Sorting()
    batches = [task.batch(seed, step, 64, length)["input_ids"][:, :4] for seed in range(3) for step in range(3) for length in (4, 9)]
    for i, a in enumerate(batches):
        for b in batches[:i]:
            assert (a == b).double().mean() < 0.1  # 0.01 by chance
            assert not torch.equal(a[0], b[0])  # nor do they begin alike, as draws from one stream at two lengths would


class Halves(SeqTask):
    """Prompts and answers of several lengths in one batch, and a row with two answers."""

    name, vocab, lengths = "halves", Vocab(9, ("<go>",)), (1, 9)

    def sample(self, size, length, generator):
        ids = torch.tensor([[1, 2, 3, 11, 5, 10], [1, 11, 5, 6, 7, 10], [1, 11, 5, 3, 4, 9]])
        answer = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0]], dtype=torch.bool)
        return ids[:size], answer[:size]

    def answer(self, prompt):
        raise NotImplementedError


def test_prompts_are_padded_on_the_left_and_targets_on_the_right():
    task = Halves()
    batch = task.batch(0, 0, 3, 1)
    ids, mask = task.prompts(batch)
    assert ids.tolist() == [[1, 2, 3, 11], [9, 9, 1, 11], [9, 9, 1, 11]]
    assert mask.tolist() == [[True] * 4, [False, False, True, True], [False, False, True, True]]
    assert task.targets(batch).tolist() == [[5, 10, 9, 9], [5, 6, 7, 10], [5, 9, 9, 9]]


def test_score_of_several_prompt_lengths():
    task = Halves()
    batch = task.batch(0, 0, 3, 1)
    output = torch.tensor([[5, 10, 9, 9, 9], [5, 6, 10, 9, 9], [5, 1, 1, 1, 1]])  # right, early, right (one token asked for)
    assert task.score(output, batch) == pytest.approx({"exact": 2 / 3, "edit": (1 + 2 / 3 + 1) / 3, "early": 1 / 3, "late": 0})


@pytest.mark.parametrize("length", [1, 2, 9])
def test_prompt_and_target_make_up_the_row(length):
    base = Sorting(vocab=10)
    for task in (base, Successor(base), Count(base)):
        batch = task.batch(0, 0, 30, length)
        prompt, mask = task.prompts(batch)
        assert mask.all()
        whole = torch.cat([prompt, task.targets(batch)], dim=1)
        assert torch.equal(whole, batch["input_ids"][:, : whole.shape[1]])
        assert (batch["input_ids"][:, whole.shape[1] :] == task.vocab.pad).all()
        assert task.score(task.targets(batch), batch) == {"exact": 1, "edit": 1, "early": 0, "late": 0}


def test_a_row_without_labels_has_no_target():
    with pytest.raises(UsageError, match="none in row 1"):
        Halves().targets({"input_ids": torch.zeros(2, 3, dtype=torch.long), "labels": torch.tensor([[-100, 1, 1], [-100, -100, -100]])})


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda ids, answer: (ids.int(), answer),
        lambda ids, answer: (ids, answer.long()),
        lambda ids, answer: (ids, answer[:, 1:]),
        lambda ids, answer: (ids[0], answer[0]),
        lambda ids, answer: (ids[:2], answer[:2]),  # a row too few
        lambda ids, answer: (ids.repeat(2, 1), answer.repeat(2, 1)),
        lambda ids, answer: (ids.tolist(), answer.tolist()),
        lambda ids, answer: ids,
        lambda ids, answer: (),
        lambda ids, answer: (ids, answer, 3),
    ],
)
def test_a_sample_of_the_wrong_form_is_named(wrong):
    class Wrong(Halves):
        def sample(self, size, length, generator):
            return wrong(*super().sample(size, length, generator))

    with pytest.raises(UsageError, match=r"halves\.sample must return ids torch\.int64 \[3, tokens\] and a mask torch\.bool of the same shape, got "):
        Wrong().batch(0, 0, 3, 1)


@pytest.mark.parametrize("wrong", [12, -1])
def test_a_sample_with_an_id_outside_the_vocabulary_is_named(wrong):
    class Wrong(Halves):
        def sample(self, size, length, generator):
            ids, answer = super().sample(size, length, generator)
            ids[1, 2] = wrong
            return ids, answer

    with pytest.raises(UsageError, match=rf"halves\.sample must return ids in 0 \.\. 11, got {wrong} at position 2 of row 1"):
        Wrong().batch(0, 0, 3, 1)


@pytest.mark.usefixtures("annotations_off")
def test_numpy_numbers_are_plain_numbers():
    plain = Sorting(10, lengths=(1, 4))
    taken = Sorting(np.int64(10), lengths=(np.int32(1), np.uint8(4)))
    pairs = [(plain, taken), (Successor(plain, 2), Successor(taken, np.int64(2))), (PythonCorpus(9), PythonCorpus(np.int64(9)))]
    for one, other in pairs:
        assert repr(one) == repr(other)
        assert torch.equal(one.batch(1, 2, 3)["input_ids"], other.batch(np.int64(1), np.int64(2), np.int64(3))["input_ids"])
    assert torch.equal(plain.batch(0, 0, 3, 4)["input_ids"], plain.batch(0, 0, 3, np.int64(4))["input_ids"])


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("lengths", [3, None, (1,), (1, 2, 3), (2, 1), (1, True), ("1", "2"), (1, 2.0)])
def test_lengths_that_are_none(lengths):
    with pytest.raises(UsageError, match=r"lengths must be whole numbers \(shortest, longest\), both training lengths, with 1 <= shortest <= longest; got"):
        checked_lengths(lengths, 1)


@pytest.mark.parametrize("method", [Task.batch, SeqTask.batch, PythonCorpus.batch, TaskMixture.batch])
def test_the_keys_of_a_batch_are_where_help_shows_them(method):
    assert all(word in method.__doc__ for word in ("input_ids", "labels", "-100"))


def test_cost():
    task = Sorting()
    assert cost(task.batch(0, 0, 3, 5)) == {"rows": 3, "positions": 36, "supervised": 18}


def test_the_repr_tells_tasks_apart():
    from trimtab.tasks import Count, Sorting, Successor, TaskMixture

    short, long = Sorting(5, lengths=(1, 3)), Sorting(5, lengths=(1, 9))
    mixtures = [TaskMixture(short, {hint: 0.5}) for hint in (short, Successor(short), Count(short))]
    tasks = [short, long, Sorting(5, True, (1, 3)), Successor(short), Successor(long), Successor(short, 2), Count(short), Count(short, "number"), *mixtures]
    tasks += [PythonCorpus(), PythonCorpus(9), PythonCorpus(split="test")]
    assert len({repr(task) for task in tasks}) == len(tasks)
    assert repr(PythonCorpus(9, "test")) == "PythonCorpus(length=9, split='test')"
    assert " at 0x" not in "".join(map(repr, tasks))
