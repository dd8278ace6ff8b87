"""Build the network of a copy layer by layer, so that it never exists in high precision as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffrl.precision.backends.base import Backend
from diffrl.precision.layers import choose_layers, linear_layers
from diffrl.precision.pointwise import Pointwise
from diffrl.precision.weights import lora_layers, merged, plain_copy, plain_tensors


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
    skeleton = plain_copy(source, backend.outside_dtype, torch.device("meta"))
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
        place = network.get_submodule(name)
        network.set_submodule(name, quantised[name] if isinstance(place, nn.Linear) else Pointwise(quantised[name]))
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
    """A linear layer around a weight (N, K), without a copy where the device is the same."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().to(device), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().to(device), requires_grad=False)
    return layer
