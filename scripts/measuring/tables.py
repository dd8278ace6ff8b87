"""Comparisons as tables of docs/results.md."""

import itertools
import statistics
from collections.abc import Mapping

from diffrl.statistics import Estimate, paired_difference
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.tables import mean_text
from measuring.groups import LONGER, Group, pool


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


def budgets_table(comparisons: Mapping[int, Comparison]) -> str:
    """The arms that were measured at more than one budget, with iterations and seconds (evaluations -> comparison)."""
    budgets = sorted(comparisons)
    arms = {budget: {arm.label: arm for arm in comparisons[budget].arms if arm.runs} for budget in budgets}
    labels = [label for label in arms[budgets[0]] if sum(label in known for known in arms.values()) > 1]
    lines = [f"| arm | {' | '.join(f'{budget:,}' for budget in budgets)} |", "|---|" + "---:|" * len(budgets)]
    for label in labels:
        cells = [label]
        for budget in budgets:
            one = arms[budget].get(label)
            cells.append("" if one is None else _at_a_budget(comparisons[budget], one))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _at_a_budget(comparison: Comparison, arm: Arm) -> str:
    score = mean_text(comparison.mean_score(arm))
    return f"{score} ({arm.runs[0].iterations} iterations, {_seconds(arm):.0f} s)"


def fewer_table(comparisons: Mapping[int, Comparison]) -> str:
    """Tree tilt at each budget against the others at every larger one, on the seeds that both have."""
    lines = ["| tilt with | against | with | times as many | tilt less other |", "|---:|---|---:|---:|---:|"]
    for small, large in itertools.combinations(sorted(comparisons), 2):
        before, after = comparisons[small], comparisons[large]
        tilt = next((arm for arm in before.arms if arm.label == "tilt" and arm.runs), None)
        for arm in after.arms:
            if tilt is None or not arm.runs or arm.label not in LONGER[1:]:
                continue
            ours = {run.number: before.score(tilt, run) for run in tilt.runs}
            theirs = {run.number: after.score(arm, run) for run in arm.runs}
            seeds = sorted(set(ours) & set(theirs))
            found = paired_difference([ours[i] for i in seeds], [theirs[i] for i in seeds])
            cells = (f"{small:,}", arm.label, f"{large:,}", f"{large / small:.3g}", _difference(found))
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
