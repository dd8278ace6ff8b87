"""Start-up checks of a low-precision copy: what its layers really multiply, and whether the numbers are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.precision.backends.base import Backend
from diffrl.precision.observe import Observation, Shape, dtype_name
from reward_models.common.messages import describe

__all__ = ["dtype_name", "numerical_problem", "probe", "shape_problems"]

PROBE_ROWS = 19
TINY = torch.finfo(torch.float32).tiny
GEMM_ERRORS = (RuntimeError, ValueError, NotImplementedError, AssertionError, AttributeError)
"""What libraries raise for a matrix product that they do not have, or with a version that lacks a function."""
NOT_MULTIPLIED = "nothing"
SUMMATION = 1e-5
"""Relative difference, at most, of two float32 products that differ in the order of their sums."""
CLOSENESS = 0.25
"""A layer's distance to the emulation, at most, as a share of its distance to the unquantised layer."""


def product_names(layers: Iterable[str], seen: Observation) -> dict[str, str]:
    """An observation's products, for each layer: int8, bfloat16, ...; several joined by " x ", or "nothing"."""
    return {name: " x ".join(sorted(seen.products.get(name) or {NOT_MULTIPLIED})) for name in layers}


def expected_product(backend: Backend) -> str:
    """What `product_names` says of a layer that multiplies as its backend promises."""
    names = {dtype_name(backend.compute_dtype)}
    if backend.scale_dtype is not None:
        names.add(f"{dtype_name(backend.scale_dtype)} scales")
    return " x ".join(sorted(names))


def probe(
    layer: nn.Module, columns: int, backend: Backend, device: torch.device, rows: int = PROBE_ROWS
) -> tuple[Tensor, Tensor]:
    """A layer's input (rows, K) and output (rows, N) on unit normal data, as the rest of the network would give it."""
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
    where = {shape: name for name, own in shapes.items() for shape in own}
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
    """What is wrong with a layer's output, or None.

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
