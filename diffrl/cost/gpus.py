"""GPUs that a run can be planned for: one table, each number from its vendor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diffrl.errors import ConfigError
from reward_models.common.messages import quote

GB = 10**9
HOPPER = "NVIDIA's data sheet of the {}, SXM; its 1,979 TFLOP/s are with sparsity"


RATES: Mapping[str, Mapping[str, float]] = {
    "H200": {"bfloat16": 989.4, "fp8": 1979, "int8": 1979},
    "H100 PCIe": {"bfloat16": 756, "fp8": 1513, "int8": 1513},
    "H100 NVL": {"bfloat16": 835, "fp8": 1671, "int8": 1671},
    "H100": {"bfloat16": 989.4, "fp8": 1979, "int8": 1979},
    "B200": {"bfloat16": 2250, "fp8": 4500, "mxfp8": 4500, "int8": 4500, "nvfp4": 9000},
    "A100": {"bfloat16": 312, "int8": 624},
    "L40S": {"bfloat16": 362.05, "fp8": 733, "int8": 733},
    "RTX 3090": {"bfloat16": 71},
    "RTX 4090": {"bfloat16": 165.2, "fp8": 330, "int8": 661},
    "RTX 5090": {"bfloat16": 209.5},
}
"""Peak TFLOP/s (TOP/s of integers) of matrix units by a part of the card's name and the precision, without sparsity,
bfloat16 accumulated in float32; from NVIDIA's data sheets. The first part that fits a name counts."""


@dataclass(frozen=True)
class Gpu:
    """What a plan needs to know of a GPU."""

    title: str  # its name, with a part that `RATES` knows
    memory: int  # bytes that CUDA reports, of which its driver has taken its part
    capability: tuple[int, int]  # NVIDIA compute capability
    source: str  # of the numbers

    @property
    def bf16(self) -> float:
        """FLOP/s of its matrix units in bfloat16."""
        return 1e12 * rates_of(self.title)["bfloat16"]


def rates_of(name: str) -> Mapping[str, float]:
    """Return the rates of a card by its name; empty where the table lacks it."""
    return next((rates for part, rates in RATES.items() if part in name), {})


def _gib(size: float) -> int:
    """Return bytes of an amount in GiB."""
    return round(size * 2**30)


# Memory is the least "total capacity" of each that PyTorch's OutOfMemoryError shows in public reports: the total of
# torch.cuda.mem_get_info(). nvidia-smi's has the driver's part in it: 81,920 MiB of an A100 80 GB, 81,559 of an H100,
# 143,771 of an H200, 183,359 of a B200, 46,068 of an L40S, 24,564 of an RTX 4090, 32,607 of an RTX 5090.
GPUS: Mapping[str, Gpu] = {
    "a100": Gpu("A100 80 GB", _gib(79.14), (8, 0), "NVIDIA's data sheet of the A100 80 GB, SXM"),
    "a100-40gb": Gpu("A100 40 GB", _gib(39.38), (8, 0), "NVIDIA's data sheet of the A100"),
    "h100": Gpu("H100", _gib(79.1), (9, 0), HOPPER.format("H100")),
    "h200": Gpu("H200", _gib(139.72), (9, 0), HOPPER.format("H200")),
    "b200": Gpu(
        "B200", _gib(178.35), (10, 0), "NVIDIA's data sheet of the HGX B200; its 4.5 PFLOP/s are with sparsity"
    ),
    "l40s": Gpu("L40S", _gib(44.39), (8, 9), "NVIDIA's data sheet of the L40S; its 733 TFLOP/s are with sparsity"),
    "rtx3090": Gpu("RTX 3090", _gib(23.67), (8, 6), "NVIDIA's whitepaper on GA102, appendix A"),
    "rtx4090": Gpu("RTX 4090", _gib(23.52), (8, 9), "NVIDIA's whitepaper on the Ada architecture, appendix A"),
    "rtx5090": Gpu("RTX 5090", _gib(31.36), (12, 0), "NVIDIA's whitepaper on RTX Blackwell, appendix A"),
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name, however it is written.

    Raises:
        ConfigError: it is not in the table.
    """
    plain = re.sub(r"[\s_]", "", name.lower()).removeprefix("nvidia")
    if plain not in GPUS:
        raise ConfigError(f"A GPU must be one of {', '.join(GPUS)}. Got {quote(name)}. Take the one most like yours.")
    return GPUS[plain]


def parse_memory(text: str) -> int:
    """Return bytes of 80GB, 80 GB, 24GiB or 80, which is in GB as GPUs are sold.

    Raises:
        ConfigError: it is no amount of memory.
    """
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*(GB|GiB|)\s*", text, re.IGNORECASE)
    size = 0 if match is None else round(float(match[1]) * (2**30 if match[2].lower() == "gib" else GB))
    if size <= 0:
        raise ConfigError(f"Memory must be an amount such as 80GB or 24GiB. Got {quote(text)}.")
    return size
