"""The figure that README begins with: the preset diffrl against published methods, score by evaluations of training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.display import COLORS, GREY, make_figure
from diffrl.statistics import mean_estimate
from diffrl.studies.compare.figures import MARKERS
from diffrl.studies.compare.results import Comparison
from measuring.tables import of_seeds

DRAWN = {
    "diffrl": "diffrl",
    "chains, nft": "DiffusionNFT",
    "chains, awm": "AWM",
    "chains, grpo": "Flow-GRPO",
    "tilt": "diffrl without its guided reference",
    "guidance distilled": "guidance distilled, no reward",
    "chains, art": "DiffusionART",
}
"""Arms, and what readers of README call them."""


def draw_flagship(
    worlds: Mapping[str, Mapping[int, list[Comparison]]], guided: Mapping[str, float], destination: Path
) -> None:
    """Plot mean scores with 95 % intervals over seeds, at every budget that an arm was trained with; PNG.

    Args:
        worlds: title of a panel -> budget -> comparisons at it; of two that hold an arm, the one with more seeds is
            drawn.
        guided: title -> score of the model before alignment with guidance, drawn as a dotted line.
        destination: PNG file.
    """
    figure = make_figure(10.0, 4.3)
    lines: dict[str, Any] = {}
    for axes, (title, budgets) in zip(figure.subplots(1, len(worlds), squeeze=False)[0], worlds.items(), strict=True):
        for index, (label, name) in enumerate(DRAWN.items()):
            points = []
            for budget, comparisons in sorted(budgets.items()):
                scores = max((of_seeds(one, label) for one in comparisons), key=len)
                if len(scores) > 1:
                    points.append((budget, mean_estimate(list(scores.values()))))
            if points:
                means = [one.mean for _, one in points]
                lines[name] = axes.errorbar(
                    [budget for budget, _ in points],
                    means,
                    yerr=[one.half_width for _, one in points],
                    color=COLORS[index],
                    marker=MARKERS[index],
                    linewidth=2.4 if label == "diffrl" else 1.4,
                    capsize=3,
                    zorder=3 if label == "diffrl" else 2,
                )
        axes.axhline(guided[title], color=GREY, linewidth=1, linestyle=":")
        axes.annotate(
            "before\nalignment,\nguidance 3",
            (1, guided[title]),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=GREY,
        )
        axes.set_xscale("log")
        axes.set_xticks(sorted(budgets), [f"{budget:,}" for budget in sorted(budgets)])
        axes.minorticks_off()
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("cost of training in network evaluations")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("share of held-out samples that are right")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(destination)
