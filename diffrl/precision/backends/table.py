"""What runs a precision and what that needs of the machine: one table, and a pure function over it.

The limits are those of the kernels underneath: FP8 products begin with compute capability 8.9 (Ada, Hopper),
block-scaled ones (NVFP4, MXFP8) with 10.0 (Blackwell). A limit met here is only the first gate; the start-up checks
then run every layer's product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffrl.precision.backends.machine import PACKAGES, Capability, Machine, Version, dotted, machine_name


@dataclass(frozen=True)
class Need:
    """What an engine needs to run a precision.

    Args:
        cpu: whether it runs there too.
        lowest: compute capability on CUDA.
        below: compute capability that is too new; None for no limit.
        why_below: what is known of those.
        cuda: lowest CUDA version of torch's build, on CUDA.
        packages: lowest versions.
    """

    cpu: bool = False
    lowest: Capability = (0, 0)
    below: Capability | None = None
    why_below: str = ""
    cuda: Version = ()
    packages: Mapping[str, Version] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """One way to run a precision.

    Args:
        backend: "module:maker" of its `Backend`.
        need: of the machine; None where it runs anywhere.
    """

    backend: str
    need: Need | None = None


TORCHAO = {"torchao": (0, 18)}
MODELOPT = {"modelopt": (0, 47)}
_HERE = "diffrl.precision.backends"

PRECISION_BACKENDS: Mapping[str, Mapping[str, Engine]] = {
    "bfloat16": {"torch": Engine(f"{_HERE}.cast:BFloat16")},
    "int8": {
        "torch": Engine(f"{_HERE}.int8:Int8", Need(cpu=True)),
        "torchao": Engine(f"{_HERE}.torchao_backends:int8", Need(cpu=True, lowest=(8, 0), packages=TORCHAO)),
        "modelopt": Engine(f"{_HERE}.modelopt:int8", Need(cpu=True, packages=MODELOPT)),
        "emulated": Engine(f"{_HERE}.emulated:int8"),
    },
    "fp8": {
        "torchao": Engine(f"{_HERE}.torchao_backends:fp8", Need(lowest=(8, 9), packages=TORCHAO)),
        "torch": Engine(f"{_HERE}.fp8:Fp8", Need(cpu=True, lowest=(8, 9))),
        "modelopt": Engine(f"{_HERE}.modelopt:fp8", Need(cpu=True, packages=MODELOPT)),
        "emulated": Engine(f"{_HERE}.emulated:fp8"),
    },
    "mxfp8": {
        "torchao": Engine(
            f"{_HERE}.torchao_backends:mxfp8",
            Need(
                lowest=(10, 0),
                below=(12, 0),
                why_below="torch multiplies MXFP8 there in some layouts only",
                cuda=(12, 8),
                packages=TORCHAO,
            ),
        ),
        "emulated": Engine(f"{_HERE}.emulated:mxfp8"),
    },
    "nvfp4": {
        "torchao": Engine(f"{_HERE}.torchao_backends:nvfp4", Need(lowest=(10, 0), cuda=(12, 8), packages=TORCHAO)),
        "te": Engine(
            f"{_HERE}.te:Nvfp4",
            Need(
                lowest=(10, 0),
                below=(12, 0),
                why_below="transformer-engine claims it and fails (its issue 3217)",
                cuda=(12, 8),
                packages={"te": (2, 9)},  # the first with te.autocast
            ),
        ),
        "emulated": Engine(f"{_HERE}.emulated:nvfp4"),
    },
}
"""Precision, then engine, the one that `auto` prefers first. A new backend is one file and one line here."""


def missing(precision: str, engine: str, machine: Machine) -> str | None:
    """Why this machine cannot run a precision with an engine, or None; engines outside the table say so themselves."""
    known = PRECISION_BACKENDS[precision].get(engine)
    if known is None or known.need is None:
        return None
    return _missing_hardware(precision, known.need, machine) or _missing_package(engine, known.need, machine)


def missing_hardware(precision: str, engine: str, machine: Machine) -> str | None:
    """Why a machine's hardware cannot run a precision, whatever is installed; None if it can, or the table cannot say.

    Args:
        precision: a key of `PRECISION_BACKENDS`.
        engine: as configured; auto = any that runs it for real.
        machine: which.
    """
    engines = PRECISION_BACKENDS[precision]
    names = [name for name in engines if name != "emulated"] if engine == "auto" else [engine]
    needs = [engines[name].need if name in engines else None for name in names]
    reasons = [None if need is None else _missing_hardware(precision, need, machine) for need in needs]
    return next((reason for reason in reasons if reason is None), reasons[0] if reasons else None)


def _missing_hardware(precision: str, need: Need, machine: Machine) -> str | None:
    if machine.device == "cpu":
        return None if need.cpu else f"{precision} {_wanted(need)}, not a CPU"
    if machine.device != "cuda" or machine.capability is None:
        return f"{precision} needs {'a CPU or ' if need.cpu else ''}a CUDA GPU, not {machine.name}"
    if machine.capability < need.lowest:
        return f"{precision} {_wanted(need)}, not {machine_name(machine)}"
    if need.below is not None and machine.capability >= need.below:
        return f"{precision} is not for compute capability {dotted(need.below)} or more: {need.why_below}"
    if need.cuda and (machine.cuda is None or machine.cuda < need.cuda):
        found = "none" if machine.cuda is None else dotted(machine.cuda)
        return f"{precision} needs a torch built with CUDA {dotted(need.cuda)} or more, not {found}"
    return None


def _missing_package(engine: str, need: Need, machine: Machine) -> str | None:
    for package, lowest in need.packages.items():
        found = machine.packages.get(package)
        if found is None or found < lowest:
            got = "it is not installed" if found is None else f"found {dotted(found)}"
            name = PACKAGES[package]
            return f"it needs {name} {dotted(lowest)} or more, and {got}: pip install 'diffrl[{engine}]'"
    return None


def _wanted(need: Need) -> str:
    return f"needs an NVIDIA GPU of compute capability {dotted(need.lowest)} or more"
