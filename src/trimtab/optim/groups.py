"""Which parameters decay."""

from typing import Any

from torch import nn

from trimtab.core import UsageError


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: matrices decay, the rest does not.

    The rule: a parameter decays if it has two dimensions or more and is not the table of an ``nn.Embedding`` or ``nn.EmbeddingBag``. So biases, norms, gains
    and embeddings are left alone. A row of an embedding gets a gradient only when its token is seen, but would decay at every step: rare tokens would fade for
    no reason. A table tied to the output layer counts as an embedding. Frozen parameters (``requires_grad=False``) are left out; a shared one appears once.

    Args:
        model: its trainable parameters are grouped, in their order in the model.
        weight_decay: >= 0, for the group that decays.

    Returns:
        One or two groups with ``params`` and ``weight_decay``, the decaying one first.

    Raises:
        UsageError: weight_decay is negative, or the model has nothing to train.

    Example:
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
        >>> [(group["weight_decay"], len(group["params"])) for group in param_groups(model, 0.1)]
        [(0.1, 1), (0.0, 4)]

    When not to use it: the paper you follow decays everything (then ``model.parameters()`` will do), or gives layers their own rates.
    """
    if not weight_decay >= 0:
        raise UsageError(f"weight_decay must be >= 0, got {weight_decay}")
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError(f"model must have a parameter with requires_grad=True, {type(model).__name__} has none; unfreeze what should be trained")
    decays = [p for p in trained if p.ndim >= 2 and id(p) not in tables]
    rest = [p for p in trained if p.ndim < 2 or id(p) in tables]
    return [{"params": params, "weight_decay": decay} for params, decay in ((decays, float(weight_decay)), (rest, 0.0)) if params]
