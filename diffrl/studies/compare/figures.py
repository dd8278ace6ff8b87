"""The figures of a comparison: score against cost, paired differences, and what so many seeds can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffrl.display import COLORS, GREY, dress, make_figure
from diffrl.statistics import ALPHA, POWER, detectable, sd_interval
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.stored import COSTS

DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)))
"""Line styles; when the colours begin again, the next one tells their lines apart."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(comparison: Comparison, destination: Path, target: float | None = None) -> None:
    """Draw the score against both costs: the mean over seeds with its 95 % interval, each seed as a thin line; PNG.

    Of more arms than there are colours the means alone are drawn: their intervals are in the table.
    """
    columns = _legend_columns(comparison)
    figure = make_figure(10.0, 3.9 + 0.22 * -(-len(comparison.arms) // columns))
    panels = figure.subplots(1, 2, sharey=True)
    few = len(comparison.arms) <= len(COLORS)
    for axes, cost in zip(panels, COSTS, strict=True):
        lines = [_draw_arm(axes, arm, cost, i, few) for i, arm in enumerate(comparison.arms) if arm.runs]
        if target is not None:
            axes.axhline(target, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
        axes.xaxis.set_major_formatter(_short)
        axes.set_xlim(left=0)
        dress(axes)
    _keep_to_what_is_drawn(panels[0], comparison, target, few)
    panels[0].set_xlabel(_plain(f"network evaluations in training, prices: {comparison.prices.name}"))
    panels[1].set_xlabel("seconds of training")
    panels[0].set_ylabel(_plain(f"held-out {comparison.metric}"))
    labels = [_plain(arm.label) for arm in comparison.arms if arm.runs]
    if labels:
        figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.savefig(destination)


def _draw_arm(axes: Any, arm: Arm, cost: str, index: int, banded: bool) -> Any:
    """Draw an arm: its mean, and if wanted the band of its seeds and the seeds."""
    costs, scores = arm.band(cost)
    color = COLORS[index % len(COLORS)]
    if banded and len(arm.runs) > 1:
        low, high = [one.low for one in scores], [one.high for one in scores]
        axes.fill_between(costs, low, high, color=color, alpha=0.13, linewidth=0, zorder=2)
        for run in arm.runs:
            spent = [getattr(point, cost) for point in run.curve]
            axes.plot(spent, [point.score for point in run.curve], color=color, linewidth=0.5, alpha=0.4, zorder=2)
    (line,) = axes.plot(
        costs,
        [one.mean for one in scores],
        color=color,
        linestyle=DASHES[index // len(COLORS) % len(DASHES)],
        linewidth=1.8,
        marker=MARKERS[(index + index // len(COLORS)) % len(MARKERS)],
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.4,
        clip_on=False,
        zorder=3,
    )
    return line


def _keep_to_what_is_drawn(axes: Any, comparison: Comparison, target: float | None, seeds: bool) -> None:
    """Set heights by the seeds' scores, or the means alone: intervals of two or three seeds would flatten all."""
    arms = [arm for arm in comparison.arms if arm.runs]
    if seeds:
        scores = [point.score for arm in arms for run in arm.runs for point in run.curve]
    else:
        scores = [one.mean for arm in arms for one in arm.band(COSTS[0])[1]]
    if scores:
        low, high = min(*scores, target or scores[0]), max(*scores, target or scores[0])
        margin = 0.06 * (high - low) or 0.05
        axes.set_ylim(low - margin, high + margin)


def draw_differences(comparison: Comparison, destination: Path) -> None:
    """Draw each pair's difference with its 95 % interval, and in grey what so many seeds do not resolve; PNG.

    Args:
        comparison: as `collect` read it.
        destination: PNG file; one that is there is removed where there are no pairs.
    """
    pairs = pairs_of(comparison)
    if not pairs:
        destination.unlink(missing_ok=True)
        return
    figure = make_figure(8.0, 1.3 + 0.32 * len(pairs))
    axes = figure.subplots()
    for row, pair in enumerate(pairs):
        difference, unseen = pair.difference, pair.unseen
        color = COLORS[0] if pair.p_holm is not None and pair.p_holm < ALPHA else GREY
        if unseen is not None:
            axes.barh(row, 2 * unseen, left=-unseen, height=0.72, color=GREY, alpha=0.16, linewidth=0, zorder=1)
        half = difference.half_width
        axes.errorbar(difference.mean, row, xerr=half, fmt="o", color=color, capsize=3, markersize=4.5, zorder=3)
    axes.axvline(0, color="#000000", linewidth=0.8, zorder=2)
    axes.set_yticks(range(len(pairs)), [_plain(f"{pair.second} less {pair.first}") for pair in pairs], fontsize=8)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    where = comparison.final or "held-out"
    axes.set_xlabel(_plain(f"difference of {comparison.metric}, {where}, 95 % interval; grey: not resolved"))
    dress(axes)
    figure.savefig(destination)


def draw_power(sd: float, seeds: int, destination: Path, metric: str, most: int = 40) -> None:
    """Draw the least difference that n seeds resolve, for the measured sd and both ends of its 95 % interval; PNG."""
    numbers = range(2, max(most, seeds) + 1)
    figure = make_figure(6.4, 3.9)
    axes = figure.subplots()
    ends = sd_interval(sd, seeds)
    low, middle, high = ([detectable(n, value) for n in numbers] for value in (ends[0], sd, ends[1]))
    axes.fill_between(numbers, low, high, color=COLORS[0], alpha=0.13, linewidth=0, label="95 % interval of the sd")
    axes.plot(numbers, middle, color=COLORS[0], linewidth=1.8, label=f"sd {sd:.3f}, of {seeds} seeds")
    axes.plot(seeds, detectable(seeds, sd), "o", color=COLORS[0])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_short)
    axes.set_xlabel("seeds of each configuration")
    axes.set_ylabel(_plain(f"difference of {metric}"))
    axes.set_title(f"resolved with power {POWER:g} at level {ALPHA:g}", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    dress(axes)
    figure.savefig(destination)


def _plain(text: str) -> str:
    """Return without formulas, which two $ would begin and end."""
    return text.replace("$", r"\$")


def _short(value: float, _: object = None) -> str:
    """Write 250000 as 250k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _legend_columns(comparison: Comparison) -> int:
    """Return as many as fit below the panels beside each other."""
    longest = max((len(arm.label) for arm in comparison.arms), default=1)
    return max(1, min(4, len(comparison.arms), 130 // (longest + 7)))
