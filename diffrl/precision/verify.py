"""Start-up checks of a low-precision copy: what its layers really multiply, and whether the numbers are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from diffrl.precision.backends.base import Backend

PROBE_ROWS = 19
NOT_MULTIPLIED = "nothing"
SUMMATION = 1e-5
"""Relative difference, at most, of two float32 products that differ in the order of their sums."""
CLOSENESS = 0.25
"""A layer's distance to the emulation, at most, as a share of its distance to the unquantised layer."""
FIRST_OPERAND = {"linear": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_int_mm": 0, "_scaled_mm": 0}
"""Matrix products that a linear layer may dispatch to, and where their two operands begin."""


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operand dtypes of the matrix products run inside the layers at hand."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: list[str] = []
        self.seen: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = FIRST_OPERAND.get(func.overloadpacket.__name__)
        if start is not None and self.layers:
            dtypes = {dtype_name(operand.dtype) for operand in args[start : start + 2]}
            self.seen.setdefault(self.layers[-1], set()).update(dtypes)
        return func(*args, **(kwargs or {}))


def observe_products(layers: Mapping[str, nn.Module], forward: Callable[[], object]) -> dict[str, str]:
    """The operand dtypes of every layer's matrix products during a forward, as the dispatcher saw them.

    Args:
        layers: by name.
        forward: runs the layers, in any order.

    Returns:
        For each layer "int8", "bfloat16", ...; several joined by " x "; "nothing" where it multiplied nothing.
    """
    products = _Products()
    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: products.layers.append(name)))
        handles.append(layer.register_forward_hook(lambda *_: products.layers.pop() and None, always_call=True))
    try:
        with torch.no_grad(), products:
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return {name: " x ".join(sorted(products.seen.get(name, {NOT_MULTIPLIED}))) for name in layers}


def probe(layer: nn.Module, columns: int, backend: Backend, device: torch.device) -> tuple[Tensor, Tensor]:
    """A layer's input (rows, K) and output (rows, N) on unit normal data, as the rest of the network would give it."""
    x = torch.randn(PROBE_ROWS, columns, generator=torch.Generator().manual_seed(0)).to(device, backend.outside_dtype)
    with torch.no_grad():
        return x.float(), layer(x).float()


def numerical_problem(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, backend: Backend) -> str | None:
    """What is wrong with a layer's output, or None.

    It must be finite, near the unquantised layer's but not equal to it, and nearer to the emulation's.

    Args:
        x: (M, K) float32 input.
        y: (M, N) float32 output.
        weight: (N, K) what was pushed.
        bias: (N,) or None.
        backend: what made the layer.
    """
    if not torch.isfinite(y).all():
        return "its output is not finite"
    weight, bias = weight.float(), torch.zeros(1, device=x.device) if bias is None else bias.float()
    exact = F.linear(x, weight)
    error = _distance(y - bias, exact)
    if not bool(weight.any()):
        return None
    if error < SUMMATION:
        return "its output is that of the unquantised layer"
    if error > backend.largest_error:
        return f"its relative error is {error:.3g}, above {backend.largest_error:g}"
    emulated = backend.emulate(x, weight)
    if emulated is not None and (off := _distance(y - bias, emulated)) > CLOSENESS * error:
        return f"it is {off:.3g} from its emulation, where the rounding itself is {error:.3g}"
    return None


def dtype_name(dtype: torch.dtype) -> str:
    """As `torch.int8` but without the torch."""
    return str(dtype).removeprefix("torch.")


def _distance(y: Tensor, exact: Tensor) -> float:
    return float((y - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float32).tiny))
