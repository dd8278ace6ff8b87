"""The ranks of a run: what each knows of itself, and the few things that they say to each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from diffrl.distributed.control import Control
from diffrl.distributed.lockstep import Lockstep
from diffrl.errors import ConfigError, DiffrlError, ExplorerError, ExplorersGone, GuardStop, SourceError
from reward_models import RewardError

T = TypeVar("T")
SHARED: tuple[type[RewardError | DiffrlError], ...] = (
    RewardError,
    ExplorersGone,
    GuardStop,
    SourceError,
    ExplorerError,
)
"""What ends all ranks if it is raised on one."""

LAUNCHERS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
"""Variables by which `accelerate launch` asks for a way of splitting the model, and its name."""


class Ranks:
    """This process among those of a run. Where it is alone, what is said to all comes back as it is.

    Numbers and small objects travel over `control`; gradients and weights alone over the backend of the device. What
    ranks do together waits first until none of them has a call of a sharded network left to make (`lockstep`).

    Args:
        device: that this rank computes on.
        world: processes of the run.
        rank: of this one, from 0.
        control: how ranks talk; None in one process.
        accelerator: accelerate's, which wraps networks for DDP and holds trackers; None where nothing is trained.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        world: int = 1,
        rank: int = 0,
        control: Control | None = None,
        accelerator: Any = None,
    ):
        self.device = torch.device("cpu") if device is None else device
        self.world, self.rank, self.is_main = world, rank, rank == 0
        self.lockstep: Lockstep | None = None
        self._control, self._accelerator = control, accelerator

    def _talk(self) -> Control:
        """Return how ranks talk, once none has a call of a sharded network left."""
        if self.lockstep:
            self.lockstep.settle()
        assert self._control is not None
        return self._control

    def gather(self, rows: Tensor) -> Tensor:
        """Return rows (B, ...) of all ranks, in rank order, on the CPU; every rank must bring the same number."""
        return rows.cpu() if self.world == 1 else self._talk().gather(rows.cpu())

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's value, small and of plain types, in rank order, on every rank."""
        return [value] if self.world == 1 else self._talk().objects(value)

    def sum(self, values: Tensor) -> Tensor:
        """Return elementwise sum over ranks, float64, on the CPU."""
        values = values.to(torch.float64).cpu()
        return values if self.world == 1 else self._talk().sum(values)

    def count(self, number: float) -> int:
        """Sum of a count over ranks."""
        return int(self.sum(torch.tensor([float(number)]))[0])

    def any(self, flag: bool) -> bool:
        """Return whether any rank says yes."""
        return self.count(flag) > 0

    def wait(self) -> None:
        """Wait until every rank has come here."""
        self.any(False)

    def shared_names(self, names: Iterable[str]) -> list[str]:
        """Return the names that any rank has, in one order: a rank on which a reward failed lacks its parts."""
        if self.world == 1:
            return list(names)
        return sorted({name for part in self.gather_objects(list(names)) for name in part})

    def raise_on_all_ranks(self, work: Callable[[], T]) -> T:
        """Do what may fail on one rank alone; what fails on any fails on all, or the others would wait for it forever.

        Args:
            work: exchanges nothing with other ranks.

        Raises:
            RewardError: it was raised here, or on another rank, which is named.
            GuardStop: likewise.
            SourceError: likewise.
            ExplorerError: likewise.
        """
        if self.world == 1:
            return work()
        raised: RewardError | DiffrlError | None = None
        value: list[T] = []
        try:
            value.append(work())
        except SHARED as error:
            raised = error
        error_here = None if raised is None else (type(raised).__name__, str(raised))
        everyone = self.gather_objects(error_here)
        if raised is not None:
            raise raised
        for rank, problem in enumerate(everyone):
            if problem is not None:
                kind = next((kind for kind in SHARED if kind.__name__ == problem[0]), RewardError)
                raise kind(f"On rank {rank}: {problem[1]}")
        return value[0]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over ranks, where one that a rank lacks is 0; what all lack stays None."""
        if self.world == 1:
            return
        parameters = list(parameters)
        holders = self.sum(torch.tensor([float(p.grad is not None) for p in parameters])).tolist()
        for parameter, count in zip(parameters, holders, strict=True):
            if count:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self._accelerator.reduce(gradient.detach(), reduction="mean")

    def prepare(self, network: nn.Module) -> nn.Module:
        """Return the network, whose gradients are averaged over ranks in the backward pass (DDP)."""
        prepared: nn.Module = self._accelerator.prepare_model(network)
        return prepared

    @contextmanager
    def sync_if(self, network: nn.Module, sync: bool) -> Iterator[None]:
        """Let gradients travel between ranks with the last micro-batch only."""
        with nullcontext() if sync or self.world == 1 else self._accelerator.no_sync(network):
            yield

    def keep_in_step(self, networks: Sequence[nn.Module]) -> None:
        """Let ranks call these sharded networks a different number of times between two exchanges."""
        assert self._control is not None
        self.lockstep = Lockstep(networks, self._control.most)

    def start_trackers(self, project: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Begin TensorBoard and W&B as far as they were asked for."""
        self._accelerator.init_trackers(project, config=config, init_kwargs=options)

    @property
    def trackers(self) -> Sequence[Any]:
        """Those that have begun, as accelerate wraps them."""
        return self._accelerator.trackers if self._accelerator else ()

    def track(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers to the trackers."""
        self._accelerator.log(values, step=step)


def open_ranks(device: torch.device, trackers: list[str], project_dir: str, patience: float) -> Ranks:
    """Return the ranks that were launched; precision, accumulation, data loading and sharding are left to the trainer.

    Buffers are not broadcast: they never change, and ranks may call the network a different number of times.

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
    world = accelerator.num_processes
    control = Control(wait) if world > 1 else None
    return Ranks(accelerator.device, world, accelerator.process_index, control, accelerator)
