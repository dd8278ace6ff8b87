"""How much memory a run may take and how much it took."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

from diffrl.errors import NotHereError

GIB = 2**30


def available_bytes(device: torch.device) -> int:
    """Memory that a run could still take on a device: free on CUDA; on the CPU, within the process's own limit too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available: int = min(psutil.virtual_memory().available, _container_bytes())
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        available = min(available, soft - psutil.Process().memory_info().vms)
    return available


def _container_bytes() -> int:
    """What the container's own limit (control groups, version 2) leaves; a very large number without one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no limit, or no such control group
        return sys.maxsize
    return max(0, limit - used)


def check_memory(estimate: int | None, device: torch.device) -> None:
    """Refuse a run that cannot fit; an unknown estimate passes.

    Raises:
        NotHereError: says how much is missing and which keys take less.
    """
    if estimate is not None:
        require_memory(estimate, available_bytes(device), f"are free on {device.type}")


def require_memory(estimate: int, available: int, there: str) -> None:
    """Refuse a run that needs more than there is; `there` says where ("are free on cuda").

    Raises:
        NotHereError: as `check_memory`.
    """
    if estimate > available:
        raise NotHereError(
            f"Not enough memory: the run needs about {estimate / GIB:.2f} GiB and {available / GIB:.2f} GiB {there}. "
            "Lower rollout.micro_batch, train.micro_batch, rollout.decode_batch or eval.batch, set "
            "train.gradient_checkpointing or model.offload, or train a LoRA (model.lora). The estimate is "
            "rough: guards.memory=warn tries all the same."
        )


def peak_bytes(device: torch.device) -> int:
    """The most memory this process has held: allocated on CUDA, resident on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
