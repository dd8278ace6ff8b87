"""Every precision and engine that may explore: does it run, in what kernels, how exactly, how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from diffrl.doctor.machine import Meter
from diffrl.doctor.models import MEDIUM, full_adapter, random_encodings, tiny_adapter
from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import WORDS, distance
from diffrl.errors import NotHereError
from diffrl.models.adapter import ModelAdapter, take_rows
from diffrl.models.families import FAMILIES
from diffrl.precision.choice import machine_of, missing
from diffrl.precision.copies import make_copy
from diffrl.precision.facts import ENGINES
from diffrl.precision.formats import PRECISIONS

BATCH = 4
TIMES = 3
"""How often a call is timed; the first of a shape also chooses kernels."""
NEEDS = 20.0
"""Seconds that must be left on a GPU: a copy of two billion weights, and its kernels timed."""


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Yield a row for each engine of each precision, on SD3.5 Medium with random weights; on a CPU on a tiny SD3."""
    cuda = device.type == "cuda"
    adapter = full_adapter(MEDIUM, device) if cuda else tiny_adapter(MEDIUM, list(WORDS))[0]
    encodings = random_encodings(adapter, device)
    for precision, known in PRECISIONS.items():
        for engine in known.runners:
            bound = "its layers, operands, shapes and numbers are as planned"
            if cuda and ENGINES[engine].real and known.low:
                bound += "; its layers at least as fast as bfloat16's"
            work = partial(_copy, adapter, encodings, precision, engine, device)
            yield Row(f"{precision}, {engine}", bound, work, NEEDS * cuda)


def _copy(adapter: ModelAdapter, encodings: Any, precision: str, engine: str, device: torch.device) -> Result:
    if lacks := missing(precision, engine, machine_of(device)):
        raise NotHereError(lacks)
    network = adapter.transformer
    copy = make_copy(network, precision, engine, FAMILIES[MEDIUM.family].exclude, device)
    generator = torch.Generator().manual_seed(0)
    noise = adapter.init_latents(lambda shape: torch.randn((BATCH, *shape), generator=generator).to(device))

    @torch.no_grad()
    def velocity(samples: int) -> torch.Tensor:
        conditioning = take_rows(encodings, torch.zeros(samples, dtype=torch.int64))
        return adapter.velocity(noise[:samples], torch.full((samples,), 0.5, device=device), conditioning, 1.0)

    exact, before = velocity(BATCH), _seconds(lambda: velocity(BATCH), device)
    with copy.in_place_of(adapter):
        copy.check(network, lambda: velocity(1), batches=(1, BATCH))
        apart, after = distance(velocity(BATCH), exact), _seconds(lambda: velocity(BATCH), device)
    report = copy.report
    facts = {
        "velocity": apart,
        "flops_quantised": report.flops_quantised,
        "speed_up": report.speed_up,
        "seconds": after,
        "network_seconds": before,
        "kernels": list(report.kernels or ()),
        "notes": list(report.notes),
    }
    parts = [f"velocity {apart:.1%} from the network's"]
    if report.flops_quantised is not None:
        parts.append(f"{report.flops_quantised:.0%} of operations")
    if report.speed_up is not None:
        parts.append(f"layers {report.speed_up:.2f} times as fast as bfloat16's")
    parts.append(f"a call takes {after / before:.2f} times the network's {before * 1e3:.3g} ms, not compiled")
    if report.kernels:
        parts.append("kernels: " + ", ".join(report.kernels)[:160])
    return Result(report.speed_up is None or report.speed_up >= 1.0, "; ".join(parts), facts)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the least that work took of a few times."""
    meter = Meter(device)
    return min(meter(work)[0] for _ in range(TIMES))
