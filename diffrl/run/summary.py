"""What a run leaves for people: summary.json, two tables, the before/after grid and the curve."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diffrl.config.schema import RunSettings
from diffrl.cost.meter import ALWAYS, PHASES
from diffrl.gallery.plots import mark_other_inputs
from diffrl.models.images import STILL_SIZE, Cell, comparison_grid, still
from diffrl.records import Prompt
from diffrl.run.status import resume_command
from diffrl.tracking.index import asked
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.store import SampleStore

SHORT_NAMES = {
    "shapes_strict": "strict",
    "shapes": "partial",
    "moving_shapes_strict": "strict",
    "moving_shapes": "partial",
}
GRID_SAMPLES = 16
PICTURE_SIZE = 96


def short_name(reward: str) -> str:
    """Return what a held-out reward is called in the summary."""
    return SHORT_NAMES.get(reward, reward)


def shown(metrics: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return what tells how an iteration went, and its name: the reward, or where images are given what they teach.

    Args:
        metrics: a row of an iteration; of others the number is None.
    """
    names = {"reward/mean": "reward", "update/pair_accuracy": "pairs right", "update/loss": "loss"}
    return next(((name, metrics[key]) for key, name in names.items() if key in metrics), ("reward", None))


def held_out_change(rows: Sequence[Mapping[str, Any]], rewards: Sequence[str]) -> dict[str, float | None]:
    """Return each reward before and in the last evaluation, `<name>_before` and `<name>_after`; None if unknown.

    It is unknown where it failed, and where the file has lost the evaluation. Scorers of the embedded world report
    "strict" and "partial" as parts; these are named too, whichever was asked for.
    """
    columns = {short_name(reward): f"held_out/{reward}" for reward in rewards}
    for part in dict.fromkeys(SHORT_NAMES.values()):
        names = (f"held_out/{reward}/{part}" for reward in rewards)
        if part not in columns and (column := next((name for name in names if rows and name in rows[0]), None)):
            columns[part] = column
    evaluations = [row for row in rows if any(key.startswith("held_out/") for key in row)]
    change: dict[str, float | None] = {}
    for name, column in columns.items():
        before = [row for row in evaluations if row.get("iteration", 0) == 0]  # it may have been lost
        change[f"{name}_before"] = before[0].get(column) if before else None
        change[f"{name}_after"] = evaluations[-1].get(column) if evaluations else None
    return change


def unplanned_evaluations(rows: Sequence[Mapping[str, Any]], run: RunSettings) -> int:
    """Count a run's held-out evaluations that its length now does not plan: those at ends that it went beyond."""
    evaluated = [row["iteration"] for row in rows if any(key.startswith("held_out/") for key in row)]
    return sum(not run.evaluates_after(iteration) for iteration in evaluated)


def write_before_after(
    run_dir: Path,
    reward: str,
    last_iteration: int,
    destination: Path,
    higher_is_better: bool = True,
    changed_after: Sequence[int] = (),
) -> bool:
    """Draw the first held-out samples before and after training: same prompts, same noise, none kept for its score.

    Samples whose prompt is another one now are no pair, and are left out.

    Args:
        run_dir: the run.
        reward: whose value marks a picture where it is 0 or 1.
        last_iteration: of the evaluation after training.
        destination: PNG file.
        higher_is_better: of the reward: 1 is a pass; else 0 is.
        changed_after: iterations after which held-out prompts, rewards or the base became others; written on top.

    Returns:
        Whether the store has such pictures of both evaluations, of the same prompts.
    """
    with SampleStore.open_readonly(run_dir) as store:
        before, last = (
            [s for s in store.read(stage="eval", iteration=i) if s.file and s.representative is not False]
            for i in (0, last_iteration)
        )
        after = {(s.group, s.root): s for s in last}
        pairs = [(b, after[b.group, b.root]) for b in before if (b.group, b.root) in after]
        pairs = [(b, a) for b, a in pairs if asked(a.prompt, a.metadata) == asked(b.prompt, b.metadata)][:GRID_SAMPLES]
        if not pairs:
            return False
        moving = store.picture(pairs[0][0]).ndim > 3
        good = float(higher_is_better)
        cells = [
            Cell(
                pair[0].prompt,
                [still(store.picture(s)) for s in pair],
                [_passed(s.rewards.get(reward), good) for s in pair],
                [s.notes.get(reward) or next(iter(s.notes.values()), None) for s in pair],
            )
            for pair in pairs
        ]
    title = f"measured with other inputs since iteration {changed_after[0]}" if changed_after else None
    comparison_grid(cells, picture_size=STILL_SIZE if moving else PICTURE_SIZE, title=title).save(destination)
    return True


def _passed(value: float | None, good: float) -> bool | None:
    """Return a mark for rewards that pass or fail; none for others."""
    return None if value not in (0.0, 1.0) else value == good


def write_curve(run_dir: Path, rewards: Sequence[str], destination: Path, changed_after: Sequence[int] = ()) -> None:
    """Draw the training reward and each held-out reward against iterations; PNG.

    Each reward has axes of its own, since scorers differ in their units; what it was in training is on the same axes,
    in the same units. Where inputs became others (`changed_after`, iterations) there is a dashed line.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_metrics(run_dir / "metrics.jsonl")
    names: list[tuple[str, str, str | None]] = [("training reward, weighted", "reward/mean", None)]
    names += [(short_name(reward), f"reward/{reward}", f"held_out/{reward}") for reward in rewards]
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    with rc_context({"text.parse_math": False}):  # a dollar sign in a label is a dollar sign
        figure = Figure(figsize=(3.6 * columns, 2.8 * height), dpi=140, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(height, columns, squeeze=False).flatten()
        for axes, (title, training, held_out) in zip(grid, names, strict=False):
            _draw_reward(axes, rows, title, training, held_out)
            for at in changed_after:
                mark_other_inputs(axes, at, 7)
        for axes in grid[len(names) :]:
            axes.set_visible(False)
        figure.savefig(destination)


def _draw_reward(axes: Any, rows: Sequence[Mapping[str, Any]], title: str, training: str, held_out: str | None) -> None:
    """Plot a reward in training and, with marks, held out. Null, or absence in training, is a gap."""
    points_trained = [(row["iteration"], row.get(training)) for row in rows if row["iteration"]]
    if any(value is not None for _, value in points_trained):
        xs, ys = zip(*((x, math.nan if value is None else value) for x, value in points_trained), strict=True)
        axes.plot(xs, ys, color="#9aa5b1", linewidth=1.2, marker="." if len(xs) < 40 else None, label="training")
    points = [(row["iteration"], row[held_out]) for row in rows if held_out is not None and held_out in row]
    if any(value is not None for _, value in points):
        xs, ys = zip(*((x, math.nan if value is None else value) for x, value in points), strict=True)
        axes.plot(xs, ys, "o-", color="#1b7f5c", label="held out")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("iteration")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines and held_out is not None:
        axes.legend(frameon=False, fontsize=9)


def print_summary(
    console: Console, summary: Mapping[str, Any], run_dir: Path, prompt: Prompt, unhealthy: str | None
) -> None:
    """Print a run's end: held-out rewards, where the time went, where everything lies, what to do next."""
    held_out = summary["held_out"]
    table = Table(title="Held-out reward", title_justify="left")
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    for name in (key.removesuffix("_before") for key in held_out if key.endswith("_before")):
        before, after = held_out[f"{name}_before"], held_out[f"{name}_after"]
        change = "" if before is None or after is None else f"{after - before:+.3f}"
        table.add_row(name, *("unknown" if value is None else f"{value:.3f}" for value in (before, after)), change)
    console.print(table)
    console.print(timing_table(summary["seconds"]))
    evaluations = summary["network_evaluations"]
    console.print(
        f"Network evaluations, held-out ones included: {evaluations['counted']:,} counted and "
        f"{evaluations['skipped']:,} skipped (no advantage), "
        f"{'' if evaluations['exact'] else 'at most '}{evaluations['planned']:,} planned. "
        f"Peak memory: {summary['peak_memory_bytes'] / 2**30:.2f} GiB.",
        highlight=False,
    )
    console.print(f"\nThe run is in {run_dir}", highlight=False, soft_wrap=True)
    for name, what in (
        ("before_after.png", "the same prompts and noise, before and after"),
        ("curve.png", "rewards over iterations"),
        ("summary.json", "these numbers"),
        ("metrics.jsonl", "every iteration"),
    ):
        if (run_dir / name).exists():
            console.print(f"  {name:<17} {what}", highlight=False)
    image = "" if prompt.source is None else f" --image {shlex.quote(prompt.source)}"
    if unhealthy is not None:
        console.print(f"\n{unhealthy}", highlight=False, soft_wrap=True)
    console.print("\nNext:")
    for command in (
        f"diffrl gallery {run_dir}",
        f"diffrl generate --run {run_dir} --prompt {shlex.quote(prompt.text)}{image} --out samples",
        f"diffrl export {run_dir} --out exported",
        f"{resume_command(run_dir)} run.iterations={2 * summary['iterations']}",
    ):
        line = program() + command.removeprefix("diffrl")
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def program() -> str:
    """Return what to type for diffrl: its name, or its path if a shell would not find this one by name."""
    started = Path(sys.argv[0])
    if started.name != "diffrl" or not started.is_file():
        return "diffrl"
    by_name = shutil.which("diffrl")
    if by_name and Path(by_name).resolve() == started.resolve():
        return "diffrl"
    return shlex.quote(os.path.relpath(started))


def timing_table(seconds: Mapping[str, float]) -> Table:
    """Return seconds of the iterations by phase and their shares; what lies outside iterations apart."""
    total = sum(seconds.get(phase, 0.0) for phase in PHASES)
    table = Table(title="Time of the iterations", title_justify="left")
    shown = [phase for phase in PHASES if phase in ALWAYS or seconds.get(phase)]
    for phase in shown:
        table.add_column(phase, justify="right")
    table.add_column("all", justify="right")
    table.add_row(*(f"{seconds.get(phase, 0.0):.1f} s" for phase in shown), f"{total:.1f} s")
    table.add_row(*(f"{seconds.get(phase, 0.0) / max(total, 1e-9):.1%}" for phase in shown), "")
    return table
