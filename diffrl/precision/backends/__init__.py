"""Find the backend that runs a precision on a device, or say what would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diffrl.errors import ConfigError
from diffrl.precision.backends.base import PRECISION_BACKENDS
from diffrl.registry import resolve

AUTO = "auto"
CAPABILITY = {"fp8": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0)}
"""NVIDIA compute capability that a precision's matrix product needs."""


def find_backend(precision: str, engine: str, device: torch.device) -> Any:
    """The backend for a precision; `auto` is the one that runs it for real, never an emulation.

    Args:
        precision: a key of `PRECISION_BACKENDS`.
        engine: auto, a name under that key, or "module:Backend" of the user's own.
        device: where it shall run.

    Returns:
        A `Backend`, as it runs on this device.

    Raises:
        ConfigError: unknown names, or nothing that runs it here; the message names what does.
    """
    if precision not in PRECISION_BACKENDS:
        raise ConfigError(
            f"rollout.explore.precision must be one of {', '.join(PRECISION_BACKENDS)}. Got {precision!r}."
            + (" The policy itself runs in float32: set rollout.explore: null." if precision == "float32" else "")
        )
    if engine == AUTO:
        return _real_backend(precision, device).on(device)
    engines = PRECISION_BACKENDS[precision]
    if engine not in engines and any(engine in others for others in PRECISION_BACKENDS.values()):
        raise ConfigError(
            f"rollout.explore.engine must be one that runs {precision}: {AUTO}, {', '.join(engines)}. Got {engine!r}. "
            "Choose one of these."
        )
    backend = resolve("rollout.explore.engine", PRECISION_BACKENDS[precision], engine)()
    if reason := backend.available(device):
        raise ConfigError(
            f"rollout.explore.engine {engine} cannot run {precision} here: {reason}. {_ways_out(precision, device)}"
        )
    return backend.on(device)


def _real_backend(precision: str, device: torch.device) -> Any:
    candidates = _real(precision)
    reasons = [backend.available(device) for backend in candidates]
    for backend, reason in zip(candidates, reasons, strict=True):
        if reason is None:
            return backend
    needed = CAPABILITY.get(precision)
    found = _capability(device)
    if needed is not None and (found is None or found < needed):
        got = str(device) if found is None else f"{torch.cuda.get_device_name(device)} of {found[0]}.{found[1]}"
        raise ConfigError(
            f"rollout.explore.precision {precision} needs an NVIDIA GPU of compute capability "
            f"{needed[0]}.{needed[1]} or more. Got {got}. {_ways_out(precision, device)}"
        )
    found_reasons = [f"{b.name}: {reason}" for b, reason in zip(candidates, reasons, strict=True) if reason]
    why = "; ".join(found_reasons) or "no engine of this version runs it for real"
    raise ConfigError(f"rollout.explore.precision {precision} cannot run here: {why}. {_ways_out(precision, device)}")


def _real(precision: str) -> list[Any]:
    engines = PRECISION_BACKENDS[precision]
    backends = [resolve("rollout.explore.engine", engines, name)() for name in engines]
    return [backend for backend in backends if backend.real]


def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _ways_out(precision: str, device: torch.device) -> str:
    if "emulated" not in PRECISION_BACKENDS[precision]:
        return f"Set rollout.explore.engine: auto with precision: {_runnable(device)}."
    return f"Set rollout.explore.engine: emulated (same numbers, no speed), or precision: {_runnable(device)}."


def _runnable(device: torch.device) -> str:
    """The precisions that `auto` runs on this device, as a list in words."""
    names = [p for p in PRECISION_BACKENDS if any(b.available(device) is None for b in _real(p))]
    return _either(names[::-1])


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
