"""Which machine can run which precision with which engine: a table and a pure function over it.

The limits are those of the kernels underneath: FP8 products begin with compute capability 8.9 (Ada, Hopper),
block-scaled ones (NVFP4, MXFP8) with 10.0 (Blackwell). A limit met here is only the first gate; the start-up checks
then run every layer's product.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from diffrl.functional.formats.fp8 import Scaling

Capability = tuple[int, int]
Version = tuple[int, ...]

PACKAGES = {"torchao": "torchao", "modelopt": "nvidia-modelopt", "te": "transformer-engine", "mslk": "mslk"}
"""What is asked about, and the name under which pip knows it."""


@dataclass(frozen=True)
class Machine:
    """What decides whether a precision can run.

    Args:
        device: cpu, cuda, ...
        name: for messages.
        capability: NVIDIA compute capability; None where there is none.
        cuda: version that torch was built with; None without.
        packages: installed ones of `PACKAGES`, with their versions.
    """

    device: str
    name: str
    capability: Capability | None = None
    cuda: Version | None = None
    packages: Mapping[str, Version] = field(default_factory=dict)


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


TORCHAO = {"torchao": (0, 18)}
MODELOPT = {"modelopt": (0, 47)}
NEEDS: Mapping[tuple[str, str], Need] = {
    ("bfloat16", "torch"): Need(cpu=True),
    ("int8", "torch"): Need(cpu=True),
    ("int8", "torchao"): Need(cpu=True, lowest=(8, 0), packages=TORCHAO),
    ("int8", "modelopt"): Need(cpu=True, packages=MODELOPT),
    ("fp8", "torch"): Need(cpu=True, lowest=(8, 9)),
    ("fp8", "torchao"): Need(lowest=(8, 9), packages=TORCHAO),
    ("fp8", "modelopt"): Need(cpu=True, packages=MODELOPT),
    ("mxfp8", "torchao"): Need(
        lowest=(10, 0),
        below=(12, 0),
        why_below="torch multiplies MXFP8 there in some layouts only",
        cuda=(12, 8),
        packages=TORCHAO,
    ),
    ("nvfp4", "torchao"): Need(lowest=(10, 0), cuda=(12, 8), packages=TORCHAO),
    ("nvfp4", "te"): Need(
        lowest=(10, 0),
        below=(12, 0),
        why_below="transformer-engine claims it and fails (its issue 3217)",
        cuda=(12, 8),
        packages={"te": (2, 8)},
    ),
}


def missing(precision: str, engine: str, machine: Machine) -> str | None:
    """Why this machine cannot run a precision with an engine, or None; engines that are not in `NEEDS` run anywhere."""
    need = NEEDS.get((precision, engine))
    if need is None:
        return None
    return _missing_hardware(precision, need, machine) or _missing_package(engine, need, machine)


def _missing_hardware(precision: str, need: Need, machine: Machine) -> str | None:
    if machine.device == "cpu":
        return None if need.cpu else f"{precision} {_wanted(need)}, not a CPU"
    if machine.device != "cuda" or machine.capability is None:
        return f"{precision} needs {'a CPU or ' if need.cpu else ''}a CUDA GPU, not {machine.name}"
    if machine.capability < need.lowest:
        return f"{precision} {_wanted(need)}, not {_found(machine)}"
    if need.below is not None and machine.capability >= need.below:
        return f"{precision} is not for compute capability {_dotted(need.below)} or more: {need.why_below}"
    if need.cuda and (machine.cuda is None or machine.cuda < need.cuda):
        found = "none" if machine.cuda is None else _dotted(machine.cuda)
        return f"{precision} needs a torch built with CUDA {_dotted(need.cuda)} or more, not {found}"
    return None


def _missing_package(engine: str, need: Need, machine: Machine) -> str | None:
    for package, lowest in need.packages.items():
        found = machine.packages.get(package)
        if found is None or found < lowest:
            got = "it is not installed" if found is None else f"found {_dotted(found)}"
            name = PACKAGES[package]
            return f"it needs {name} {_dotted(lowest)} or more, and {got}: pip install 'diffrl[{engine}]'"
    return None


def fp8_scaling(machine: Machine, rows_work: Callable[[], bool]) -> Scaling:
    """One scale for each row or one for the tensor: rows where the hardware can, as they keep samples apart.

    Args:
        machine: where it shall run.
        rows_work: tries a row-wise product; asked on compute capability 8.9 only, where it depends on the build.

    Returns:
        "row" on CPUs, 9.0 and 10.x; on 8.9 by trial; "tensor" from 11.0 on, where row-wise products failed (pytorch
        issue 192707).
    """
    if machine.device != "cuda" or machine.capability is None:
        return "row"
    if machine.capability < (9, 0):
        return "row" if rows_work() else "tensor"
    return "row" if machine.capability < (11, 0) else "tensor"


def use_triton_for_nvfp4(machine: Machine) -> bool:
    """Whether torchao may quantise activations with its fused kernel: it needs mslk, and fails late without it."""
    return "mslk" in machine.packages and machine.capability is not None and machine.capability[0] == 10


def uncompilable(precision: str, engine: str, machine: Machine) -> str | None:
    """Why torch.compile cannot make a copy's graph on this machine, or None."""
    if engine == "te":
        return "transformer-engine keeps its layers out of graphs"
    old = machine.device == "cuda" and machine.capability is not None and machine.capability < (8, 9)
    if old and engine in ("emulated", "modelopt") and precision != "int8":
        return f"Triton has no E4M3 below compute capability 8.9, and this is {_found(machine)}"
    return None


def machine_of(device: torch.device) -> Machine:
    """This machine, as seen from a device."""
    versions = {name: version for name, pip in PACKAGES.items() if (version := installed(pip)) is not None}
    if device.type != "cuda":
        return Machine(device.type, str(device), packages=versions)
    cuda = None if torch.version.cuda is None else parse_version(torch.version.cuda)
    return Machine("cuda", torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), cuda, versions)


def installed(package: str) -> Version | None:
    """The version of an installed package, without importing it."""
    try:
        return parse_version(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return None


def parse_version(text: str) -> Version:
    """The leading numbers: 2.15.0+cu132 becomes (2, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _wanted(need: Need) -> str:
    return f"needs an NVIDIA GPU of compute capability {_dotted(need.lowest)} or more"


def _found(machine: Machine) -> str:
    return f"{machine.name} of {_dotted(machine.capability)}" if machine.capability else machine.name


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
