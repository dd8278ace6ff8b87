"""The same numbers on the device as on the CPU: velocity, gradient, update and decoded images of every family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import Step, distance, open_step, write_tiny
from diffrl.models.families import FAMILIES

CPU = torch.device("cpu")
UNITS = 256
"""Units of float32 by which a velocity may differ: what TensorFloat-32 would cost is 8,192."""
TIMES = 4
"""How many times the loss of bfloat16 on the CPU that on the device may be."""
RATE = 0.01


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Yield two rows a family."""
    with TemporaryDirectory() as folder:
        for family in FAMILIES:
            path = write_tiny(family, Path(folder) / family)
            eps = torch.finfo(torch.float32).eps
            yield Row(
                f"{family}, float32",
                f"velocity and update within {UNITS * eps:.1e} of the CPU's, gradient within {4 * UNITS * eps:.1e}, "
                "images within 1 of 255",
                partial(_float32, family, path, device),
            )
            yield Row(
                f"{family}, bfloat16",
                f"from the CPU's float32 at most {TIMES} times as far as bfloat16 on the CPU",
                partial(_bfloat16, family, path, device),
            )


def _float32(family: str, path: Path, device: torch.device) -> Result:
    """Sample on the device one at a time, so that a CPU is not merely compared with itself."""
    here, there = (
        _numbers(open_step(family, path, where, "float32"), size) for where, size in ((CPU, None), (device, 1))
    )
    apart = {name: distance(there[name], here[name]) for name in ("velocity", "gradient", "updated")}
    levels = float(
        (torch.as_tensor(there["images"]).float().cpu() - torch.as_tensor(here["images"]).float()).abs().max()
    )
    unit = UNITS * torch.finfo(torch.float32).eps
    passed = apart["velocity"] <= unit and apart["updated"] <= unit and apart["gradient"] <= 4 * unit and levels <= 1
    message = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
    return Result(passed, f"{message}, images {levels:g}", {**apart, "image_levels": levels})


def _bfloat16(family: str, path: Path, device: torch.device) -> Result:
    wanted = _numbers(open_step(family, path, CPU, "float32"), None)
    apart: dict[str, dict[str, float]] = {}
    for where, name in ((CPU, "cpu"), (device, "device")):
        numbers = _numbers(open_step(family, path, where, "bfloat16"), None)
        apart[name] = {key: distance(numbers[key], wanted[key]) for key in ("velocity", "gradient")}
        images = torch.as_tensor(numbers["images"]).float().cpu() - torch.as_tensor(wanted["images"]).float()
        apart[name]["image_levels"] = float(images.abs().mean())
    passed = all(apart["device"][key] <= TIMES * apart["cpu"][key] + 1e-6 for key in apart["cpu"])
    message = ", ".join(f"{key} {apart['device'][key]:.1e} ({apart['cpu'][key]:.1e})" for key in apart["cpu"])
    return Result(passed, f"{message}; in brackets on the CPU", apart)


def _numbers(step: Step, at_once: int | None) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Return velocity, gradient, velocity after one step along the gradient, and images of the latents."""
    with torch.no_grad():
        velocity = step.velocity(at_once).cpu()
        images = torch.cat([step.adapter.decode(one) for one in step.latents.split(at_once or len(step.latents))]).cpu()
    gradient = step.gradient(at_once)
    length = torch.stack([one.norm() for one in gradient]).norm()
    with torch.no_grad():
        for weight, one in zip(step.trained, gradient, strict=True):
            weight.sub_(one / length * RATE)
        updated = step.velocity(at_once).cpu()
    return {"velocity": velocity, "gradient": [one.cpu() for one in gradient], "updated": updated, "images": images}
