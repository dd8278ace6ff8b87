"""What a comparison leaves for people: results.json, table.md and two figures, and its tables on the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from diffrl.display import NOTHING, console_table, markdown_table, plus_minus
from diffrl.files import write_json
from diffrl.statistics import Estimate
from diffrl.studies.compare.curves import Reached
from diffrl.studies.compare.figures import draw, draw_differences
from diffrl.studies.compare.pairs import Pair, pairs_of, power_line
from diffrl.studies.compare.reported import ALIGNED, BASE
from diffrl.studies.compare.results import Arm, Comparison
from diffrl.studies.compare.stored import COSTS

SCORES = ("configuration", "runs", "before", "after", "spread", "gain", "report")
SIZES = ("iterations", "updates", "evaluations", "seconds", "peak memory")
PAIR = ("pair", "seeds", "difference", "95 % interval", "p", "p (Holm)", "finding")
NARROW = ("pair", "difference", "95 % interval", "p (Holm)", "finding")
"""As many of these columns as fit a terminal."""


def write_report(comparison: Comparison, directory: str | Path, target: float) -> None:
    """Write results.json, table.md, figure.png and differences.png; without pairs there is no differences.png."""
    directory = Path(directory)
    write_json(directory / "results.json", results(comparison, target))
    (directory / "table.md").write_text(markdown(comparison, target), encoding="utf-8")
    draw(comparison, directory / "figure.png", target)
    draw_differences(comparison, directory / "differences.png")


def results(comparison: Comparison, target: float) -> dict[str, Any]:
    """Return everything, curves included, ready for JSON."""
    return {
        "metric": comparison.metric,
        "budget": asdict(comparison.budget),
        "prices": asdict(comparison.prices),
        "target": target,
        "final": comparison.final,
        "configurations": [
            {
                **arm.plan.model_dump(exclude_unset=True),
                "runs_planned": arm.planned,
                "runs": [
                    asdict(run)
                    | {
                        "reported": [
                            {"weights": w, "guidance_scale": g, "score": score}
                            for (w, g), score in run.reported.items()
                        ]
                    }
                    for run in arm.runs
                ],
                "summary": _summary(arm, target) if arm.runs else None,
            }
            for arm in comparison.arms
        ],
        "pairs": [asdict(pair) | {"unseen": pair.unseen, "finding": pair.finding} for pair in pairs_of(comparison)],
        "power": power_line(comparison),
        "notes": list(comparison.notes),
    }


def _summary(arm: Arm, target: float) -> dict[str, Any]:
    return {
        "before": arm.before,
        "after": arm.after.mean,
        "half_width": arm.after.half_width,
        "spread": arm.spread,
        "gain": arm.gain,
        "peak_memory_bytes": arm.peak_memory_bytes,
        **{cost: arm.cost(cost) for cost in COSTS},
        **{f"{cost}_to_target": asdict(arm.cost_to(target, cost)) for cost in COSTS},
    }


def table_rows(comparison: Comparison, target: float) -> list[dict[str, str]]:
    """Return one row a configuration, as text: column -> cell."""
    return [_row(arm, target) for arm in comparison.arms]


def _row(arm: Arm, target: float) -> dict[str, str]:
    runs = str(len(arm.runs)) if len(arm.runs) == arm.planned else f"{len(arm.runs)} of {arm.planned}"
    row = dict.fromkeys((*SCORES, *SIZES, *target_columns(target)), NOTHING) | {
        "configuration": arm.label,
        "runs": runs,
    }
    if not arm.runs:
        return row
    return row | {
        "before": f"{arm.before:.3f}",
        "after": mean_text(arm.after),
        "spread": f"{arm.spread:.3f}" if len(arm.runs) > 1 else NOTHING,
        "gain": f"{arm.gain:+.3f}",
        "report": mean_text(arm.on_report(ALIGNED, arm.guidance_scale)),
        "iterations": f"{arm.mean(lambda run: run.iterations):,.0f}",
        "updates": f"{arm.mean(lambda run: run.updates):,.0f}",
        "evaluations": f"{arm.cost('evaluations'):,.0f}",
        "seconds": f"{arm.cost('seconds'):,.1f}",
        "peak memory": f"{arm.peak_memory_bytes / 2**30:.2f} GiB",
        target_columns(target)[0]: cost_text(arm.cost_to(target, "evaluations"), ",.0f"),
        target_columns(target)[1]: cost_text(arm.cost_to(target, "seconds"), ",.1f"),
    }


def mean_text(estimate: Estimate | None) -> str:
    """Write 0.812 ± 0.021: a mean and half of its 95 % interval; one value alone without."""
    return NOTHING if estimate is None else plus_minus(estimate.mean, estimate.half_width)


def target_columns(target: float) -> tuple[str, str]:
    """Return names of the columns that tell what a score cost."""
    return f"evaluations to {target:g}", f"seconds to {target:g}"


def cost_text(reached: Reached, form: str) -> str:
    """Write 2,000 (1,200 to 2,900); an end beyond the budget is "more"."""
    if reached.cost is None:
        return f"reached by {reached.reached} of {reached.runs}"
    if reached.low is None:
        return format(reached.cost, form)
    high = "more" if reached.high is None else format(reached.high, form)
    return f"{reached.cost:{form}} ({reached.low:{form}} to {high})"


def pair_rows(pairs: Sequence[Pair]) -> list[dict[str, str]]:
    """Return one row a pair, as text: column -> cell."""
    rows = []
    for pair in pairs:
        d = pair.difference
        known = d.low is not None and d.high is not None and d.p is not None and pair.p_holm is not None
        tested = (f"{d.low:+.3f} to {d.high:+.3f}", f"{d.p:.2g}", f"{pair.p_holm:.2g}") if known else (NOTHING,) * 3
        cells = (f"{pair.second} less {pair.first}", str(d.n), f"{d.mean:+.3f}", *tested, pair.finding)
        rows.append(dict(zip(PAIR, cells, strict=True)))
    return rows


def guidance_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Return one row a configuration on the report split: base and aligned, at every guidance that was measured.

    The model before alignment is the same for every seed and is measured once.
    """
    keys = sorted({key for arm in comparison.arms for run in arm.runs for key in run.reported}, key=_order)
    if not keys:
        return []
    rows = []
    for arm in comparison.arms:
        cells = {guidance_column(*key): mean_text(arm.on_report(*key)) for key in keys}
        rows.append({"configuration": arm.label} | cells)
    return rows


def _order(key: tuple[str, float]) -> tuple[bool, float]:
    return key[0] != BASE, key[1]


def guidance_column(weights: str, guidance_scale: float) -> str:
    """Return the name of a column: "aligned", or "aligned + CFG 3"."""
    return weights if guidance_scale == 1 else f"{weights} + CFG {guidance_scale:g}"


def markdown(comparison: Comparison, target: float) -> str:
    """Return the tables with what their columns mean below."""
    sections = [markdown_table(table_rows(comparison, target))]
    if pairs := pairs_of(comparison):
        sections.append(f"Paired differences of held-out {comparison.metric}:\n\n{markdown_table(pair_rows(pairs))}")
    if rows := guidance_rows(comparison):
        source = next((arm.report for arm in comparison.arms if arm.report), "")
        sections.append(f"Held-out {comparison.metric} on {source}:\n\n{markdown_table(rows)}")
    return "\n\n".join([*sections, "\n".join(captions(comparison))]) + "\n"


def captions(comparison: Comparison) -> list[str]:
    """Return what the numbers are, and what they leave out; the line on power stands by itself."""
    several = any(len(arm.runs) > 1 for arm in comparison.arms)
    seeds = " ± is the 95 % t-interval of the mean over seeds, spread is best seed less worst." if several else ""
    return [
        f"Held-out {comparison.metric}, mean over seeds.{seeds} Budget of a run: "
        f"{comparison.budget.amount:,g} {comparison.budget.kind}. Evaluations are those of the network in "
        "training iterations, at their prices; seconds are those of training iterations. The cost of a "
        "score is where the mean of the seeds' monotone curves (isotonic regression) is at it, with the costs at which "
        "its 95 % interval holds it; a score that some seed never reached has no cost.",
        "",
        comparison.prices.describe(),
        "",
        final_line(comparison),
        "",
        power_line(comparison),
        *(["", *comparison.notes] if comparison.notes else []),
    ]


def final_line(comparison: Comparison) -> str:
    """Return which prompts the final numbers are of."""
    if comparison.final is not None:
        return (
            f"Final numbers, and differences, are of {comparison.final}, which nothing was chosen by; before, "
            "after and costs are of the prompts that settings are chosen by. Intervals are over seeds of training, for "
            "these prompts and this noise."
        )
    return (
        "Final numbers, and differences, are of the prompts of the curve: no run has been measured on a report split, "
        "or there is none."
    )


def print_report(console: Console, comparison: Comparison, target: float, directory: Path) -> None:
    """Print tables that fit a terminal: scores, what the runs cost, what the target cost, pairs, guidance, power."""
    rows = table_rows(comparison, target)
    for title, columns in (
        (f"Held-out {comparison.metric}", SCORES[:-1]),
        ("Cost of a run", ("configuration", *SIZES)),
        ("Cost of a score", ("configuration", *target_columns(target))),
    ):
        console.print(console_table(title, rows, columns))
    if pairs := pairs_of(comparison):
        console.print(console_table("Paired differences", pair_rows(pairs), NARROW))
    if guided := guidance_rows(comparison):
        console.print(console_table("On the report split", guided))
    for line in (comparison.prices.describe(), final_line(comparison), power_line(comparison), *comparison.notes):
        console.print(line, highlight=False, markup=False)
    console.print(f"\nThe comparison is in {directory}", highlight=False, markup=False, soft_wrap=True)
    for name, what in _files(bool(pairs)):
        console.print(f"  {name:<15} {what}", highlight=False)


def _files(pairs: bool) -> Iterable[tuple[str, str]]:
    yield "table.md", "these numbers, and what they mean"
    yield "figure.png", "score against cost"
    if pairs:
        yield "differences.png", "paired differences with their intervals"
    yield "results.json", "everything, every run's curve too"
