from trimtab.tasks import Copy, Increment, LengthTask, Sorting, TaskMixture, Vocab, candidate_hints
from trimtab.testing import check_task


def test_every_hint_is_a_task_of_the_wide_vocabulary_that_trains_beside_the_main_one():
    for task in (Sorting(vocab=6, lengths=(1, 4)), Copy(vocab=5, lengths=(1, 4)), Increment(lengths=(1, 4))):
        main, hints = candidate_hints(task)
        assert main.name == task.name and len(hints) >= 7
        for hint in hints.values():
            assert isinstance(hint, LengthTask) and hint.vocab == main.vocab
        TaskMixture(main, dict.fromkeys(hints.values(), 0.5)).batch(0, 0, 4, 3)


def test_the_control_is_the_prompt_again_and_each_hint_keeps_the_contract():
    main, hints = candidate_hints(Sorting(vocab=6, lengths=(2, 5)))
    for hint in hints.values():
        check_task(hint)
    sort = main.vocab.id("<sort>")
    assert hints["prompt-copy"].answer([3, 1, sort, main.vocab.id("<hint-again>")]) == [3, 1, sort, main.vocab.eos]


def test_what_a_vocabulary_cannot_have_is_left_out():
    class Ones(Sorting):
        def __init__(self):
            super().__init__(vocab=1, lengths=(1, 3))

    main, hints = candidate_hints(Ones())
    assert "member" not in hints and "suffix" in hints and main.vocab.values == 1 and isinstance(main.vocab, Vocab)
