"""Run a quickstart with several seeds and print what it gains: the numbers that the README quotes.

    python scripts/reproduce_quickstart.py [--config CONFIG] [--seeds 3] [--out runs/reproduce] [a.b=c ...]

Each seed is a `diffrl train` of its own, one after the other; a seed whose summary is there already is not run again.
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


def run_seed(config: Path, seed: int, out: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train one seed, unless it is there, and return its summary."""
    summary = out / f"seed-{seed}" / "summary.json"
    if not summary.is_file():
        settings = [f"run.seed={seed}", f"run.name=seed-{seed}", f"run.dir={out}", *overrides]
        subprocess.run([sys.executable, "-m", "diffrl.cli", "train", str(config), *settings], check=True)
    return dict(json.loads(summary.read_text(encoding="utf-8")))


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """One line a seed, then mean and spread (sample standard deviation) of each column."""
    columns = {
        "strict before": [s["held_out"]["strict_before"] for s in summaries],
        "strict after": [s["held_out"]["strict_after"] for s in summaries],
        "gain": [s["held_out"]["strict_after"] - s["held_out"]["strict_before"] for s in summaries],
        "partial before": [s["held_out"]["partial_before"] for s in summaries],
        "partial after": [s["held_out"]["partial_after"] for s in summaries],
        "minutes": [sum(s["seconds"].values()) / 60 for s in summaries],
    }
    lines = ["| seed | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row, summary in enumerate(summaries):
        lines.append(f"| {summary['seed']} | " + " | ".join(f"{values[row]:.3f}" for values in columns.values()) + " |")
    lines.append("| mean | " + " | ".join(f"{statistics.mean(values):.3f}" for values in columns.values()) + " |")
    if len(summaries) > 1:
        spread = (f"{statistics.stdev(values):.3f}" for values in columns.values())
        lines.append("| spread | " + " | ".join(spread) + " |")
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.yaml"))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    options = parser.parse_args()
    summaries = [run_seed(options.config, seed, options.out, options.overrides) for seed in range(options.seeds)]
    print(table(summaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
