"""Measure what docs/results.md says: every preset at equal cost, the costs to one score, and the ablations.

    python scripts/reproduce_results.py [--out results] [--only presets] [--write docs/results.md]

Each group is one `diffrl compare`, so an interrupted measurement goes on where it stopped. `--write` sets the groups'
tables into the page between its markers and copies their figures beside it; with `--report-only` nothing is trained.
"""

import argparse
import re
import shutil
from pathlib import Path

from rich.console import Console

from diffrl.training.compare import CompareRequest, collect, compare, write_report
from diffrl.training.compare.report import markdown

TINY = "configs/tiny-sd3"
PRESETS = (
    "flow_grpo",
    "dance_grpo",
    "mix_grpo",
    "branch_grpo",
    "branch_grpo_mix",
    "tp_grpo",
    "sol_rl",
    "diffusion_nft",
    "diffrl",
    "diffrl_nft",
)
POOL = "engine: auto, steps: 4, keep: 16, select: sibling_contrast, audit: 1"
GROUPS: dict[str, tuple[tuple[str, ...], str, int]] = {
    "presets": (tuple(f"{TINY}/{name}.yaml" for name in PRESETS), "evaluations=60000", 5),
    "to_target": ((f"{TINY}/flow_grpo.yaml",), "evaluations=160000", 8),
    "to_target_mix": ((f"{TINY}/mix_grpo.yaml",), "evaluations=90000", 8),
    "ablations": ((), "evaluations=30000", 3),
}


def main() -> None:
    """Train, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="Directory of the comparisons.")
    parser.add_argument("--only", action="append", choices=GROUPS, help="A group; may be given several times.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--report-only", action="store_true", help="Train nothing.")
    parser.add_argument("--write", type=Path, help="The page whose tables are replaced.")
    arguments = parser.parse_args()
    console = Console()
    for name in arguments.only or GROUPS:
        configurations, budget, evals = GROUPS[name]
        out = arguments.out / name
        if not arguments.report_only:
            compare(
                CompareRequest(configurations, out, budget, arguments.seeds, evals, None, arguments.target), console
            )
        comparison = collect(out)
        write_report(comparison, out, arguments.target)
        if arguments.write:
            put(arguments.write, name, markdown(comparison, arguments.target))
            figures = arguments.write.parent / "figures"
            figures.mkdir(exist_ok=True)
            shutil.copyfile(out / "figure.png", figures / f"{name}.png")


def put(page: Path, name: str, table: str) -> None:
    """Set a table into the page between its markers."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{page} must hold <!-- {name} --> and <!-- /{name} -->. Add both lines.")
    page.write_text(pattern.sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
