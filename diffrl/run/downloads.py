"""What a start would fetch from the hub: pipeline, weights of rewards, datasets of prompts. Nothing is fetched here.

Only whole repositories are told: whether one lies in the hub's cache, not whether it is complete there. Tokenizers that
a reward takes from another repository than its weights are too small to be told.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.config.rewards import RewardSettings
from diffrl.cost.scorers import inner_name, inner_options
from diffrl.data.worlds import part_of
from diffrl.errors import ConfigError, NotHereError
from diffrl.models.architecture import describe_pipeline
from diffrl.models.hub import is_hub_id
from diffrl.rewards.score import WeightedScorer
from reward_models import Scorer
from reward_models.base import ScorerSpec
from reward_models.parameters import PLACES
from reward_models.registry import SCORERS, factory_of
from reward_models.scoring.catalogue import entry_of

Kind = Literal["model", "dataset"]

KNOWN = {
    # huggingface.co/datasets/CarperAI/pickapic_v1_no_images_training_sfw/tree/main
    "CarperAI/pickapic_v1_no_images_training_sfw": "89 MB; licence MIT",
    # huggingface.co/datasets/WenhaoWang/VidProM/tree/main: VidProM_unique.csv
    "WenhaoWang/VidProM": "383 MB; licence CC BY-NC 4.0",
    # LICENSE.md of huggingface.co/black-forest-labs/FLUX.1-dev
    "black-forest-labs/FLUX.1-dev": "FLUX.1 [dev] Non-Commercial License",
    # LICENSE.md of huggingface.co/stabilityai/stable-diffusion-3.5-medium and of -large
    "stabilityai/stable-diffusion-3.5-medium": "Stability AI Community License",
    "stabilityai/stable-diffusion-3.5-large": "Stability AI Community License",
}
"""Sizes and licences, with their sources; what is in no source that was seen is left out."""

_REPOSITORY = re.compile(r"(?<![\w./-])[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w-]*(?:\.[\w-]+)*(?![\w/])")


@dataclass(frozen=True)
class Download:
    """A repository of the hub that is not here.

    Args:
        name: OWNER/NAME.
        kind: of repository.
        uses: places in the configuration that need it.
        note: its size and licence in words, as far as they are known.
    """

    name: str
    kind: Kind
    uses: tuple[str, ...]
    note: str


def offline() -> bool:
    """Whether the hub is not to be asked (HF_HUB_OFFLINE): nothing is fetched then, what is not here an error."""
    import huggingface_hub.constants

    return bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def downloads(config: Config) -> list[Download]:
    """All that is not here: prompts, weights of rewards, the pipeline."""
    found: dict[tuple[str, Kind], list[tuple[str, str]]] = {}
    for name, kind, use, note in _needed(config):
        if not is_cached(name, kind):
            found.setdefault((name, kind), []).append((use, note))
    return [
        Download(
            name,
            kind,
            uses=tuple(dict.fromkeys(use for use, _ in needed)),
            note="; ".join(filter(None, (needed[0][1], KNOWN.get(name)))),
        )
        for (name, kind), needed in found.items()
    ]


def is_cached(name: str, kind: Kind) -> bool:
    """Whether some version of a repository lies in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    versions = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind) / "snapshots"
    return versions.is_dir() and any(versions.iterdir())


def is_away(source: str) -> bool:
    """Whether prompts would have to be fetched first, or the package that reads them is not here."""
    name = _dataset(source)
    return name is not None and (find_spec("datasets") is None or not (offline() or is_cached(name, "dataset")))


def require_reader(source: str) -> None:
    """Refuse prompts of the hub where the package that reads them is not installed.

    Raises:
        NotHereError: it is not.
    """
    if _dataset(source) is not None and find_spec("datasets") is None:
        raise NotHereError("hub: prompts need the datasets package. Run: pip install 'diffrl[datasets]'.")


def weights_away(reward: RewardSettings) -> bool:
    """Whether a reward would have to fetch its weights first."""
    return not offline() and not all(is_cached(name, "model") for name in _weights(reward))


def missing_package(reward: RewardSettings) -> str | None:
    """What of diffrl's extras a reward needs that is not installed here, such as "diffrl[clip]"; None if nothing."""
    entry = entry_of(inner_name(reward))
    return entry.install if entry.spec is not None else None


def unloaded(settings: Sequence[RewardSettings], where: str) -> list[WeightedScorer]:
    """Stand-ins that know what rewards look at and read, without their weights; they cannot score.

    Raises:
        ConfigError: a reward has no such options.
    """
    for number, reward in enumerate(settings):
        try:
            inspect.signature(factory_of(reward.name)).bind(**reward.options)
        except TypeError as error:
            raise ConfigError(f"{where}.{number}.options do not fit the reward {reward.name}: {error}.") from error
    return [WeightedScorer(reward.key, cast(Scorer, factory_of(reward.name))) for reward in settings]


def _needed(config: Config) -> Iterator[tuple[str, Kind, str, str]]:
    """Repositories, what they are, the place that needs them, and what is known of them."""
    for place, source in (("prompts.train", config.prompts.train), ("prompts.eval", config.prompts.held_out)):
        if (name := _dataset(source)) is not None:
            yield name, "dataset", place, ""
    for where, rewards in (("rewards", config.rewards), ("eval.rewards", config.eval.rewards)):
        for reward in rewards:
            for name in _weights(reward):
                yield name, "model", f"{where} {reward.key}", _facts(factory_of(inner_name(reward)).spec)
    path = config.model.path
    if not pipeline_folder(path).exists() and is_hub_id(path):
        known = describe_pipeline(path)
        count = sum(math.prod(shape) for part in known.shapes.values() for shape in part.values()) if known else 0
        yield path, "model", "model.path", f"{count / 1e9:.1f} billion parameters" if count else ""


def _dataset(source: str) -> str | None:
    """The dataset on the hub that prompts come from; None if they come from elsewhere, or it is a folder."""
    name = part_of(source)[0].removeprefix("hub:").partition(":")[0]
    return name if source.startswith("hub:") and not Path(name).exists() else None


def _weights(reward: RewardSettings) -> list[str]:
    """Repositories that hold a reward's own weights; none where its options name others, or a server has them."""
    name = inner_name(reward)
    given = inner_options(reward)
    spec: ScorerSpec | None = getattr(factory_of(name), "spec", None) if name in SCORERS else None
    if spec is None or spec.remote or given.get("features") == "pixels" or any(option in given for option in PLACES):
        return []
    return [] if "://" in (spec.weights or "") else _REPOSITORY.findall(spec.weights or "")


def _facts(spec: ScorerSpec) -> str:
    said = [f"{spec.memory} in memory" if spec.memory else "", f"licence: {spec.weights_license or 'unknown'}"]
    return "; ".join(one for one in said if one)
