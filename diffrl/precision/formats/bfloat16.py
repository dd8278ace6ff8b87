"""bfloat16: the whole network is cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffrl.precision.facts import BFLOAT16, Precision, Price, Runner

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend


def cast() -> Backend:
    """Cast the layers; slower than float32 on CPUs without instructions for it."""
    from diffrl.precision.engines.native import Cast

    return Cast()


PRECISION = Precision(
    name="bfloat16",
    title="bfloat16",
    meaning="numbers of 16 bits with a floating point",
    bytes_per_weight=BFLOAT16,
    whole=True,
    e4m3=False,
    cpu_note=None,
    prices={"cpu-measured": Price(0.54, "measured, docs/performance.md")},
    runners={"torch": Runner(cast, None)},
)
