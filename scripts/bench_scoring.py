"""What it is worth to score pictures while others are drawn: one rollout of the tiny pipeline, scored in four ways.

    python scripts/bench_scoring.py

The reward is one that waits: it answers a batch after a fixed time, as a server does, without computing here. Times are
medians of the turns, and so are ratios to the first row; a machine's speed cancels out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from benching import markdown, ratio, take_turns

from diffrl.data.prompts import load_prompts
from diffrl.data.sampler import prompt_batch
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import load_adapter
from diffrl.rewards.lanes import Lane
from diffrl.rewards.score import Scoring, WeightedScorer
from diffrl.rollout.denoise import Sampler
from diffrl.rollout.regenerate import regenerate
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest, root_addresses
from diffrl.training.pool import samples_of
from reward_models import RewardBatch, RewardOutput, ScorerSpec
from reward_models.base import output_of_rows

ROOT = Path(__file__).resolve().parent.parent


class Waiting:
    """Answers a batch after a while, as a server does."""

    spec = ScorerSpec("waiting", "nothing", (0.0, 1.0), remote=True)

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Wait, then 0.5 for everything."""
        time.sleep(self.seconds * len(batch))
        return output_of_rows([(0.5, {}, None)] * len(batch))

    def to(self, device: object) -> Waiting:
        """Return itself: nothing moves."""
        return self


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--roots", type=int, default=16, help="samples of each prompt")
    arguments = parser.parse_args()
    adapter = load_adapter("sd3", str(ROOT / "assets/tiny-sd3"), dtype="float32", device=torch.device("cpu"))
    batch = prompt_batch(load_prompts("shapes:train"), arguments.prompts, 0, 0)
    conditioning = PromptEncodings(adapter)(batch.prompts)
    sigmas = adapter.sigmas(8)
    sampler = Sampler(sigmas, None, make_transition("flow_sde", sigmas, noise_level=0.7))
    forest = plan_forest(arguments.prompts, arguments.roots, {0: 1, 1: 1})

    def draw(seconds: float, lane: Lane | None, at_once: int | None) -> float:
        begin = time.perf_counter()
        scorer = WeightedScorer("waiting", Waiting(seconds), batch_size=arguments.roots, lane=lane)
        scoring = Scoring([scorer], *samples_of(batch, forest))
        roots = root_addresses(forest, batch, 0)
        ways = {"record": [0, 1], "decode_batch": 16, "each": scoring.add, "prompts_at_once": at_once}
        regenerate(adapter, conditioning, batch, forest, roots, sampler, **ways)
        scoring.table()
        return time.perf_counter() - begin

    draw(0.0, None, None)
    alone = statistics.median(draw(0.0, None, None) for _ in range(arguments.repeat))
    seconds = alone / len(forest)  # the reward takes as long as the rollout
    lane = Lane("waiting")
    ways = {
        "one after the other": (None, None),
        "while others are decoded": (lane, None),
        "and 4 prompts drawn at once": (lane, 4),
        "and 2 prompts drawn at once": (lane, 2),
        "and 1 prompt drawn at once": (lane, 1),
    }
    times = take_turns({name: partial(draw, seconds, *way) for name, way in ways.items()}, arguments.repeat)
    rows = [
        (name, f"{statistics.median(values):.2f}", f"{ratio(values, times['one after the other']):.2f}")
        for name, values in times.items()
    ]
    print(f"{len(forest)} samples of {arguments.prompts} prompts, {torch.get_num_threads()} threads.\n")
    print(markdown(["scored", "seconds", "of the first"], rows))


if __name__ == "__main__":
    main()
