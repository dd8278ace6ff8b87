"""One scoring run from the request to the exit code."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reward_models.common.errors import RewardError
from reward_models.common.options import ResultOptions, RewardOptions, ServerOptions
from reward_models.scoring.cache import ScoreCache, default_path
from reward_models.scoring.catalogue import entries_as_json, show_check, show_entries, show_self_test
from reward_models.scoring.checks import check_items
from reward_models.scoring.choices import Loaded, choose, load
from reward_models.scoring.identity import can_be_cached
from reward_models.scoring.items import Found, peek
from reward_models.scoring.output import Outputs, check_outputs, check_targets
from reward_models.scoring.run import score_items
from reward_models.scoring.sources import Selection, collect
from reward_models.scoring.summary import Summary

FAILED = 3
"""Exit code: nothing at all could be scored, or with `strict` not everything; a check that was not passed."""


def load_rewards(names: Sequence[str], options: RewardOptions, examined: bool = False) -> list[Loaded]:
    """Make the scorers that the command line asks for; see `choices.choose` and `choices.load`."""
    chosen = choose(names, options.option or (), options.config)
    return load(chosen, options.device, options.dtype, options.batch_size, examined)


def run(
    selection: Selection,
    samples: Found | None,
    names: Sequence[str],
    options: RewardOptions,
    results: ResultOptions,
    draw: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Score and report.

    Args:
        selection: which samples.
        samples: those, as they were found; None: they are drawn first.
        names: which rewards.
        options: how they are made.
        results: files, figures and the cache.
        draw: draws the samples first; returns lines for the user.

    Returns:
        The exit code: 0, or 3 if every reward failed for every file (`strict`: for any).

    Raises:
        RewardError: something is wrong with the request, or a reward cannot work at all.
    """
    outs = results.out or ()
    check_outputs(outs)
    if results.plot is not None:
        from reward_models.scoring.plots import check_plot

        check_plot(results.plot)
    console = Console()
    say = Console(stderr=True) if results.as_json else console
    rewards = load_rewards(names, options)
    for line in draw() if draw is not None else ():
        say.print(line, markup=False, highlight=False, soft_wrap=True)
    if samples is None:
        samples = collect(selection)
    others = [path for path in (selection.prompts, options.config, results.cache) if path is not None]
    check_targets(outs, results.plot, samples.items, others, selection.paths)
    started = time.monotonic()
    with ScoreCache(None if results.no_cache else results.cache or default_path()) as cache:
        try:
            summary = _score(outs, rewards, samples, cache)
        except KeyboardInterrupt as error:
            known = not results.no_cache and any(map(can_be_cached, rewards))
            kept = "What was scored is in the cache: run the same command again to go on." if known else ""
            sys.stderr.write(f"Interrupted. {kept}\n")
            return 128 + getattr(error, "number", signal.SIGINT)
    seconds = time.monotonic() - started
    written = list(outs)
    if results.plot is not None:
        from reward_models.scoring.plots import draw as draw_figures

        written += draw_figures(summary.series, results.plot)
    _report(results.as_json, summary, samples, written, seconds, console)
    return FAILED if summary.nothing_scored or (results.strict and summary.failed_files) else 0


def _score(outs: Sequence[Path], rewards: Sequence[Loaded], samples: Found, cache: ScoreCache) -> Summary:
    peeks = [peek(item.path) for item in samples.items]
    check_items(rewards, samples.items, peeks)
    summary = Summary(rewards)
    with _progress() as bar, Outputs(outs, rewards) as outputs:
        task = bar.add_task("scoring", total=len(samples.items) * len(rewards))
        for row in score_items(rewards, samples.items, peeks, cache, lambda count: bar.advance(task, count)):
            outputs.write(row)
            summary.add(row)
    return summary


def _progress() -> Progress:
    """Return a progress bar that vanishes when it is done; nothing without a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _report(
    as_json: bool, summary: Summary, samples: Found, written: Sequence[Path], seconds: float, console: Console
) -> None:
    if as_json:
        facts: dict[str, Any] = {**summary.as_json(), "left_out": dict(samples.skipped), "seconds": round(seconds, 3)}
        print(json.dumps({**facts, "written": [str(path) for path in written]}, indent=2, ensure_ascii=False))
        return
    summary.show(console)
    cached = sum(series.cached for series in summary.series)
    failed = sum(series.failed for series in summary.series if series.version is not None)
    made = sum(len(series.values) for series in summary.series if series.version is not None) - cached - failed
    lines = [f"{made} scores made, {cached} from the cache, {failed} failed, {seconds:.1f} s."]
    if samples.skipped:
        lines.append("Left out: " + ", ".join(f"{count} {reason}" for reason, count in samples.skipped.items()) + ".")
    lines += [*summary.notes(), *summary.failures()]
    if written:
        lines.append(f"Written: {', '.join(str(path) for path in written)}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_list(as_json: bool) -> None:
    """Print all registered rewards."""
    if as_json:
        print(json.dumps(entries_as_json(), indent=2, ensure_ascii=False))
    else:
        show_entries(Console())


def examine(names: Sequence[str], options: RewardOptions, contract: bool) -> int:
    """Run the contract's checks, or the self-test, of rewards; returns 0 if all pass, else 3."""
    console = Console()
    show = show_check if contract else show_self_test
    return 0 if all([show(reward, console) for reward in load_rewards(names, options, contract)]) else FAILED


def serve_rewards(names: Sequence[str], options: RewardOptions, server: ServerOptions) -> None:
    """Serve rewards to `remote` scorers elsewhere until the process is stopped."""
    from reward_models.common.yaml12 import read_yaml
    from reward_models.serving.server import serve

    limits: dict[str, Any] = {}
    for text in server.server_option or ():
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise RewardError(f"--server-option is KEY=VALUE, such as max_samples=64. Got {text!r}.")
        limits[key] = read_yaml(value, f"The value of --server-option {key}")
    loaded = load_rewards(names, options)

    def ready(url: str) -> None:
        names = ", ".join(reward.label for reward in loaded)
        Console().print(f"Serving {names} at {url}; stop with Ctrl-C.", markup=False, highlight=False, soft_wrap=True)

    serve(
        {reward.label: reward.scorer for reward in loaded},
        host=server.host,
        port=server.port,
        token=server.token,
        token_file=server.token_file,
        allow_anonymous=server.allow_anonymous,
        ready=ready,
        **limits,
    )
