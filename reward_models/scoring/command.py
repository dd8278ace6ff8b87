"""One scoring run from the request to the exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reward_models.errors import RewardError
from reward_models.scoring.cache import ScoreCache, default_path
from reward_models.scoring.catalogue import entries_as_json, show_check, show_entries, show_self_test
from reward_models.scoring.checks import check_items
from reward_models.scoring.choices import Loaded, choose, load
from reward_models.scoring.drawing import Draw, Drawing
from reward_models.scoring.items import Found, peek
from reward_models.scoring.output import Outputs, check_outputs, check_targets
from reward_models.scoring.run import score_items
from reward_models.scoring.sources import Selection, collect
from reward_models.scoring.summary import Summary

INTERRUPTED, FAILED = 130, 3
"""Exit codes. FAILED: nothing at all could be scored, or with `strict` not everything; a check that was not passed. A
mistake of the user's is 2."""


@dataclass(frozen=True)
class RewardRequest:
    """Which rewards, and where they are computed; see `choices.choose` and `choices.load`."""

    names: Sequence[str] = ()
    options: Sequence[str] = ()
    config: Path | None = None
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None

    def load(self, examined: bool = False) -> list[Loaded]:
        """Make the scorers; see `choices.load`."""
        choices = choose(self.names, self.options, self.config)
        return load(choices, self.device, self.dtype, self.batch_size, examined)


@dataclass(frozen=True)
class ScoreRequest:
    """A scoring run.

    Args:
        selection: which samples.
        rewards: which rewards.
        outs: files for the rows.
        plot: a folder or a picture file for figures.
        cache: file of known scores; None: the default one.
        use_cache: False: nothing is looked up nor kept.
        strict: a sample that failed makes the exit code 3.
        as_json: print the summary as JSON.
        drawing: pictures to draw first; the selection's path is their folder then.
    """

    selection: Selection
    rewards: RewardRequest
    outs: Sequence[Path] = ()
    plot: Path | None = None
    cache: Path | None = None
    use_cache: bool = True
    strict: bool = False
    as_json: bool = False
    drawing: Drawing | None = None


def run(request: ScoreRequest, draw: Draw | None) -> int:
    """Score and report; returns the exit code: 0, or 3 if every reward failed for every file (`strict`: for any).

    Raises:
        RewardError: something is wrong with the request, or a reward cannot work at all.
    """
    check_outputs(request.outs)
    if request.plot is not None:
        from reward_models.scoring.plots import check_plot

        check_plot(request.plot)
    console = Console()
    say = Console(stderr=True) if request.as_json else console
    choose(request.rewards.names, request.rewards.options, request.rewards.config)  # before anything takes long
    if request.drawing is None:
        found = collect(request.selection)
        rewards = request.rewards.load()
    else:
        rewards = request.rewards.load()
        for line in _drawn(request.drawing, draw):
            say.print(line, markup=False, highlight=False, soft_wrap=True)
        found = collect(replace(request.selection, paths=[str(request.drawing.images)]))
    others = [path for path in (request.selection.prompts, request.rewards.config, request.cache) if path is not None]
    check_targets(request.outs, request.plot, found.items, others, request.selection.paths)
    started = time.monotonic()
    with ScoreCache((request.cache or default_path()) if request.use_cache else None) as cache:
        try:
            summary = _score(request, rewards, found, cache)
        except KeyboardInterrupt:
            kept = "What was scored is in the cache: run the same command again to go on." if request.use_cache else ""
            sys.stderr.write(f"Interrupted. {kept}\n")
            return INTERRUPTED
    seconds = time.monotonic() - started
    written = list(request.outs)
    if request.plot is not None:
        from reward_models.scoring.plots import draw as draw_figures

        written += draw_figures(summary.series, request.plot)
    _report(request, summary, found, written, seconds, console)
    return FAILED if summary.nothing_scored or (request.strict and summary.failed_files) else 0


def _drawn(drawing: Drawing, draw: Draw | None) -> Sequence[str]:
    if draw is None:
        raise RewardError("Drawing pictures needs diffrl: use `diffrl score --pipeline`, or score pictures that exist.")
    return draw(drawing)


def _score(request: ScoreRequest, rewards: Sequence[Loaded], found: Found, cache: ScoreCache) -> Summary:
    peeks = [peek(item.path) for item in found.items]
    check_items(rewards, found.items, peeks)
    summary = Summary(rewards)
    with _progress() as bar, Outputs(request.outs, rewards) as outputs:
        task = bar.add_task("scoring", total=len(found.items) * len(rewards))
        for row in score_items(rewards, found.items, peeks, cache, lambda count: bar.advance(task, count)):
            outputs.write(row)
            summary.add(row)
    return summary


def _progress() -> Progress:
    """On a terminal, and gone when it is done; nothing at all elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _report(
    request: ScoreRequest, summary: Summary, found: Found, written: Sequence[Path], seconds: float, console: Console
) -> None:
    if request.as_json:
        facts: dict[str, Any] = {**summary.as_json(), "left_out": dict(found.skipped), "seconds": round(seconds, 3)}
        print(json.dumps({**facts, "written": [str(path) for path in written]}, indent=2, ensure_ascii=False))
        return
    summary.show(console)
    cached = sum(series.cached for series in summary.series)
    failed = sum(series.failed for series in summary.series if series.version is not None)
    made = sum(len(series.values) for series in summary.series if series.version is not None) - cached - failed
    lines = [f"{made} scores made, {cached} from the cache, {failed} failed, {seconds:.1f} s."]
    if found.skipped:
        lines.append("Left out: " + ", ".join(f"{count} {reason}" for reason, count in found.skipped.items()) + ".")
    lines += [*summary.notes(), *summary.failures()]
    if written:
        lines.append(f"Written: {', '.join(str(path) for path in written)}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_list(as_json: bool) -> int:
    """Print all registered rewards; returns the exit code."""
    if as_json:
        print(json.dumps(entries_as_json(), indent=2, ensure_ascii=False))
    else:
        show_entries(Console())
    return 0


def examine(rewards: RewardRequest, contract: bool) -> int:
    """Run the self-test, or the contract's checks, of rewards; returns 0 if all pass, else 3."""
    console = Console()
    show = show_check if contract else show_self_test
    return 0 if all([show(reward, console) for reward in rewards.load(contract)]) else FAILED


def serve_rewards(rewards: RewardRequest, server_options: Sequence[str], **address: Any) -> int:
    """Serve rewards to `remote` scorers elsewhere until the process is stopped."""
    from reward_models.scoring.values import read_yaml
    from reward_models.serving.server import serve

    limits: dict[str, Any] = {}
    for text in server_options:
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise RewardError(f"--server-option is KEY=VALUE, such as max_samples=64. Got {text!r}.")
        limits[key] = read_yaml(value, f"The value of --server-option {key}")
    loaded = rewards.load()

    def ready(url: str) -> None:
        names = ", ".join(reward.label for reward in loaded)
        Console().print(f"Serving {names} at {url}; stop with Ctrl-C.", markup=False, highlight=False, soft_wrap=True)

    serve({reward.label: reward.scorer for reward in loaded}, ready=ready, **address, **limits)
    return 0
