"""What the doctor's report says of the machine, and how single pieces of work are measured on it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from diffrl import __version__
from diffrl.precision.choice import PACKAGES, dotted, installed

LIBRARIES = ("diffusers", "transformers", "accelerate", "peft", "bitsandbytes", "xformers", *PACKAGES.values())


def describe(device: torch.device) -> dict[str, Any]:
    """Say what the machine is, for the report: nothing in it names its owner."""
    cuda = device.type == "cuda"
    versions = {name: number for name in LIBRARIES if (number := installed(name)) is not None}
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()})",
        "gpus": torch.cuda.device_count() if cuda else 0,
        "capability": dotted(torch.cuda.get_device_capability(device)) if cuda else None,
        "gpu_memory_gib": round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1) if cuda else None,
        "host_memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cpus": psutil.cpu_count(logical=False),
        "cpu_threads": torch.get_num_threads(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "driver": _driver() if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "torch": torch.__version__,
        "diffrl": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        **{name: dotted(version) for name, version in versions.items()},
        "date": time.strftime("%Y-%m-%d"),
    }


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, where its own tool tells."""
    import subprocess

    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.splitlines()[0].strip() or None
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


class Meter:
    """Seconds and peak memory of single pieces of work on a device."""

    def __init__(self, device: torch.device):
        self._device = device

    def __call__(self, work: Callable[[], object]) -> tuple[float, float | None]:
        """Return seconds that `work()` took, and the most GiB that the GPU held meanwhile; None on a CPU."""
        cuda = self._device.type == "cuda"
        if cuda:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        start = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - start
        return seconds, torch.cuda.max_memory_allocated(self._device) / 2**30 if cuda else None
