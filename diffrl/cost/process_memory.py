"""How much memory a run may take and how much it took, and whether a plan fits: one rule for train, check and plan."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffrl.cost.gpus import Gpu
from diffrl.cost.host_limits import GIB, address_space_left, anonymous_bytes, available_host_bytes, processes_here
from diffrl.cost.memory import LIBRARIES, Memory

if TYPE_CHECKING:  # a plan needs no tensors
    import torch

    from diffrl.distributed.ranks import Ranks

TRY = "The estimate is rough: guards.memory=warn tries all the same."
LESS = (
    "Lower rollout.micro_batch, train.micro_batch, rollout.decode_batch or eval.batch, set "
    "train.gradient_checkpointing or model.offload, or train a LoRA (model.lora); diffrl plan CONFIG --fit GPU says "
    f"which of these suffice. {TRY}"
)
LESS_ON_HOST = (
    "Start fewer processes on a machine, offload less (model.offload), put rewards on the GPU (device), or save the "
    f"pipeline in model.dtype: such files are mapped, all others converted. {TRY}"
)


@dataclass(frozen=True)
class Offer:
    """Memory that a run may take. What libraries take is part of a plan, so what they hold already is part of this."""

    gpu: int | None  # bytes of a process's GPU; None where the model is on the CPU
    # bytes of the computer's memory, which the processes of a machine share; None if it is not known
    host: int | None = None
    mappable: int | None = None  # bytes that a process may map, files among them; None without a limit

    @property
    def device(self) -> str:
        """Where the model is: cuda or cpu."""
        return "cpu" if self.gpu is None else "cuda"

    @property
    def memory(self) -> int:
        """Bytes where the model is."""
        return (self.host or 0) if self.gpu is None else self.gpu


def offer_of(gpu: Gpu | int) -> Offer:
    """Return what a GPU that is not here offers: all that CUDA reports of it."""
    return Offer(gpu if isinstance(gpu, int) else gpu.memory)


def offer_here(device: torch.device, started: int = 1) -> Offer:
    """Return what this machine offers before anything of a run is loaded.

    Args:
        device: of the model.
        started: processes of the run that have loaded their libraries here.
    """
    return Offer(
        gpu=_gpu_bytes(device) if device.type == "cuda" else None,
        host=available_host_bytes() + started * min(anonymous_bytes(), LIBRARIES),
        mappable=address_space_left(),  # most libraries take theirs later, when a pipeline is loaded
    )


def offer_to_all(ranks: Ranks) -> Offer:
    """Return the least that this run's machines offer a rank; no rank loads anything before all have looked.

    Args:
        ranks: joins the ranks, which all call this.
    """
    here = offer_here(ranks.device, processes_here(ranks.world))
    offers = ranks.gather_objects((here.gpu, here.host, here.mappable))
    return Offer(
        *(min((size for size in sizes if size is not None), default=None) for sizes in zip(*offers, strict=True))
    )


def _gpu_bytes(device: torch.device) -> int:
    """Return the bytes of a GPU that nobody else holds: its context, and what the allocator keeps free, are ours."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(min(total, free + cached + LIBRARIES))


def shortages(memory: Memory, offer: Offer, world_size: int) -> list[str]:
    """Return what a plan needs and an offer lacks, in sentences for the user; none where it fits."""
    device, lacking = offer.device, []
    if offer.gpu is not None and (needed := memory.needed(device)) > offer.gpu:
        lacking.append(f"the run needs about {_gib(needed)} and {_gib(offer.gpu)} are there on {device}. {LESS}")
    each, processes = memory.needed_by_host(device), processes_here(world_size)
    if offer.host is not None and each * processes > offer.host:
        what = f"the run needs about {_gib(each * processes)} of the computer's memory"
        what += f", {_gib(each)} for each of {processes} processes," if processes > 1 else ""
        mend = LESS if device == "cpu" else LESS_ON_HOST
        lacking.append(f"{what} and {_gib(offer.host)} are free on cpu. {mend}")
    mapped = memory.host.mapped
    if offer.mappable is not None and each + mapped > offer.mappable:
        lacking.append(
            f"the run needs about {_gib(each + mapped)} of address space, {_gib(mapped)} of it mapped files, and "
            f"ulimit -v (RLIMIT_AS) leaves {_gib(offer.mappable)}. Raise it: ulimit -v unlimited. {TRY}"
        )
    return [f"Not enough memory: {what}" for what in lacking]


def fit_text(memory: Memory, offer: Offer, world_size: int) -> str:
    """Return what a plan needs of what an offer has, in one line."""
    text = f"about {_gib(memory.needed(offer.device))} needed of {_gib(offer.memory)}"
    if offer.gpu is None:
        return text
    host, processes = memory.needed_by_host("cuda"), processes_here(world_size)
    text += f"; of the computer's memory {_gib(host * processes)}"
    text += f", {_gib(host)} a process" if processes > 1 else ""
    return text if offer.host is None else f"{text}, of {_gib(offer.host)}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def peak_bytes(device: torch.device) -> int:
    """Return the most memory this process has held: allocated on CUDA, resident on the CPU."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
