"""The few things that ranks say to each other. With one process every function is the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def make_accelerator(device: torch.device, trackers: list[str], project_dir: str) -> Any:
    """An `Accelerator` that leaves precision, accumulation and data loading to the trainer.

    Buffers are not broadcast: they never change, and ranks may call the network a different number of times.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs

    return Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="no",
        log_with=trackers or None,
        project_dir=project_dir,
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )


def gather_rows(accelerator: Any, rows: Tensor) -> Tensor:
    """Rows (B, ...) of all ranks, in rank order, on the CPU; every rank must bring the same number."""
    if accelerator.num_processes == 1:
        return rows.cpu()
    gathered: Tensor = accelerator.gather(rows.to(accelerator.device).contiguous())
    return gathered.cpu()


def sum_ranks(accelerator: Any, values: Tensor) -> Tensor:
    """Elementwise sum over ranks, float64, on the CPU."""
    values = values.to(torch.float64)
    if accelerator.num_processes == 1:
        return values.cpu()
    total: Tensor = accelerator.reduce(values.to(accelerator.device), reduction="sum")
    return total.cpu()


def any_rank(accelerator: Any, flag: bool) -> bool:
    """Whether any rank says yes."""
    return bool(sum_ranks(accelerator, torch.tensor([float(flag)]))[0] > 0)
