"""What a low-precision copy really computes in: recorded in the run, printed by `diffrl check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from diffrl.errors import DiffrlError


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


def dtype_name_around(device: str) -> Literal["bfloat16", "float32"]:
    """Return what a network computes in around low-precision layers, and an emulation multiplies in.

    Args:
        device: cpu, cuda, ...; a CPU's bfloat16 products are slow, or round their sums.
    """
    return "bfloat16" if device == "cuda" else "float32"


def speed_notes(dtype: str, precision: str | None, device: str) -> tuple[str, ...]:
    """Return what to say of arithmetic that is slow on a device.

    Args:
        dtype: of the policy, as in `model.dtype`.
        precision: of the exploring copy; None for none.
        device: cpu or cuda; auto where that is not known.
    """
    if device == "cuda" and dtype == "float32":
        return (
            "model.dtype is float32: a GPU multiplies it outside its matrix units, an H100 at about a fifteenth of "
            "bfloat16's speed. TF32 stays off, for it rounds operands to 11 bits (docs/performance.md). Set "
            "model.dtype: bfloat16.",
        )
    if device != "cuda" and precision == "int8":
        return (
            "On a CPU an int8 copy may be slower than float32: measurements at batches of 128 gave .82, 1.18 and 1.9 "
            "of float32's time, and .54 to .77 for a bfloat16 copy (docs/performance.md). Set "
            "rollout.explore.precision: bfloat16, or time both.",
        )
    return ()
