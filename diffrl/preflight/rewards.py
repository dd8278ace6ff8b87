"""The rewards of a run: what is known of them by their classes, and the scorers themselves, asked once before a run.

What does not answer, or breaks, is better known before the first iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from diffrl.config import Config
from diffrl.config.rewards import RewardSettings
from diffrl.cost.scorers import inner_name
from diffrl.errors import ConfigError, NotHereError
from diffrl.preflight.downloads import is_away, weights_away
from diffrl.preflight.preview import EVAL, TRAIN, Opening, Preview, below
from diffrl.preflight.prompts import look_at_prompts
from diffrl.records import Prompt
from diffrl.rewards.lanes import Lane
from diffrl.rewards.score import WeightedScorer, score
from diffrl.training.prompt_report import report_prompts
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs
from reward_models import RewardError, Scorer
from reward_models.common.messages import quote
from reward_models.neural import Copies
from reward_models.registry import SCORERS, check_options, factory_of
from reward_models.scoring.catalogue import entry_of

SIDE, FRAMES = 64, 9
"""Of an image and a video where the configuration leaves the size to the pipeline; nothing is loaded to ask it."""

HINT = "If that is for the prompt's sake, samples of such prompts will not train."


def dry_rewards(preview: Preview) -> str:
    """Hold the rewards against family and prompts; where they are loaded, score an image of noise with each."""
    config = preview.config
    (loaded, classes), (loaded_eval, classes_eval) = (
        _scorers(preview, settings, key)
        for settings, key in ((config.rewards, "rewards"), (config.eval.rewards, "eval.rewards"))
    )
    scorers = {TRAIN: [*loaded, *classes], EVAL: [*loaded_eval, *classes_eval]}
    require_media(config.model.facts, [*scorers[TRAIN], *scorers[EVAL]])
    _require_prompts(config, scorers, preview.prompts)
    report = look_at_prompts(preview, scorers)
    if not preview.resumes:
        report.require()
    names = f"{_names(config.rewards) or 'none in training'}; held out: {_names(config.eval.rewards)}"
    here = [*loaded, *loaded_eval]
    if not preview.probes_rewards or is_away(config.prompts.train) or not here:
        return below(f"{names}; not asked", report.notes)
    refused = probe_rewards(config, here, preview.prompts[TRAIN][0])
    asked = "those that are here were asked once" if classes or classes_eval else "each was asked once"
    return below(f"{names}; {asked}", [*report.notes, *refused])


def dry_packages(preview: Preview) -> str | None:
    """Refuse rewards whose packages are missing: nothing is wrong with the configuration."""
    rewards = (*preview.config.rewards, *preview.config.eval.rewards)
    lacking = {reward.name: extra for reward in rewards if (extra := missing_package(reward))}
    if not lacking:
        return None
    if preview.target is None:
        raise NotHereError(
            [
                f"The reward {name} needs packages not installed here. Run: pip install '{extra}'."
                for name, extra in lacking.items()
            ]
        )
    return "; ".join(f"{name}: pip install '{extra}'" for name, extra in lacking.items())


def open_rewards(opening: Opening) -> None:
    """Load all scorers onto their devices, and hold them against family and prompts once more.

    Raises:
        ConfigError: one cannot be made, or cannot score what the run generates.
    """
    config, prompts = opening.config, opening.prompts
    lanes: dict[str, Lane] = {}
    copies: Copies = {}
    device, fps = opening.ranks.device, config.model.frame_rate
    scorers, eval_scorers = (
        make_scorers(settings, key, device, fps, lanes, copies)
        for settings, key in ((config.rewards, "rewards"), (config.eval.rewards, "eval.rewards"))
    )
    opening.scorers = {TRAIN: scorers, EVAL: eval_scorers}
    require_media(config.model.facts, [*scorers, *eval_scorers])
    _require_prompts(config, opening.scorers, prompts)
    opening.report = report_prompts(config.prompts, prompts, opening.scorers)
    if not opening.preview.resumes:
        opening.report.require()


def probe_rewards(config: Config, scorers: Sequence[WeightedScorer], prompt: Prompt) -> list[str]:
    """Ask every reward once, for two samples of noise that a training prompt stands for.

    Args:
        config: the run.
        scorers: its rewards.
        prompt: one that it trains on, with its metadata.

    Returns:
        What could not be scored, a line each. Noise may rightly be refused, so this is no error.

    Raises:
        ConfigError: a reward raised; names it.
    """
    m = config.model
    shape = (3, m.height or SIDE, m.width or SIDE)
    if m.facts.media == "video":
        shape = (m.frames or FRAMES, *shape)
    media = torch.randint(0, 256, (2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    failed, broken = [], []
    for one in {scorer.name: scorer for scorer in scorers}.values():
        try:
            table = score([one], media, [prompt, prompt], [0, 0])
        except RewardError as error:
            broken.append(str(error))
            continue
        if error := next((error for error in table.errors if error), None):
            failed.append(f"It could not score noise for the first prompt, {quote(prompt.text)}. {error} {HINT}")
    if broken:
        raise ConfigError(broken)
    return failed


def missing_package(reward: RewardSettings) -> str | None:
    """Return which of diffrl's extras a reward lacks here, such as "diffrl[clip]"; None if none."""
    entry = entry_of(inner_name(reward))
    return entry.install if entry.spec is not None else None


def _require_prompts(
    config: Config, scorers: Mapping[str, Sequence[WeightedScorer]], prompts: Mapping[str, Sequence[Prompt]]
) -> None:
    """Refuse prompts that rewards cannot work with; only those that are here are looked at."""
    for key, listed in prompts.items():
        require_metadata(scorers[key], listed, key)
    if EVAL in prompts:
        require_pairs(scorers[EVAL], config.eval.samples, len(prompts[EVAL]))


def _scorers(
    preview: Preview, settings: Sequence[RewardSettings], key: str
) -> tuple[list[WeightedScorer], list[WeightedScorer]]:
    """Return loaded scorers, and classes in place of the others; a class knows what a reward reads, but scores not.

    Of a reward of the user's own nothing is known before it is made.

    Raises:
        ConfigError: a scorer cannot be made, or a reward has no such options.
    """
    loaded, classes = list[WeightedScorer](), list[WeightedScorer]()
    copies: Copies = {}
    for number, reward in enumerate(settings):
        if preview.loads_rewards and not (weights_away(reward) or missing_package(reward)):
            loaded += make_scorers([reward], key, copies=copies, first=number)
            continue
        if reward.name not in SCORERS:
            continue
        try:
            check_options(reward.name, factory_of(reward.name), reward.options)
        except RewardError as error:
            raise ConfigError(f"{key}.{number}: {error}") from error
        classes.append(WeightedScorer(reward.key, cast(Scorer, factory_of(reward.name))))
    return loaded, classes


def _names(rewards: Sequence[RewardSettings]) -> str:
    return ", ".join(f"{reward.key}{_lacks(reward)}" for reward in rewards)


def _lacks(reward: RewardSettings) -> str:
    """Return what of a reward is not here, to go on after its name."""
    if missing_package(reward):
        return " (its package is not here)"
    return " (weights not here yet)" if weights_away(reward) else ""
