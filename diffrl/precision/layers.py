"""Which linear layers a low-precision copy quantises; read from names alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from diffrl.errors import ConfigError

if TYPE_CHECKING:  # a plan reads names, and needs no layers
    from torch import nn


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names a module or one that it lies in.

    A pattern is one or more parts with dots between them; it fits a name that has these parts in a row, each whole.
    `norm_out` fits `norm_out.linear`, not `norm_output`; `attn.to_*` fits `blocks.0.attn.to_q`. After `^` the parts
    must begin the name: `^proj_out` fits the network's own, not `single_transformer_blocks.0.proj_out`.
    """
    wanted, parts = pattern.removeprefix("^").split("."), name.split(".")
    starts = range(1 if pattern.startswith("^") else len(parts) - len(wanted) + 1)
    if len(wanted) > len(parts):
        return False
    return any(all(map(fnmatchcase, parts[start : start + len(wanted)], wanted)) for start in starts)


def choose_layers(
    module: nn.Module, exclude: Sequence[str], unfit: Callable[[nn.Linear], str | None]
) -> tuple[dict[str, nn.Linear], dict[str, str]]:
    """Split the linear layers of a plain (LoRA-free) network; pointwise convolutions are linear layers too.

    Args:
        module: the network.
        exclude: patterns of layers to keep; see `matches`.
        unfit: why a layer cannot be quantised, or None.

    Returns:
        The layers to quantise by name, and the names of the others with the reason.

    Raises:
        ConfigError: a pattern fits no module at all, or no layer is left to quantise.
    """
    names = [name for name, _ in module.named_modules() if name]
    idle = [pattern for pattern in exclude if not any(matches(pattern, name) for name in names)]
    if idle:
        raise ConfigError(
            f"rollout.explore.exclude must name parts of the transformer. Got {', '.join(idle)}, which match none. "
            f"Its parts: {', '.join(name for name, _ in module.named_children())}."
        )
    linears = linear_layers(module)
    kept: dict[str, str] = {}
    for name, layer in linears.items():
        pattern = next((pattern for pattern in exclude if matches(pattern, name)), None)
        why = f"excluded by {pattern}" if pattern is not None else unfit(layer)
        if why is not None:
            kept[name] = why
    if len(kept) == len(linears):
        raise ConfigError(
            "rollout.explore.exclude must leave a linear layer to quantise. "
            f"Got {', '.join(exclude) or 'nothing'}: all {len(linears)} of the transformer stay as they are. "
            "Shorten the list."
        )
    return {name: layer for name, layer in linears.items() if name not in kept}, kept


def linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Linear layers by name, and pointwise convolutions as the linear layers that they are, without weights."""
    from torch import nn

    from diffrl.precision.pointwise import as_linear

    found = {}
    for name, layer in module.named_modules():
        linear = layer if isinstance(layer, nn.Linear) else as_linear(layer)
        if linear is not None:
            found[name] = linear
    return found
