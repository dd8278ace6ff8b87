"""What a network multiplies: operand dtypes layer by layer, shapes, floating-point operations. Seen, not assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

Shape = tuple[int, int, int]
"""M rows, K inputs, N outputs of a matrix product."""

FIRST_OPERAND = {
    "linear": 0,
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "_int_mm": 0,
    "_scaled_mm": 0,
    "_scaled_mm_v2": 0,
}
"""Matrix products that a linear layer may dispatch to, and where their two operands begin."""
BATCHED = ("bmm", "baddbmm")
QUANTISED, LINEAR, CONVOLUTION, ATTENTION = "quantised", "linear", "convolution", "attention"

SCALED_DOT_PRODUCT = "_scaled_dot_product_"
"""What the names of torch's own attention kernels begin with: all of them take queries, keys and values alike. Which of
them torch can count differs by its version: the CPU's came with 2.15."""
KERNELS = ("attention", "attn", "fmha")
"""What the names of attention kernels hold, torch's and other libraries'."""


@dataclass
class Observation:
    """What was seen during a forward.

    Args:
        products: of each layer, the dtypes of its operands, and of their scales where the product takes such.
        shapes: of each layer, the products' shapes.
        flops: floating-point operations of the quantised layers, and of what is not quantised: linear layers,
            convolutions, attention with other batched products.
        uncounted: names of attention kernels whose operations are missing from `flops`: neither torch nor we know them.
    """

    products: dict[str, set[str]] = field(default_factory=dict)
    shapes: dict[str, set[Shape]] = field(default_factory=dict)
    flops: Counter[str] = field(default_factory=Counter)
    uncounted: set[str] = field(default_factory=set)

    @property
    def flops_quantised(self) -> float | None:
        """The quantised layers' share, in [0, 1]; None where nothing was counted."""
        total = self.flops.total()
        return self.flops[QUANTISED] / total if total else None


class _Watch(TorchDispatchMode):
    """Notes the products inside the layers at hand, and counts those outside."""

    supports_higher_order_operators = True  # torchao multiplies int8 on CUDA by one, and hides its refusal

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # only now: it imports triton

        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = flop_registry
        self.layers: list[str] = []
        self.seen = Observation()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(arg, Tensor) and is_traceable_wrapper_subclass(arg) for arg in args):
            return NotImplemented  # the subclass answers; what it calls in turn comes by here
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", func)
        if self.layers:
            self._note(packet.__name__, args)
        else:
            self._count(packet, packet.__name__, args, kwargs or {}, out)
        return out

    def _note(self, name: str, args: Sequence[Any]) -> None:
        if name == "out_dtype":
            self.seen.products.setdefault(self.layers[-1], set()).add(_mixed(*args))
        start = FIRST_OPERAND.get(name)
        if start is not None:
            seen = self.seen.products.setdefault(self.layers[-1], set())
            seen.update(_dtype(operand, name) for operand in args[start : start + 2])
            if name.startswith("_scaled_mm"):
                seen.update(f"{scale} scales" for scale in _scale_dtypes(args[2:4]))

    def _count(self, packet: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if name == "linear":
            self.seen.flops[LINEAR] += 2 * out.numel() * args[0].shape[-1]
        elif packet in self._operations:
            kind = LINEAR if name in FIRST_OPERAND and not _batched(name, args) else ATTENTION
            kind = CONVOLUTION if "conv" in name else kind
            self.seen.flops[kind] += self._operations[packet](*args, **kwargs, out_val=out)
        elif name.startswith(SCALED_DOT_PRODUCT):
            self.seen.flops[ATTENTION] += attention_flops(*args[:3])
        elif any(part in name for part in KERNELS):
            self.seen.uncounted.add(name)


@contextmanager
def watching(layers: Mapping[str, nn.Module]) -> Iterator[Observation]:
    """Note what these layers multiply, and count what is multiplied outside of them, until the block ends.

    Args:
        layers: linear layers by name, x (..., K) to (..., N).
    """
    watch = _Watch()

    def entered(name: str, args: tuple[Any, ...]) -> None:
        watch.layers.append(name)
        watch.seen.products.setdefault(name, set())

    def left(name: str, args: tuple[Any, ...], output: Tensor | None) -> None:
        watch.layers.pop()
        if output is not None:
            rows, columns = args[0].numel() // args[0].shape[-1], args[0].shape[-1]
            watch.seen.shapes.setdefault(name, set()).add((rows, columns, output.shape[-1]))
            watch.seen.flops[QUANTISED] += 2 * rows * columns * output.shape[-1]

    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(lambda _, args, name=name: entered(name, args)))
        handles.append(
            layer.register_forward_hook(lambda _, args, out, name=name: left(name, args, out), always_call=True)
        )
    try:
        with torch.no_grad(), watch:
            yield watch.seen
    finally:
        for handle in handles:
            handle.remove()


def flops_coverage(layers: Mapping[str, nn.Module], forward: Callable[[], object]) -> Observation:
    """Return floating-point operations of a forward, by what does them; see `Observation.flops`.

    A layer counts 2 M K N with the M rows that it sees: one a sample for modulation, one a token elsewhere.

    Args:
        layers: the quantised layers by name.
        forward: runs the network once.
    """
    with watching(layers) as seen:
        forward()
    return seen


def attention_flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return operations of softmax(Q K^T) V, two a multiplication, the softmax left out as in torch's own counts.

    Args:
        query: (..., S, E).
        key: (..., L, E).
        value: (..., L, V).
    """
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def uncounted_note(seen: Observation) -> str | None:
    """Return what a user of the counts should know; None where nothing is missing."""
    if not seen.uncounted:
        return None
    return f"Operations of {', '.join(sorted(seen.uncounted))} are missing from the FLOPs: nobody here can count them."


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def _batched(product: str, args: Sequence[Any]) -> bool:
    """Return whether each of a batch has its own second operand; a linear layer of strided input repeats its weight."""
    return product in BATCHED and args[FIRST_OPERAND[product] + 1].stride(0) != 0


def _mixed(op: Any, output: torch.dtype, *operands: Any) -> str:
    """Return what torch's `out_dtype` multiplies: int8 by `_int_mm` on CUDA, else both widened to the output."""
    integers = all(isinstance(x, Tensor) and x.dtype == torch.int8 and x.is_cuda for x in operands)
    return "int8" if integers and output == torch.int32 else dtype_name(output)


def _dtype(operand: Tensor, product: str) -> str:
    """Return an operand's dtype; unsigned ones are signed ones, shifted for the CPU's instructions."""
    name = dtype_name(operand.dtype)
    return "int8" if product == "_int_mm" and name == "uint8" else name


def _scale_dtypes(scales: Sequence[Any]) -> set[str]:
    """Return other than float32."""
    flat = [one for scale in scales for one in (scale if isinstance(scale, list | tuple) else [scale])]
    return {dtype_name(one.dtype) for one in flat if isinstance(one, Tensor) and one.dtype != torch.float32}
