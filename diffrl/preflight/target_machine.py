"""Another machine than this one, that a configuration is judged for."""

from __future__ import annotations

from dataclasses import dataclass

from diffrl.config import Config
from diffrl.cost.gpus import find_gpu, parse_memory
from diffrl.cost.host_limits import GIB
from diffrl.errors import NotHereError
from diffrl.precision.choice import Machine, missing_hardware

NEWEST_CUDA = (99, 0)
"""Stands for whatever another machine has installed, which is not looked at."""


@dataclass(frozen=True)
class Elsewhere:
    """Another machine that a configuration is judged for.

    Args:
        name: of its GPU, as said to the user.
        memory: bytes of it.
        capability: NVIDIA compute capability; None leaves arithmetic unjudged.
    """

    name: str
    memory: int
    capability: tuple[int, int] | None = None


def other_machine(gpu: str | None, memory: str | None) -> Elsewhere | None:
    """The machine that --gpu and --memory describe; None for this one.

    Raises:
        ConfigError: no such GPU, or no amount of memory.
    """
    if gpu is None and memory is None:
        return None
    size = None if memory is None else parse_memory(memory)
    if gpu is not None:
        known = find_gpu(gpu)
        return Elsewhere(known.title, size or known.memory, known.capability)
    assert size is not None
    return Elsewhere(f"a GPU of {size / GIB:.1f} GiB", size)


def runs_on(config: Config, other: Elsewhere) -> str:
    """What of a run's arithmetic is known of another machine.

    Raises:
        NotHereError: it has no units for it, or the configuration asks for a CPU.
    """
    e = config.rollout.explore
    if config.model.device == "cpu":
        raise NotHereError(f"model.device is cpu, and {other.name} is a GPU. Set model.device: auto.")
    if e is not None and e.precision != "training" and other.capability is not None:
        gpu = Machine("cuda", other.name, other.capability, cuda=NEWEST_CUDA)
        if reason := missing_hardware(e.precision, e.engine, gpu):
            raise NotHereError(f"rollout.explore.precision {e.precision}: {reason}. Take one that it runs.")
    return f"{other.name}; what must be installed there is not looked at"
