"""int8, W8A8: symmetric, a scale per token and per output channel, activations dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffrl.precision.facts import Need, Precision, Price, Runner

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend

LARGEST_ERROR = 0.3
"""With channels of outliers; how near a layer must be to the emulation is what tells."""


def native() -> Backend:
    """Make layers of `aten._int_mm`, which sums exactly in int32.

    Preferred to torchao's by `auto`: torchao 0.18 leaves the int8 product for an int32 or float32 one on sizes that are
    no multiple of 8 and on any exception, without a word (torchao/kernel/intmm.py).
    """
    import torch

    from diffrl.functional.formats.int8 import fake_quantize_int8
    from diffrl.precision.engines.native import Int8Linear, Native

    return Native(torch.int8, LARGEST_ERROR, 8, Int8Linear, fake_quantize_int8)


def torchao() -> Backend:
    """Make layers of torchao's Int8Tensor."""
    from functools import partial

    import torch

    from diffrl.precision.engines.torchao import Torchao, int8_weight, rounded

    return Torchao(
        quantise=int8_weight,
        round=partial(rounded, quantise=int8_weight),
        weight_class="Int8Tensor",
        code_dtype=torch.int8,
        compute_dtype=torch.int8,
        largest_error=LARGEST_ERROR,
        multiples=(8, 8),
    )


def modelopt() -> Backend:
    """Make layers of modelopt's quantisers of 8 bits."""
    from diffrl.functional.formats.int8 import fake_quantize_int8
    from diffrl.precision.engines.modelopt import Modelopt

    return Modelopt(8, fake_quantize_int8, LARGEST_ERROR)


def emulated() -> Backend:
    """Multiply the codes in a wider format; checks the real ones."""
    from diffrl.functional.formats.int8 import quantize_int8
    from diffrl.precision.engines.emulated import Emulated

    return Emulated(quantize_int8, quantize_int8, LARGEST_ERROR)


PRECISION = Precision(
    name="int8",
    title="INT8",
    meaning="whole numbers of 8 bits with a scale",
    bytes_per_weight=1.0,
    whole=False,
    e4m3=False,
    cpu_note="On a CPU an int8 copy may be slower than float32: measurements at batches of 128 gave .82, 1.18 and 1.9 "
    "of float32's time, and .54 to .77 for a bfloat16 copy (docs/performance.md). Set "
    "rollout.explore.precision: bfloat16, or time both.",
    prices={"cpu-measured": Price(0.82, "measured, docs/performance.md")},
    runners={
        "torch": Runner(native, Need(cpu=True, int8_sums=True)),
        "torchao": Runner(torchao, Need(cpu=True, lowest=(8, 0), int8_sums=True)),
        "modelopt": Runner(modelopt, Need(cpu=True)),
        "emulated": Runner(emulated, None),
    },
)
