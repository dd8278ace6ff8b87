"""What a low-precision copy really computes in, in what kernels and how fast: recorded, printed by `diffrl check`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from diffrl.errors import DiffrlError
from diffrl.precision.observe import Shape

REPEATS = 5


class PrecisionError(DiffrlError):
    """A low-precision copy does not compute what was planned; exploring with it would be wrong."""


@dataclass(frozen=True)
class PrecisionReport:
    """A copy in numbers and names; `dataclasses.asdict` of it is JSON.

    Args:
        precision: as configured: bfloat16, int8, fp8, mxfp8 or nvfp4.
        engine: what runs it; never "auto".
        compute_dtype: operands of the quantised layers' matrix products as they really run. An emulation's is that of
            the network around it.
        outside_dtype: what the rest of the network computes in.
        quantised: names of the linear layers in low precision, pointwise convolutions among them.
        kept: (name, why) of the other linear layers.
        parameters_quantised: the quantised layers' weights as a share of the network's parameters, in [0, 1].
        weights_quantised: the same as a share of the linear layers' weights.
        scaling: what shares a scale.
        batch_dependent: whether a sample's numbers depend on the others of its batch.
        compiled: whether torch.compile made its graph.
        flops_quantised: the quantised layers' share of the floating-point operations of a forward, in [0, 1]; None
            until one was seen.
        flops: the operations by what does them: quantised, linear (kept), convolution, attention.
        shapes: (M, K, N) of every matrix product that was tried at the start.
        kernels: names of the GPU's kernels, by time; empty on CPUs.
        speed_up: the quantised layers against bfloat16 ones, over `shapes`; None where it was not measured.
        notes: what the user should know.
    """

    precision: str
    engine: str
    compute_dtype: str
    outside_dtype: str
    quantised: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    parameters_quantised: float
    weights_quantised: float
    scaling: str = ""
    batch_dependent: bool = False
    compiled: bool = False
    flops_quantised: float | None = None
    flops: Mapping[str, int] = field(default_factory=dict)
    shapes: tuple[tuple[int, int, int], ...] = ()
    kernels: tuple[str, ...] = ()
    speed_up: float | None = None
    notes: tuple[str, ...] = ()


def kernel_names(forward: Callable[[], object], device: torch.device) -> tuple[str, ...]:
    """Return names of the kernels that a forward starts on a GPU, those with the most time first; empty elsewhere."""
    if device.type != "cuda":
        return ()
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        forward()
        torch.cuda.synchronize(device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    return tuple(event.key for event in events if event.self_device_time_total > 0)


def speed_up(
    layers: Mapping[str, nn.Module], shapes: Mapping[str, Iterable[Shape]], dtype: torch.dtype, device: torch.device
) -> float | None:
    """Return how many times faster the layers are than bfloat16 ones of their size, all together.

    Args:
        layers: by name.
        shapes: of each layer, the products that it does; each shape is timed once for all layers that have it.
        dtype: of the layers' input.
        device: theirs.

    Returns:
        Time of the bfloat16 layers over that of the layers; None without shapes.
    """
    calls: dict[Shape, list[str]] = {}
    for name, layer_shapes in shapes.items():
        for shape in layer_shapes:
            calls.setdefault(shape, []).append(name)
    plain = low = 0.0
    for (rows, columns, outputs), names in calls.items():
        x = torch.randn(rows, columns, device=device, dtype=dtype)
        reference = nn.Linear(columns, outputs, bias=False, device=device, dtype=torch.bfloat16)
        low += len(names) * _seconds(partial(layers[names[0]], x), device)
        plain += len(names) * _seconds(partial(reference, x.bfloat16()), device)
    return plain / low if low else None


def slow_note(precision: str, ratio: float | None, compiled: bool) -> str | None:
    """Return what to say of a copy that is no faster than bfloat16."""
    if ratio is None or ratio > 1:
        return None
    if compiled:  # which fuses the rounding into its neighbours: layers on their own say little
        return None
    return (
        f"The {precision} layers run at {ratio:.2f} of the speed of bfloat16 ones on this GPU and these sizes. Set "
        "compile: true, which fuses the rounding into its neighbours, or take bfloat16."
    )


@torch.no_grad()
def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of a few runs, after one that does not count."""
    run()
    times = []
    for _ in range(REPEATS):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
