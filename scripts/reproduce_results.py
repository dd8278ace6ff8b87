"""Measure what docs/results.md says: every preset at equal cost, the costs to one score, and the ablations.

    python scripts/reproduce_results.py [--out results] [--only presets] [--write docs/results.md]

Each group is one `diffrl compare`, so an interrupted measurement goes on where it stopped. `--write` sets the groups'
tables into the page between its markers and copies their figures beside it; with `--report-only` nothing is trained.
"""

import argparse
import math
import re
import shutil
import statistics
from pathlib import Path

from rich.console import Console

from diffrl.config.load import make_config
from diffrl.studies.compare import CompareRequest, collect, compare, write_report
from diffrl.studies.compare.results import COSTS, Arm, Comparison, t_half_width
from diffrl.studies.compare.tables import markdown

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
    "diffrl_nft",
)
DIFFRL = f"{TINY}/diffrl_nft.yaml"
FOREST_NFT = (
    f"nft on the forest: {DIFFRL} objective={{kind: nft, kl: 0.0}} credit={{}} train.updates_per_iteration=2 "
    "train.warmup_updates=12"
)
POOL = "audit: 0, keep: 16, select: best_worst"
ABLATIONS = (
    f"diffrl_nft: {DIFFRL}",
    f"without turning points: {DIFFRL} credit.reward=incremental",
    f"siblings instead of depth: {DIFFRL} credit.normalise=siblings",
    f"values by the ode: {DIFFRL} credit.value=ode",
    f"independent siblings: {DIFFRL} rollout.tree.correlation=null",
    f"grpo alone: {DIFFRL} objective={{kind: grpo, clip: 1.0e-3}} train.learning_rate=1.5e-4",
    f"pool 2x bfloat16: {DIFFRL} rollout.explore={{precision: bfloat16, candidates: 32, {POOL}}}",
    f"pool 4x bfloat16: {DIFFRL} rollout.explore={{precision: bfloat16, candidates: 64, {POOL}}}",
    f"pool 2x nvfp4: {DIFFRL} rollout.explore={{precision: nvfp4, engine: emulated, candidates: 32, {POOL}}}",
)
TARGETS = (0.5, 0.6, 0.65)
OTHERS = "run.seed=10 eval.seed=4321"
"""Seeds and held-out noise that no setting was chosen on."""
TILT = tuple(
    f"{name}: {TINY}/{name}.yaml {OTHERS}"
    for name in ("flow_grpo", "diffusion_nft", "diffrl_nft", "tree_tilt", "diffrl")
)
GROUPS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "tilt-20k": (TILT, "evaluations=20000", 5, 5),
    "tilt-40k": (TILT, "evaluations=40000", 5, 5),
    "flow-80k": (TILT[:1], "evaluations=80000", 8, 5),
    "presets": ((*(f"{TINY}/{name}.yaml" for name in PRESETS), FOREST_NFT), "evaluations=40000", 5, 3),
    "long": ((f"{TINY}/flow_grpo.yaml",), "evaluations=80000", 8, 3),
    "ablations": (ABLATIONS, "evaluations=20000", 4, 3),
}
"""Name -> configurations, budget of a run, held-out evaluations, seeds."""


def main() -> None:
    """Train, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="Directory of the comparisons.")
    parser.add_argument("--only", action="append", choices=GROUPS, help="A group; may be given several times.")
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--report-only", action="store_true", help="Train nothing.")
    parser.add_argument("--write", type=Path, help="The page whose tables are replaced.")
    arguments = parser.parse_args()
    console = Console()
    for name in arguments.only or GROUPS:
        configurations, budget, evals, seeds = GROUPS[name]
        out = arguments.out / name
        if not arguments.report_only:
            compare(CompareRequest(configurations, out, budget, seeds, evals, None, arguments.target), console)
        comparison = collect(out)
        write_report(comparison, out, arguments.target)
        if arguments.write:
            table = markdown(comparison, arguments.target)
            if name != "flow-80k":  # its table is one sentence, `factor`
                put(arguments.write, name, paired(comparison, "diffrl") if name.startswith("tilt") else table)
            figures = arguments.write.parent / "figures"
            figures.mkdir(exist_ok=True)
            shutil.copyfile(out / "figure.png", figures / f"{name}.png")
    made = set(arguments.only or GROUPS)
    if arguments.write and {"presets", "long"} <= made:
        put(arguments.write, "costs", costs(arguments.out, TARGETS))
    if arguments.write and {"tilt-40k", "flow-80k"} <= made:
        put(arguments.write, "factor", factor(arguments.out, "diffrl"))


def paired(comparison: Comparison, chosen: str) -> str:
    """Each configuration's score, and what `chosen` has more of it: means of differences of runs of the same seed.

    Runs of a seed share prompts, their order, and starting noise.
    """
    best = next(arm for arm in comparison.arms if arm.label == chosen)
    head = (
        "configuration",
        "seeds",
        "after",
        f"{chosen} has more by",
        "iterations",
        "evaluations",
        "pictures",
        "seconds",
    )
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for arm in comparison.arms:
        more = [own.curve[-1].score - other.curve[-1].score for own, other in zip(best.runs, arm.runs, strict=True)]
        gained = "" if arm is best else interval(more)
        after, iterations = interval([run.curve[-1].score for run in arm.runs]), arm.runs[0].iterations
        costs = f"{arm.cost('evaluations'):,.0f} | {iterations * pictures(arm):,} | {arm.cost('seconds'):.0f}"
        lines.append(f"| {arm.label} | {len(arm.runs)} | {after} | {gained} | {iterations} | {costs} |")
    return "\n".join(lines) + "\n"


def pictures(arm: Arm) -> int:
    """Drawn, decoded and scored in an iteration, without an exploring stage."""
    config = make_config(arm.planned_as["config"])
    return config.prompts.per_iteration * config.rollout.tree.samples


def factor(out: Path, chosen: str) -> str:
    """How many times less `chosen` takes to the scores of Flow-GRPO at 80,000 evaluations, seed by seed."""
    flow = collect(out / "flow-80k").arms[0]
    own = next(arm for arm in collect(out / "tilt-40k").arms if arm.label == chosen)
    score = interval([run.curve[-1].score for run in flow.runs])
    spent = f"{flow.cost('evaluations'):,.0f} evaluations"
    told = [f"Flow-GRPO at {spent}: {score}. To the score of the same seed, {chosen} takes", ""]
    for cost, what, unit in (
        ("evaluations", "evaluations", 1.0),
        ("iteration", "pictures drawn and scored", pictures(flow) / pictures(own)),
        ("seconds", "seconds", 1.0),
    ):
        pairs = zip(flow.runs, own.runs, strict=True)
        found = [(getattr(run.curve[-1], cost), ours.cost_to(run.curve[-1].score, cost)) for run, ours in pairs]
        ratios = [math.log(unit * theirs / ours) for theirs, ours in found if ours is not None]
        if not ratios:
            return f"{chosen} reached the score of Flow-GRPO at 80,000 evaluations with no seed.\n"
        mean, half = statistics.fmean(ratios), t_half_width(ratios) or math.nan
        low, middle, high = (math.exp(mean + shift) for shift in (-half, 0.0, half))
        told.append(f"- {middle:.1f} times fewer {what} (95 % interval {low:.1f} to {high:.1f}, {len(ratios)} seeds)")
    return "\n".join(told) + "\n"


def interval(values: list[float]) -> str:
    """Mean and half of Student's 95 % interval."""
    return f"{statistics.fmean(values):.3f} ± {t_half_width(values) or math.nan:.3f}"


def costs(out: Path, targets: tuple[float, ...]) -> str:
    """What each preset needs to reach each score, and Flow-GRPO's cost as a multiple of it.

    Of a preset that was run at two budgets, the cheaper one to reach a score counts.
    """
    arms: dict[str, list[Arm]] = {}
    for group in ("presets", "long"):
        for arm in collect(out / group).arms:
            arms.setdefault(arm.label, []).append(arm)
    lines = ["| preset | " + " | ".join(f"{c} to {t:g}" for t in targets for c in ("E", "seconds")) + " |"]
    lines.append("|---|" + "---:|" * (2 * len(targets)))
    best = {label: [_cheapest(own, t, c) for t in targets for c in COSTS] for label, own in arms.items()}
    for label, row in best.items():
        cells = []
        for cost, flow in zip(row, best["flow_grpo"], strict=True):
            ratio = f" ({flow / cost:.1f}x)" if cost and flow else ""
            cells.append("–" if cost is None else f"{cost:,.0f}{ratio}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cheapest(arms: list[Arm], target: float, cost: str) -> float | None:
    found = [reached for arm in arms if (reached := arm.cost_to(target, cost).cost) is not None]
    return min(found, default=None)


def put(page: Path, name: str, table: str) -> None:
    """Set a table into the page between its markers."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{page} must hold <!-- {name} --> and <!-- /{name} -->. Add both lines.")
    page.write_text(pattern.sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
