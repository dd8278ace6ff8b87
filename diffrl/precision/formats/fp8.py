"""fp8, W8A8 in E4M3: a scale per token and per output channel, or one per tensor where rows cannot be multiplied.

Products begin with compute capability 8.9 (Ada, Hopper); CPUs have them too, right and slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffrl.precision.facts import Need, Precision, Price, Runner

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend

LARGEST_ERROR = 0.1


def torchao() -> Backend:
    """Make layers of torchao's Float8Tensor."""
    from diffrl.precision.engines.torchao import TorchaoFp8

    return TorchaoFp8.scaled_by("row", LARGEST_ERROR)


def native() -> Backend:
    """Make layers of `torch._scaled_mm`: torchao's arithmetic without a subclass; zero rows give no NaN."""
    import torch

    from diffrl.functional.formats.fp8 import fake_quantize_fp8
    from diffrl.precision.engines.native import Fp8, Fp8Linear

    return Fp8(torch.float8_e4m3fn, LARGEST_ERROR, 16, Fp8Linear, fake_quantize_fp8)


def modelopt() -> Backend:
    """Make layers of modelopt's quantisers of four bits of exponent and three of mantissa."""
    from diffrl.functional.formats.fp8 import fake_quantize_fp8
    from diffrl.precision.engines.modelopt import Modelopt

    return Modelopt((4, 3), fake_quantize_fp8, LARGEST_ERROR)


def emulated() -> Backend:
    """Multiply the codes in a wider format."""
    from diffrl.functional.formats.fp8 import quantize_fp8
    from diffrl.precision.engines.emulated import Emulated

    return Emulated(quantize_fp8, quantize_fp8, LARGEST_ERROR)


PRECISION = Precision(
    name="fp8",
    title="FP8",
    meaning="numbers of 8 bits with a floating point",
    bytes_per_weight=1.0,
    whole=False,
    e4m3=True,
    cpu_note=None,
    prices={
        "cpu-measured": Price(1.4, "measured, emulated, docs/performance.md"),
        "h100-bf16-fp8": Price(
            round(1 / 1.54, 2), "torchao's README: FLUX.1-dev on an H100, FP8 rows, 1.54 times bfloat16, both compiled"
        ),
    },
    runners={
        "torchao": Runner(torchao, Need(cpu=False, lowest=(8, 9))),
        "torch": Runner(native, Need(cpu=True, lowest=(8, 9))),
        "modelopt": Runner(modelopt, Need(cpu=True)),
        "emulated": Runner(emulated, None),
    },
)
