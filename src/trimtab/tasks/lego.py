"""LEGO: the values of variables that are defined by one another in a chain, read by an encoder at each variable; and simpler tasks on the same clauses.

Papers: Unveiling Transformers with LEGO (arXiv 2206.04301) has the task; Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726)
trains on the first 6 of 12 variables. A row is ``<lego>`` and n clauses in random order, each of five tokens, over n letters of 26:

    v_1 = val 1 ,      v_i = val v_(i-1) ,    or    v_i = not v_(i-1) ,

Here labels are read AT a position, not from the one before it: the label of a clause's first token is its variable's value, 0 or 1, for the first
``supervised`` variables of the chain, and -100 elsewhere. :class:`trimtab.train.TokenClassification` is the objective for that, and a Transformer with
``causal=False`` the model. It is a :class:`trimtab.tasks.Task` and no SeqTask: nothing is written after a prompt.

Deviations: the first variable is 0 or 1 at random, as in the LEGO paper's code, and not always 1. The answer is read from the vocabulary's logits, of which
:meth:`Lego.score` looks at those of possible answers, and not from a binary head, so that a hint may answer with a letter. The hints are ours.
"""

from string import ascii_lowercase

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trimtab.core import UsageError, generator, whole
from trimtab.metrics.sequence import IGNORE
from trimtab.tasks.base import Batch, Vocab

SPECIALS = ("=", "val", "not", ",", *ascii_lowercase, "<lego>", "<hop>", "<relation>", "<parent>")
CLAUSE = 5  # tokens: variable, =, val or not, what it depends on, comma


def chain_places(ids: Int[Tensor, "rows tokens"]) -> Int[Tensor, "rows clauses"]:
    """Where in its chain the variable of each clause stands, 0 for one that depends on none; found from the text alone.

    Example:
        >>> task = Lego(n_vars=3, supervised=3)
        >>> ids = task.batch(seed=11, step=0, size=1)["input_ids"]
        >>> task.vocab.show(ids[0])
        '<lego> y = not m , m = val 1 , l = not y ,'
        >>> chain_places(ids)
        tensor([[1, 0, 2]])
    """
    variable, needs = ids[:, 1::CLAUSE], ids[:, 4::CLAUSE]
    same = needs[:, :, None] == variable[:, None, :]
    found = same.any(2)
    depth, parent = found.long(), torch.where(found, same.long().argmax(2), torch.arange(variable.shape[1], device=ids.device))
    for _ in range(variable.shape[1].bit_length()):  # each time twice as far along the chain
        depth, parent = depth + depth.gather(1, parent), parent.gather(1, parent)
    return depth


class Lego:
    """Work out the value of every variable from clauses in random order.

    Args:
        n_vars: variables in the chain, 1 .. 26.
        supervised: how many of them, from the start of the chain, have labels in training batches; 1 .. n_vars. ``batch(..., length=n_vars)`` labels all.

    Raises:
        UsageError: numbers out of range.

    Example:
        >>> task = Lego(n_vars=3, supervised=2)
        >>> batch = task.batch(seed=11, step=0, size=1)
        >>> print(task.vocab.show(batch["input_ids"][0]), task.vocab.show(batch["labels"][0]), sep="\\n")
        <lego> y = not m , m = val 1 , l = not y ,
        _ 0 _ _ _ _ 1 _ _ _ _ _ _ _ _ _
        >>> batch = task.batch(seed=11, step=0, size=1, length=3)
        >>> task.score(torch.nn.functional.one_hot(batch["labels"].clamp(min=0), task.vocab.size).float(), batch)
        {'accuracy': 1.0, 'accuracy@1': 1.0, 'accuracy@2': 1.0, 'accuracy@3': 1.0}

    When not to use it: with a causal model, which reads a clause before those it depends on.

    References:
        Unveiling Transformers with LEGO: a synthetic reasoning task, 2022, arXiv 2206.04301.
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name = "lego"
    mark = "<lego>"
    shortest = 1
    vocab = Vocab(2, SPECIALS)
    answers: tuple[int, ...] = (0, 1)  # ids among which an answer is

    def __init__(self, n_vars: int = 12, supervised: int = 6):
        if not isinstance(n_vars, int) or not self.shortest <= n_vars <= len(ascii_lowercase):
            raise UsageError(f"n_vars must be a whole number from {self.shortest} to {len(ascii_lowercase)}, a letter for each, got {n_vars!r}")
        self.n_vars, self.supervised = n_vars, supervised
        self.check_length(supervised, "supervised")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_vars={self.n_vars}, supervised={self.supervised})"

    @property
    def lengths(self) -> tuple[int, int]:
        """(shortest, longest) training length: of every training batch, ``supervised`` variables have labels."""
        return self.supervised, self.supervised

    def draw_length(self, seed: int, step: int) -> int:
        """How many variables have labels in a training batch."""
        return self.supervised

    def check_length(self, length: int, name: str = "length") -> None:
        """Raise UsageError for a number of variables that cannot have labels."""
        if not isinstance(length, int) or not self.shortest <= length <= self.n_vars:
            raise UsageError(f"{name} of {self.name}, the variables with labels, must be from {self.shortest} to n_vars = {self.n_vars}, got {length!r}")

    def batch(self, seed: int, step: int, size: int, length: int | None = None) -> Batch:
        """Rows of clauses as a pure function of seed, step and size; the same ids whatever the length.

        Args:
            seed, step: name the batch.
            size: rows, >= 1.
            length: how many variables of the chain have labels; default ``supervised``.

        Raises:
            UsageError: no rows asked for, or more labels than variables.
        """
        size = whole("size", size, 1)
        length = self.supervised if length is None else length
        self.check_length(length)
        n, draw = self.n_vars, generator(seed, "batch", step)
        letters = self.vocab.id("a") + torch.rand(size, len(ascii_lowercase), generator=draw).topk(n).indices
        negated = torch.randint(2, (size, n), generator=draw)
        order = torch.rand(size, n, generator=draw).argsort(1)
        first = negated[:, :1].clone()  # the value of the first variable; its clause says val
        values = negated.cumsum(1) % 2
        negated[:, 0] = 0
        clauses = torch.stack([letters, negated, torch.cat([first, letters[:, :-1]], dim=1)], dim=2)
        clauses, labels = self.asked(clauses, values, length, draw)
        clauses, labels = clauses.gather(1, order[:, :, None].expand_as(clauses)), labels.gather(1, order)

        equal, comma = (torch.full_like(order, self.vocab.id(name)) for name in ("=", ","))
        relation = torch.where(clauses[:, :, 1] == 1, self.vocab.id("not"), self.vocab.id("val"))
        text = torch.stack([clauses[:, :, 0], equal, relation, clauses[:, :, 2], comma], dim=2).flatten(1)
        ids = torch.cat([text.new_full((size, 1), self.vocab.id(self.mark)), text], dim=1)
        placed = torch.full_like(ids, IGNORE)
        placed[:, 1::CLAUSE] = labels
        return {"input_ids": ids, "labels": placed}

    def asked(
        self, clauses: Int[Tensor, "rows n 3"], values: Int[Tensor, "rows n"], length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows n 3"], Int[Tensor, "rows n"]]:
        """Clauses (variable, negated or not, what it depends on) as they are to be shown, and a label for each; both in the order of the chain."""
        return clauses, values.masked_fill(torch.arange(self.n_vars) >= length, IGNORE)

    def score(self, output: Float[Tensor, "rows tokens classes"], batch: Batch) -> dict[str, float]:
        """Judge logits of whole rows at the positions of their labels, the likeliest of possible answers being what the model says.

        Args:
            output: a logit for each id of the vocabulary; for values 0 and 1, the two logits of a binary head will do.
            batch: as :meth:`batch` made it.

        Returns:
            ``accuracy``, the share of labels that are right, and ``accuracy@k`` of those at the k-th variable of a chain, k from 1.

        Raises:
            UsageError: too few logits, NaN among them, another shape than the batch, or no labels.
        """
        labels = batch["labels"]
        if output.shape[:2] != labels.shape or output.shape[2] <= max(self.answers):
            raise UsageError(f"output must be [rows, tokens] = {tuple(labels.shape)} by at least {max(self.answers) + 1} logits, got {tuple(output.shape)}")
        asked = labels[:, 1::CLAUSE] != IGNORE
        if not bool(asked.any()):
            raise UsageError("labels must have a supervised position, got none; there is nothing to score")
        at = output[:, 1::CLAUSE][asked]
        if bool(at.isnan().any()):
            raise UsageError("output must not be NaN, and some is; the model that gave it has diverged")
        answers = torch.tensor(self.answers, device=output.device)
        right = (answers[at[:, answers].argmax(1)] == labels[:, 1::CLAUSE][asked]).double()
        places = chain_places(batch["input_ids"])[asked]
        each = {f"accuracy@{k + 1}": float(right[places == k].mean()) for k in range(self.n_vars) if bool((places == k).any())}
        return {"accuracy": float(right.mean())} | each


class _Hint(Lego):
    """A simpler question about the clauses of another task."""

    def __init__(self, base: Lego):
        super().__init__(base.n_vars, base.supervised)
        self.base = base

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"


class LegoOneHop(_Hint):
    """Take one step of a chain: the clause of a variable says its value, and the next one's value is asked for.

    A variable is drawn from the supervised ones but the first. Where the clause before it has been, there stands ``v = val 1 ,`` with the true value, so that
    the chain is cut and one step is all it takes.

    Args:
        base: whose clauses are shown and how many variables are supervised; at least 2.

    Raises:
        UsageError: a base with one supervised variable, which no step leads to.

    Example:
        >>> task = LegoOneHop(Lego(n_vars=3, supervised=3))
        >>> batch = task.batch(seed=11, step=0, size=1)
        >>> print(task.vocab.show(batch["input_ids"][0]), task.vocab.show(batch["labels"][0]), sep="\\n")
        <hop> y = val 0 , m = val 1 , l = not y ,
        _ _ _ _ _ _ _ _ _ _ _ 1 _ _ _ _

    When not to use it: with a causal model.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark, shortest = "lego-one-hop", "<hop>", 2

    def asked(
        self, clauses: Int[Tensor, "rows n 3"], values: Int[Tensor, "rows n"], length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows n 3"], Int[Tensor, "rows n"]]:
        given = torch.randint(length - 1, (len(values), 1), generator=generator)
        column = torch.arange(self.n_vars)
        known = torch.stack([clauses[:, :, 0], torch.zeros_like(values), values], dim=2)
        return torch.where((column == given)[:, :, None], known, clauses), values.masked_fill(column != given + 1, IGNORE)


class LegoRelation(_Hint):
    """Say of each supervised variable whether its clause says val or not.

    Args:
        base: whose clauses are shown and how many variables are supervised.

    Example:
        >>> task = LegoRelation(Lego(n_vars=3, supervised=2))
        >>> batch = task.batch(seed=11, step=0, size=1)
        >>> print(task.vocab.show(batch["input_ids"][0]), task.vocab.show(batch["labels"][0]), sep="\\n")
        <relation> y = not m , m = val 1 , l = not y ,
        _ not _ _ _ _ val _ _ _ _ _ _ _ _ _

    When not to use it: expecting much: the answer always stands two tokens to the right.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark = "lego-relation", "<relation>"
    answers = (Lego.vocab.id("val"), Lego.vocab.id("not"))

    def asked(
        self, clauses: Int[Tensor, "rows n 3"], values: Int[Tensor, "rows n"], length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows n 3"], Int[Tensor, "rows n"]]:
        relation = torch.where(clauses[:, :, 1] == 1, self.vocab.id("not"), self.vocab.id("val"))
        return clauses, relation.masked_fill(torch.arange(self.n_vars) >= length, IGNORE)


class LegoParent(_Hint):
    """Name what each supervised variable depends on: the one before it in the chain, or the value of the first.

    Args:
        base: whose clauses are shown and how many variables are supervised.

    Example:
        >>> task = LegoParent(Lego(n_vars=3, supervised=2))
        >>> batch = task.batch(seed=11, step=0, size=1)
        >>> print(task.vocab.show(batch["input_ids"][0]), task.vocab.show(batch["labels"][0]), sep="\\n")
        <parent> y = not m , m = val 1 , l = not y ,
        _ m _ _ _ _ 1 _ _ _ _ _ _ _ _ _

    When not to use it: expecting much: the answer always stands three tokens to the right.

    References:
        Improving Length-Generalization in Transformers via Task Hinting, 2023, arXiv 2310.00726.
    """

    name, mark = "lego-parent", "<parent>"
    answers = (0, 1, *(Lego.vocab.id(letter) for letter in ascii_lowercase))

    def asked(
        self, clauses: Int[Tensor, "rows n 3"], values: Int[Tensor, "rows n"], length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "rows n 3"], Int[Tensor, "rows n"]]:
        return clauses, clauses[:, :, 2].masked_fill(torch.arange(self.n_vars) >= length, IGNORE)
