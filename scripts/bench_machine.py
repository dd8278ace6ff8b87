"""What `bench_gpu.py` runs on: peak rates, a description for its report, memory, and a clock that ends in time."""

import platform
import time

import torch

PEAK_TFLOPS = {
    "H200": {"bfloat16": 989, "fp8": 1979, "mxfp8": None, "int8": 1979, "nvfp4": None},
    "H100 PCIe": {"bfloat16": 756, "fp8": 1513, "int8": 1513},
    "H100 NVL": {"bfloat16": 835, "fp8": 1671, "int8": 1671},
    "H100": {"bfloat16": 989, "fp8": 1979, "int8": 1979},
    "B200": {"bfloat16": 2250, "fp8": 4500, "mxfp8": 4500, "int8": 4500, "nvfp4": 9000},
    "A100": {"bfloat16": 312, "int8": 624},
    "L40S": {"bfloat16": 362, "fp8": 733, "int8": 733},
    "RTX 4090": {"bfloat16": 165, "fp8": 330, "int8": 661},
}
"""Dense peak rates by a part of the GPU's name, from NVIDIA's data sheets; the first that fits counts."""


def peak_tflops(name: str, precision: str) -> float | None:
    """Dense peak rate of a GPU in TFLOP/s (TOP/s of integers), None if it is not in the table."""
    rates = next((rates for part, rates in PEAK_TFLOPS.items() if part in name), {})
    return rates.get(precision)


def describe(device: torch.device) -> dict:
    """The machine, for the report."""
    import diffusers

    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()})",
        "gpu_memory_gib": round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1) if cuda else None,
        "cpu_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "diffusers": diffusers.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


class Budget:
    """Says whether there is time to start something.

    Args:
        seconds: in all.
    """

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def share(self, parts: int) -> "Budget":
        """An even part of what is left, for the next of `parts` things."""
        return Budget(self.left / max(1, parts))


class Meter:
    """Seconds and peak memory of single pieces of work on a device."""

    def __init__(self, device: torch.device):
        self._device = device

    def __call__(self, work) -> tuple[float, float | None]:
        """Seconds that `work()` took, and the most GiB that the GPU held meanwhile; None on a CPU."""
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
