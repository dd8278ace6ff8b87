"""Measure what docs/results.md says: arms of equal cost on paired seeds, and the questions that they answer.

    python scripts/reproduce_results.py [--only shapes] [--out results] [--go-on] [--write docs/results.md]

Each group is one `diffrl compare`, so an interrupted measurement goes on where it stopped. `--keep` writes its numbers
to docs/measured/GROUP.jsonl, and `--go-on` begins with what lies there: only what is missing is trained. `--write` sets
tables and figures into the page between its markers. With `--report-only` nothing is trained. Every difference that is
asked about was chosen before it was measured; p-values are adjusted for the group's questions (Holm).

`--check` measures again from nothing, and holds every arm to the band of its kept numbers: its mean must lie in the
95 % prediction interval for so many seeds.
"""

import argparse
import math
import re
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from scipy import stats

from diffrl.cost.prices import parse_prices
from diffrl.statistics import Estimate, paired_difference
from diffrl.studies.compare import CompareRequest, collect, compare, write_report
from diffrl.studies.compare.archive import pack, unpack
from diffrl.studies.compare.figures import draw_power
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.tables import guidance_rows, markdown_table, mean_text

MEASURED = Path("docs/measured")
FIGURES = ("figure", "power")
TREE = "rollout.tree={roots: 1, branches: 4, splits: [0, 2], correlation: 4.0}"
GRPO = "objective={kind: grpo, clip: 1.0e-3} train.warmup_updates=6"
NFT = "objective={kind: nft, kl: 0.0} credit={} train.warmup_updates=2"
ONE = "train.updates_per_iteration=1 train.warmup_updates=2"
UNSEEN = "run.seed=10 eval.seed=4321"
"""Seeds and held-out noise that no setting was chosen on."""


@dataclass(frozen=True)
class Group:
    """One comparison, and what is asked of it.

    Args:
        arms: label -> configuration and overrides.
        budget: evaluations of a run, priced.
        seeds: of each arm.
        questions: question -> pairs (first, second): second less first answers it.
        prices: of evaluations.
        evals: held-out evaluations of a run, besides the one before it.
        variety: samples of a prompt for diversity and the distance to the base; kept numbers cannot be given it later.
        guidance: scales that base and aligned model are measured with, besides none; nor that.
        shorter: the group of a smaller budget that this one is set beside.
    """

    arms: dict[str, str]
    budget: int
    seeds: int
    questions: dict[str, tuple[tuple[str, str], ...]]
    prices: str = "equal"
    evals: int = 2
    variety: int | None = None
    guidance: tuple[float, ...] = ()
    shorter: str | None = None


RATES = {
    "shapes": {"tilt": 3e-4, "chains, nft": 2e-4, "chains, awm": 2e-4, "chains, crd": 2e-4, "chains, dgpo": 6e-4},
    "words": {"chains, nft": 2e-4, "chains, crd": 2e-4, "chains, dgpo": 3e-4},
}
"""Learning rates that are not 1.5e-4, as chosen on `tune` (docs/results.md)."""


def factorial(world: str) -> dict[str, str]:
    """The arms of the factorial in a world: 4 merged steps, 8 prompts of 16 samples, second-order where no noise is."""
    folder = {"shapes": "configs/tiny-sd3", "words": "configs/tiny-words"}[world]
    common = f"rollout.steps=4 prompts.per_iteration=8 {UNSEEN} track.trees=null"

    def arm(preset: str, *overrides: str) -> str:
        return " ".join([f"{folder}/{preset}.yaml", common, *overrides])

    def tree(*overrides: str) -> str:
        return arm("diffrl_nft", TREE, *overrides)

    def credit(reward: str, value: str = "leaves") -> str:
        return f"credit={{reward: {reward}, value: {value}, normalise: depth}}"

    arms = {
        "tilt": arm("diffrl"),
        "chains, nft": arm("diffusion_nft", ONE),
        "chains, grpo": arm("flow_grpo", "train.updates_per_iteration=2 train.warmup_updates=2"),
        "tree, grpo, incremental": tree(GRPO, credit("incremental")),
        "tree, grpo, outcome": tree(GRPO, "credit={}"),
        "tree, grpo, turning points": tree(GRPO, credit("turning_point")),
        "chains, awm": arm("awm", "objective.levels=1 train.warmup_updates=2"),
        "tree, nft": tree(NFT),
        "forest, nft": arm("diffrl_nft", NFT),
        "chains, crd": arm("crd", "objective.levels=1", ONE),
        "chains, dgpo": arm("dgpo", "objective.levels=3 objective.kl=0.0 train.warmup_updates=1"),
        "tree, grpo, turning points, ode": tree(GRPO, credit("turning_point", "ode")),
        "tree, grpo, incremental, ode": tree(GRPO, credit("incremental", "ode")),
    }
    rates = RATES[world]
    return {label: f"{text} train.learning_rate={rates.get(label, 1.5e-4)}" for label, text in arms.items()}


RIVALS = ("chains, nft", "chains, awm", "chains, dgpo", "chains, crd", "chains, grpo")
QUESTIONS = {
    "Does a tree pay?": (
        ("chains, grpo", "tree, grpo, outcome"),
        ("chains, nft", "tree, nft"),
        ("chains, nft", "forest, nft"),
    ),
    "Does step credit pay?": (("tree, grpo, outcome", "tree, grpo, incremental"),),
    "Do turning points pay?": (
        ("tree, grpo, incremental", "tree, grpo, turning points"),
        ("tree, grpo, incremental, ode", "tree, grpo, turning points, ode"),
    ),
    "Do values by the ODE pay?": (("tree, grpo, incremental", "tree, grpo, incremental, ode"),),
    "Does tree tilt pay?": tuple((rival, "tilt") for rival in (*RIVALS, "tree, grpo, incremental", "tree, nft")),
}


def questions_of(arms: Iterable[str]) -> dict[str, tuple[tuple[str, str], ...]]:
    """The factorial's questions that some arms answer."""
    asked = {question: tuple(p for p in pairs if set(p) <= set(arms)) for question, pairs in QUESTIONS.items()}
    return {question: pairs for question, pairs in asked.items() if pairs}


LONGER = ("tilt", "tree, grpo, incremental", "chains, nft", "chains, grpo")
"""What three times the budget is spent on: the project's two, and a rival of either kind."""


def pool(price: float) -> Group:
    """DiffusionNFT with and without a pool of 48, explored at a price: Sol-RL's idea, on otherwise equal runs."""
    plain = factorial("shapes")["chains, nft"]
    explore = "rollout.explore={precision: nvfp4, engine: emulated, candidates: 48, keep: 16, audit: 0, select: %s}"
    arms = {
        "no pool": plain,
        "pool, best and worst": f"{plain} {explore % 'best_worst'}",
        "pool, random": f"{plain} {explore % 'random'}",
    }
    questions = {
        "Does a pool pay?": (("no pool", "pool, best and worst"),),
        "Is it the choice?": (("pool, random", "pool, best and worst"),),
    }
    return Group(arms, 20_000, 5, questions, f"equal,nvfp4={price:g}")


WORDS = {label: arm for label, arm in factorial("words").items() if not label.endswith("ode")}
PRICES = (1.0, 0.5, 0.25, 0.1)
POOLS = {f"pool-{price:g}": price for price in PRICES}
GROUPS = {
    "shapes": Group(factorial("shapes"), 20_000, 10, QUESTIONS),
    "words": Group(WORDS, 20_000, 10, questions_of(WORDS), evals=1),
    "shapes-60k": Group(
        {label: factorial("shapes")[label] for label in LONGER},
        60_000,
        5,
        {
            "Does tree tilt pay?": tuple((label, "tilt") for label in LONGER[1:]),
            "Does a tree with step credit pay?": (("chains, grpo", "tree, grpo, incremental"),),
        },
        evals=3,
        variety=4,
        guidance=(3.0,),
        shorter="shapes",
    ),
    **{name: pool(price) for name, price in POOLS.items()},
}


def main() -> None:
    """Train, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="Directory of the comparisons.")
    parser.add_argument("--only", action="append", choices=GROUPS, help="A group; may be given several times.")
    parser.add_argument("--jobs", type=int, help="Runs at once. Default: one a core.")
    parser.add_argument("--go-on", action="store_true", help="Begin with the numbers in docs/measured.")
    parser.add_argument("--keep", action="store_true", help="Write the numbers to docs/measured.")
    parser.add_argument("--report-only", action="store_true", help="Train nothing.")
    parser.add_argument("--check", action="store_true", help="Hold what is measured to the bands of docs/measured.")
    parser.add_argument("--write", type=Path, help="The page whose tables are replaced.")
    arguments = parser.parse_args()
    if arguments.check and arguments.go_on:
        parser.error("--check is of runs that were trained anew. Leave --go-on out.")
    outside, asked = [], list(arguments.only or GROUPS)
    if arguments.write:
        require_room(arguments.write, asked)
    pools = any(name in POOLS for name in asked)
    beside = [shorter for name in asked if (shorter := GROUPS[name].shorter)]
    for name in {*asked, *beside, *(POOLS if pools else ())}:  # the table of pools is of all prices
        kept, out = MEASURED / f"{name}.jsonl", arguments.out / name
        if arguments.go_on and kept.is_file() and not out.exists():
            unpack(kept, out)
    for name in asked:
        out, kept, group = arguments.out / name, MEASURED / f"{name}.jsonl", GROUPS[name]
        if not arguments.report_only:
            compare(request(group, out, arguments.jobs), Console())
        comparison = collect(out)
        report(name, group, comparison, out, arguments.write)
        if arguments.check:
            outside += [f"{name}: {line}" for line in strayed(comparison, kept)]
        if arguments.keep:
            pack(out, kept)
    if arguments.write and pools:
        there = {price: arguments.out / name for name, price in POOLS.items() if (arguments.out / name).is_dir()}
        put(arguments.write, "pools", pool_table({price: collect(out) for price, out in there.items()}))
    if outside:
        sys.exit("\n".join(outside))


def request(group: Group, out: Path, jobs: int | None) -> CompareRequest:
    """What a group asks of `diffrl compare`."""
    arms = tuple(f"{label}: {settings}" for label, settings in group.arms.items())
    return CompareRequest(
        arms,
        out,
        f"evaluations={group.budget}",
        group.seeds,
        group.evals,
        jobs=jobs,
        prices=group.prices,
        variety=group.variety,
        guidance=group.guidance,
    )


def report(name: str, group: Group, comparison: Comparison, out: Path, page: Path | None) -> None:
    """Write a group's tables and figures, what so many seeds can see among them, and set them into the page."""
    write_report(comparison, out, target=0.4)
    asked = [pair for pairs in group.questions.values() for pair in pairs]
    known = [p.difference.sd for p in pairs_of(comparison, asked) if p.difference.sd]
    if known:
        middle = math.sqrt(sum(sd * sd for sd in known) / len(known))
        draw_power(middle, len(comparison.arms[0].runs), out / "power.png", comparison.metric)
    if page is None or name in POOLS:
        return
    tables = [scores(comparison), answers(group, comparison)]
    if group.guidance:
        tables.insert(1, f"{markdown_table(guidance_rows(comparison))}\n")
    if group.shorter and (out.parent / group.shorter).is_dir():
        tables.append(budgets_table(collect(out.parent / group.shorter), comparison))
    put(page, name, "\n".join(tables))
    figures = page.parent / "figures"
    figures.mkdir(exist_ok=True)
    for figure in FIGURES:
        if (out / f"{figure}.png").is_file():
            shutil.copyfile(out / f"{figure}.png", figures / f"{name}-{figure}.png")


def scores(comparison: Comparison) -> str:
    """Each arm's final numbers, best first: the metric, the other held-out rewards, and what a run cost."""
    ranked = sorted((arm for arm in comparison.arms if arm.runs), key=lambda arm: -comparison.mean_score(arm).mean)
    others = sorted({name for arm in comparison.arms for run in arm.runs for name in run.others})
    columns = ("arm", "seeds", comparison.metric, *others, "iterations", "evaluations", "seconds")
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for arm in ranked:
        cells = (
            arm.label,
            str(len(arm.runs)),
            mean_text(comparison.mean_score(arm)),
            *(_mean_of(arm, name) for name in others),
            str(arm.runs[0].iterations),
            f"{arm.cost('evaluations'):,.0f}",
            f"{_seconds(arm):.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seconds(arm: Arm) -> float:
    """Of a run's training, the median: what else the machine did meanwhile makes some runs slow, and none fast."""
    return statistics.median(run.curve[-1].seconds for run in arm.runs)


def _mean_of(arm: Arm, name: str) -> str:
    """Mean of another reward on the report split; nothing where a run was not measured by it."""
    values = [run.others.get(name) for run in arm.runs]
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if len(known) == len(values) else ""


def answers(group: Group, comparison: Comparison) -> str:
    """Every question with the paired differences that answer it."""
    asked = [(question, pair) for question, pairs in group.questions.items() for pair in pairs]
    found = pairs_of(comparison, [pair for _, pair in asked])
    columns = "question | difference | seeds | mean | 95 % interval | p | p (Holm) | finding"
    lines = [f"| {columns} |", "|---|---|" + "---:|" * 5 + "---|"]
    last = ""
    for (question, _), pair in zip(asked, found, strict=True):
        d = pair.difference
        interval = "" if d.low is None else f"{d.low:+.3f} to {d.high:+.3f}"
        p = "" if d.p is None else f"{d.p:.2g} | {pair.p_holm:.2g}"
        what = f"{pair.second} less {pair.first}"
        shown = "" if question == last else question
        lines.append(f"| {shown} | {what} | {d.n} | {d.mean:+.3f} | {interval} | {p} | {pair.finding} |")
        last = question
    return "\n".join(lines) + "\n"


def budgets_table(short: Comparison, longer: Comparison) -> str:
    """The arms of two budgets, and tree tilt on the smaller against each on the larger, which take more seconds."""
    before = {arm.label: arm for arm in short.arms if arm.runs}
    columns = (
        "arm | iterations | score | seconds | longer: iterations | score | seconds | tilt, short, less arm, longer"
    )
    lines = [f"| {columns} |", "|---|" + "---:|" * 7]
    for arm in longer.arms:
        if not arm.runs or arm.label not in before or "tilt" not in before:
            continue
        cells = [arm.label]
        for comparison, one in ((short, before[arm.label]), (longer, arm)):
            cells += [str(one.runs[0].iterations), mean_text(comparison.mean_score(one)), f"{_seconds(one):.0f}"]
        ours = {run.number: short.score(before["tilt"], run) for run in before["tilt"].runs}
        theirs = {run.number: longer.score(arm, run) for run in arm.runs}
        seeds = sorted(set(ours) & set(theirs))
        cells.append(_difference(paired_difference([ours[i] for i in seeds], [theirs[i] for i in seeds])))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def pool_table(comparisons: Mapping[float, Comparison]) -> str:
    """What a pool is worth by the price of an exploring evaluation: against none, and against a random choice."""
    columns = "price | iterations | best and worst | random | no pool | pool less none | best and worst less random"
    lines = [f"| {columns} |", "|---|" + "---:|" * 6]
    for price, comparison in comparisons.items():
        group = pool(price)
        asked = [pair for pairs in group.questions.values() for pair in pairs]
        arms = {arm.label: arm for arm in comparison.arms if arm.runs}
        if len(arms) < len(group.arms):  # begun, and not got far
            continue
        found = pairs_of(comparison, asked)
        order = ("pool, best and worst", "pool, random", "no pool")
        cells = (
            f"{price:g}",
            str(arms[order[0]].runs[0].iterations),
            *(mean_text(comparison.mean_score(arms[label])) for label in order),
            *(_difference(pair.difference) for pair in found),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _difference(found: Estimate) -> str:
    """A paired mean with its interval and how many pairs it is of."""
    interval = "" if found.low is None else f" ({found.low:+.3f} to {found.high:+.3f})"
    return f"{found.mean:+.3f}{interval}, {found.n} seeds"


def strayed(comparison: Comparison, kept: Path) -> list[str]:
    """The arms whose mean lies outside of what their kept numbers predict for as many seeds."""
    directory = Path(f"{kept.stem}-kept")
    shutil.rmtree(directory, ignore_errors=True)
    unpack(kept, directory)
    before = collect(directory, comparison.metric, parse_prices(comparison.prices.name))
    shutil.rmtree(directory)
    told = []
    for arm in comparison.arms:
        old = next((one for one in before.arms if one.label == arm.label), None)
        if old is None or len(old.runs) < 2 or not arm.runs:
            told.append(f"{arm.label}: nothing to hold it to")
            continue
        low, high = band([before.score(old, run) for run in old.runs], len(arm.runs))
        mean = comparison.mean_score(arm).mean
        if not low <= mean <= high:
            told.append(f"{arm.label}: {mean:.3f} lies outside {low:.3f} to {high:.3f}")
    return told


def band(values: Sequence[float], seeds: int) -> tuple[float, float]:
    """The 95 % prediction interval of the mean of so many further seeds (Student's t)."""
    n, mean = len(values), sum(values) / len(values)
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = stats.t.ppf(0.975, n - 1) * sd * math.sqrt(1 / n + 1 / seeds)
    return mean - half, mean + half


def require_room(page: Path, names: Iterable[str]) -> None:
    """Refuse a page that lacks the markers of a group's table, before anything is trained for it."""
    text = page.read_text(encoding="utf-8")
    for name in dict.fromkeys("pools" if name in POOLS else name for name in names):
        if not _between(name).search(text):
            raise SystemExit(f"{page} must hold <!-- {name} --> and <!-- /{name} -->. Add both lines.")


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)


def put(page: Path, name: str, table: str) -> None:
    """Set a table into the page between its markers."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_between(name).sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
