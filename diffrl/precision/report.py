"""What a low-precision copy really computes in: recorded in the run, printed by `diffrl check`."""

from __future__ import annotations

from dataclasses import dataclass

from diffrl.errors import DiffrlError


class PrecisionError(DiffrlError):
    """A low-precision copy does not compute what was planned; exploring with it would be wrong."""


@dataclass(frozen=True)
class PrecisionReport:
    """A copy in numbers and names; `dataclasses.asdict` of it is JSON.

    Args:
        precision: as configured: bfloat16, int8, fp8 or nvfp4.
        engine: what runs it; never "auto".
        compute_dtype: operands of the quantised layers' matrix products as they really run. An emulation's is float32.
        outside_dtype: what the rest of the network computes in.
        quantised: names of the linear layers in low precision.
        kept: (name, why) of the other linear layers.
        parameters_quantised: the quantised layers' weights as a share of the network's parameters, in [0, 1].
        weights_quantised: the same as a share of the linear layers' weights.
    """

    precision: str
    engine: str
    compute_dtype: str
    outside_dtype: str
    quantised: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    parameters_quantised: float
    weights_quantised: float
