"""The figure that README begins with: the preset diffrl against published methods, score by evaluations of training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.statistics import mean_estimate
from diffrl.studies.compare.figures import COLORS, GREY, MARKERS
from diffrl.studies.compare.results import Comparison
from measuring.tables import of_seeds

DRAWN = ("diffrl", "chains, nft", "chains, awm", "chains, grpo")
NAMES = {"diffrl": "diffrl", "chains, nft": "DiffusionNFT", "chains, awm": "AWM", "chains, grpo": "Flow-GRPO"}


def draw_flagship(
    worlds: Mapping[str, Mapping[int, list[Comparison]]], guided: Mapping[str, float], destination: Path
) -> None:
    """Mean score with its 95 % interval over seeds, at every budget that an arm was trained with; PNG.

    Args:
        worlds: title of a panel -> budget -> comparisons at it; of two that hold an arm, the one with more seeds is
            drawn.
        guided: title -> score of the model before alignment with guidance, drawn as a dotted line.
        destination: PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.1), dpi=120, layout="constrained")
    lines: dict[str, Any] = {}
    for axes, (title, budgets) in zip(figure.subplots(1, len(worlds), squeeze=False)[0], worlds.items(), strict=True):
        for index, label in enumerate(DRAWN):
            points = []
            for budget, comparisons in sorted(budgets.items()):
                scores = max((of_seeds(one, label) for one in comparisons), key=len)
                if len(scores) > 1:
                    points.append((budget, mean_estimate(list(scores.values()))))
            if points:
                means = [one.mean for _, one in points]
                lines[NAMES[label]] = axes.errorbar(
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
        axes.annotate("before alignment, guidance 3", (1, guided[title]), xycoords=("axes fraction", "data"),
                      xytext=(-4, 3), textcoords="offset points", ha="right", fontsize=8, color=GREY)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sorted(budgets), [f"{budget:,}" for budget in sorted(budgets)])
        axes.minorticks_off()
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("network evaluations of training, a trained one counted three times")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("share of held-out samples that are right")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)
    figure.savefig(destination)
