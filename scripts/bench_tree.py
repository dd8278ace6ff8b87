"""How much of a tree's saving in network evaluations arrives on the clock.

    python scripts/bench_tree.py [--model assets/tiny-sd3] [--prompts 8] [--repeats 7] [--out tree.json]

Draws 16 samples a prompt as chains and as trees of 16 leaves, every step but the last stochastic in both, densities
included, decoding left out. The variants take turns, so that whatever else the machine does hits all of them; the times
are medians of the turns. The last column is (1 - time / chains' time) / (1 - evaluations / chains' evaluations).
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from diffrl.functional.tree_counts import forwards_per_tree
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import choose_device, load_adapter
from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.observers import EdgeRecorder
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest, root_addresses

LEAVES = 16
SPLITS = {10: [(0, 1, 2, 3), (0, 2, 4, 6), (4, 5, 6, 7)], 20: [(0, 3, 6, 9), (0, 1, 2, 3), (9, 12, 15, 18)]}
TEXT = "a red circle above a blue square"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="assets/tiny-sd3", help="A pipeline's directory or hub id.")
    parser.add_argument("--family", default="sd3")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=8, help="Prompts of an iteration; each has one tree.")
    parser.add_argument("--repeats", type=int, default=7, help="Turns.")
    parser.add_argument("--micro-batch", type=int, default=128, help="Samples in one network call.")
    parser.add_argument("--out", type=Path, help="Also write JSON here.")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    adapter = load_adapter(arguments.family, arguments.model, dtype=arguments.dtype, device=device)
    conditioning = PromptEncodings(adapter)([Prompt(TEXT)] * arguments.prompts)
    batch = PromptBatch([Prompt(TEXT)] * arguments.prompts, range(arguments.prompts), 0)

    def draw(steps: int, splits: tuple[int, ...]) -> float:
        sigmas = adapter.sigmas(steps)
        transition = make_transition("flow_sde", sigmas, noise_level=0.7)
        sampler = Sampler(sigmas, transition=transition, micro_batch=arguments.micro_batch)
        branching = {step: 2 if step in splits else 1 for step in range(steps - 1)}
        forest = plan_forest(arguments.prompts, LEAVES // 2 ** len(splits), branching)
        roots = root_addresses(forest, batch, seed=0)
        synchronise(device)
        start = time.perf_counter()
        denoise(adapter, conditioning, forest, roots, sampler, observe=[EdgeRecorder(forest)])
        synchronise(device)
        return time.perf_counter() - start

    rows = []
    for steps, trees in SPLITS.items():
        variants: list[tuple[int, ...]] = [(), *trees]
        for splits in variants:  # a first turn for warm-up
            draw(steps, splits)
        times: dict[tuple[int, ...], list[float]] = {splits: [] for splits in variants}
        for _ in range(arguments.repeats):
            for splits in variants:
                times[splits].append(draw(steps, splits))
        seconds = {splits: statistics.median(values) for splits, values in times.items()}
        chains = LEAVES * steps
        for splits in variants:
            trunk = LEAVES // 2 ** len(splits)
            count = trunk * forwards_per_tree(range(steps), {step: 2 for step in splits})
            saved, on_clock = 1 - count / chains, 1 - seconds[splits] / seconds[()]
            rows.append(
                {
                    "steps": steps,
                    "splits": list(splits),
                    "evaluations": count,
                    "seconds": seconds[splits],
                    "evaluations_saved": saved,
                    "seconds_saved": on_clock,
                    "kept": on_clock / saved if saved else None,
                }
            )
    show(rows)
    if arguments.out:
        machine = {"device": str(device), "processor": platform.processor(), "threads": torch.get_num_threads()}
        arguments.out.write_text(json.dumps({"machine": machine, "torch": torch.__version__, "rows": rows}, indent=2))


def show(rows: list[dict]) -> None:
    """The rows as a table."""
    table = Table(title="16 samples a prompt: trees against chains", title_justify="left")
    for column in (
        "steps",
        "splits",
        "evaluations a prompt",
        "seconds",
        "evaluations saved",
        "time saved",
        "share kept",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        kept = "" if row["kept"] is None else f"{row['kept']:.0%}"
        table.add_row(
            str(row["steps"]),
            ", ".join(map(str, row["splits"])) or "chains",
            str(row["evaluations"]),
            f"{row['seconds']:.2f}",
            f"{row['evaluations_saved']:.0%}",
            f"{row['seconds_saved']:.0%}",
            kept,
        )
    Console().print(table)


def synchronise(device: torch.device) -> None:
    """Wait for the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
