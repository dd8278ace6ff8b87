"""The configured rewards as scorers on their devices, and whether they can look at what a run will show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from diffrl.config.rewards import RewardSettings
from diffrl.data import sources
from diffrl.errors import ConfigError
from diffrl.models.adapter import EditingAdapter, ModelAdapter
from diffrl.models.families import Family
from diffrl.records import Prompt
from diffrl.rewards.lanes import Lane
from diffrl.rewards.score import WeightedScorer
from reward_models import RewardError, load_reward
from reward_models.neural import Copies, one_copy
from reward_models.registry import move, require_itself


def make_scorers(
    settings: Sequence[RewardSettings],
    where: str,
    device: str | torch.device = "cpu",
    fps: float | None = None,
    lanes: dict[str, Lane] | None = None,
    copies: Copies | None = None,
    first: int = 0,
) -> list[WeightedScorer]:
    """Return the configured scorers, on their devices, for pictures or for videos of `fps` frames per second.

    Args:
        settings: a list of rewards.
        where: its place in the configuration, for messages.
        device: of rewards that name none.
        fps: of the videos.
        lanes: threads by device, in which rewards are computed; new ones are added. None = no threads. Where model and
            reward both run on the CPU there is none either.
        copies: weights that other scorers have loaded, which these share on the same device; new ones are added.
        first: number of the first of them in that place.

    Raises:
        ConfigError: a scorer cannot be made; says which.
    """
    made, copies = [], {} if copies is None else copies
    for number, s in enumerate(settings, first):
        options = s.options if s.dtype is None else {**s.options, "dtype": s.dtype}
        own_device = torch.device(s.device or device)
        if own_device == torch.device("cuda") and torch.cuda.is_available():
            own_device = torch.device("cuda", torch.cuda.current_device())  # threads have a current device of their own
        if own_device.type == "cuda" and (own_device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"{where}.{number}.device must be a device of this machine. Got {own_device}, with "
                f"{torch.cuda.device_count()} CUDA devices. Set cpu, or leave it out."
            )
        try:
            with one_copy(copies, own_device):
                scorer = load_reward(s.name, **options)
            require_itself(s.name, scorer, move(s.name, scorer, own_device))
        except RewardError as error:
            raise ConfigError(f"{where}.{number}: {error}") from error
        key = f"{where}.{number}" if scorer.spec.remote else str(own_device)
        # On the cores that the model itself runs on, a second thread only gets in its way (docs/performance.md).
        beside = scorer.spec.remote or {own_device.type, torch.device(device).type} != {"cpu"}
        if lanes is None or not beside:
            lane = None
        else:
            lane = lanes.setdefault(key, Lane(key, None if scorer.spec.remote else own_device))
        size = s.batch_size or scorer.spec.batch_size
        made.append(
            WeightedScorer(
                name=s.key,
                scorer=scorer,
                weight=s.weight,
                shift=s.shift,
                scale=s.scale,
                batch_size=size,
                fps=fps,
                lane=lane,
                timeout=s.timeout,
            )
        )
    return made


def require_media(family: Family, scorers: Sequence[WeightedScorer]) -> None:
    """Refuse scorers that cannot look at what the family draws.

    Raises:
        ConfigError: names them.
    """
    wrong = {scorer.name for scorer in scorers if family.media not in scorer.scorer.spec.media}
    if wrong:
        hint = " (video_mean turns a scorer of images into one of videos)" if family.media == "video" else ""
        raise ConfigError(
            f"rewards and eval.rewards must score {family.media}s, which model.family {family.name} generates. Got "
            f"{', '.join(sorted(wrong))}. Choose others{hint}."
        )


def require_metadata(scorers: Sequence[WeightedScorer], prompts: Sequence[Prompt], where: str) -> None:
    """Refuse prompts without the metadata that a scorer needs.

    Args:
        scorers: of these prompts.
        prompts: all of them.
        where: their place in the configuration, for the message.

    Raises:
        ConfigError: names the first prompt that lacks something.
    """
    for scorer in scorers:
        for prompt in prompts:
            if scorer.scorer.spec.uses_source and prompt.source is None:
                raise ConfigError(
                    f"{where} must name an image to edit with every prompt, for the reward {scorer.name}, which looks "
                    f'at it. {prompt.text!r} has none. Use a .jsonl file: {{"prompt": ..., "source": "a.png"}}.'
                )
            missing = [key for key in scorer.scorer.spec.requires if key not in prompt.metadata]
            if missing:
                raise ConfigError(
                    f"{where} must give {' and '.join(missing)} with every prompt, for the reward {scorer.name}. "
                    f'{prompt.text!r} has none. Use a .jsonl file: {{"prompt": ..., "{missing[0]}": ...}}.'
                )


def require_sources(family: str, adapter: ModelAdapter, lists: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse prompts that do not fit the model: without an image to edit, with one, or with one that it would distort.

    Args:
        family: its name.
        adapter: the model.
        lists: prompts by their place in the configuration.

    Raises:
        ConfigError: names the first that does not fit.
    """
    edits = isinstance(adapter, EditingAdapter)
    size = (adapter.height, adapter.width) if isinstance(adapter, EditingAdapter) else None
    for where, prompts in lists.items():
        sources.require_sources(prompts, where, family, edits, size)


def require_pairs(scorers: Sequence[WeightedScorer], samples: int, prompts: int) -> None:
    """Refuse held-out rewards that compare the samples of a prompt where a prompt has one.

    Args:
        scorers: held-out rewards.
        samples: of an evaluation.
        prompts: that it takes in turn.

    Raises:
        ConfigError: names them, and says how many samples it takes.
    """
    wrong = [scorer.name for scorer in scorers if scorer.scorer.spec.scope == "group"]
    if wrong and samples < 2 * prompts:
        raise ConfigError(
            f"eval.samples must be at least twice the number of held-out prompts with eval.rewards {', '.join(wrong)}, "
            f"which compares the samples of a prompt. Got {samples} samples of {prompts} prompts. Raise it, give fewer "
            "prompts, or watch sentinel/diversity instead."
        )
