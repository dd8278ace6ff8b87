"""MXFP8, W8A8 in E4M3 with a power of two per block of 32; products begin with compute capability 10.0 (Blackwell)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffrl.precision.facts import Need, Precision, Price, Runner

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend

LARGEST_ERROR, SCALING = 0.1, "a power of two per block of 32"
BLACKWELL = "PyTorch's blog on diffusers and torchao on a B200, the most of FLUX.1-dev, Qwen-Image and LTX-2"


def torchao() -> Backend:
    """Make layers of torchao's MXTensor."""
    import torch

    from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
    from diffrl.precision.engines.torchao import Torchao, mxfp8_weight

    return Torchao(
        quantise=mxfp8_weight,
        round=fake_quantize_mxfp8,
        weight_class="MXTensor",
        code_dtype=torch.float8_e4m3fn,
        compute_dtype=torch.float8_e4m3fn,
        largest_error=LARGEST_ERROR,
        multiples=(32, 16),
        scale_dtype=torch.float8_e8m0fnu,
        scaling=SCALING,
    )


def emulated() -> Backend:
    """Multiply the codes times their powers of two in a wider format."""
    from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
    from diffrl.precision.engines.emulated import Emulated, without_outer_scale

    split = without_outer_scale(fake_quantize_mxfp8)
    return Emulated(split, split, LARGEST_ERROR, SCALING)


PRECISION = Precision(
    name="mxfp8",
    title="MXFP8",
    meaning="numbers of 8 bits in blocks of 32 that share a scale",
    bytes_per_weight=1 + 1 / 32,
    whole=False,
    e4m3=True,
    cpu_note=None,
    prices={"b200-nvfp4": Price(round(1 / 1.26, 2), f"{BLACKWELL}: 1.26 times")},
    runners={
        "torchao": Runner(
            torchao,
            Need(
                cpu=False,
                lowest=(10, 0),
                below=(12, 0),
                why_below="torch multiplies MXFP8 there in some layouts only",
                cuda=(12, 8),
            ),
        ),
        "emulated": Runner(emulated, None),
    },
)
