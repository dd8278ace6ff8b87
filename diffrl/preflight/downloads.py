"""What a start would fetch from the hub: pipeline, weights of rewards, datasets of prompts. Nothing is fetched here.

Only whole repositories are told: whether one lies in the hub's cache, not whether it is complete there. Tokenizers that
a reward takes from another repository than its weights are too small to be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.config.rewards import RewardSettings
from diffrl.cost.repositories import NOT_KNOWN, size_of, size_words, terms_words
from diffrl.cost.scorers import inner_name, weights_of
from diffrl.data.worlds import column_of, part_of
from diffrl.errors import NotHereError
from diffrl.models.hub import is_hub_id
from diffrl.models.published import reward_facts

Kind = Literal["model", "dataset"]
NOT_HERE = "not here yet: fetched from the hub at the first start"


@dataclass(frozen=True)
class Download:
    """A repository of the hub that is not here.

    Args:
        name: OWNER/NAME.
        kind: of repository.
        uses: places in the configuration that need it.
        size: bytes that are fetched; None if they are not known here.
        note: its size, its licence and whether it is gated, in words.
    """

    name: str
    kind: Kind
    uses: tuple[str, ...]
    size: int | None
    note: str

    @property
    def message(self) -> str:
        """Return all of it in one line."""
        page = f"huggingface.co/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"
        return f"{page} for {', '.join(self.uses)}: {self.note}"


def offline() -> bool:
    """Return whether the hub may not be asked (HF_HUB_OFFLINE): what is not here is then an error."""
    import huggingface_hub.constants

    return bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def downloads(config: Config) -> list[Download]:
    """Return all that is not here: prompts, weights of rewards, the pipeline."""
    missing: dict[tuple[str, Kind], dict[str, None]] = {}
    for name, kind, use in _needed(config):
        if not is_cached(name, kind):
            missing.setdefault((name, kind), {})[use] = None
    return [
        Download(name, kind, tuple(uses), size_of(name), note=f"{size_words(name)}; {terms_words(name)}")
        for (name, kind), uses in missing.items()
    ]


def describe_downloads(missing: Sequence[Download]) -> list[str]:
    """Return what is to be fetched: a line for each repository, and their sum where there are several."""
    lines = [one.message for one in missing]
    known = [one.size for one in missing if one.size is not None]
    if len(known) > 1:
        more = f" and what is {NOT_KNOWN}" if len(known) < len(missing) else ""
        lines.append(f"together {sum(known) / 1e9:.1f} GB{more}")
    return lines


def is_cached(name: str, kind: Kind) -> bool:
    """Return whether some version of a repository lies in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    versions = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind) / "snapshots"
    return versions.is_dir() and any(versions.iterdir())


def is_away(source: str) -> bool:
    """Return whether prompts would have to be fetched first, or the package that reads them is not here."""
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
    """Return whether a reward would have to fetch its weights first."""
    return not offline() and not all(is_cached(name, "model") for name in _weights(reward))


def _needed(config: Config) -> Iterator[tuple[str, Kind, str]]:
    """Yield repositories, what they are, and the place that needs them."""
    for key, source in (("prompts.train", config.prompts.train), ("prompts.eval", config.prompts.held_out)):
        if (name := _dataset(source)) is not None:
            yield name, "dataset", key
    for where, rewards in (("rewards", config.rewards), ("eval.rewards", config.eval.rewards)):
        for reward in rewards:
            for name in _weights(reward):
                yield name, "model", f"{where} {reward.key}"
    path = config.model.path
    if not pipeline_folder(path).exists() and is_hub_id(path):
        yield path, "model", "model.path"


def _dataset(source: str) -> str | None:
    """Return the dataset on the hub that prompts come from; None if they come from elsewhere, or it is a folder."""
    name = column_of(part_of(source)[0])[0].removeprefix("hub:").partition(":")[0]
    return name if source.startswith("hub:") and not Path(name).exists() else None


def _weights(reward: RewardSettings) -> list[str]:
    """List repositories of a reward's own weights; none where its options name others, or a server has them."""
    weights = weights_of(reward)
    return [*weights, *reward_facts()[inner_name(reward)]["configs"]] if weights else []
