"""The machine of a run, this one or another that it is judged for: device, ranks, memory, trackers, disk."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from diffrl.config import Config
from diffrl.cost.gpus import find_gpu, parse_memory
from diffrl.cost.host_limits import GIB
from diffrl.cost.plan import Plan
from diffrl.cost.process_memory import Offer, fit_text, offer_here, offer_to_all, shortages
from diffrl.cost.waiting import longest_wait
from diffrl.distributed.ranks import open_ranks
from diffrl.errors import ConfigError, NotHereError
from diffrl.models.loading import DTYPES
from diffrl.models.placement import try_attention
from diffrl.precision.choice import Machine, find_backend, missing_hardware, speed_notes
from diffrl.preflight.preview import Opening, Preview, below
from diffrl.run.directory import new_run_dir
from diffrl.training.explorers import that_answer
from diffrl.training.optim import make_optimizer

NEWEST_CUDA = (99, 0)
"""Stands for whatever another machine has installed, which is not looked at."""


@dataclass(frozen=True)
class TargetMachine:
    """Another machine that a configuration is judged for.

    Args:
        name: of its GPU, for messages.
        memory: bytes of it.
        capability: NVIDIA compute capability; None leaves arithmetic unjudged.
    """

    name: str
    memory: int
    capability: tuple[int, int] | None = None


def target_machine(gpu: str | None, memory: str | None) -> TargetMachine | None:
    """Return the machine that --gpu and --memory describe; None for this one.

    Raises:
        ConfigError: no such GPU, or no amount of memory.
    """
    if gpu is None and memory is None:
        return None
    size = None if memory is None else parse_memory(memory)
    if gpu is not None:
        known = find_gpu(gpu)
        return TargetMachine(known.title, size or known.memory, known.capability)
    assert size is not None
    return TargetMachine(f"a GPU of {size / GIB:.1f} GiB", size)


def dry_device(preview: Preview) -> str:
    """Try what the configuration asks of the device: optimiser, attention, the precision that explores."""
    m, r, t = preview.config.model, preview.config.rollout, preview.config.train
    copy = r.policy_copy
    precision = None if copy is None else copy.precision
    if preview.target is not None:
        return below(_describe_target(preview.config, preview.target), speed_notes(m.dtype, precision, "cuda"))
    device = preview.device
    if t.optimizer != "adamw":  # which torch has everywhere, and whose first one imports torch's compiler
        make_optimizer([torch.nn.Parameter(torch.zeros(1))], t.optimizer, 1.0, t.betas, t.epsilon, t.weight_decay)
    if m.attention is not None:
        try_attention(m.attention, device, DTYPES[m.dtype])
    name = device.type
    if copy is not None:
        engine = find_backend(copy.precision, copy.engine, device, r.policy_copy_key).name
        name += f", {'exploring' if r.draw is None else 'drawing'} in {precision} by {engine}"
    return below(name, speed_notes(m.dtype, precision, device.type))


def open_device(opening: Opening) -> None:
    """Join the ranks."""
    config = opening.config
    patience = longest_wait(config, opening.preview.processes)
    device, trackers = opening.preview.device, asked_trackers(config)
    opening.ranks = open_ranks(device, trackers, str(opening.run_dir), patience)


def dry_explorers(preview: Preview) -> str | None:
    """Look which of the processes that are to draw are there; they may be started later."""
    settings = preview.config.rollout.explorers
    if settings is None or preview.target is not None:
        return None
    there = that_answer(settings.servers)
    missing = [address for address in settings.servers if address not in there]
    start = f"; not yet there: {', '.join(missing)} (diffrl explore CONFIG)" if missing else ""
    return f"{len(there)} of {len(settings.servers)} answer{start}"


def dry_memory(preview: Preview) -> str:
    """Hold the plan of memory against what the machine offers."""
    check_world_size(preview.config, preview.processes)
    plan = preview.plan
    if plan.memory is None:
        return "cannot be estimated before the pipeline is here"
    offer = preview.offer or offer_here(preview.device)  # which raises
    notes = memory_notes(preview.config, plan, offer)
    return below(fit_text(plan.memory, offer, plan.world_size), notes)


def open_memory(opening: Opening) -> None:
    """Hold the plan against the least that any rank's machine offers, before anything that it counts is loaded.

    Raises:
        ConfigError: the ranks cannot share the batch, or memory does not suffice.
    """
    config, ranks = opening.config, opening.ranks
    offer = offer_to_all(ranks)
    check_world_size(config, ranks.world)
    copy = config.rollout.policy_copy
    slow = speed_notes(config.model.dtype, None if copy is None else copy.precision, ranks.device.type)
    opening.notes = (*memory_notes(config, opening.preview.plan, offer), *slow)


def dry_trackers(preview: Preview) -> str:
    """Look for the packages of the trackers that are asked for."""
    return ", ".join(["metrics.jsonl", *asked_trackers(preview.config)])


def dry_directory(preview: Preview) -> str | None:
    """Refuse a new run whose directory is taken, or cannot be made."""
    return None if preview.resumes else f"{new_run_dir(preview.config)} is free"


def world_size() -> int:
    """Return the processes of this run, which the launcher sets."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def memory_notes(config: Config, plan: Plan, offer: Offer) -> tuple[str, ...]:
    """Return what to tell about memory that may not suffice.

    Raises:
        NotHereError: it does not suffice, and guards.memory is stop.
    """
    lacking = shortages(plan.memory, offer, plan.world_size) if plan.memory else []
    if lacking and config.guards.memory == "stop":
        raise NotHereError(lacking)
    return tuple(lacking)


def check_world_size(config: Config, processes: int) -> None:
    """Refuse a batch that the ranks cannot share evenly.

    Raises:
        ConfigError: says which number to change.
    """
    problems = []
    if config.prompts.per_iteration % processes:
        problems.append(
            f"prompts.per_iteration must be a multiple of the number of processes. Got {config.prompts.per_iteration} "
            f"with {processes} processes. Change either."
        )
    if config.eval.samples < processes:
        problems.append(
            f"eval.samples must be at least the number of processes. Got {config.eval.samples} with {processes}."
        )
    if problems:
        raise ConfigError(problems)


def asked_trackers(config: Config) -> list[str]:
    """Return the names of the trackers that are asked for.

    Raises:
        NotHereError: the package of one is not installed.
    """
    trackers = {"tensorboard": config.track.tensorboard, "wandb": config.track.wandb is not None}
    names = [name for name, asked in trackers.items() if asked]
    for name in (*names, *config.track.others):
        if importlib.util.find_spec(name) is None:
            key, package = (name, f"'diffrl[{name}]'") if name in trackers else (f"others.{name}", name)
            raise NotHereError(f"track.{key} needs the {name} package. Run: pip install {package}.")
    return [*names, *config.track.others]


def _describe_target(config: Config, target: TargetMachine) -> str:
    """Return what of a run's arithmetic is known of another machine.

    Raises:
        NotHereError: it has no units for it, or the configuration asks for a CPU.
    """
    copy = config.rollout.policy_copy
    if config.model.device == "cpu":
        raise NotHereError(f"model.device is cpu, and {target.name} is a GPU. Set model.device: auto.")
    if copy is not None and target.capability is not None:
        gpu = Machine("cuda", target.name, target.capability, cuda=NEWEST_CUDA)
        if reason := missing_hardware(copy.precision, copy.engine, gpu):
            raise NotHereError(
                f"{config.rollout.policy_copy_key}.precision {copy.precision}: {reason}. Take one that it runs."
            )
    return f"{target.name}; what must be installed there is not looked at"
