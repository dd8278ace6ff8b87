"""NVFP4, W4A4 in E2M1 with an E4M3 scale per block of 16 and an outer one.

Products begin with compute capability 10.0 (Blackwell). There the outer scale of the activations is one for the batch,
so a sample depends on its batch; the emulation has one per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffrl.precision.facts import Need, Precision, Price, Runner
from diffrl.precision.formats.mxfp8 import BLACKWELL

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend

LARGEST_ERROR, SCALING = 0.3, "a scale per block of 16 and one per tensor"


def torchao() -> Backend:
    """Make layers of torchao's NVFP4Tensor, with the fused kernel for activations where there is one."""
    from diffrl.precision.engines.torchao import nvfp4

    return nvfp4(LARGEST_ERROR, SCALING)


def te() -> Backend:
    """Make layers of transformer-engine's."""
    from diffrl.precision.engines.te import Te

    return Te(LARGEST_ERROR, SCALING)


def emulated() -> Backend:
    """Round weights with one outer scale, activations with one a token."""
    from functools import partial

    from diffrl.functional.formats.nvfp4 import split_nvfp4
    from diffrl.precision.engines.emulated import Emulated

    scaling = "a scale per block of 16, outer ones per token and for the weight"
    return Emulated(split_nvfp4, partial(split_nvfp4, per_row=True), LARGEST_ERROR, scaling)


PRECISION = Precision(
    name="nvfp4",
    title="NVFP4",
    meaning="numbers of 4 bits in blocks of 16 that share a scale",
    bytes_per_weight=0.5 + 1 / 16,
    whole=False,
    e4m3=True,
    cpu_note=None,
    prices={
        "cpu-measured": Price(1.3, "measured, emulated, docs/performance.md"),
        "b200-nvfp4": Price(round(1 / 1.68, 2), f"{BLACKWELL}: 1.68 times"),
    },
    runners={
        "torchao": Runner(torchao, Need(cpu=False, lowest=(10, 0), cuda=(12, 8))),
        "te": Runner(
            te,
            Need(
                cpu=False,
                lowest=(10, 0),
                below=(12, 0),
                why_below="transformer-engine claims it and fails (its issue 3217)",
                cuda=(12, 8),
            ),
        ),
        "emulated": Runner(emulated, None),
    },
)
