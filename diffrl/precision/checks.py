"""What a copy's layers are held to: their places, what they multiply, their numbers, their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.precision.backends.base import Backend
from diffrl.precision.building import Built, plain_linear
from diffrl.precision.facts import PrecisionReport
from diffrl.precision.layers import linear_layers
from diffrl.precision.observe import Observation
from diffrl.precision.pointwise import Pointwise
from diffrl.precision.refresh import weight_problem
from diffrl.precision.verify import GEMM_ERRORS, expected_product, numerical_problem, probe, product_names
from reward_models.common.messages import describe

WeightOf = Callable[[str], tuple[Tensor, Tensor | None]]
"""A layer's name to the weight (N, K) and the bias (N,) that were pushed into it."""


def misplaced(built: Built, report: PrecisionReport, backend: Backend) -> list[str]:
    """Layers that are in the network otherwise than the report says."""
    modules = dict(built.network.named_modules())
    wrong = [name for name, layer in built.quantised.items() if _at(modules, name) is not layer]
    wrong += [name for name in report.quantised if name not in built.quantised]
    kept = {name for name, _ in report.kept}
    inside = {id(module) for layer in built.quantised.values() for module in layer.modules()}
    found = {name for name in linear_layers(built.network) if id(modules[name]) not in inside}
    linears = {name for name in found if not backend.whole or isinstance(modules[name], nn.Linear)}
    return [f"{name} is not in low precision" for name in sorted({*wrong, *(linears - kept)})]


def foreign(layers: Mapping[str, nn.Module], backend: Backend) -> list[str]:
    """Layers that hold something other than their backend makes."""
    return [f"{name}: {wrong}" for name, layer in layers.items() if (wrong := backend.inspect(layer))]


def wrong_numbers(
    layers: Mapping[str, nn.Module], weight_of: WeightOf, backend: Backend, device: torch.device
) -> list[str]:
    """Layers whose product or weight is not that of what was pushed; each is run once."""
    problems = []
    for name, layer in layers.items():
        weight, bias = weight_of(name)
        try:
            x, y = probe(layer, weight.shape[-1], backend, device)
        except GEMM_ERRORS as error:
            problems.append(f"{name} cannot be multiplied: {describe(error)}")
            continue
        wrong = numerical_problem(x, y, weight.to(device), bias, backend)
        problems += [f"{name}: {wrong}"] if wrong else stale_weight(name, layer, weight, bias, backend)
    return problems


def stale_weight(name: str, layer: Any, weight: Tensor, bias: Tensor | None, backend: Backend) -> list[str]:
    """That a layer's weight is not what a fresh conversion of the pushed one gives; empty if it is."""
    held = layer.dequantised()
    fresh: Any = backend.convert(plain_linear(weight, bias, held.device))
    problem = weight_problem(held, fresh.dequantised())
    return [f"{name}: {problem}"] if problem else []


def wrong_products(layers: Mapping[str, nn.Module], seen: Observation, backend: Backend) -> list[str]:
    """Layers that multiplied something other than planned."""
    if not backend.dispatched:
        return []
    expected, found = expected_product(backend), product_names(layers, seen)
    return [f"{name} multiplied {what}, not {expected}" for name, what in found.items() if what != expected]


def _at(modules: Mapping[str, nn.Module], name: str) -> nn.Module | None:
    """The layer in a place, a pointwise convolution's included."""
    found = modules.get(name)
    return found.linear if isinstance(found, Pointwise) else found
