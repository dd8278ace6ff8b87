"""The few things that ranks say to each other. With one process every function is the identity."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from diffrl.distributed.control import Control
from diffrl.distributed.lockstep import Lockstep
from diffrl.errors import ConfigError, GuardStop
from reward_models import RewardError

T = TypeVar("T")

LAUNCHERS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
"""Variables by which `accelerate launch` asks for a way of splitting the model, and its name."""


@dataclass(frozen=True)
class OneProcess:
    """What stands in for an `Accelerator` where nothing is trained and nobody else takes part."""

    num_processes: int = 1
    process_index: int = 0


def make_accelerator(device: torch.device, trackers: list[str], project_dir: str, patience: float) -> Any:
    """Return an `Accelerator` that leaves precision, accumulation, data loading and sharding to the trainer.

    Buffers are not broadcast: they never change, and ranks may call the network a different number of times. Its
    `control` is how ranks talk; gradients and weights alone travel over the backend of the device.

    Args:
        device: whose backend is used.
        trackers: that are asked for.
        project_dir: where they write.
        patience: seconds that ranks wait for one that does not come, whatever they exchange.

    Raises:
        ConfigError: the launcher's own configuration asks for a split model.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs

    for variable, name in LAUNCHERS.items():
        if os.environ.get(variable, "false").lower() in ("1", "true", "yes", "on"):
            raise ConfigError(
                f"accelerate must be launched for plain multi-process training. Got a configuration that asks for "
                f"{name}. Launch with `accelerate launch --multi_gpu` and set train.sharding=fsdp to split the model."
            )
    wait = timedelta(seconds=patience)
    accelerator: Any = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="no",
        log_with=trackers or None,
        project_dir=project_dir,
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False), InitProcessGroupKwargs(timeout=wait)],
    )
    accelerator.control = Control(wait) if accelerator.num_processes > 1 else None
    accelerator.lockstep = None
    return accelerator


def keep_in_step(accelerator: Any, networks: Sequence[nn.Module]) -> None:
    """From now on ranks may call these sharded networks a different number of times between two exchanges."""
    accelerator.lockstep = Lockstep(networks, accelerator.control.most)


def lockstep_of(accelerator: Any) -> Lockstep | None:
    """What keeps the ranks' calls of sharded networks in step; None if nothing is sharded."""
    return getattr(accelerator, "lockstep", None)


def _settle(accelerator: Any) -> None:
    if lockstep := lockstep_of(accelerator):
        lockstep.settle()


def gather_rows(accelerator: Any, rows: Tensor) -> Tensor:
    """Rows (B, ...) of all ranks, in rank order, on the CPU; every rank must bring the same number."""
    if accelerator.num_processes == 1:
        return rows.cpu()
    _settle(accelerator)
    gathered: Tensor = accelerator.control.gather(rows.cpu())
    return gathered


def gather_objects(accelerator: Any, value: T) -> list[T]:
    """Every rank's value, small and of plain types, in rank order, on every rank."""
    if accelerator.num_processes == 1:
        return [value]
    _settle(accelerator)
    values: list[T] = accelerator.control.objects(value)
    return values


def shared_names(accelerator: Any, names: Iterable[str]) -> list[str]:
    """The names that any rank has, in one order on all: a rank on which a reward failed altogether lacks its parts."""
    if accelerator.num_processes == 1:
        return list(names)
    return sorted({name for own in gather_objects(accelerator, list(names)) for name in own})


def raise_on_all_ranks(accelerator: Any, work: Callable[[], T]) -> T:
    """Do what may fail on one rank alone; what fails on any rank fails on all, or the others would wait for it forever.

    Args:
        accelerator: joins the ranks.
        work: exchanges nothing with other ranks.

    Raises:
        RewardError: it was raised here, or on another rank, which is named.
        GuardStop: likewise.
    """
    if accelerator.num_processes == 1:
        return work()
    raised: RewardError | GuardStop | None = None
    value: list[T] = []
    try:
        value.append(work())
    except (RewardError, GuardStop) as error:
        raised = error
    error_here = None if raised is None else (isinstance(raised, GuardStop), str(raised))
    everyone = gather_objects(accelerator, error_here)
    if raised is not None:
        raise raised
    for rank, error in enumerate(everyone):
        if error is not None:
            raise (GuardStop if error[0] else RewardError)(f"On rank {rank}: {error[1]}")
    return value[0]


def sum_ranks(accelerator: Any, values: Tensor) -> Tensor:
    """Elementwise sum over ranks, float64, on the CPU."""
    values = values.to(torch.float64).cpu()
    if accelerator.num_processes == 1:
        return values
    _settle(accelerator)
    total: Tensor = accelerator.control.sum(values)
    return total


def average_gradients(accelerator: Any, parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its mean over ranks, where one that a rank lacks is zero; what all lack stays None."""
    if accelerator.num_processes == 1:
        return
    parameters = list(parameters)
    holders = sum_ranks(accelerator, torch.tensor([float(p.grad is not None) for p in parameters])).tolist()
    for parameter, count in zip(parameters, holders, strict=True):
        if count:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = accelerator.reduce(own.detach(), reduction="mean")


def any_rank(accelerator: Any, flag: bool) -> bool:
    """Return whether any rank says yes."""
    return bool(sum_ranks(accelerator, torch.tensor([float(flag)]))[0] > 0)


def wait_for_all(accelerator: Any) -> None:
    """Wait until every rank has come here."""
    any_rank(accelerator, False)
