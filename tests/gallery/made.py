"""Runs for tests, written by the same code as real ones, in a moment: pictures are flat colours."""

from __future__ import annotations

import colorsys
import json
from html.parser import HTMLParser
from pathlib import Path

import torch

from diffrl.tracking.store import SampleStore, StoredSample

PROMPTS = ("a red circle above a blue square", "two green triangles", "a yellow square left of a purple circle")
REWARDS = "(SELECT sample_id, name, raw FROM rewards JOIN reward_names ON names = number)"
"""Of an index, for oracles that read its tables."""
CONFIG = """run: {name: made, dir: runs, seed: 0, iterations: 4}
model: {family: sd3, path: assets/tiny-sd3}
rewards: [{name: shapes, weight: 1.0}]
eval: {rewards: [{name: shapes_strict}, {name: shapes}], samples: 6, steps: 3}
"""


class Elements(HTMLParser):
    """The tags of a page with their attributes, as a browser sees them."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def flat(hue: float, light: float = 0.5, size: int = 32) -> torch.Tensor:
    """A picture of one colour with a brighter corner, (3, size, size) uint8."""
    colour = torch.tensor([round(255 * part) for part in colorsys.hls_to_rgb(hue % 1, light, 0.6)], dtype=torch.uint8)
    picture = colour[:, None, None].expand(3, size, size).clone()
    picture[:, : size // 4, : size // 4] = 240
    return picture


def eval_sample(iteration: int, group: int, root: int, prompt: str, score: float | None, picture=None, **more):
    """A held-out sample whose strict reward is 1 from a partial reward of 0.75 on."""
    strict = None if score is None else float(score >= 0.75)
    fields = {"stage": "eval", "seed": 0, "total": score, "rewards": {"shapes": score, "shapes_strict": strict}}
    return StoredSample(
        iteration=iteration, group=group, root=root, prompt=prompt, picture=picture, **{**fields, **more}
    )


def score_of(iteration: int, group: int, root: int) -> float:
    """Rises with the iteration for all groups but the last, whose samples get worse."""
    drift = -0.1 if group == 2 else 0.15
    return max(0.0, min(1.0, 0.3 + drift * iteration + 0.1 * root))


def metrics_rows(iterations: int):
    """Rows as a run writes them: 0 is the evaluation before training."""
    rows = [
        {
            "iteration": 0,
            "held_out/shapes_strict": 0.2,
            "held_out/shapes": 0.5,
            "cost/evaluations": 0,
            "cost/seconds": 0.0,
        }
    ]
    for i in range(1, iterations + 1):
        row = {
            "iteration": i,
            "reward/mean": 0.3 + 0.1 * i,
            "reward/std": 0.3,
            "reward/shapes": 0.3 + 0.1 * i,
            "fidelity/tau": 0.6 + 0.02 * i,
            "fidelity/top_match": 0.7,
            "update/ratio": 1.0 + 0.001 * i,
            "update/clipped": 0.1,
            "update/loss": -0.01 * i,
            "update/grad_norm": 1.5,
            "cost/evaluations": 1000 * i,
            "cost/seconds": 0.75 * i,
            "seconds/rollout": 0.4,
            "seconds/update": 0.35,
            "evaluations/rollout": 800,
            "evaluations/update": 100,
            "sentinel/diversity": 0.2,
        }
        if i % 2 == 0:
            row |= {"held_out/shapes_strict": 0.2 + 0.1 * i, "held_out/shapes": 0.5 + 0.05 * i}
        rows.append(row)
    return rows


def write_metrics(run: Path, iterations: int) -> None:
    """metrics.jsonl of so many iterations."""
    run.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in metrics_rows(iterations))
    (run / "metrics.jsonl").write_text(lines, encoding="utf-8")


def keep_columns(run: Path, *names: str) -> Path:
    """Leave only some metrics, and the iteration: each that is drawn takes matplotlib a third of a second."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{name: value for name, value in row.items() if name in ("iteration", *names)} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return run


def add_evaluation(
    run: Path,
    iteration: int,
    prompts=PROMPTS,
    roots: int = 2,
    pictures: bool = True,
    size: int = 32,
    score=score_of,
    **more,
) -> None:
    """The held-out samples of an evaluation; more fields are every sample's."""
    with SampleStore(run) as store:
        store.write(
            [
                eval_sample(
                    iteration,
                    group,
                    root,
                    prompt,
                    score(iteration, group, root),
                    flat(group / 7 + root / 31, 0.3 + 0.1 * (iteration % 5), size) if pictures else None,
                    **more,
                )
                for group, prompt in enumerate(prompts)
                for root in range(roots)
            ]
        )


def make_run(
    run: Path, iterations: int = 4, prompts=PROMPTS, roots: int = 2, finished: bool = True, size: int = 32, **more
) -> Path:
    """A run with an evaluation at every second iteration, and training samples of each iteration."""
    write_metrics(run, iterations)
    (run / "config.yaml").write_text(CONFIG.replace("name: made", f"name: {run.name}"), encoding="utf-8")
    environment = {"run_id": "0123456789ab", "versions": {"python": "3.11.7", "diffrl": "0.1.0"}, "device": "cpu"}
    (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    for iteration in range(0, iterations + 1, 2):
        add_evaluation(run, iteration, prompts, roots, size=size, **more)
    with SampleStore(run) as store:
        store.write(
            [
                StoredSample(
                    stage="train",
                    iteration=i,
                    group=g,
                    root=r,
                    path=(c,),
                    seed=0,
                    prompt=prompts[g % len(prompts)],
                    total=score_of(i, g, r) / (1 + c),
                    advantage=1.0 - c,
                    rewards={"shapes": score_of(i, g, r)},
                    picture=flat(g / 7, 0.4 + 0.1 * c, size) if g == 0 else None,
                )
                for i in range(iterations)
                for g in range(2)
                for r in range(2)
                for c in range(2)
            ]
        )
    if finished:
        summary = {
            "run": run.name,
            "seed": 0,
            "iterations": iterations,
            "updates": iterations,
            "held_out": {"strict_before": 0.2, "strict_after": 0.6, "partial_before": 0.5, "partial_after": 0.7},
            "seconds": {"rollout": 1.6, "decode": 0.4, "reward": 0.2, "update": 1.4, "other": 0.1, "evaluation": 2.0},
            "network_evaluations": {"planned": 4000, "counted": 3900, "skipped": 100, "exact": True},
            "cost": {"evaluations": 4000, "planned": 4000},
            "counts": {"decodes": 512, "reward_calls": 512, "evaluations/rollout": 3200, "evaluations/update": 400},
            "peak_memory_bytes": 2**30,
            "on_policy_error": 1.2e-7,
            "device": "cpu",
            "dtype": "float32",
            "processes": 1,
            "versions": {"python": "3.11.7", "diffrl": "0.1.0"},
        }
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return run
