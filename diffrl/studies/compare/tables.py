"""What a comparison leaves for people: results.json, table.md and figure.png, and its tables on the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diffrl.files import write_json
from diffrl.studies.compare.results import COSTS, Arm, Comparison, Reached

COLORS = (
    "#0072B2",  # Okabe and Ito's palette, without its yellow, which is too pale for a line
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
)
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)))
"""Line styles; when the colours begin again, the next one tells their lines apart."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SCORES = ("configuration", "runs", "before", "after", "spread", "gain")
SIZES = ("iterations", "updates", "evaluations", "seconds", "peak memory")
NOTHING = "–"


def write_report(comparison: Comparison, directory: str | Path, target: float) -> None:
    """Write results.json, table.md and figure.png.

    Args:
        comparison: as `collect` read it.
        directory: to write into.
        target: score whose cost is reported.
    """
    directory = Path(directory)
    write_json(directory / "results.json", results(comparison, target))
    (directory / "table.md").write_text(markdown(comparison, target), encoding="utf-8")
    draw(comparison, directory / "figure.png", target)


def results(comparison: Comparison, target: float) -> dict[str, Any]:
    """Everything, curves included, ready for JSON."""
    return {
        "metric": comparison.metric,
        "budget": dict(comparison.budget),
        "target": target,
        "configurations": [
            {
                **arm.planned_as,
                "runs_planned": arm.planned,
                "runs": [asdict(run) for run in arm.runs],
                "summary": _summary(arm, target) if arm.runs else None,
            }
            for arm in comparison.arms
        ],
        "notes": list(comparison.notes),
    }


def _summary(arm: Arm, target: float) -> dict[str, Any]:
    return {
        "before": arm.before,
        "after": arm.after,
        "half_width": arm.half_width,
        "spread": arm.spread,
        "gain": arm.gain,
        "peak_memory_bytes": arm.peak_memory_bytes,
        **{cost: arm.cost(cost) for cost in COSTS},
        **{f"{cost}_to_target": asdict(arm.cost_to(target, cost)) for cost in COSTS},
    }


def table_rows(comparison: Comparison, target: float) -> list[dict[str, str]]:
    """One row a configuration, as text: column -> cell."""
    return [_row(arm, target) for arm in comparison.arms]


def _row(arm: Arm, target: float) -> dict[str, str]:
    runs = str(len(arm.runs)) if len(arm.runs) == arm.planned else f"{len(arm.runs)} of {arm.planned}"
    row = dict.fromkeys((*SCORES, *SIZES, *target_columns(target)), NOTHING) | {
        "configuration": arm.label,
        "runs": runs,
    }
    if not arm.runs:
        return row
    interval = "" if arm.half_width is None else f" ± {arm.half_width:.3f}"
    return row | {
        "before": f"{arm.before:.3f}",
        "after": f"{arm.after:.3f}{interval}",
        "spread": f"{arm.spread:.3f}" if len(arm.runs) > 1 else NOTHING,
        "gain": f"{arm.gain:+.3f}",
        "iterations": f"{arm.mean(lambda run: run.iterations):,.0f}",
        "updates": f"{arm.mean(lambda run: run.updates):,.0f}",
        "evaluations": f"{arm.cost('evaluations'):,.0f}",
        "seconds": f"{arm.cost('seconds'):,.1f}",
        "peak memory": f"{arm.peak_memory_bytes / 2**30:.2f} GiB",
        target_columns(target)[0]: _reached(arm.cost_to(target, "evaluations"), ",.0f"),
        target_columns(target)[1]: _reached(arm.cost_to(target, "seconds"), ",.1f"),
    }


def target_columns(target: float) -> tuple[str, str]:
    """Names of the columns that tell what a score cost."""
    return f"evaluations to {target:g}", f"seconds to {target:g}"


def _reached(reached: Reached, form: str) -> str:
    if reached.cost is not None:
        return format(reached.cost, form)
    return f"not reached ({reached.missed} of {reached.runs})"


def markdown(comparison: Comparison, target: float) -> str:
    """The table with what its columns mean below."""
    rows = table_rows(comparison, target)
    columns = list(rows[0])
    lines = [
        "| " + " | ".join(columns) + " |",
        "|---|" + "---:|" * (len(columns) - 1),
        *("| " + " | ".join(_escaped(row[column]) for column in columns) + " |" for row in rows),
    ]
    return "\n".join([*lines, "", *captions(comparison)]) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")


def captions(comparison: Comparison) -> list[str]:
    """What the numbers are, and what they leave out."""
    several = any(len(arm.runs) > 1 for arm in comparison.arms)
    seeds = " ± is the 95 % t-interval of the mean, spread is best seed less worst." if several else ""
    return [
        f"Held-out {comparison.metric}, mean over seeds.{seeds} Budget of a run: "
        f"{comparison.budget['amount']:,g} {comparison.budget['kind']}. Evaluations are those of the network in "
        "training iterations, twice those with a gradient; seconds are those of training iterations. A score counts as "
        "reached once every seed has reached it, else the seeds that have not are counted.",
        *comparison.notes,
    ]


def print_report(console: Console, comparison: Comparison, target: float, directory: Path) -> None:
    """Tables that fit a terminal: scores, what the runs cost, what the target cost."""
    rows = table_rows(comparison, target)
    for title, columns in (
        (f"Held-out {comparison.metric}", SCORES),
        ("Cost of a run", ("configuration", *SIZES)),
        ("Cost of a score", ("configuration", *target_columns(target))),
    ):
        console.print(_table(title, columns, rows))
    for note in comparison.notes:
        console.print(note, highlight=False, markup=False)
    console.print(f"\nThe comparison lies in {directory}", highlight=False, markup=False, soft_wrap=True)
    for name, what in (
        ("table.md", "these numbers, and what they mean"),
        ("figure.png", "score against cost"),
        ("results.json", "everything, every run's curve too"),
    ):
        console.print(f"  {name:<13} {what}", highlight=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        left = column == "configuration"
        table.add_column(column, justify="left" if left else "right", overflow="fold", min_width=14 if left else None)
    for row in rows:
        table.add_row(*(Text(row[column]) for column in columns))
    return table


def draw(comparison: Comparison, destination: Path, target: float | None = None) -> None:
    """Draw the score against both costs: the mean over seeds, with a band from the worst seed to the best; PNG.

    Args:
        comparison: as `collect` read it.
        destination: PNG file.
        target: drawn as a dotted line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    legend_rows = -(-len(comparison.arms) // _legend_columns(comparison))
    figure = Figure(figsize=(10.0, 3.9 + 0.22 * legend_rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, cost in zip(panels, COSTS, strict=True):
        lines = [_draw_arm(axes, arm, cost, index) for index, arm in enumerate(comparison.arms) if arm.runs]
        if target is not None:
            axes.axhline(target, color="#7b8794", linewidth=0.9, linestyle=":", zorder=1)
        _dress(axes)
    panels[0].set_xlabel("network evaluations in training")
    panels[1].set_xlabel("seconds of training")
    panels[0].set_ylabel(f"held-out {comparison.metric}".replace("$", r"\$"))
    labels = [arm.label.replace("$", r"\$") for arm in comparison.arms if arm.runs]  # two $ would be a formula
    if labels:
        columns = _legend_columns(comparison)
        figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.savefig(destination)


def _draw_arm(axes: Any, arm: Arm, cost: str, index: int) -> Any:
    costs, mean, low, high = arm.band(cost)
    color = COLORS[index % len(COLORS)]
    if len(arm.runs) > 1:
        axes.fill_between(costs, low, high, color=color, alpha=0.13, linewidth=0, zorder=2)
    (line,) = axes.plot(
        costs,
        mean,
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


def _dress(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.22)
    axes.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    """250000 as 250k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _legend_columns(comparison: Comparison) -> int:
    """As many as fit below the panels beside each other."""
    longest = max((len(arm.label) for arm in comparison.arms), default=1)
    return max(1, min(4, len(comparison.arms), 130 // (longest + 7)))
