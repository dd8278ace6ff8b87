"""What a copy's layers are held to: their places, what they multiply, their numbers, their weights and storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from diffrl.precision.building import Built, Pointwise, linear_layers, plain_linear
from diffrl.precision.engines.base import Backend
from diffrl.precision.observe import Observation, Shape, dtype_name
from diffrl.precision.report import PrecisionReport
from reward_models.common.messages import describe

PROBE_ROWS = 19
TINY = torch.finfo(torch.float32).tiny
GEMM_ERRORS = (RuntimeError, ValueError, NotImplementedError, AssertionError, AttributeError)
"""What libraries raise for a matrix product that they do not have, or with a version that lacks a function."""
NOT_MULTIPLIED = "nothing"
SUMMATION = 1e-5
"""Relative difference, at most, of two float32 products that differ in the order of their sums."""
CLOSENESS = 0.25
"""A layer's distance to the emulation, at most, as a share of its distance to the unquantised layer."""
SAME = 1e-6
"""Relative distance, at most, of what was pushed in place and what is converted anew."""

SAMPLED = 3
"""Layers that are looked at after every push; which ones goes round."""
WeightOf = Callable[[str], tuple[Tensor, Tensor | None]]
"""A layer's name to the weight (N, K) and the bias (N,) that were pushed into it."""


def misplaced(built: Built, report: PrecisionReport, backend: Backend) -> list[str]:
    """Return layers that are in the network otherwise than the report says."""
    modules = dict(built.network.named_modules())
    wrong = [name for name, layer in built.quantised.items() if _at(modules, name) is not layer]
    wrong += [name for name in report.quantised if name not in built.quantised]
    kept = {name for name, _ in report.kept}
    inside = {id(module) for layer in built.quantised.values() for module in layer.modules()}
    outside = {name for name in linear_layers(built.network) if id(modules[name]) not in inside}
    linears = {name for name in outside if not backend.whole or isinstance(modules[name], nn.Linear)}
    return [f"{name} is not in low precision" for name in sorted({*wrong, *(linears - kept)})]


def foreign(layers: Mapping[str, nn.Module], backend: Backend) -> list[str]:
    """Return layers that hold something other than their backend makes."""
    return [f"{name}: {wrong}" for name, layer in layers.items() if (wrong := backend.inspect(layer))]


def wrong_numbers(
    layers: Mapping[str, nn.Module], weight_of: WeightOf, backend: Backend, device: torch.device
) -> list[str]:
    """Return layers whose product or weight is not that of what was pushed; each is run once."""
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
    """Describe where a layer's weight is not what a fresh conversion of the new one gives; empty if nowhere."""
    held = layer.dequantised()
    fresh: Any = backend.convert(plain_linear(weight, bias, held.device))
    problem = weight_problem(held, fresh.dequantised())
    return [f"{name}: {problem}"] if problem else []


def wrong_products(layers: Mapping[str, nn.Module], seen: Observation, backend: Backend) -> list[str]:
    """Return layers that multiplied something other than planned."""
    if not backend.dispatched:
        return []
    expected, observed = expected_product(backend), product_names(layers, seen)
    return [f"{name} multiplied {what}, not {expected}" for name, what in observed.items() if what != expected]


def _at(modules: Mapping[str, nn.Module], name: str) -> nn.Module | None:
    """Return the layer in a place, a pointwise convolution's included."""
    module = modules.get(name)
    return module.linear if isinstance(module, Pointwise) else module


def product_names(layers: Iterable[str], seen: Observation) -> dict[str, str]:
    """Return an observation's products, for each layer: int8, bfloat16, ...; several joined by " x ", or "nothing"."""
    return {name: " x ".join(sorted(seen.products.get(name) or {NOT_MULTIPLIED})) for name in layers}


def expected_product(backend: Backend) -> str:
    """Return what `product_names` says of a layer that multiplies as its backend promises."""
    names = {dtype_name(backend.compute_dtype)}
    if backend.scale_dtype is not None:
        names.add(f"{dtype_name(backend.scale_dtype)} scales")
    return " x ".join(sorted(names))


def probe(
    layer: nn.Module, columns: int, backend: Backend, device: torch.device, rows: int = PROBE_ROWS
) -> tuple[Tensor, Tensor]:
    """Run a layer on unit normal data: its input (rows, K) and output (rows, N), as within the network."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(device, backend.outside_dtype)
    with torch.no_grad():
        return x.float(), layer(x).float()


def shape_problems(
    layers: Mapping[str, nn.Module], shapes: Mapping[str, Iterable[Shape]], backend: Backend, device: torch.device
) -> tuple[list[Shape], list[str]]:
    """Run the matrix product of every shape once, in one of the layers that have it.

    Args:
        layers: by name.
        shapes: of each layer, the products that the rollout will ask of it.
        backend: what made them.
        device: theirs.

    Returns:
        The shapes that were run, and what went wrong, in words.
    """
    where = {shape: name for name, layer_shapes in shapes.items() for shape in layer_shapes}
    problems = []
    for (rows, columns, outputs), name in where.items():
        x = torch.randn(1, columns, device=device, dtype=backend.outside_dtype).expand(rows, -1)
        product = f"{name}: the product of {rows} x {columns} with {columns} x {outputs}"
        try:
            with torch.no_grad():
                y = layers[name](x.contiguous())
        except GEMM_ERRORS as error:
            problems.append(f"{product} failed: {describe(error)}")
            continue
        if y.shape != (rows, outputs) or not bool(torch.isfinite(y).all()):
            problems.append(f"{product} is not finite or has shape {tuple(y.shape)}")
    return sorted(where), problems


def numerical_problem(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, backend: Backend) -> str | None:
    """Return what is wrong with a layer's output, or None.

    It must be finite, near the unquantised layer's but not equal to it, and nearer to the emulation's. Where the bias
    outweighs the product, rounding their sum counts too.

    Args:
        x: (M, K) float32 input.
        y: (M, N) float32 output.
        weight: (N, K) what was pushed.
        bias: (N,) or None.
        backend: what made the layer.
    """
    if not torch.isfinite(y).all():
        return "its output is not finite"
    weight, bias = weight.float(), torch.zeros(1, device=x.device) if bias is None else bias.to(x.device).float()
    exact = F.linear(x, weight)
    error = _distance(y - bias, exact)
    rounding = torch.finfo(backend.outside_dtype).eps * float(y.norm() / exact.norm().clamp_min(TINY))
    if not bool(weight.any()):
        return None
    if error < SUMMATION:
        return "its output is that of the unquantised layer"
    if error > backend.largest_error + rounding:
        return f"its relative error is {error:.3g}, above {backend.largest_error:g}"
    emulated = backend.emulate(x, weight)
    if emulated is None:
        return None
    rounded = (emulated + bias).to(backend.outside_dtype).float() - bias
    slack = max(rounding, torch.finfo(backend.outside_dtype).eps / 4)  # product and bias are rounded apart
    if (off := _distance(y - bias, rounded)) > CLOSENESS * error + slack:
        return f"it is {off:.3g} from its emulation, where the rounding itself is {error:.3g}"
    return None


def _distance(y: Tensor, exact: Tensor) -> float:
    return float((y - exact).norm() / exact.norm().clamp_min(TINY))


def pointers(module: nn.Module) -> dict[str, int]:
    """Return addresses of all storages of parameters and buffers; those inside tensor subclasses one by one."""
    addresses: dict[str, int] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        _note(name, tensor.detach(), addresses)
    return addresses


def moved(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Describe storages that moved; what was compiled reads the old ones."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{names[0]} moved to another storage"] if names else []


def sampled(names: list[str], push: int) -> set[str]:
    """Return the layers to look at after the push of this number: each has its turn."""
    return {names[(push * SAMPLED + i) % len(names)] for i in range(min(SAMPLED, len(names)))}


@torch.no_grad()
def weight_problem(held: Tensor, fresh: Tensor) -> str | None:
    """Return what is wrong with a layer's weight after a push, or None.

    Args:
        held: (N, K) float32, what its codes and scales stand for.
        fresh: (N, K) float32, the same of a layer that was just converted from the pushed weight.
    """
    if not bool(torch.isfinite(held).all()):
        return "its weight is not finite"
    off, size = float((held - fresh).norm()), float(fresh.norm())
    if off > SAME * size:
        return f"its weight is {off / size if size else off:.3g} from a fresh conversion of the pushed one"
    return None


def _note(name: str, tensor: Tensor, addresses: dict[str, int]) -> None:
    if not is_traceable_wrapper_subclass(tensor):
        addresses[name] = tensor.data_ptr()
        return
    for part in tensor.__tensor_flatten__()[0]:
        _note(f"{name}.{part}", getattr(tensor, part), addresses)
