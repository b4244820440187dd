"""What a model needs of what it computes: heads taken out one at a time, and activations of one run put into another.

Papers: ablation of heads after Are Sixteen Heads Really Better than One? (arXiv 1905.10650); activation patching after Locating and Editing Factual
Associations in GPT (arXiv 2202.05262) and Interpretability in the Wild (arXiv 2211.00593), from which the recovered share of the logit difference is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trimtab.core import UsageError, unknown
from trimtab.metrics.anatomy import anatomy, still, widest
from trimtab.metrics.hooks import LOGITS, run_with_cache, run_with_hooks
from trimtab.metrics.lens import chunks
from trimtab.metrics.sequence import IGNORE, exact_match

MODES = ("mean", "zero")


def ablate_heads(
    model: nn.Module,
    ids: Int[Tensor, "rows tokens"],
    labels: Int[Tensor, "rows tokens"],
    *,
    mode: str = "mean",
    score: Callable[[Tensor, Tensor], Any] = exact_match,
    attention_mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"] | None = None,
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """Take out each head alone, and see what the model's score loses.

    Args:
        model: a :class:`trimtab.nn.Transformer`, or a causal language model of Hugging Face on SDPA.
        ids, labels: rows to score on.
        mode: what a head's output z becomes at every position: "mean", its mean over the real positions of all rows, or "zero". The mean takes away what the
            head says about a position and leaves what it always says.
        score: function (logits, labels) -> a value for each row, or one mean for all of them; higher is better.
        attention_mask: true at real tokens. None: all up to a row's last supervised token are real.
        batch_size: rows a forward pass.

    Returns:
        One row a head: ``layer``, ``head``, ``score`` without it, ``drop`` (the whole model's score less that), and ``whole``, the whole model's score.

    Raises:
        UsageError: an unknown mode, shapes that disagree, a score that returns neither, or a model that does not run on SDPA.

    Example:
        >>> from trimtab.nn import sorting_construction
        >>> from trimtab.tasks import Sorting
        >>> task = Sorting(vocab=10)
        >>> batch = task.batch(seed=0, step=0, size=8, length=5)
        >>> rows = ablate_heads(sorting_construction(task.vocab), batch["input_ids"], batch["labels"], mode="zero")
        >>> [(row["layer"], row["head"]) for row in rows if row["drop"] > 0]
        [(0, 0), (1, 0), (1, 1), (1, 2)]

    When not to use it: to call a head useless because its drop is 0; another may take its place. Take them out together with :func:`run_with_hooks`.

    References:
        Are Sixteen Heads Really Better than One?, 2019, arXiv 1905.10650.
    """
    if mode not in MODES:
        raise unknown("mode of ablation", mode, MODES)
    if labels.shape != ids.shape:
        raise UsageError(f"labels must have the shape of ids, {tuple(ids.shape)}, got {tuple(labels.shape)}")
    names: dict[int, str] = {layer: f"blocks.{layer}.attn.hook_z" for layer, part in enumerate(anatomy(model).attention) if part is not None}
    real = (labels != IGNORE).flip(1).cummax(1).values.flip(1) if attention_mask is None else attention_mask.bool()

    def scored(hooks: dict[str, Any]) -> float:
        total = 0.0
        for part, some, forward in chunks(ids, attention_mask, batch_size):
            values = torch.as_tensor(score(run_with_hooks(model, some, hooks, **forward), labels[part])).cpu().double()
            if values.shape not in ((), (len(some),)):
                raise UsageError(f"score must return a value for each of {len(some)} rows, or one for all, got shape {tuple(values.shape)}")
            total += float(values.mean()) * len(some)
        return total / len(ids)

    with still(model):
        sums: dict[int, Any] = dict.fromkeys(names, 0)
        for part, some, forward in chunks(ids, attention_mask, batch_size):
            cache = run_with_cache(model, some, names.values(), **forward)
            for layer, name in names.items():
                z = cache[name]
                sums[layer] = sums[layer] + (torch.zeros_like(z[0, 0]) if mode == "zero" else z[real[part]].sum(0, dtype=widest(z)))
        whole = scored({})
        rows = []
        for layer, name in names.items():
            for head, mean in enumerate(sums[layer] / real.sum()):

                def without(z: Tensor, hook: Any, head: int = head, mean: Tensor = mean) -> None:
                    z[:, :, head] = mean.to(z.dtype)

                left = scored({name: without})
                rows.append({"layer": layer, "head": head, "score": left, "drop": whole - left, "whole": whole})
    return rows


class Patched(NamedTuple):
    """What a patched run gave.

    Attributes:
        logits: of the patched run.
        recovered: share of the logit difference that came back, as means over rows: (patched - corrupt) / (clean - corrupt). 0: the patch does nothing, 1: it
            does all.
        clean, corrupt, patched: logit of the answer less that of the wrong one, each row.
    """

    logits: Float[Tensor, "rows tokens vocab"]
    recovered: float
    clean: Float[Tensor, "rows"]
    corrupt: Float[Tensor, "rows"]
    patched: Float[Tensor, "rows"]


def patch(
    model: nn.Module,
    clean: Int[Tensor, "rows tokens"],
    corrupt: Int[Tensor, "rows tokens"],
    site: str | Sequence[str],
    *,
    answer: Int[Tensor, "rows"],
    wrong: Int[Tensor, "rows"],
    head: int | None = None,
    where: Bool[Tensor, "rows tokens"] | None = None,
    position: Int[Tensor, "rows"] | int = -1,
    **forward: Any,
) -> Patched:
    r"""Activation patching: run the corrupt rows with what the clean rows computed at one site, and see how much of the clean answer comes back.

    .. math:: \text{recovered} = \frac{\Delta_{patched} - \Delta_{corrupt}}{\Delta_{clean} - \Delta_{corrupt}}, \qquad
        \Delta = \operatorname{mean}(\ell_{answer} - \ell_{wrong})

    Args:
        model: a :class:`trimtab.nn.Transformer`, or a causal language model of Hugging Face; on SDPA for sites inside attention.
        clean, corrupt: rows that differ in what the question is about: with and without the successor in the list, say.
        site: one hook name or several, as :func:`trimtab.metrics.hook_names` lists them.
        answer: what the clean run should predict.
        wrong: what the corrupt run should predict.
        head: patch this one only; for sites inside attention. None patches all.
        where: patch at these positions only (of a pattern: at these queries). None patches all.
        position: at which the answer is predicted, one for all rows or one a row.
        forward: passed on to the model in all runs: ``attention_mask`` and the like.

    Raises:
        UsageError: an unknown site, shapes that disagree, a head of a site that has none, or runs whose logit differences are alike: there is nothing to
            recover.

    Example:
        >>> from trimtab.nn import sorting_construction
        >>> from trimtab.tasks import Sorting
        >>> vocab = Sorting(vocab=10).vocab
        >>> clean, corrupt = (torch.tensor([[2, x, 7, vocab.id("<sort>"), 2]]) for x in (5, 9))
        >>> answer, wrong = torch.tensor([5]), torch.tensor([7])  # after 2 comes 5, and without a 5 it is 7
        >>> for head in range(3):
        ...     found = patch(sorting_construction(vocab), clean, corrupt, "blocks.1.attn.hook_z", head=head, answer=answer, wrong=wrong)
        ...     print(head, round(found.recovered, 3))
        0 0.0
        1 0.0
        2 1.0

    When not to use it: with rows of different layouts; what is patched has to mean the same at the same position.

    References:
        Locating and Editing Factual Associations in GPT, 2022, arXiv 2202.05262. Interpretability in the Wild, 2022, arXiv 2211.00593.
    """
    sites = [site] if isinstance(site, str) else list(site)
    rows = len(clean)
    if clean.shape != corrupt.shape or answer.shape != (rows,) or wrong.shape != (rows,):
        seen = ", ".join(str(tuple(x.shape)) for x in (clean, corrupt, answer, wrong))
        raise UsageError(f"clean and corrupt must have one shape [rows, tokens], and answer and wrong [rows], got {seen}")
    if where is not None and where.shape != clean.shape:
        raise UsageError(f"where must have the shape of clean, {tuple(clean.shape)}, got {tuple(where.shape)}")
    if head is not None and (outside := [name for name in sites if ".attn." not in name]):
        raise UsageError(f"head goes with sites inside attention (blocks.0.attn.hook_z, say), got {', '.join(outside)}; leave head out")
    with still(model):
        there = run_with_cache(model, clean, [*sites, LOGITS], **forward)

        def put(value: Tensor, hook: Any) -> Tensor:
            return _mixed(value, there[hook.name], head, where, hook.name)

        base = run_with_hooks(model, corrupt, {}, **forward)
        logits = run_with_hooks(model, corrupt, dict.fromkeys(sites, put), **forward)
    row = torch.arange(rows, device=clean.device)
    deltas = []
    for run in (there[LOGITS], base, logits):
        at = run[row, position].to(widest(run))
        deltas.append(at[row, answer] - at[row, wrong])
    means = [float(delta.mean()) for delta in deltas]
    if means[0] == means[1]:
        raise UsageError(f"clean and corrupt runs must differ in their mean logit difference, and both have {means[0]:g}; there is nothing to recover")
    return Patched(logits, (means[2] - means[1]) / (means[0] - means[1]), *deltas)


def _mixed(value: Tensor, clean: Tensor, head: int | None, where: Tensor | None, name: str) -> Tensor:
    """The value with the clean one at one head and some positions."""
    heads_at, tokens_at = (1, 2) if name.endswith("pattern") else (2, 1)
    chosen = torch.ones((), dtype=torch.bool, device=value.device)
    if head is not None:
        heads = value.shape[heads_at]
        if not -heads <= head < heads:
            raise UsageError(f"head must be in 0 .. {heads - 1}, got {head}")
        one = torch.arange(heads, device=value.device) == head % heads
        chosen = one.view([heads if axis == heads_at else 1 for axis in range(4)])
    if where is not None:
        spread = [len(value) if axis == 0 else value.shape[tokens_at] if axis == tokens_at else 1 for axis in range(value.dim())]
        chosen = chosen & where.view(spread)
    return torch.where(chosen, clean, value)
