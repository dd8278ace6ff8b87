"""Measure what docs/results.md says: every preset at equal cost, the costs to one score, and the ablations.

    python scripts/reproduce_results.py [--out results] [--only presets] [--write docs/results.md]

Each group is one `diffrl compare`, so an interrupted measurement goes on where it stopped. `--write` sets the groups'
tables into the page between its markers and copies their figures beside it: curves, paired differences, and what so
many seeds can see. With `--report-only` nothing is trained. Seconds are worth comparing with `--jobs 1` alone.
"""

import argparse
import math
import re
import shutil
from pathlib import Path

from rich.console import Console

from diffrl.config.load import make_config
from diffrl.studies.compare import CompareRequest, collect, compare, write_report
from diffrl.studies.compare.figures import draw_power
from diffrl.studies.compare.pairing import unpaired
from diffrl.studies.compare.pairs import difference_of, measured_sd, power_line
from diffrl.studies.compare.results import COSTS, Arm, Comparison
from diffrl.studies.compare.statistics import mean_estimate, paired_difference
from diffrl.studies.compare.tables import cost_text, markdown, mean_text, target_columns

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


GUIDANCE = (3.0,)
FIGURES = ("figure", "differences", "power")


def main() -> None:
    """Train, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="Directory of the comparisons.")
    parser.add_argument("--only", action="append", choices=GROUPS, help="A group; may be given several times.")
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--jobs", type=int, help="Runs at once. Default: one a core.")
    parser.add_argument("--report-only", action="store_true", help="Train nothing.")
    parser.add_argument("--write", type=Path, help="The page whose tables are replaced.")
    arguments = parser.parse_args()
    for name in arguments.only or GROUPS:
        out = arguments.out / name
        if not arguments.report_only:
            compare(request(name, out, arguments.target, arguments.jobs), Console())
        report(name, out, arguments.target, arguments.write)
    made = set(arguments.only or GROUPS)
    if arguments.write and {"presets", "long"} <= made:
        put(arguments.write, "costs", costs(arguments.out, TARGETS))
    if arguments.write and {"tilt-40k", "flow-80k"} <= made:
        put(arguments.write, "factor", factor(arguments.out, "diffrl"))


def request(name: str, out: Path, target: float, jobs: int | None) -> CompareRequest:
    """What a group asks of `diffrl compare`."""
    configurations, budget, evals, seeds = GROUPS[name]
    return CompareRequest(configurations, out, budget, seeds, evals, target=target, guidance=GUIDANCE, jobs=jobs)


def report(name: str, out: Path, target: float, page: Path | None) -> None:
    """Write a group's tables and figures, what so many seeds can see among them, and set them into the page."""
    comparison = collect(out)
    write_report(comparison, out, target)
    if measured := measured_sd(comparison):
        draw_power(*measured, out / "power.png", comparison.metric)
    if page is None:
        return
    if name != "flow-80k":  # its table is one sentence, `factor`
        put(page, name, paired(comparison, "diffrl") if name.startswith("tilt") else markdown(comparison, target))
    figures = page.parent / "figures"
    figures.mkdir(exist_ok=True)
    for figure in FIGURES:
        if (out / f"{figure}.png").is_file():
            shutil.copyfile(
                out / f"{figure}.png", figures / (f"{name}.png" if figure == "figure" else f"{name}-{figure}.png")
            )


def paired(comparison: Comparison, chosen: str) -> str:
    """Each configuration's final number, and what `chosen` has more of it: means of differences of runs of one seed."""
    best = next(arm for arm in comparison.arms if arm.label == chosen)
    columns = (
        f"configuration | seeds | score | {chosen} has more by | p | iterations | evaluations | pictures | seconds"
    )
    lines = [f"| {columns} |", "|---|" + "---:|" * columns.count("|")]
    for arm in comparison.arms:
        more = None if arm is best else difference_of(comparison, best, arm)
        score = mean_estimate([comparison.score(arm, run) for run in arm.runs])
        p = "" if more is None or more.p is None else f"{more.p:.2g}"
        iterations = arm.runs[0].iterations
        cells = (
            arm.label,
            len(arm.runs),
            mean_text(score),
            "" if more is None else mean_text(more),
            p,
            iterations,
            f"{arm.cost('evaluations'):,.0f}",
            f"{iterations * pictures(arm):,}",
            f"{arm.cost('seconds'):.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", power_line(comparison)]) + "\n"


def pictures(arm: Arm) -> int:
    """Drawn, decoded and scored in an iteration, without an exploring stage."""
    config = make_config(arm.planned_as["config"])
    return config.prompts.per_iteration * config.rollout.tree.samples


def factor(out: Path, chosen: str) -> str:
    """How many times less `chosen` takes to the scores of Flow-GRPO at 80,000 evaluations, seed by seed."""
    flow, tilt = collect(out / "flow-80k"), collect(out / "tilt-40k")
    theirs, own = flow.arms[0], next(arm for arm in tilt.arms if arm.label == chosen)
    if apart := unpaired({arm.label: arm.planned_as["config"] for arm in (theirs, own)}, flow.metric):
        return f"Not compared: {apart[0]}\n"
    runs = {run.number: run for run in own.runs}
    pairs = [(run.curve[-1], runs[run.number]) for run in theirs.runs if run.number in runs]
    reached = [(goal, run) for goal, run in pairs if run.cost_to(goal.score, "evaluations")]  # and not for nothing
    if len(reached) < len(pairs):
        return f"The score of Flow-GRPO at 80,000 evaluations was reached by {len(reached)} of {len(pairs)} seeds.\n"
    told = [
        f"Flow-GRPO at {theirs.cost('evaluations'):,.0f} evaluations: {mean_text(theirs.after)}. To the score of the "
        f"same seed, {chosen} takes",
        "",
    ]
    for cost, what, unit in (
        ("evaluations", "evaluations", 1.0),
        ("iteration", "pictures drawn and scored", pictures(theirs) / pictures(own)),
        ("seconds", "seconds", 1.0),
    ):
        spent = [math.log(unit * getattr(goal, cost)) for goal, _ in reached]
        ours = [math.log(run.cost_to(goal.score, cost) or math.nan) for goal, run in reached]
        ratio = paired_difference(spent, ours)
        ends = (ratio.mean if end is None else end for end in (ratio.low, ratio.high))
        low, high = (f"{math.exp(end):.1f}" for end in ends)
        told.append(f"- {math.exp(ratio.mean):.1f} times fewer {what} (95 % interval {low} to {high}, {ratio.n} seeds)")
    return "\n".join(told) + "\n"


def costs(out: Path, targets: tuple[float, ...]) -> str:
    """What each preset needs to reach each score, with intervals over seeds.

    A preset that was run at two budgets counts at the smaller one, unless some seed did not get there.
    """
    arms: dict[str, list[Arm]] = {}
    for group in ("presets", "long"):
        for arm in collect(out / group).arms:
            arms.setdefault(arm.label, []).append(arm)
    lines = ["| preset | " + " | ".join(column for target in targets for column in target_columns(target)) + " |"]
    lines.append("|---|" + "---:|" * (2 * len(targets)))
    for label, own in arms.items():
        cells = [cell(own, target, cost) for target in targets for cost in COSTS]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(arms: list[Arm], target: float, cost: str) -> str:
    """The cost of a score at the first budget at which every seed reached it; if none, what the last one did."""
    found = [arm.cost_to(target, cost) for arm in arms]
    return cost_text(next((one for one in found if one.cost is not None), found[-1]), ",.0f")


def put(page: Path, name: str, table: str) -> None:
    """Set a table into the page between its markers."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{page} must hold <!-- {name} --> and <!-- /{name} -->. Add both lines.")
    page.write_text(pattern.sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
