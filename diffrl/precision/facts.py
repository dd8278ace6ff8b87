"""All that is known of a precision and of an engine, one record each: whatever names them is derived from these.

Configuration, plans, prices, reports and pages read the records, so nothing heavy is imported here. Fields have no
defaults where precisions differ: a record that lacks a fact cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from diffrl.precision.engines.base import Backend

Capability = tuple[int, int]
Version = tuple[int, ...]

FLOAT32, BFLOAT16 = 4, 2
"""Bytes of a number."""

AUTO, EMULATED = "auto", "emulated"
TRAINING = "training"
"""What stands for a precision where the policy itself explores."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a machine needs to run a precision with an engine.

    Args:
        cpu: whether a CPU will do.
        lowest: compute capability on CUDA.
        below: compute capability that is too new; None for no limit.
        why_below: what is known of those.
        cuda: lowest CUDA version of torch's build, on CUDA.
        int8_sums: whether torch's product of int8 must be exact on a CPU.
    """

    cpu: bool
    lowest: Capability = (0, 0)
    below: Capability | None = None
    why_below: str = ""
    cuda: Version = ()
    int8_sums: bool = False


@dataclass(frozen=True)
class Runner:
    """How an engine runs a precision.

    Args:
        make: makes the `Backend`; imports what it needs itself.
        need: of the machine; None where it runs anywhere.
    """

    make: Callable[[], Backend]
    need: Need | None


@dataclass(frozen=True)
class Price:
    """Cost of an evaluation without gradient, as a multiple of one in the training precision, and its source."""

    amount: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A library or a way of computing that runs precisions.

    Args:
        name: in the configuration, and of the extra that installs it.
        meaning: for the help text.
        real: whether products run in the precision itself; only such an engine serves `auto`.
        package: name under which pip knows it and the lowest version; None where torch suffices.
        around: dtype of the rest of the network; None where that depends on the device (`dtype_name_around`).
        holds: how a weight is held: its codes, a number as wide as those around it, or both.
        uncompilable: why torch.compile cannot make its graph; None where it can.
    """

    name: str
    meaning: str
    real: bool
    package: tuple[str, Version] | None
    around: Literal["float32", "bfloat16"] | None
    holds: Literal["codes", "around", "both"]
    uncompilable: str | None


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A number format in which a copy of the policy may explore.

    Args:
        name: in the configuration.
        title: as people write it.
        meaning: what its numbers are, to go on after "computed with".
        bytes_per_weight: of a weight's codes and block scales; scales per row or tensor vanish.
        whole: whether the whole network is cast; else only linear layers are converted.
        e4m3: whether an emulation rounds to E4M3, which Triton has from compute capability 8.9 on.
        cpu_note: what to know before exploring with it on a CPU; None for nothing.
        prices: of an exploring evaluation, by the price table; empty where nobody measured.
        runners: by engine, the one that `auto` prefers first.
    """

    name: str
    title: str
    meaning: str
    bytes_per_weight: float
    whole: bool
    e4m3: bool
    cpu_note: str | None
    prices: Mapping[str, Price]
    runners: Mapping[str, Runner]

    def __post_init__(self) -> None:
        if unknown := self.runners.keys() - ENGINES.keys():
            raise ValueError(f"A precision is run by {', '.join(ENGINES)}. Got {', '.join(unknown)} for {self.name}.")

    @property
    def low(self) -> bool:
        """Whether it has fewer than 16 bits."""
        return self.bytes_per_weight < BFLOAT16

    @property
    def everywhere(self) -> bool:
        """Whether every machine runs it for real, so that there is no engine to choose."""
        return all(ENGINES[name].real and runner.need is None for name, runner in self.runners.items())

    def real_runners(self) -> Mapping[str, Runner]:
        """Return the runners that `auto` may choose from."""
        return {name: runner for name, runner in self.runners.items() if ENGINES[name].real}

    def copy_bytes(self, engine: str, device: str) -> tuple[float, float]:
        """Return the bytes of a quantised weight and of any other number of a copy.

        Args:
            engine: as configured; `auto` holds what torch does.
            device: cpu or cuda.
        """
        codes = self.bytes_per_weight
        if self.whole:
            return codes, codes
        known = ENGINES["torch" if engine == AUTO else engine]
        around = BFLOAT16 if (known.around or dtype_name_around(device)) == "bfloat16" else FLOAT32
        return {"codes": codes, "around": around, "both": codes + around}[known.holds], around


@dataclass(frozen=True, kw_only=True)
class BasePrecision:
    """A number format for the frozen weights under a LoRA; bitsandbytes has them.

    Args:
        name: in the configuration.
        bytes_per_weight: scales included: int8's of a row vanishes, nf4 has a scale byte for 64 weights.
        largest_error: of the velocity of a network with such weights, relative. At random weights a layer's own error
            is about 1 % in int8 and 10 % in nf4 (of normal weights); some tens of them stand behind each other.
    """

    name: str
    bytes_per_weight: float
    largest_error: float


BASE_PRECISIONS: Mapping[str, BasePrecision] = {
    one.name: one
    for one in (
        BasePrecision(name="int8", bytes_per_weight=1.0, largest_error=0.1),
        BasePrecision(name="nf4", bytes_per_weight=0.5 + 1 / 64, largest_error=0.75),
    )
}

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="torch",
            meaning="PyTorch's own products",
            real=True,
            package=None,
            around=None,
            holds="codes",
            uncompilable=None,
        ),
        Engine(
            name="torchao",
            meaning="torchao's",
            real=True,
            package=("torchao", (0, 18)),
            around="bfloat16",
            holds="codes",
            uncompilable=None,
        ),
        Engine(
            name="te",
            meaning="transformer-engine's",
            real=True,
            package=("transformer-engine", (2, 9)),  # the first with te.autocast
            around="bfloat16",
            holds="both",
            uncompilable="transformer-engine keeps its layers out of graphs",
        ),
        Engine(
            name="modelopt",
            meaning="nvidia-modelopt's emulation",
            real=False,
            package=("nvidia-modelopt", (0, 47)),
            around="float32",
            holds="around",
            uncompilable=None,
        ),
        Engine(
            name=EMULATED,
            meaning="the same rounding without the speed",
            real=False,
            package=None,
            around=None,
            holds="around",
            uncompilable=None,
        ),
    )
}
"""A new engine is one file in `precision/engines/`, its record here, and a runner in each precision that it runs."""


def dtype_name_around(device: str) -> Literal["bfloat16", "float32"]:
    """Return what a network computes in around low-precision layers, and an emulation multiplies in.

    Args:
        device: cpu, cuda, ...; a CPU's bfloat16 products are slow, or round their sums.
    """
    return "bfloat16" if device == "cuda" else "float32"
