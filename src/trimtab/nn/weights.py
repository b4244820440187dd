"""How weights are drawn: on the CPU in float32 and then moved, so that one generator gives one model on every device and in every precision."""

from typing import TypeVar, cast

import torch
from torch import nn

from trimtab.core import UsageError

STD = 0.02  # GPT-2's

Layer = TypeVar("Layer", nn.Linear, nn.Embedding)


def available(device: torch.device | str | None) -> torch.device:
    """The device of a name, or torch's default one.

    Raises:
        UsageError: this machine has no such device.

    Example:
        >>> available("cpu"), available(None)
        (device(type='cpu'), device(type='cpu'))
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        found = ["cpu"] + [kind for kind in ("cuda", "mps", "xpu") if getattr(torch, kind).is_available()]
        raise UsageError(f"device must be one that this machine has ({', '.join(found)}), got {str(device)!r}: {str(error).splitlines()[0]}") from None


def drawn(
    kind: type[Layer],
    *sizes: int,
    std: float = STD,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **settings: bool,
) -> Layer:
    """A linear or embedding layer with normal weights and zero biases.

    Args:
        kind: ``nn.Linear`` or ``nn.Embedding``.
        sizes: its two sizes.
        std: standard deviation of the weights.
        generator: on the CPU; None draws from torch's global stream, which is left alone otherwise.
        device, dtype: of the layer. On "meta" nothing is drawn.
        settings: passed to ``kind``.

    Example:
        >>> a, b = (drawn(nn.Linear, 3, 2, generator=torch.Generator().manual_seed(0)) for _ in range(2))
        >>> torch.equal(a.weight, b.weight), a.bias.tolist()
        (True, [0.0, 0.0])
    """
    if generator is not None and generator.device.type != "cpu":
        raise UsageError(f"generator must be on the CPU, got one on {generator.device}; weights are drawn there and moved, so that all devices see the same")
    # the layer's own constructor would draw from the global stream
    layer = cast(Layer, nn.utils.skip_init(kind, *sizes, device=available(device), dtype=dtype, **settings))
    if layer.weight.is_meta:  # shapes alone are asked for, and the draw would take the memory of the whole weight
        return layer
    with torch.no_grad():
        layer.weight.copy_(torch.empty(layer.weight.shape, dtype=torch.float32, device="cpu").normal_(0.0, std, generator=generator))
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            layer.bias.zero_()
    return layer
