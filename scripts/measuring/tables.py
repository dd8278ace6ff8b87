"""Comparisons as tables of docs/results.md."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from diffrl.statistics import Estimate, paired_difference
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.tables import mean_text
from measuring.groups import LONGER, Group, pool


def scores(comparison: Comparison) -> str:
    """Return each arm's final numbers, best first: the metric, the other held-out rewards, and what a run cost."""
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
    """Return a run's median seconds of training: other work makes some runs slow, and none fast."""
    return statistics.median(run.curve[-1].seconds for run in arm.runs)


def _mean_of(arm: Arm, name: str) -> str:
    """Return mean of another reward on the report split; nothing where a run was not measured by it."""
    values = [run.others.get(name) for run in arm.runs]
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if len(known) == len(values) else ""


def answers(group: Group, comparison: Comparison) -> str:
    """Return every question with the paired differences that answer it."""
    asked = [(question, pair) for question, pairs in group.questions.items() for pair in pairs]
    differences = pairs_of(comparison, [pair for _, pair in asked])
    columns = "question | difference | seeds | mean | 95 % interval | p | p (Holm) | finding"
    lines = [f"| {columns} |", "|---|---|" + "---:|" * 5 + "---|"]
    last = ""
    for (question, _), pair in zip(asked, differences, strict=True):
        d = pair.difference
        interval = "" if d.low is None else f"{d.low:+.3f} to {d.high:+.3f}"
        p = "" if d.p is None else f"{d.p:.2g} | {pair.p_holm:.2g}"
        what = f"{pair.second} less {pair.first}"
        shown = "" if question == last else question
        lines.append(f"| {shown} | {what} | {d.n} | {d.mean:+.3f} | {interval} | {p} | {pair.finding} |")
        last = question
    return "\n".join(lines) + "\n"


def budgets_table(comparisons: Mapping[int, Comparison]) -> str:
    """Return arms measured at more than one budget, with iterations and seconds (evaluations -> comparison)."""
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
    """Return tree tilt at each budget against the others at every larger one, on the seeds that both have."""
    head = ["| tilt with | against | with | times as many | tilt less other |", "|---:|---|---:|---:|---:|"]
    rows: list[str] = []
    for small, large in itertools.combinations(sorted(comparisons), 2):
        ours = of_seeds(comparisons[small], "tilt")
        theirs = {label: of_seeds(comparisons[large], label) for label in LONGER[1:]}
        rows += _against(small, ours, large, theirs)
    return "\n".join(head + rows) + "\n"


def _against(
    small: int, ours: Mapping[int, float], large: int, theirs: Mapping[str, Mapping[int, float]]
) -> Iterator[str]:
    """Yield rows: a method at one budget, others at another, on the seeds that both have."""
    for label, scores in theirs.items():
        seeds = sorted(set(ours) & set(scores))
        if seeds:
            difference = paired_difference([ours[i] for i in seeds], [scores[i] for i in seeds])
            cells = (f"{small:,}", label, f"{large:,}", f"{large / small:.3g}", _difference(difference))
            yield f"| {' | '.join(cells)} |"


def ratio_table(comparisons: Mapping[int, Comparison]) -> str:
    """Return how many times fewer evaluations tree tilt needs for what each other has at its largest budget."""
    largest = max(comparisons)
    ours = {budget: of_seeds(comparison, "tilt") for budget, comparison in comparisons.items()}
    return _needs("tree tilt", ours, largest, {label: of_seeds(comparisons[largest], label) for label in LONGER[1:]})


def flagship_tables(ours: Mapping[int, Comparison], large: int, rivals: Comparison) -> str:
    """Return the preset diffrl at small budgets against published methods at a larger one.

    Args:
        ours: comparisons that have the arm `diffrl`, by budget.
        large: evaluations that the rivals had.
        rivals: their comparison.
    """
    diffrl_scores = {budget: of_seeds(comparison, "diffrl") for budget, comparison in sorted(ours.items())}
    theirs = {arm.label: of_seeds(rivals, arm.label) for arm in rivals.arms}
    head = ["| diffrl with | against | with | times as many | diffrl less other |", "|---:|---|---:|---:|---:|"]
    rows = [row for small, scores in diffrl_scores.items() for row in _against(small, scores, large, theirs)]
    return "\n".join([_needs("diffrl", diffrl_scores, large, theirs), *head, *rows]) + "\n"


def _needs(
    whose: str, ours: Mapping[int, Mapping[int, float]], large: int, theirs: Mapping[str, Mapping[int, float]]
) -> str:
    """Return how many times fewer evaluations a method needs for what others have at one budget."""
    ours = {budget: scores for budget, scores in ours.items() if scores}
    lines = [f"| for the score of | with | {whose} needs | times fewer | 95 % interval |", "|---|---:|---:|---:|---:|"]
    for label, scores in theirs.items():
        if not scores or len(ours) < 2:
            continue
        estimate, least = budget_for(ours, scores), min(ours)
        shown = (
            "more than was measured"
            if estimate.at is None
            else f"{estimate.at:,.0f}{' or fewer' * (estimate.at == least)}"
        )
        times = [None if one is None else f"{large / one:.1f}{' or more' * (one == least)}" for one in estimate]
        interval = f"{times[2] or 'not resolved'} to {times[0]}" if estimate.at is not None else ""
        lines.append(f"| {label} | {large:,} | {shown} | {times[1] or ''} | {interval} |")
    return "\n".join(lines) + "\n"


def of_seeds(comparison: Comparison, label: str) -> dict[int, float]:
    """Return final score of an arm by seed; empty if it was not measured."""
    arm = next((arm for arm in comparison.arms if arm.label == label), None)
    return {run.number: comparison.score(arm, run) for run in arm.runs} if arm else {}


class Budgets(NamedTuple):
    """Budgets of one method that are worth another's score; None where no measured budget is.

    The smallest measured budget stands for itself and for all below it.

    Args:
        low: below it, the method's paired interval lies under the other's score.
        at: where the means are equal.
        high: above it, the interval lies over it.
    """

    low: float | None
    at: float | None
    high: float | None


def budget_for(ours: Mapping[int, Mapping[int, float]], theirs: Mapping[int, float], points: int = 400) -> Budgets:
    """Return the budget at which one method has another's score, its interval by a paired test inverted (Fieller).

    Args:
        ours: budget -> seed -> score; a seed's score in between is linear in the budget's logarithm.
        theirs: seed -> score.
        points: budgets that are tried, evenly spaced in the logarithm.
    """
    budgets = sorted(ours)
    seeds = sorted(set(theirs).intersection(*ours.values()))
    tried = np.geomspace(budgets[0], budgets[-1], points)
    curves = [np.interp(np.log(tried), np.log(budgets), [ours[b][seed] for b in budgets]) for seed in seeds]
    other = [theirs[seed] for seed in seeds]
    differences = [paired_difference([float(curve[i]) for curve in curves], other) for i in range(points)]

    def first(reached: Callable[[Estimate], bool]) -> float | None:
        """Return the budget from which on it holds; None if it does not at the largest."""
        holds = [reached(one) for one in differences]
        if all(holds):
            return budgets[0]
        return float(tried[points - holds[::-1].index(False)]) if holds[-1] else None

    def over(one: Estimate) -> bool:
        return one.low is not None and one.low > 0

    def not_under(one: Estimate) -> bool:
        return one.high is None or one.high >= 0

    return Budgets(first(not_under), first(lambda one: one.mean >= 0), first(over))


def pool_table(comparisons: Mapping[float, Comparison]) -> str:
    """Compare a pool, by the price of an exploring evaluation, with none and with a random choice."""
    columns = "price | iterations | best and worst | random | no pool | pool less none | best and worst less random"
    lines = [f"| {columns} |", "|---|" + "---:|" * 6]
    for price, comparison in comparisons.items():
        group = pool(price)
        asked = [pair for pairs in group.questions.values() for pair in pairs]
        arms = {arm.label: arm for arm in comparison.arms if arm.runs}
        if len(arms) < len(group.arms):  # begun, and not got far
            continue
        differences = pairs_of(comparison, asked)
        order = ("pool, best and worst", "pool, random", "no pool")
        cells = (
            f"{price:g}",
            str(arms[order[0]].runs[0].iterations),
            *(mean_text(comparison.mean_score(arms[label])) for label in order),
            *(_difference(pair.difference) for pair in differences),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _difference(estimate: Estimate) -> str:
    """Return a paired mean with its interval and how many pairs it is of."""
    interval = "" if estimate.low is None else f" ({estimate.low:+.3f} to {estimate.high:+.3f})"
    return f"{estimate.mean:+.3f}{interval}, {estimate.n} seeds"
