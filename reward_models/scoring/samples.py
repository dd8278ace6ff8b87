"""One sample in work, and the one place where a scorer is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reward_models.asking import ask
from reward_models.base import RewardBatch
from reward_models.common.errors import RewardError, is_out_of_memory
from reward_models.media import open_media, open_still
from reward_models.scoring.cache import Score, failure
from reward_models.scoring.choices import Loaded
from reward_models.scoring.items import Item


@dataclass
class Read:
    """A sample of the window."""

    item: Item  # what it is
    scores: dict[str, Score] = field(default_factory=dict)  # what is known of it, by label
    keys: dict[str, str] = field(default_factory=dict)  # of what is not known, by label
    media: Tensor | None = None  # its pixels, if there is anything left to score
    fps: float | None = None  # of a video
    source: Tensor | None = None  # pixels of the image that it is an edit of, if a reward looks at them
    cached: frozenset[str] = frozenset()  # labels of the scores that were known before this run

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its pixels; empty if they are not held."""
        return () if self.media is None else tuple(self.media.shape)

    def fail(self, labels: Sequence[str], why: str) -> None:
        """Note why rewards cannot score it; nothing is asked of them any more."""
        self.scores |= {label: failure(why) for label in labels}
        self.keys = {label: key for label, key in self.keys.items() if label not in labels}

    def open(self, rewards: Sequence[Loaded]) -> None:
        """Read its pixels, and those of the image that it is an edit of if a reward looks at them."""
        try:
            self.media, self.fps = open_media(self.item.path)
        except RewardError as error:
            self.fail(list(self.keys), str(error))
        looking = [reward.label for reward in rewards if reward.label in self.keys and reward.scorer.spec.uses_source]
        if looking:
            try:
                self.source = open_still(self.item.path.parent / str(self.item.metadata["source"]))
            except RewardError as error:
                self.fail(looking, f"The image that {self.item.name} is an edit of cannot be read. {error}")


def call_scorer(reward: Loaded, samples: Sequence[Read], grouped: bool = False) -> list[Score]:
    """Give a scorer one batch of samples of one size.

    Raises:
        RewardError: it refuses them, raises, or returns what is no score of each; or the memory does not suffice.
    """
    batch = RewardBatch(
        torch.stack([sample.media for sample in samples if sample.media is not None]),
        [sample.item.prompt or "" for sample in samples],
        [sample.item.metadata for sample in samples],
        samples[0].fps,
        [0] * len(samples) if grouped else (),
        [sample.source for sample in samples if sample.source is not None] if reward.scorer.spec.uses_source else (),
    )
    try:
        output = ask(reward.scorer, batch, reward.settings.name)
    except (MemoryError, RuntimeError, RewardError) as error:
        if is_out_of_memory(error.__cause__ or error):
            raise RewardError(
                f"The memory did not suffice for {len(batch)} sample{'s' if len(batch) > 1 else ''} at once with the "
                f"reward {reward.label}. Lower --batch-size, or score with fewer rewards at a time; what was scored so "
                "far is in the cache."
            ) from error
        raise
    made = []
    for row in range(len(batch)):
        raw, error_text = float(output.raw[row]), output.errors[row]
        if not bool(output.ok[row]) or not math.isfinite(raw):
            made.append(failure(error_text or f"the scorer returned {raw}"))
        else:
            parts = {name: float(values[row]) for name, values in output.parts.items()}
            made.append(Score(raw, parts, note=output.note(row)))
    return made


def title(reward: Loaded) -> str:
    """Return the scorer's name and version, as the cache notes them."""
    return f"{reward.settings.name} {reward.scorer.spec.version}"
