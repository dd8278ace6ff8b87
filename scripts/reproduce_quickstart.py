"""Run a quickstart with several seeds and measure what it gains on prompts that nothing was chosen by.

    python scripts/reproduce_quickstart.py [--config CONFIG] [--seeds 3] [--out runs/reproduce] [a.b=c ...]

Each seed is a `diffrl train` of its own, one after the other, and then a `diffrl evaluate` on the report split of the
world that it trains on: before and after alignment, without guidance and with. A seed that is there is not run again.
The numbers are those that the README quotes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffrl.config.load import load_config
from diffrl.display import markdown_table

GUIDANCE = 3


def run_seed(config: Path, seed: int, out: Path, overrides: Sequence[str]) -> Path:
    """Train one seed, unless it is there, and return its directory."""
    run = out / f"seed-{seed}"
    if not (run / "summary.json").is_file():
        settings = [f"run.seed={seed}", f"run.name=seed-{seed}", f"run.dir={out}", *overrides]
        subprocess.run([sys.executable, "-m", "diffrl.cli", "train", str(config), *settings], check=True)
    return run


def evaluate(run: Path, prompts: str) -> list[dict[str, Any]]:
    """Return rows of `diffrl evaluate`: base and aligned, each without guidance and with; kept beside the run."""
    kept = run.parent / f"{run.name}-{prompts.replace(':', '-')}.json"
    if not kept.is_file():
        command = [sys.executable, "-m", "diffrl.cli", "evaluate", "--run", str(run), "--newest"]
        command += ["--prompts", prompts, "--base", "--guidance", "1", "--guidance", str(GUIDANCE), "--json"]
        kept.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout, encoding="utf-8")
    return list(json.loads(kept.read_text(encoding="utf-8")))


def table(runs: Sequence[Path], prompts: str, rewards: Sequence[str]) -> str:
    """Return one line a seed, then mean and spread (sample standard deviation) of each column."""
    columns: dict[str, list[float]] = {}
    for run in runs:
        for reward in rewards:
            for row in evaluate(run, prompts):
                guided = "" if row["guidance_scale"] == 1 else f" + CFG {GUIDANCE}"
                columns.setdefault(f"{reward}: {row['weights']}{guided}", []).append(row["means"][reward])
        seconds = json.loads((run / "summary.json").read_text(encoding="utf-8"))["seconds"]
        columns.setdefault("minutes", []).append(sum(seconds.values()) / 60)
    rows = [
        {"seed": run.name.removeprefix("seed-")} | {name: f"{values[i]:.3f}" for name, values in columns.items()}
        for i, run in enumerate(runs)
    ]
    rows.append({"seed": "mean"} | {name: f"{statistics.mean(values):.3f}" for name, values in columns.items()})
    if len(runs) > 1:
        rows.append({"seed": "spread"} | {name: f"{statistics.stdev(values):.3f}" for name, values in columns.items()})
    return markdown_table(rows)


def main() -> int:
    """Return command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.yaml"))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    options = parser.parse_args()
    config = load_config(options.config, options.overrides)
    world = config.prompts.train.partition(":")[0]
    runs = [run_seed(options.config, seed, options.out, options.overrides) for seed in range(options.seeds)]
    print(table(runs, f"{world}:report", [reward.key for reward in config.eval.rewards]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
