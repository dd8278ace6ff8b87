"""Find the backend that runs a precision on a device, or say what would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diffrl.errors import ConfigError, NotHereError
from diffrl.precision.backends.machine import machine_of
from diffrl.precision.backends.table import PRECISION_BACKENDS, missing
from diffrl.registry import resolve

AUTO = "auto"


def find_backend(precision: str, engine: str, device: torch.device) -> Any:
    """The backend for a precision; `auto` is the one that runs it for real, never an emulation.

    Args:
        precision: a key of `PRECISION_BACKENDS`.
        engine: auto, a name under that key, or "module:Backend" of the user's own.
        device: where it shall run.

    Returns:
        A `Backend`, as it runs on this device.

    Raises:
        ConfigError: unknown names.
        NotHereError: nothing runs it here; the message names what does.
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
    backend = _made(precision, engine)
    if reason := _refusal(precision, engine, backend, device):
        raise NotHereError(
            f"rollout.explore.engine {engine} cannot run {precision} here: {reason}. {_ways_out(precision, device)}"
        )
    return backend.on(device)


def _real_backend(precision: str, device: torch.device) -> Any:
    candidates = _real(precision)
    reasons = {name: _refusal(precision, name, backend, device) for name, backend in candidates.items()}
    for name, reason in reasons.items():
        if reason is None:
            return candidates[name]
    needs = [PRECISION_BACKENDS[precision][name].need for name in candidates]
    lowest = min((need.lowest for need in needs if need is not None), default=(0, 0))
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if found < lowest:
        got = f"{torch.cuda.get_device_name(device)} of {found[0]}.{found[1]}" if device.type == "cuda" else device
        raise NotHereError(
            f"rollout.explore.precision {precision} needs an NVIDIA GPU of compute capability "
            f"{lowest[0]}.{lowest[1]} or more. Got {got}. {_ways_out(precision, device)}"
        )
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    why = why or "no engine of this version runs it for real"
    raise NotHereError(f"rollout.explore.precision {precision} cannot run here: {why}. {_ways_out(precision, device)}")


def _real(precision: str) -> dict[str, Any]:
    """The backends that run a precision for real, by engine."""
    backends = {engine: _made(precision, engine) for engine in PRECISION_BACKENDS[precision]}
    return {engine: backend for engine, backend in backends.items() if backend.real}


def _made(precision: str, engine: str) -> Any:
    table = {name: known.backend for name, known in PRECISION_BACKENDS[precision].items()}
    return resolve("rollout.explore.engine", table, engine)()


def _refusal(precision: str, engine: str, backend: Any, device: torch.device) -> str | None:
    """Why this device cannot run a backend, by the table or by its own word."""
    reason: str | None = missing(precision, engine, machine_of(device)) or backend.available(device)
    return reason


def _ways_out(precision: str, device: torch.device) -> str:
    if "emulated" not in PRECISION_BACKENDS[precision]:
        return f"Set rollout.explore.engine: auto with precision: {_runnable(device)}."
    return f"Set rollout.explore.engine: emulated (same numbers, no speed), or precision: {_runnable(device)}."


def _runnable(device: torch.device) -> str:
    """The precisions that `auto` runs on this device, as a list in words."""
    names = [
        precision
        for precision in PRECISION_BACKENDS
        if any(_refusal(precision, name, backend, device) is None for name, backend in _real(precision).items())
    ]
    return _either(names[::-1])


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
