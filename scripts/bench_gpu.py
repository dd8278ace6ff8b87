"""Speed of rollouts, updates and weight pushes of full-size models with random weights: nothing is downloaded.

    python scripts/bench_gpu.py [--models flux sd3 sana wan] [--precisions bfloat16 fp8 int8 nvfp4] [--out bench.json]
    python scripts/bench_gpu.py --tiny      # tiny pipelines on the CPU, in less than a minute: does it run?

Models are FLUX.1-dev, SD3.5-Large, SANA 1.6B and Wan 2.1 1.3B (transformer and picture decoder; encodings of prompts
are random), with a LoRA of rank 32. Of each: `explore` and `regenerate` in bfloat16, plain and compiled; `explore` with
a copy in every precision, for real if the hardware can and else emulated, with the time that a push of weights takes;
forward and backward of one trained step; the diffrl preset's tree against as many chains.

Rates are of the denoising alone; decoding has its own column. TFLOP/s are of matrix products, convolutions and
attention, counted in one call; attention kernels that cannot be counted are named. MFU is their share of the hardware's
dense peak in that precision. Each model gets an even share of --minutes; nothing is started once it is used up, nor a
compilation shortly before.
"""

import argparse
import gc
import json
from dataclasses import asdict
from pathlib import Path

import torch
from bench_machine import Budget, Meter, describe, peak_tflops
from bench_models import CASES, Case, full_adapter, random_encodings, tiny_adapter
from rich.console import Console
from rich.table import Table

from diffrl.cost.meter import PhaseClock
from diffrl.errors import ConfigError, DiffrlError
from diffrl.functional.gaussian import log_prob
from diffrl.functional.losses import clipped_surrogate
from diffrl.models.adapter import take_rows
from diffrl.models.families import FAMILIES
from diffrl.models.placement import compile_blocks
from diffrl.precision.copies import make_copy
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
COMPILING = 150.0
"""Seconds that must be left to start something that will be compiled."""

TREE = {"roots": 1, "children": 4, "splits": (0, 0.4)}
"""The diffrl preset's tree: four children at the first step and at four tenths of the steps."""


class Bench:
    """One model on a device, with its LoRA.

    Args:
        name: of the case.
        case: the case.
        adapter: the model.
        encodings: of one prompt.
        device: where it is.
    """

    def __init__(self, name: str, case: Case, adapter, encodings: dict, device: torch.device):
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
    def call(self) -> torch.Tensor:
        """The velocity of one sample."""
        x = self.adapter.init_latents(lambda shape: torch.randn(1, *shape))
        sigma = torch.full((1,), 0.5, device=self.device)
        return self.adapter.velocity(x, sigma, self.encodings, self.case.guidance_scale)

    def count_flops(self) -> int:
        """Of one network evaluation."""
        seen = flops_coverage({}, self.call)
        if note := uncounted_note(seen):
            print(f"{self.name}: {note}")
        return seen.flops.total() // self.calls

    def draw(self, how, samples: int, branching: dict, roots: int | None = None, levels=None, **options):
        """Samples of one prompt through `explore`, `regenerate` or `denoise`."""
        forest = plan_forest(1, roots or samples, branching)
        batch = PromptBatch([Prompt(PROMPT)], range(1), 0)
        scale, largest = self.case.guidance_scale, self.case.samples
        sampler = Sampler(self.sigmas, levels, self.transition, 4.0, "ab2", scale, largest)
        before = () if how is denoise else (batch,)
        return how(self.adapter, self.encodings, *before, forest, root_addresses(forest, batch, 0), sampler, **options)

    def rate(self, how, budget: Budget) -> dict:
        """Samples a second of a stage, after two calls to warm up; one sample at a time if a batch took too long."""
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
        return {
            "samples": samples,
            "samples_per_second": samples / seconds,
            "tflops": samples * self.case.steps * self.calls * self.flops / seconds / 1e12,
            "decode_seconds": clock.seconds["decode"] / samples,
            "warm_up_seconds": warm_up,
            "peak_gib": peak,
        }

    def low(self, precision: str, budget: Budget) -> dict:
        """Rate of a low-precision copy: real, and compiled on a GPU, if that can be had here; else emulated."""
        source, exclude = self.policy.inner, FAMILIES[self.case.family].exclude
        try:
            copy = make_copy(source, precision, "auto", exclude, self.device, compile=self.device.type == "cuda")
        except ConfigError:
            copy = make_copy(source, precision, "emulated", exclude, self.device)
        with copy.in_place_of(self.adapter):
            found = self.rate(explore, budget)
            copy.check(source, self.call, (found["samples"],))
        pushed, _ = self.meter(lambda: copy.push(source))
        engine = copy.report.engine + ", compiled" * copy.report.compiled
        seen = ("parameters_quantised", "flops_quantised", "kernels", "speed_up", "notes")
        quantised = {"push_seconds": pushed} | {name: getattr(copy.report, name) for name in seen}
        return found | quantised | {"engine": engine}

    def update(self) -> dict:
        """Seconds of one trained step, forward and backward, in a batch of `case.edges`."""
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

    def tree(self) -> dict:
        """Seconds of the diffrl preset's tree and of as many chains."""
        steps = self.case.steps
        splits = {int(share * steps): TREE["children"] for share in TREE["splits"]}
        leaves = TREE["roots"] * TREE["children"] ** len(splits)
        chains, _ = self.meter(lambda: self.draw(denoise, leaves, {}))
        recorder = EdgeRecorder(plan_forest(1, TREE["roots"], splits))
        forest, _ = self.meter(lambda: self.draw(denoise, leaves, splits, TREE["roots"], observe=[recorder]))
        return {"leaves": leaves, "chains_seconds": chains, "tree_seconds": forest, "saved": 1 - forest / chains}


class Rows:
    """The report of one model: runs a measurement if there is time, and keeps what became of it.

    Args:
        bench: the model.
        budget: its time.
    """

    def __init__(self, bench: Bench, budget: Budget):
        self.bench, self.budget, self.rows = bench, budget, []
        self.machine = describe(bench.device)["device"]

    def add(self, what: str, precision: str, engine: str, work, needs: float = 0.0) -> dict:
        """A row with what `work()` found, or with a note why it did not; `needs` are seconds that must be left."""
        row = {"model": self.bench.name, "what": what, "precision": precision, "engine": engine}
        self.rows.append(row)
        if self.budget.left <= needs:
            row["note"] = "no time left"
            return row
        try:
            row |= work()
        except (DiffrlError, RuntimeError) as error:  # memory that runs out is a RuntimeError, as is a failing kernel
            row["note"] = str(error).split("\n")[0][:120]
        peak = peak_tflops(self.machine, precision)
        if "tflops" in row and peak and row["engine"] != "emulated":
            row["mfu"] = row["tflops"] / peak
        gc.collect()
        if self.bench.device.type == "cuda":
            torch.cuda.empty_cache()
        return row


def measure(bench: Bench, precisions: list[str], compiled: bool, budget: Budget) -> list[dict]:
    """All rows of a model."""
    report, training = Rows(bench, budget), str(bench.adapter.dtype).removeprefix("torch.")
    report.add("explore", training, "eager", lambda: bench.rate(explore, budget.share(8)))
    report.add("regenerate", training, "eager", lambda: bench.rate(regenerate, budget.share(8)))
    report.add("update", training, "eager", bench.update)
    report.add("tree against chains", training, "eager", bench.tree)
    cuda = bench.device.type == "cuda"
    for precision in precisions:
        report.add("explore", precision, "", lambda p=precision: bench.low(p, budget.share(2)), COMPILING * cuda)
    if compiled:

        def compiled_rate() -> dict:
            compile_blocks(bench.policy.inner)
            return bench.rate(explore, budget.share(2))

        report.add("explore", training, "compiled", compiled_rate, COMPILING)
    return report.rows


def show(rows: list[dict], machine: dict) -> None:
    """The rows as a table."""
    table = Table(title=f"{machine['device']}, torch {machine['torch']}", title_justify="left")
    columns = {
        "model": "{}", "what": "{}", "precision": "{}", "engine": "{}", "samples_per_second": "{:.3g}",
        "tflops": "{:.3g}", "mfu": "{:.0%}", "decode_seconds": "{:.3g}", "push_seconds": "{:.3g}",
        "seconds_per_edge": "{:.3g}", "saved": "{:.0%}", "peak_gib": "{:.1f}", "note": "{}",
    }  # fmt: skip
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if columns[name] == "{}" else "right")
    for row in rows:
        table.add_row(*("" if row.get(n) is None else form.format(row[n]) for n, form in columns.items()))
    Console(width=200).print(table)


def main() -> None:
    """Measure, print one table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    choices = ["bfloat16", "fp8", "int8", "mxfp8", "nvfp4"]
    parser.add_argument("--precisions", nargs="*", choices=choices, default=["fp8", "int8", "nvfp4"])
    parser.add_argument("--no-compile", action="store_true", help="Leave the compiled transformer out.")
    parser.add_argument("--minutes", type=float, default=7.0, help="Nothing is started after this time.")
    parser.add_argument("--tiny", action="store_true", help="Tiny pipelines on the CPU.")
    parser.add_argument("--out", type=Path, help="Also write JSON here.")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        parser.error("full-size models need a CUDA device. Use --tiny to see whether it runs.")
    device = torch.device("cpu" if arguments.tiny else "cuda")
    machine, budget, rows = describe(device), Budget(60 * arguments.minutes), []
    for number, name in enumerate(arguments.models):
        case = CASES[name]
        if arguments.tiny:
            adapter, case = tiny_adapter(case, PROMPT.split())
        else:
            adapter = full_adapter(case, device)
        bench = Bench(name, case, adapter, random_encodings(adapter, case.family, device), device)
        compiled = not (arguments.no_compile or arguments.tiny)
        rows += measure(bench, arguments.precisions, compiled, budget.share(len(arguments.models) - number))
        del bench, adapter
        gc.collect()
    show(rows, machine)
    if arguments.out:
        cases = {name: asdict(CASES[name]) for name in arguments.models}
        result = {"machine": machine, "tiny": arguments.tiny, "cases": cases, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
