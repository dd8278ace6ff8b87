"""Choose the engine that runs a precision on a machine, or say what the machine lacks.

Compute capability and versions are the first gate only; the start-up checks then run every layer's product.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from diffrl.errors import ConfigError, NotHereError
from diffrl.precision.facts import AUTO, EMULATED, ENGINES, TRAINING, Capability, Engine, Need, Runner, Version
from diffrl.precision.formats import PRECISIONS
from diffrl.registry import resolve

if TYPE_CHECKING:  # plans ask what a machine that is not here can run
    import torch

    from diffrl.precision.engines.base import Backend

PACKAGES = {
    **{engine.name: engine.package[0] for engine in ENGINES.values() if engine.package is not None},
    "mslk": "mslk",
}
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
        int8_sums: whether torch multiplies int8 exactly on this CPU.
    """

    device: str
    name: str
    capability: Capability | None = None
    cuda: Version | None = None
    packages: Mapping[str, Version] = field(default_factory=dict)
    int8_sums: bool = True

    @property
    def title(self) -> str:
        """Its name and compute capability, for messages."""
        return f"{self.name} of {dotted(self.capability)}" if self.capability else self.name


def machine_of(device: torch.device) -> Machine:
    """Return this machine, as seen from a device."""
    import torch

    versions = {name: version for name, pip in PACKAGES.items() if (version := installed(pip)) is not None}
    if device.type != "cuda":
        exact = device.type != "cpu" or sums_int8_exactly()
        return Machine(device.type, str(device), packages=versions, int8_sums=exact)
    cuda = None if torch.version.cuda is None else parse_version(torch.version.cuda)
    return Machine("cuda", torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), cuda, versions)


@cache
def sums_int8_exactly() -> bool:
    """Try whether torch's product of int8 is exact here: without VNNI, pairs are added up in 16 bits and saturate."""
    import torch

    largest = torch.full((32, 32), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest) == 32 * 127**2).all())


def find_backend(precision: str, engine: str, device: torch.device, section: str = "rollout.explore") -> Backend:
    """Return the backend for a precision; `auto` is the one that runs it for real, never an emulation.

    Args:
        precision: a key of `PRECISIONS`.
        engine: auto, a name under that key, or "module:Backend" of the user's own.
        device: where it shall run.
        section: that asks for it, for messages.

    Returns:
        A `Backend`, as it runs on this device.

    Raises:
        ConfigError: unknown names.
        NotHereError: nothing runs it here; the message names what does.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            f"{section}.precision must be one of {', '.join(PRECISIONS)}. Got {precision!r}."
            + (f" The policy itself runs in float32: set {section}: null." if precision == "float32" else "")
        )
    machine, runners = machine_of(device), PRECISIONS[precision].runners
    if engine == AUTO:
        return _real_runner(precision, machine, section).make().on(device)
    if engine not in runners and engine in ENGINES:
        raise ConfigError(
            f"{section}.engine must be one that runs {precision}: {AUTO}, {', '.join(runners)}. Got {engine!r}. "
            "Choose one of these."
        )
    if engine not in runners:
        custom: Backend = resolve(f"{section}.engine", dict.fromkeys(runners, ""), engine)()
        return custom.on(device)
    if reason := missing(precision, engine, machine):
        raise NotHereError(
            f"{section}.engine {engine} cannot run {precision} here: {reason}. {_ways_out(precision, machine, section)}"
        )
    return runners[engine].make().on(device)


def missing(precision: str, engine: str, machine: Machine) -> str | None:
    """Return why a machine cannot run a precision with a known engine, or None."""
    need = PRECISIONS[precision].runners[engine].need
    if need is None:
        return None
    return _missing_hardware(precision, need, machine) or missing_package(ENGINES[engine], machine)


def missing_hardware(precision: str, engine: str, machine: Machine) -> str | None:
    """Return why a machine's hardware cannot run a precision, whatever is installed; None if it can.

    Args:
        precision: a key of `PRECISIONS`.
        engine: as configured; auto = any that runs it for real.
        machine: which.
    """
    known = PRECISIONS[precision]
    if engine == AUTO:
        runners = list(known.real_runners().values())
    else:
        runners = [known.runners[engine]] if engine in known.runners else []
    reasons = [None if one.need is None else _missing_hardware(precision, one.need, machine) for one in runners]
    return next((reason for reason in reasons if reason is None), reasons[0] if reasons else None)


def uncompilable(precision: str, engine: str, machine: Machine) -> str | None:
    """Return why torch.compile cannot make a copy's graph on this machine, or None."""
    known = ENGINES.get(engine)
    if known is None:  # of the user's own
        return None
    old = machine.device == "cuda" and machine.capability is not None and machine.capability < (8, 9)
    if old and not known.real and PRECISIONS[precision].e4m3:
        return f"Triton has no E4M3 below compute capability 8.9, and this is {machine.title}"
    return known.uncompilable


def speed_notes(dtype: str, precision: str | None, device: str) -> tuple[str, ...]:
    """Return what to say of arithmetic that is slow on a device.

    Args:
        dtype: of the policy, as in `model.dtype`.
        precision: of the exploring stage, as configured; None without one.
        device: cpu or cuda; auto where that is not known.
    """
    if device == "cuda" and dtype == "float32":
        return (
            "model.dtype is float32: a GPU multiplies it outside its matrix units, an H100 at about a fifteenth of "
            "bfloat16's speed. TF32 stays off, for it rounds operands to 11 bits (docs/performance.md). Set "
            "model.dtype: bfloat16.",
        )
    if device == "cuda" or precision is None or precision == TRAINING:
        return ()
    note = PRECISIONS[precision].cpu_note
    return () if note is None else (note,)


def installed(package: str) -> Version | None:
    """Return the version of an installed package, without importing it."""
    try:
        return parse_version(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return None


def parse_version(text: str) -> Version:
    """Return the leading numbers: 2.15.0+cu132 becomes (2, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def dotted(version: Version) -> str:
    """Write (12, 8) as 12.8."""
    return ".".join(map(str, version))


def _real_runner(precision: str, machine: Machine, section: str) -> Runner:
    candidates = PRECISIONS[precision].real_runners()
    reasons = {name: missing(precision, name, machine) for name in candidates}
    for name, reason in reasons.items():
        if reason is None:
            return candidates[name]
    lowest = min((one.need.lowest for one in candidates.values() if one.need is not None), default=(0, 0))
    if (machine.capability or (0, 0)) < lowest:
        raise NotHereError(
            f"{section}.precision {precision} needs an NVIDIA GPU of compute capability {dotted(lowest)} or "
            f"more. Got {machine.title}. {_ways_out(precision, machine, section)}"
        )
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    why = why or "no engine of this version runs it for real"
    raise NotHereError(
        f"{section}.precision {precision} cannot run here: {why}. {_ways_out(precision, machine, section)}"
    )


def _missing_hardware(precision: str, need: Need, machine: Machine) -> str | None:
    wanted = f"needs an NVIDIA GPU of compute capability {dotted(need.lowest)} or more"
    if machine.device == "cpu" and not need.cpu:
        return f"{precision} {wanted}, not a CPU"
    if machine.device == "cpu":
        exact = machine.int8_sums or not need.int8_sums
        return None if exact else "torch's product of int8 saturates on this CPU, which lacks VNNI instructions"
    if machine.device != "cuda" or machine.capability is None:
        return f"{precision} needs {'a CPU or ' if need.cpu else ''}a CUDA GPU, not {machine.name}"
    if machine.capability < need.lowest:
        return f"{precision} {wanted}, not {machine.title}"
    if need.below is not None and machine.capability >= need.below:
        return f"{precision} is not for compute capability {dotted(need.below)} or more: {need.why_below}"
    if need.cuda and (machine.cuda is None or machine.cuda < need.cuda):
        present = "none" if machine.cuda is None else dotted(machine.cuda)
        return f"{precision} needs a torch built with CUDA {dotted(need.cuda)} or more, not {present}"
    return None


def missing_package(engine: Engine, machine: Machine) -> str | None:
    """Return what an engine lacks of its package on a machine, or None."""
    if engine.package is None:
        return None
    name, lowest = engine.package
    version = machine.packages.get(engine.name)
    if version is not None and version >= lowest:
        return None
    got = "it is not installed" if version is None else f"found {dotted(version)}"
    return f"it needs {name} {dotted(lowest)} or more, and {got}: pip install 'diffrl[{engine.name}]'"


def _ways_out(precision: str, machine: Machine, section: str) -> str:
    """Say what runs on the machine instead."""
    runnable = _either(
        [
            name
            for name, known in PRECISIONS.items()
            if any(missing(name, engine, machine) is None for engine in known.real_runners())
        ][::-1]
    )
    if EMULATED not in PRECISIONS[precision].runners:
        return f"Set {section}.engine: auto with precision: {runnable}."
    return f"Set {section}.engine: emulated (same numbers, no speed), or precision: {runnable}."


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
