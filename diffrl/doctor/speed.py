"""Speed of rollouts, updates and weight pushes of full-size models with random weights: nothing is downloaded.

Models are FLUX.1-dev, SD3.5-Large, SANA 1.6B and Wan 2.1 1.3B (transformer and decoder; encodings of prompts are
random), with a LoRA of rank 32. Of each: `explore` and `regenerate` in bfloat16, plain and compiled; `explore` with a
copy in every precision that this machine computes for real, with the time that a push of weights takes; forward and
backward of one trained step; the diffrl preset's tree against as many chains.

Rates are of the denoising alone; decoding has its own number. TFLOP/s are of matrix products, convolutions and
attention, counted in one call. MFU is their share of the hardware's dense peak in that precision.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from diffrl.cost.gpus import rates_of
from diffrl.cost.meter import PhaseClock
from diffrl.doctor.machine import Meter, describe
from diffrl.doctor.models import CASES, Case, full_adapter, random_encodings, tiny_adapter
from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import WORDS
from diffrl.errors import NotHereError
from diffrl.functional.gaussian import log_prob
from diffrl.functional.losses import clipped_surrogate
from diffrl.models.adapter import take_rows
from diffrl.models.families import FAMILIES
from diffrl.models.placement import compile_blocks
from diffrl.precision.choice import machine_of, missing
from diffrl.precision.copies import make_copy
from diffrl.precision.formats import PRECISIONS
from diffrl.precision.observe import flops_coverage, uncounted_note
from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.explore import explore
from diffrl.rollout.observers import EdgeRecorder, take_origins
from diffrl.rollout.regenerate import regenerate
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest, root_addresses
from diffrl.training.policy import Policy

PROMPT = "a red circle above a blue square"
COMPILING = 60.0
"""Seconds that must be left to start something that will be compiled."""
LOADING = 60.0
"""And to build another model."""

TREE = {"roots": 1, "children": 4, "splits": (0, 0.4)}
"""The diffrl preset's tree: four children at the first step and at four tenths of the steps."""
MEASURED = "measured, without a bound"


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Yield the rows of each model, which get even shares of the time; on a CPU of tiny ones, in eager mode."""
    names = [*CASES] if device.type == "cuda" else [*CASES][:1]
    for number, name in enumerate(names):
        share = budget.share(len(names) - number)
        if device.type == "cuda" and share.left < LOADING:
            yield Row(name, MEASURED, _no_time)
            continue
        case = CASES[name]
        if device.type == "cuda":
            adapter = full_adapter(case, device)
        else:
            adapter, case = tiny_adapter(case, list(WORDS))
        bench = Bench(name, case, adapter, random_encodings(adapter, device), device)
        for what, work, needs in _measurements(bench, share):
            yield Row(f"{name}: {what}", MEASURED, partial(_result, work), max(needs, budget.left - share.left + needs))
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        del bench, adapter
        gc.collect()


def _measurements(bench: Bench, budget: Budget) -> Iterator[tuple[str, Callable[[], dict[str, Any]], float]]:
    """Yield what is measured of a model: its name, the work, the seconds that it needs."""
    dtype, cuda = str(bench.adapter.dtype).removeprefix("torch."), bench.device.type == "cuda"
    yield f"explore, {dtype}", lambda: bench.rate(explore, budget.share(6), dtype), 0.0
    yield f"regenerate, {dtype}", lambda: bench.rate(regenerate, budget.share(6), dtype), 0.0
    yield f"update, {dtype}", bench.update, 0.0
    yield "tree against chains", bench.tree, 0.0
    for precision in (name for name, known in PRECISIONS.items() if known.low):
        yield f"explore, {precision}", partial(bench.low, precision, budget), COMPILING * cuda
    if cuda:

        def compiled() -> dict[str, Any]:
            compile_blocks(bench.policy.inner)
            return bench.rate(explore, budget.share(1), dtype)

        yield f"explore, {dtype}, compiled", compiled, COMPILING


def _no_time() -> Result:
    raise NotHereError("no time left: give --minutes")


def _result(work: Callable[[], dict[str, Any]]) -> Result:
    """Return the numbers of a measurement, and the first of them in words."""
    facts = work()
    forms = {
        "engine": "{}", "samples_per_second": "{:.3g} samples/s", "tflops": "{:.3g} TFLOP/s",
        "mfu": "{:.0%} of the peak", "decode_seconds": "decoding {:.3g} s a sample", "push_seconds": "push {:.3g} s",
        "seconds_per_edge": "{:.3g} s a trained step", "saved": "the tree saves {:.0%}", "peak_gib": "peak {:.1f} GiB",
    }  # fmt: skip
    parts = [form.format(facts[name]) for name, form in forms.items() if facts.get(name) is not None]
    return Result(True, ", ".join(parts), facts)


class Bench:
    """One model on a device, with its LoRA."""

    def __init__(self, name: str, case: Case, adapter: Any, encodings: Mapping[str, Any], device: torch.device):
        self.name, self.case, self.adapter, self.encodings, self.device = name, case, adapter, encodings, device
        facts = FAMILIES[case.family]
        self.calls = facts.calls_per_step(case.guidance_scale)
        lora = {"rank": 32, "alpha": 64, "targets": facts.lora_targets}
        self.policy = Policy(adapter, lora, seed=0, gradient_checkpointing=True)
        self.meter = Meter(device)
        self.sigmas = adapter.sigmas(case.steps)
        self.transition = make_transition("flow_sde", self.sigmas, noise_level=0.7)
        self.flops = self.count_flops()

    @torch.no_grad()
    def count_flops(self) -> int:
        """Count the operations of one network evaluation."""
        x = self.adapter.init_latents(lambda shape: torch.randn(1, *shape))
        sigma = torch.full((1,), 0.5, device=self.device)
        seen = flops_coverage({}, lambda: self.adapter.velocity(x, sigma, self.encodings, self.case.guidance_scale))
        self.note = uncounted_note(seen)
        return seen.flops.total() // self.calls

    def draw(
        self,
        how: Any,
        samples: int,
        branching: Mapping[int, int],
        roots: int | None = None,
        levels: Any = None,
        **options: Any,
    ) -> Any:
        """Return samples of one prompt through `explore`, `regenerate` or `denoise`."""
        forest = plan_forest(1, roots or samples, branching)
        batch = PromptBatch([Prompt(PROMPT)], range(1), 0)
        scale, largest = self.case.guidance_scale, self.case.samples
        sampler = Sampler(self.sigmas, levels, self.transition, 4.0, "ab2", scale, largest)
        before = () if how is denoise else (batch,)
        return how(self.adapter, self.encodings, *before, forest, root_addresses(forest, batch, 0), sampler, **options)

    def rate(self, how: Any, budget: Budget, precision: str) -> dict[str, Any]:
        """Return samples a second of a stage, warmed up by two calls; one at a time if a batch took too long."""
        for samples in (self.case.samples, 1):
            warm_up, step = (
                self.meter(lambda n=samples: self.draw(denoise, n, {}, levels=(0, self.case.steps)))[0]
                for _ in range(2)
            )
            if step * self.case.steps < budget.left:
                break
        noisy = {step: 1 for step in range(self.case.steps - 1)} if how is regenerate else {}
        options = {"record": list(noisy)} if how is regenerate else {}
        clock = PhaseClock(self.device)
        _, peak = self.meter(lambda: self.draw(how, samples, noisy, decode_batch=samples, clock=clock, **options))
        seconds = clock.seconds["explore" if how is explore else "rollout"]
        tflops = samples * self.case.steps * self.calls * self.flops / seconds / 1e12
        at_most = rates_of(describe(self.device)["device"]).get(precision)
        return {
            "samples": samples,
            "samples_per_second": samples / seconds,
            "tflops": tflops,
            "mfu": tflops / at_most if at_most else None,
            "decode_seconds": clock.seconds["decode"] / samples,
            "warm_up_seconds": warm_up,
            "peak_gib": peak,
        }

    def low(self, precision: str, budget: Budget) -> dict[str, Any]:
        """Return rate of a low-precision copy that is real here, compiled on a GPU.

        Raises:
            NotHereError: no engine computes it for real on this machine.
        """
        machine = machine_of(self.device)
        reasons = {name: missing(precision, name, machine) for name in PRECISIONS[precision].real_runners()}
        engine = next((name for name, reason in reasons.items() if reason is None), None)
        if engine is None:
            raise NotHereError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        source, exclude = self.policy.inner, FAMILIES[self.case.family].exclude
        copy = make_copy(source, precision, engine, exclude, self.device, compile=self.device.type == "cuda")
        with copy.in_place_of(self.adapter):
            rate = self.rate(explore, budget.share(2), precision)
        pushed, _ = self.meter(lambda: copy.sync_weights(source))
        engine += ", compiled" * copy.report.compiled
        quantised = {"push_seconds": pushed, "parameters_quantised": copy.report.parameters_quantised}
        return rate | quantised | {"engine": engine}

    def update(self) -> dict[str, Any]:
        """Return seconds of one trained step, forward and backward, in a batch of `case.edges`."""
        n = self.case.edges
        recorder = EdgeRecorder(plan_forest(1, n, {0: 1}))
        self.draw(denoise, n, {0: 1}, observe=[recorder])
        edges, _ = take_origins(recorder.edges(), torch.arange(n, device=self.device))
        conditioning = take_rows(self.encodings, torch.zeros(n, dtype=torch.int64))

        def step() -> None:
            v = self.adapter.velocity(edges.latents, edges.sigma, conditioning, self.case.guidance_scale)
            mean, std = self.transition(edges.latents, v, edges.sigma, edges.sigma_next)
            density = log_prob(edges.next_latents, mean, std)
            loss, _ = clipped_surrogate(density, edges.old_log_prob, torch.ones_like(density), 1e-3, 1e-3)
            loss.sum().backward()

        self.meter(step)
        seconds, peak = self.meter(step)
        return {"seconds_per_edge": seconds / n, "edges": n, "peak_gib": peak}

    def tree(self) -> dict[str, Any]:
        """Return seconds of the diffrl preset's tree and of as many chains."""
        steps = self.case.steps
        splits = {int(share * steps): TREE["children"] for share in TREE["splits"]}
        leaves = TREE["roots"] * TREE["children"] ** len(splits)
        chains, _ = self.meter(lambda: self.draw(denoise, leaves, {}))
        recorder = EdgeRecorder(plan_forest(1, TREE["roots"], splits))
        forest, _ = self.meter(lambda: self.draw(denoise, leaves, splits, TREE["roots"], observe=[recorder]))
        return {"leaves": leaves, "chains_seconds": chains, "tree_seconds": forest, "saved": 1 - forest / chains}
