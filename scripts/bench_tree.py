"""How much of a tree's saving in network evaluations arrives on the clock.

    python scripts/bench_tree.py [--model assets/tiny-sd3] [--prompts 8] [--repeats 7] [--out tree.json]

Draws 16 samples a prompt as chains and as trees of 16 leaves, every step but the last stochastic in both, densities
included, decoding left out. Times are medians of the turns, and the time that is saved is the median of what each turn
saves. The last column is (1 - time / chains' time) / (1 - evaluations / chains' evaluations).
"""

import argparse
import platform
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from benching import markdown, ratio, take_turns, write_json

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
        variants = {", ".join(map(str, splits)) or "chains": splits for splits in ((), *trees)}
        times = take_turns({n: partial(draw, steps, splits) for n, splits in variants.items()}, arguments.repeats)
        for name, splits in variants.items():
            count = LEAVES // 2 ** len(splits) * forwards_per_tree(range(steps), {step: 2 for step in splits})
            saved, on_clock = 1 - count / (LEAVES * steps), 1 - ratio(times[name], times["chains"])
            rows.append(
                {
                    "steps": steps,
                    "splits": name,
                    "evaluations a prompt": count,
                    "seconds": statistics.median(times[name]),
                    "evaluations saved": saved,
                    "time saved": on_clock,
                    "share kept": on_clock / saved if saved else None,
                }
            )
    print(f"{LEAVES} samples a prompt: trees against chains\n")
    print(markdown(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows]))
    machine = {"device": str(device), "processor": platform.processor(), "threads": torch.get_num_threads()}
    write_json(arguments.out, machine=machine, torch=torch.__version__, rows=rows)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"{value:.2f}" if isinstance(value, float) else text


def synchronise(device: torch.device) -> None:
    """Wait for the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
