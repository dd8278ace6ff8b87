"""What `diffrl fidelity` leaves for people: two tables, fidelity.json, fidelity.md and fidelity.png."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from diffrl.display import COLORS, GREY, NOTHING, console_table, dress, make_figure, markdown_table, plus_minus
from diffrl.files import write_json
from diffrl.studies.fidelity.study import DIFFERENCES, RANKING, Fidelity, Mean, Pool

LEADING_ZERO = re.compile(r"(?<!\d)0\.")


def write_fidelity(fidelity: Fidelity, out: Path) -> list[Path]:
    """Write the three files; returns where they lie."""
    paths = [out / f"fidelity.{ending}" for ending in ("json", "md", "png")]
    write_json(paths[0], asdict(fidelity))
    paths[1].write_text(markdown(fidelity), encoding="utf-8")
    draw_fidelity(fidelity, paths[2])
    return paths


def grids(fidelity: Fidelity) -> dict[str, list[dict[str, str]]]:
    """Return by title the rows that say how well each variant ranks, and what it cost."""
    k = fidelity.settings["k"]
    names = dict(zip(RANKING, ("tau", "rho", f"top-{k}", f"bottom-{k}", "mean rank"), strict=True))
    ranks = [
        {"precision": p.label, "steps": str(p.steps)} | {title: _shown(p.means[name]) for name, title in names.items()}
        for p in fidelity.variants
    ]
    spent = [_cost(pool) for pool in (fidelity.truth, *fidelity.variants)]
    return {"Ranking of the candidates": ranks, "What it differs in and costs": spent}


def notes(fidelity: Fidelity) -> list[str]:
    """Return how to read the tables."""
    s, truth = fidelity.settings, fidelity.truth
    prompts, left_out = len(s["prompts"]), len(fidelity.without_spread)
    lines = [
        f"{prompts} prompts of {s['source']} x {s['candidates']} candidates, seed {s['seed']}. The truth is "
        f"{truth.compute_dtype} with all {truth.steps} steps. Means over prompts ± their standard error.",
        f"By chance: tau and rho 0, top match {_shown(fidelity.chance['top_match'])}, bottom match "
        f"{_shown(fidelity.chance['bottom_match'])} (ties with the k-th count as matches), mean rank 0.5. "
        f"The truth itself has mean rank {_shown(fidelity.perfect_mean_rank)}.",
        "Δ: mean absolute difference from the truth, of the reward and of images in [0, 1].",
    ]
    lines += s.get("weights", [])
    if left_out:
        lines.append(f"{left_out} of {prompts} prompts have equal true rewards and so no ranking; they are left out.")
    for pool in fidelity.variants:
        missing = prompts - left_out - pool.means["tau"].prompts
        if missing:
            lines.append(
                f"{pool.label}, {pool.steps} steps: no tau for {missing} prompts, whose own rewards are equal."
            )
        if pool.failed:
            lines.append(f"{pool.label}, {pool.steps} steps: {pool.failed} candidates could not be scored.")
    return lines


def tables(fidelity: Fidelity) -> list[Table]:
    """Make the tables, as the console shows them."""
    return [
        console_table(
            title,
            [{key: LEADING_ZERO.sub(".", cell).replace(" ± ", "±") for key, cell in row.items()} for row in rows],
            box=SIMPLE_HEAD,
            padding=0,
        )
        for title, rows in grids(fidelity).items()
    ]


def markdown(fidelity: Fidelity) -> str:
    """Write both tables and how to read them."""
    settings = fidelity.settings
    model = settings["config"]["model"]["path"] if settings["run"] is None else settings["run"]
    blocks = [f"# Fidelity of cheap pools: {model}", *notes(fidelity), "![tau and top match](fidelity.png)"]
    for title, rows in grids(fidelity).items():
        blocks += [f"## {title}", markdown_table(rows)]
    versions: Mapping[str, str] = fidelity.environment["versions"]
    blocks.append(
        f"On {fidelity.environment['gpu'] or fidelity.environment['device']}, with "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. All numbers: fidelity.json."
    )
    return "\n\n".join(blocks) + "\n"


def draw_fidelity(fidelity: Fidelity, destination: Path) -> None:
    """Draw tau and top match against steps, one line a precision; PNG."""
    s, figure = fidelity.settings, make_figure(9.0, 4.2)
    steps = sorted({pool.steps for pool in fidelity.variants})
    labels = list(dict.fromkeys(pool.label for pool in fidelity.variants))
    panels = (("tau", "Kendall's tau", 0.0), ("top_match", f"top-{s['k']} match", fidelity.chance["top_match"].mean))
    for axes, (name, title, chance) in zip(figure.subplots(1, 2), panels, strict=True):
        for number, label in enumerate(labels):
            points = sorted((p.steps, p.means[name]) for p in fidelity.variants if p.label == label)
            shown = [(x + _aside(number, len(labels)), m) for x, m in points if m.mean is not None]
            axes.errorbar(
                [x for x, _ in shown],
                [m.mean for _, m in shown],
                [m.standard_error or 0.0 for _, m in shown],
                fmt="o-",
                color=COLORS[number % len(COLORS)],
                markersize=5,
                linewidth=1.6,
                elinewidth=1.0,
                capsize=2.5,
                label=label,
            )
        if chance is not None:
            axes.axhline(chance, color=GREY, linestyle=":", linewidth=1.2, label="chance")
        axes.set_title(title, fontsize=11)
        axes.set_xlabel(f"denoising steps (all: {fidelity.truth.steps})")
        axes.set_xticks(steps)
        axes.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
        axes.set_ylim(top=1.03)
        dress(axes)
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False, fontsize=9)
    figure.suptitle(
        f"Ranking against {fidelity.truth.compute_dtype} with all steps: {len(s['prompts'])} prompts x "
        f"{s['candidates']} candidates, ± standard error",
        fontsize=11,
    )
    figure.savefig(destination)


def _aside(number: int, count: int) -> float:
    """Return a little to the side, so that error bars do not hide each other."""
    return 0.05 * (number - (count - 1) / 2)


def _shown(mean: Mean) -> str:
    return plus_minus(mean.mean, mean.standard_error)


def _cost(pool: Pool) -> dict[str, str]:
    reward, pixels = (pool.means[name].mean if pool.means else None for name in DIFFERENCES)
    return {
        "precision": pool.label if pool.means else "the truth",
        "steps": str(pool.steps),
        "runs in": pool.compute_dtype,
        "quantised": f"{pool.weights_quantised:.0%}",
        "reward Δ": NOTHING if reward is None else f"{reward:.4f}",
        "pixel Δ": NOTHING if pixels is None else f"{pixels:.4f}",
        "evaluations": f"{pool.network_evaluations:,}",
        "seconds": f"{sum(pool.seconds.values()):.2f}",
    }
