"""Scoring without training: the commands of `reward_models`, and drawing what is scored."""

from __future__ import annotations

from dataclasses import replace

from diffrl.cli.shared import app, quiet
from diffrl.draw import DrawOptions, draw_pictures, folder_to_draw_into
from reward_models.cli import add_commands, score_files
from reward_models.common.options import Paths, ResultOptions, Reward, RewardOptions, SampleOptions, grouped


@app.command()
@grouped
def score(
    *,
    paths: Paths = None,
    reward: Reward = None,
    options: RewardOptions,
    samples: SampleOptions,
    results: ResultOptions,
    drawing: DrawOptions,
) -> None:
    """Score images and videos with one or several rewards: table, rows, histograms, correlations.

    diffrl score images/ --prompts prompts.txt --reward pickscore --reward aesthetic --out scores.jsonl

    Exit code: 0; 2 for a mistake in what was asked; 3 if every reward failed for every file, or with --strict any.
    """
    quiet()
    if drawing.pipeline is None and drawing.images is None:
        score_files(paths or (), reward or (), options, samples, results)
    folder = folder_to_draw_into(drawing, paths or ())
    beside = replace(samples, prompt=None, prompts=None, limit=None)  # what is drawn has its prompts beside it

    def draw() -> list[str]:
        return draw_pictures(drawing, samples, options.device or "auto")

    score_files([str(folder)], reward or (), options, beside, results, draw)


add_commands(app)
