"""Build the network of a copy layer by layer, so that it never exists in high precision as a whole.

Pointwise (1 x 1) convolutions are linear layers over the channels and converted as such: SANA keeps about half of its
parameters in them (`GLUMBConv.conv_inverted`, `conv_point`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.precision.engines.base import Backend, row_major
from diffrl.precision.layers import matches
from diffrl.precision.weights import lora_layers, merged, plain_copy, plain_tensors, structure


@dataclass(frozen=True)
class Built:
    """A network whose layers are converted, with the source's weights in them.

    Args:
        network: frozen, in eval mode.
        quantised: its converted layers, by their name in the source.
        kept: the other linear layers' names, with the reason.
        rest: parameters and buffers of everything else, by their name in the source.
        parameters_quantised: the converted weights as a share of all parameters.
        weights_quantised: the same as a share of the linear layers' weights.
    """

    network: nn.Module
    quantised: Mapping[str, nn.Module]
    kept: Mapping[str, str]
    rest: Mapping[str, Tensor]
    parameters_quantised: float
    weights_quantised: float


@torch.no_grad()
def build(source: nn.Module, backend: Backend, exclude: Sequence[str], device: torch.device) -> Built:
    """Copy a network and convert its layers, one at a time.

    Args:
        source: the network; peft may have added LoRA to it. It is not changed.
        backend: converts the layers.
        exclude: patterns of layers to keep; see `layers.matches`. They do not apply to a backend for the whole network.
        device: where the copy lives.

    Raises:
        ConfigError: as `choose_layers`.
        PrecisionError: a LoRA that cannot be merged.
    """
    kept: Mapping[str, str] = {}
    skeleton = structure(source)
    if backend.whole:
        chosen = {n: m for n, m in skeleton.named_modules() if isinstance(m, nn.Linear)}
    else:
        chosen, kept = choose_layers(skeleton, exclude, backend.unfit)
    network = plain_copy(source, backend.outside_dtype, device, hollow=chosen.keys())
    tensors, lora = plain_tensors(source), lora_layers(source)
    rest = {name: tensor for name, tensor in plain_tensors(network).items() if name.rpartition(".")[0] not in chosen}
    for name, target in rest.items():
        if name.rpartition(".")[0] in lora:
            target.copy_(merged(name, tensors[name], lora))
    quantised = {}
    for name in chosen:
        weight = merged(f"{name}.weight", tensors[f"{name}.weight"], lora).flatten(1)
        quantised[name] = backend.convert(plain_linear(weight, tensors.get(f"{name}.bias"), device))
        layer = network.get_submodule(name)
        network.set_submodule(name, quantised[name] if isinstance(layer, nn.Linear) else Pointwise(quantised[name]))
    sizes = {name: m.in_features * m.out_features for name, m in linear_layers(skeleton).items()}
    converted = sum(m.in_features * m.out_features for m in chosen.values())
    return Built(
        network.eval(),
        quantised,
        kept,
        rest,
        converted / sum(parameter.numel() for parameter in skeleton.parameters()),
        converted / sum(sizes.values()),
    )


def plain_linear(weight: Tensor, bias: Tensor | None, device: torch.device) -> nn.Linear:
    """Return a linear layer around a weight (N, K), without a copy where the device is the same."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().to(device), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().to(device), requires_grad=False)
    return layer


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
            f"exclude must name parts of the transformer. Got {', '.join(idle)}, which match none. "
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
            "exclude must leave a linear layer to quantise. "
            f"Got {', '.join(exclude) or 'nothing'}: all {len(linears)} of the transformer stay as they are. "
            "Shorten the list."
        )
    return {name: layer for name, layer in linears.items() if name not in kept}, kept


def linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Return linear layers by name, and pointwise convolutions as the linear layers that they are, without weights."""
    layers = {
        name: layer if isinstance(layer, nn.Linear) else as_linear(layer) for name, layer in module.named_modules()
    }
    return {name: linear for name, linear in layers.items() if linear is not None}


class Pointwise(nn.Module):
    """A convolution's place, taken by a linear layer: (B, K, H, W) to (B, N, H, W).

    Args:
        linear: (..., K) to (..., N).
    """

    def __init__(self, linear: nn.Module):
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Return channels last, through the linear layer, and back."""
        y: Tensor = self.linear(row_major(x.movedim(1, -1)))
        return y.movedim(-1, 1).contiguous()


def as_linear(layer: nn.Module) -> nn.Linear | None:
    """Return the linear layer equal to a 2-D convolution, sizes alone (meta device); None if it sees neighbours."""
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1:
        return None
    if (layer.kernel_size, layer.stride) != ((1, 1), (1, 1)) or layer.padding not in ((0, 0), "valid", "same"):
        return None
    return nn.Linear(
        layer.in_channels, layer.out_channels, layer.bias is not None, device="meta", dtype=layer.weight.dtype
    )
