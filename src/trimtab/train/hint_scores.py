"""Cheap scores of a hint: how likely it is to make a model hold on longer examples, before any long run.

Paper: Improving Length-Generalization in Transformers via Task Hinting (arXiv 2310.00726) leaves open how to find a hint; its conjecture is that hints help
where they fit what the model does anyway. Gradient scores follow task affinity, Efficiently Identifying Task Groupings for Multi-Task Learning (arXiv
2109.04617), with the target's loss taken on longer examples than either task is trained on. Deviation: every lookahead step has the same length, or the score
would rank hints by the size of their loss.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from trimtab.core import UsageError, derive, generator, whole
from trimtab.nn.sampling import evaluating
from trimtab.tasks import LengthTask
from trimtab.train.objective import NextToken

_OBJECTIVE = NextToken(reduction="example")


def beyond(task: LengthTask) -> range:
    """Lengths above the training lengths and up to twice the longest: where hints are chosen, and never judged.

    Example:
        >>> from trimtab.tasks import Sorting
        >>> beyond(Sorting(lengths=(1, 8)))
        range(9, 17)
    """
    return range(task.lengths[1] + 1, 2 * task.lengths[1] + 1)


def spread(lengths: Sequence[int], batches: int) -> list[int]:
    """As many of some lengths, from the first to the last in even steps.

    Example:
        >>> spread(range(21, 41), 5), spread([7], 2), spread([1, 2, 3], 1)
        ([21, 25, 30, 35, 40], [7, 7], [2])
    """
    last = len(lengths) - 1
    return [lengths[last * i // (batches - 1) if batches > 1 else last // 2] for i in range(batches)]


def _loss(model: nn.Module, task: LengthTask, lengths: Sequence[int], batches: int, size: int, seed: int, use: str) -> Tensor:
    """Mean loss over batches of a task, spread over its lengths."""
    parts = []
    for i, length in enumerate(spread(lengths, batches)):
        batch = task.batch(derive(seed, use), i, size, length)
        place = next(model.parameters()).device
        sums = _OBJECTIVE(model, {name: value.to(place) for name, value in batch.items()}, generator(seed, use, i))
        parts.append(sums.total / sums.count)
    return torch.stack(parts).mean()


def _gradient(model: nn.Module, loss: Tensor) -> list[Tensor]:
    weights = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(weights, found, strict=True)]


def gradient_scores(
    model: nn.Module,
    main: LengthTask,
    hint: LengthTask,
    *,
    lengths: Iterable[int] | None = None,
    batches: int = 8,
    size: int = 64,
    seed: int = 0,
    step: float = 0.01,
) -> dict[str, float]:
    r"""Does a step on the hint's loss also lower the main task's loss on longer examples?

    .. math:: \cos(\nabla L_h, \nabla L_T^{long}), \qquad 1 - L_T^{long}(\theta - s \lVert\theta\rVert \nabla L_h / \lVert\nabla L_h\rVert) / L_T^{long}(\theta)

    Args:
        model: a checkpoint of a run on the main task alone; its weights are the same afterwards.
        main, hint: of one vocabulary.
        lengths: of the main task's examples; default :func:`beyond` its training lengths. The hint's have its training lengths.
        batches: of each task, >= 1.
        size: rows a batch, >= 1.
        seed: of the examples.
        step: s, length of the lookahead step as a share of the weights' norm, > 0.

    Returns:
        ``cosine`` in -1 .. 1 and ``lookahead``, at most 1; both above 0 where the hint pulls the way the main task needs.

    Raises:
        UsageError: no batches, rows or lengths, a step that is not above 0 and finite, a hint of another vocabulary, or a model whose loss is not finite.

    Example:
        >>> from trimtab.nn import Transformer
        >>> from trimtab.tasks import Sorting
        >>> sort = Sorting(vocab=5, lengths=(1, 4))
        >>> model = Transformer(sort.vocab.size, dim=8, layers=1, heads=1)
        >>> scores = gradient_scores(model, sort, sort, lengths=range(1, 5), batches=2, size=8)
        >>> scores["cosine"] > 0
        True

    When not to use it: as a verdict. It ranks candidates for real runs.

    References:
        Efficiently Identifying Task Groupings for Multi-Task Learning, 2021, arXiv 2109.04617.
    """
    batches, size = whole("batches", batches, 1), whole("size", size, 1)
    if not 0 < step < math.inf:
        raise UsageError(f"step must be > 0 and finite, got {step}")
    if hint.vocab != main.vocab:
        raise UsageError(f"hint must have the vocabulary of {main.name}, {main.vocab}, got {hint.vocab}; build both from one base task")
    longer = list(beyond(main) if lengths is None else lengths)
    if not longer:
        raise UsageError("lengths must hold one length at least, got none")
    low, high = hint.lengths
    with evaluating(model):
        ahead = _loss(model, main, longer, batches, size, seed, "main")
        aside = _loss(model, hint, range(low, high + 1), batches, size, seed, "hint")
        if not (math.isfinite(float(ahead.detach())) and math.isfinite(float(aside.detach()))):
            raise UsageError(f"model must give finite losses, got {float(ahead.detach())} and {float(aside.detach())}; it has diverged")
        target, pull = _gradient(model, ahead), _gradient(model, aside)
        norms = [float(torch.stack([g.double().square().sum() for g in gradient]).sum().sqrt()) for gradient in (target, pull)]
        if not all(norms):
            return {"cosine": 0.0, "lookahead": 0.0}
        dot = float(torch.stack([(a.double() * b.double()).sum() for a, b in zip(target, pull, strict=True)]).sum())
        weights = [p for p in model.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in weights]
        stride = step * float(torch.stack([p.double().square().sum() for p in before]).sum().sqrt()) / norms[1]
        try:
            with torch.no_grad():
                for p, g in zip(weights, pull, strict=True):
                    p.sub_(stride * g)
                after = _loss(model, main, longer, batches, size, seed, "main")
        finally:
            with torch.no_grad():
                for p, old in zip(weights, before, strict=True):
                    p.copy_(old)
        return {"cosine": dot / (norms[0] * norms[1]), "lookahead": 1 - float(after) / float(ahead.detach())}
