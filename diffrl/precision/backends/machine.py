"""This machine as the choice of an engine sees it, and what follows from it for a kernel."""

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
        return f"Triton has no E4M3 below compute capability 8.9, and this is {machine_name(machine)}"
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


def machine_name(machine: Machine) -> str:
    """Its name and compute capability, for messages."""
    return f"{machine.name} of {dotted(machine.capability)}" if machine.capability else machine.name


def dotted(version: Version) -> str:
    """(12, 8) as 12.8."""
    return ".".join(map(str, version))
