"""Hints to try for a task that nobody knows: those that can be made of any."""

from trimtab.core import UsageError
from trimtab.tasks.base import LengthTask, SeqTask
from trimtab.tasks.forms import RandomLabels, WithSpecials
from trimtab.tasks.generic_hints import MARKS, AnswerLength, Membership, PrefixDrop, PromptCopy, ReversedAnswer, SuffixCompletion


def candidate_hints(task: SeqTask) -> tuple[SeqTask, dict[str, LengthTask]]:
    """The task in the vocabulary of all its hints, and the generic hints that it has examples for, by name.

    Two are controls and should not help: ``prompt-copy`` has nothing to do with the task, and ``random-label`` has nothing to say.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> main, hints = candidate_hints(Sorting(vocab=10))
        >>> list(hints), main.vocab.size - Sorting(vocab=10).vocab.size
        (['prefix-drop', 'prefix-drop-2', 'suffix', 'length', 'member', 'member-prompt', 'backwards', 'prompt-copy', 'random-label'], 6)

    When not to use it: to know which hint is best; :func:`trimtab.train.search_hints` tries them.
    """
    main = WithSpecials(task, MARKS)
    made = {
        "prefix-drop": lambda: PrefixDrop(main),
        "prefix-drop-2": lambda: PrefixDrop(main, keep=2),
        "suffix": lambda: SuffixCompletion(main),
        "length": lambda: AnswerLength(main),
        "member": lambda: Membership(main),
        "member-prompt": lambda: Membership(main, where="prompt"),
        "backwards": lambda: ReversedAnswer(main),
        "prompt-copy": lambda: PromptCopy(main),
        "random-label": lambda: RandomLabels(PrefixDrop(main)),
    }
    hints: dict[str, LengthTask] = {}
    for name, make in made.items():
        try:
            hints[name] = make()
        except UsageError:  # a vocabulary of one value has no membership
            continue
    return main, hints
