"""Comparisons as tables of docs/results.md."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diffrl.display import markdown_table
from diffrl.statistics import Estimate, paired_difference
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.tables import mean_text, pair_rows
from measuring.groups import PRESETS, Group, pool
from measuring.spaces import SPACES, best


def scores(comparison: Comparison) -> str:
    """Return each arm's final numbers, best first: the metric, the other held-out rewards, and what a run cost."""
    ranked = sorted((arm for arm in comparison.arms if arm.runs), key=lambda arm: -comparison.mean_score(arm).mean)
    others = sorted({name for arm in comparison.arms for run in arm.runs for name in run.others})
    rows = [
        {
            "arm": arm.label,
            "seeds": str(len(arm.runs)),
            comparison.metric: mean_text(comparison.mean_score(arm)),
            **{name: _mean_of(arm, name) for name in others},
            "iterations": str(arm.runs[0].iterations),
            "evaluations": f"{arm.cost('evaluations'):,.0f}",
            "seconds": f"{_seconds(arm):.0f}",
        }
        for arm in ranked
    ]
    return f"{markdown_table(rows)}\n"


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
    pairs = pairs_of(comparison, [pair for _, pair in asked])
    rows, last = [], ""
    for (question, _), cells in zip(asked, pair_rows(pairs), strict=True):
        rows.append({"question": "" if question == last else question} | cells)
        last = question
    return f"{markdown_table(rows, left=2)}\n"


OVERVIEW = {
    "shapes": ("tuned-plain-shapes",),
    "words": ("tuned-plain-words",),
    "shapes, with guidance": ("tuned-guided-shapes",),
    "shapes, rates tuned alone": ("shapes", "chain-shapes"),
    "words, rates tuned alone": ("words",),
}
"""Columns of the overview, and the groups that its numbers are from: the first that has a preset."""


def overview(comparisons: Mapping[str, Comparison], guided: Mapping[str, float]) -> str:
    """Return every preset's score after 20,000 evaluations in each regime, best in its first column first."""
    columns: dict[str, dict[str, tuple[float, str]]] = {}
    for column, names in OVERVIEW.items():
        cells = columns.setdefault(column, {})
        for comparison in (comparisons[name] for name in names if name in comparisons):
            for arm in comparison.arms:
                preset = PRESETS.get(arm.label)
                if preset is not None and arm.runs and preset not in cells:
                    score = comparison.mean_score(arm)
                    cells[preset] = score.mean, f"{mean_text(score)}, {len(arm.runs)} seeds"
        if column in guided:
            cells["the base with guidance 3, not trained"] = guided[column], f"{guided[column]:.3f}"
    presets = dict.fromkeys(preset for cells in columns.values() for preset in cells)
    ranks = {preset: [-cells.get(preset, (-1.0, ""))[0] for cells in columns.values()] for preset in presets}
    rows = [
        {"preset": preset} | {column: cells.get(preset, (0.0, ""))[1] for column, cells in columns.items()}
        for preset in sorted(presets, key=ranks.__getitem__)
    ]
    return f"{markdown_table(rows)}\n"


def searched(trials: Sequence[Mapping[str, Any]]) -> str:
    """Return what each method's search began with, found and chose, by scores on `tune`; best first."""
    rows = []
    for method, space in SPACES.items():
        mine = [trial for trial in trials if trial["method"] == method]
        if not mine:
            continue
        choices, mean, seeds = best(method, mine)
        alone = [trial["score"] or 0.0 for trial in mine if trial["seed"] == mine[0]["seed"]]
        knobs = {knob: space.knobs[knob] for knob in choices}  # of this search: a space may have more by now
        turned = ", ".join(knob for knob in knobs if choices[knob] != space.start[knob])
        cells = {
            "method": method,
            "knobs": str(len(knobs)),
            "settings": f"{math.prod(map(len, knobs.values())):,}",
            "trials": str(len(alone)),
            "the first": f"{alone[0]:.3f}",
            "best of one seed": f"{max(alone):.3f}",
            f"chosen, {seeds} seeds": f"{mean:.3f}",
            "turned": turned or "nothing",
        }
        rows.append((mean, cells))
    return f"{markdown_table([cells for _, cells in sorted(rows, key=lambda row: -row[0])])}\n"


def budgets_table(comparisons: Mapping[int, Comparison]) -> str:
    """Return arms that were measured at several budgets, with iterations and seconds (evaluations -> comparison)."""
    budgets = sorted(comparisons)
    arms = {budget: {arm.label: arm for arm in comparisons[budget].arms if arm.runs} for budget in budgets}
    rows = [
        {"arm": label} | {f"{b:,}": _at_a_budget(comparisons[b], arms[b].get(label)) for b in budgets}
        for label in arms[budgets[0]]
        if sum(label in known for known in arms.values()) > 1
    ]
    return f"{markdown_table(rows)}\n" if rows else ""


def _at_a_budget(comparison: Comparison, arm: Arm | None) -> str:
    if arm is None:
        return ""
    score = mean_text(comparison.mean_score(arm))
    return f"{score} ({arm.runs[0].iterations} iterations, {_seconds(arm):.0f} s)"


def _against(
    small: int, ours: Mapping[int, float], large: int, theirs: Mapping[str, Mapping[int, float]]
) -> Iterator[dict[str, str]]:
    """Yield rows: diffrl at one budget, others at another, on the seeds that both have."""
    for label, scores in theirs.items():
        seeds = sorted(set(ours) & set(scores))
        if seeds:
            difference = paired_difference([ours[i] for i in seeds], [scores[i] for i in seeds])
            yield {
                "diffrl with": f"{small:,}",
                "against": label,
                "with": f"{large:,}",
                "times as many": f"{large / small:.3g}",
                "diffrl less other": _difference(difference),
            }


def fewer_tables(comparisons: Mapping[int, Comparison]) -> str:
    """Return the preset diffrl at each budget against every other arm at larger ones (evaluations -> comparison)."""
    needs: list[dict[str, str]] = []
    pairs: list[dict[str, str]] = []
    for large in sorted(comparisons)[1:]:
        ours = {budget: of_seeds(comparisons[budget], "diffrl") for budget in sorted(comparisons) if budget <= large}
        theirs = {arm.label: of_seeds(comparisons[large], arm.label) for arm in comparisons[large].arms}
        theirs.pop("diffrl", None)
        needs += _needs(ours, large, theirs)
        pairs += [row for small, one in ours.items() if small < large for row in _against(small, one, large, theirs)]
    return "\n".join(f"{markdown_table(rows)}\n" if rows else "" for rows in (needs, pairs))


def _needs(
    ours: Mapping[int, Mapping[int, float]], large: int, theirs: Mapping[str, Mapping[int, float]]
) -> list[dict[str, str]]:
    """Return how many times fewer evaluations diffrl needs for what others have at one budget."""
    ours = {budget: scores for budget, scores in ours.items() if scores}
    rows = []
    for label, scores in theirs.items():
        if not scores or len(ours) < 2:
            continue
        needed, least = budget_for(ours, scores), min(ours)
        times = [None if one is None else f"{large / one:.1f}{' or more' * (one == least)}" for one in needed]
        row = {"for the score of": label, "with": f"{large:,}", "diffrl needs": "more than was measured"}
        row |= {"times fewer": times[1] or "", "95 % interval": ""}
        if needed.at is not None:
            row["diffrl needs"] = f"{needed.at:,.0f}{' or fewer' * (needed.at == least)}"
            row["95 % interval"] = f"{times[2] or 'not resolved'} to {times[0]}"
        rows.append(row)
    return rows


def of_seeds(comparison: Comparison, label: str) -> dict[int, float]:
    """Return final score of an arm by seed; empty if it was not measured."""
    arm = next((arm for arm in comparison.arms if arm.label == label), None)
    return {run.number: comparison.score(arm, run) for run in arm.runs} if arm else {}


class Budgets(NamedTuple):
    """Budgets of one method that are worth another's score; None where no measured budget is.

    The smallest measured budget stands for itself and for all below it.
    """

    low: float | None  # below it, the method's paired interval lies under the other's score
    at: float | None  # where the means are equal
    high: float | None  # above it, the interval lies over it


def budget_for(ours: Mapping[int, Mapping[int, float]], theirs: Mapping[int, float], points: int = 400) -> Budgets:
    """Return the budget at which one method has another's score, with its interval (Fieller).

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
    """Return what a pool gains by the price of an exploring evaluation: against none, and against a random choice."""
    order, rows = {"best and worst": "pool, best and worst", "random": "pool, random", "no pool": "no pool"}, []
    for price, comparison in comparisons.items():
        group = pool(price)
        arms = {arm.label: arm for arm in comparison.arms if arm.runs}
        if len(arms) < len(group.arms):  # begun, and not got far
            continue
        pairs = pairs_of(comparison, [pair for asked in group.questions.values() for pair in asked])
        against = ("pool less none", "best and worst less random")
        rows.append(
            {"price": f"{price:g}", "iterations": str(arms[order["random"]].runs[0].iterations)}
            | {title: mean_text(comparison.mean_score(arms[label])) for title, label in order.items()}
            | {title: _difference(pair.difference) for title, pair in zip(against, pairs, strict=True)}
        )
    return f"{markdown_table(rows)}\n" if rows else ""


def _difference(estimate: Estimate) -> str:
    """Return a paired mean with its interval and how many pairs it is of."""
    interval = "" if estimate.low is None else f" ({estimate.low:+.3f} to {estimate.high:+.3f})"
    return f"{estimate.mean:+.3f}{interval}, {estimate.n} seeds"
