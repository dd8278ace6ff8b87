"""The figure that README begins with: methods that were tuned alike, score by evaluations of training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.display import COLORS, GREY, make_figure
from diffrl.studies.compare.figures import MARKERS
from diffrl.studies.compare.results import Comparison

DRAWN = {
    "diffrl": "diffrl",
    "nft": "DiffusionNFT",
    "awm": "AWM",
    "flow_grpo": "Flow-GRPO",
    "branch_grpo": "BranchGRPO",
    "art": "DiffusionART",
}
"""Arms, and what readers of README call them."""


def draw_budgets(
    worlds: Mapping[str, Mapping[int, Comparison]], guided: Mapping[str, float], destination: Path
) -> None:
    """Plot mean scores with 95 % intervals over seeds, at every budget that an arm was trained with; PNG."""
    figure = make_figure(10.0, 4.3)
    lines: dict[str, Any] = {}
    for axes, (title, budgets) in zip(figure.subplots(1, len(worlds), squeeze=False)[0], worlds.items(), strict=True):
        for index, (label, name) in enumerate(DRAWN.items()):
            points = [
                (budget * 1.02 ** (index - 2), comparison.mean_score(arm))  # side by side, or intervals hide each other
                for budget, comparison in sorted(budgets.items())
                for arm in comparison.arms
                if arm.label == label and arm.runs
            ]
            if points:
                lines[name] = axes.errorbar(
                    [budget for budget, _ in points],
                    [one.mean for _, one in points],
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
