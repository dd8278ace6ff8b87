"""A real iteration of published sizes through the trainer: are memory, time and exactness as planned?"""

from __future__ import annotations

import gc
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from rich.console import Console

from diffrl.bundled import find_recipe
from diffrl.config.load import load_config
from diffrl.config.schema import Config
from diffrl.cost.gpus import rates_of
from diffrl.cost.memory import LIBRARIES
from diffrl.cost.plan import make_plan
from diffrl.doctor.machine import describe
from diffrl.doctor.models import write_random_pipeline
from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import WORDS
from diffrl.errors import NotHereError
from diffrl.lifecycle import train
from diffrl.models.placement import ALIGNMENT
from diffrl.models.published import published_pipeline
from diffrl.tracking.metrics import read_metrics

GIB = 2**30
CLOSE = 0.1
"""How far the peak may be from what was planned."""
ERROR = 1e-3
"""The on-policy ratio's, as recipes in bfloat16 tolerate it."""


@dataclass(frozen=True)
class Size:
    """A published model, and how its recipe is cut down to one iteration."""

    path: str  # its name on the hub
    recipe: str  # whose settings are taken
    overrides: tuple[str, ...]  # what is set otherwise
    needs: float = 240.0  # seconds that must be left to start it on a GPU
    changed: Mapping[str, Any] | None = None  # settings of its transformer that are not the published ones


ONCE = (
    "run.iterations=1",
    "run.eval_every=null",
    "run.checkpoint_every=1",
    "track.trees=null",
    "prompts.train=shapes:train",
    "prompts.eval=shapes:tune",
    "prompts.too_long=cut",
    "prompts.per_iteration=2",
    "rewards=[{name: jpeg_compressibility}]",
    "eval={samples: 2, steps: 4, rewards: [{name: contrast}]}",
    "guards.reward_hacking={action: warn}",
    "guards.memory=warn",
    f"guards.on_policy_tolerance={ERROR}",
)
GPU_SIZES = {
    "SD3.5 Medium, 512 px": Size("stabilityai/stable-diffusion-3.5-medium", "sd3/diffrl", ()),
    "FLUX.1-dev, 512 px": Size("black-forest-labs/FLUX.1-dev", "flux/diffrl", (), needs=420.0),
}


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Ask for SD3.5 Medium and FLUX.1-dev on a GPU."""
    for name, size in GPU_SIZES.items():
        bound = f"ratio within {ERROR:g} of 1 before the first update, peak memory within {CLOSE:.0%} of the plan's"
        yield Row(name, bound, partial(_on_gpu, size, device), size.needs)


def _on_gpu(size: Size, device: torch.device) -> Result:
    if device.type != "cuda":
        raise NotHereError("it needs a CUDA device; scripts/real_size.py runs smaller ones on a CPU")
    with TemporaryDirectory() as folder:
        require_disk(size, Path(folder))
        return real_iteration(size, Path(folder), device)


def require_disk(size: Size, folder: Path) -> None:
    """Refuse where a disk has no place for a pipeline's weights, twice.

    Raises:
        NotHereError: says how much is missing.
    """
    published = published_pipeline(size.path)
    assert published is not None
    with torch.device("meta"):
        parts = [published.components[name].build() for name in ("transformer", "vae")]
    wanted = 2 * 2 * sum(weight.numel() for part in parts for weight in part.parameters())
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise NotHereError(f"{folder} needs {wanted / GIB:.0f} GiB for random weights, and {free / GIB:.0f} are free")


def real_config(size: Size, folder: Path, device: torch.device) -> Config:
    """Resolve the configuration of one iteration of a pipeline that was written to `folder`/pipeline."""
    overrides = (
        f"model.path={folder / 'pipeline'}",
        f"model.device={device.type}",
        f"run.dir={folder / 'runs'}",
        "run.name=once",
    )
    return load_config(find_recipe(size.recipe)[1], [*ONCE, *overrides, *size.overrides])


def real_iteration(size: Size, folder: Path, device: torch.device) -> Result:
    """Write a pipeline with random weights, train one iteration of it, and hold the iteration to its plan."""
    family = find_recipe(size.recipe)[0].split("/")[0]
    write_random_pipeline(size.path, family, folder / "pipeline", list(WORDS), device, **(size.changed or {}))
    config = real_config(size, folder, device)
    plan = make_plan(config)
    assert plan.memory is not None  # the pipeline is here
    planned = plan.memory.needed(device.type) - LIBRARIES  # on a GPU its context, which no tensor allocates
    if device.type == "cpu":  # what no process has for itself is not counted
        planned -= used_as_mapped(folder / "pipeline")
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with Peak(device) as peak:
        metrics = read_metrics(train(config, Console(quiet=True), owns_process=False) / "metrics.jsonl")[-1]
    seconds = {name.removeprefix("seconds/"): value for name, value in metrics.items() if name.startswith("seconds/")}
    error = metrics["update/on_policy_error"]
    facts = {
        "planned_gib": planned / GIB,
        "peak_gib": peak.bytes / GIB,
        "reserved_gib": peak.reserved / GIB if device.type == "cuda" else None,
        "on_policy_error": error,
        "seconds": seconds,
        "evaluations": {n.removeprefix("evaluations/"): v for n, v in metrics.items() if n.startswith("evaluations/")},
        **_speed(plan.run_flops, seconds, device),
    }
    parts = [
        f"ratio within {error:.1e} of 1",
        f"peak {peak.bytes / GIB:.2f} GiB, planned {planned / GIB:.2f} ({planned / peak.bytes - 1:+.0%})",
        f"{seconds['rollout']:.1f} s rollout, {seconds['update']:.1f} s update",
    ]
    if facts.get("mfu") is not None:
        parts.append(f"{facts['mfu']:.0%} of the peak rate; plan --gpu: {facts['planned_seconds']:.1f} s at 40 %")
    passed = error <= ERROR and abs(planned / peak.bytes - 1) <= CLOSE
    return Result(passed, ", ".join(parts), facts)


def used_as_mapped(folder: Path) -> int:
    """Return the bytes of weights that a CPU uses where their file is mapped; `placement.align` copies the others."""
    total = 0
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as data:
            start = 8 + (length := int.from_bytes(data.read(8), "little"))
            tensors = json.loads(data.read(length))
        places = [entry["data_offsets"] for name, entry in tensors.items() if name != "__metadata__"]
        total += sum(end - begin for begin, end in places if (start + begin) % ALIGNMENT == 0)
    return total


def _speed(flops: int | None, seconds: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return the share of the GPU's peak rate that was reached, and the seconds that 40 % of it would take."""
    peak = rates_of(describe(device)["device"]).get("bfloat16")
    if flops is None or peak is None:
        return {}
    spent = seconds["rollout"] + seconds["update"]
    return {
        "mfu": flops / spent / peak / 1e12,
        "planned_seconds": flops / (0.4 * peak * 1e12),
        "network_seconds": spent,
    }


class Peak:
    """The most memory that a block holds: allocated on CUDA; on a CPU what is not a mapped file, less what was before.

    Attributes:
        bytes: of the peak.
        reserved: bytes that CUDA's allocator held at most, with what it kept for later.
    """

    def __init__(self, device: torch.device):
        self._device, self._done, self.bytes, self.reserved = device, threading.Event(), 0, 0

    def __enter__(self) -> Peak:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._before = _anonymous()
            self._watch = threading.Thread(target=self._look, daemon=True)
            self._watch.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._device.type == "cuda":
            self.bytes = int(torch.cuda.max_memory_allocated(self._device))
            self.reserved = int(torch.cuda.max_memory_reserved(self._device))
            return
        self._done.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, _anonymous() - self._before)


def _anonymous() -> int:
    """Return resident bytes of this process that no file stands for."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)
