"""A run as people look at it from Python: its metrics as rows, its samples with their pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffrl.config import Config
from diffrl.errors import ConfigError
from diffrl.models.images import pil_or_frames
from diffrl.run.directory import open_run_dir
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.store import SampleStore, StoredSample

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

STAGES = {"eval": "held-out", "train": "training"}


@dataclass(frozen=True)
class Sample:
    """A sample that a run has drawn, scored and kept.

    Args:
        prompt: its text.
        iteration: of training: how many were done when a held-out sample was drawn, and which one (from 0) drew a
            sample of training.
        scores: raw value of each reward by its name, its parts as "reward/part"; None where it could not be scored.
        total: weighted sum of the rewards.
        advantage: of a sample of training; None where it did not train.
        metadata: what came with the prompt.
        error: why it could not be scored; None if it was.
    """

    prompt: str
    iteration: int
    scores: Mapping[str, float | None]
    total: float | None
    advantage: float | None
    metadata: Mapping[str, Any]
    error: str | None
    _run_dir: Path = field(repr=False)
    _stored: StoredSample = field(repr=False)

    @property
    def has_image(self) -> bool:
        """Whether its picture was kept, which track.pictures_per_evaluation and track.pictures_per_iteration bound."""
        return self._stored.file is not None

    def image(self) -> Image | Tensor:
        """Read its picture from the disk.

        Returns:
            The picture as a PIL image, or the frames of a video, (F, 3, H, W) uint8.

        Raises:
            DiffrlError: it was not kept, or cannot be read.
        """
        with SampleStore.open_readonly(self._run_dir) as store:
            return pil_or_frames(store.picture(self._stored))


@dataclass(frozen=True)
class Run:
    """A run's directory: what was trained there, and how it went. It may still be training.

    Args:
        path: the directory.
        config: the run's own configuration.
    """

    path: Path
    config: Config = field(repr=False)

    @property
    def iteration(self) -> int:
        """How many iterations are written down."""
        return max((row["iteration"] for row in self.metrics()), default=0)

    def metrics(self) -> list[dict[str, Any]]:
        """Return what was measured, as rows that `pandas.DataFrame` takes as they are.

        Returns:
            A row an iteration, and one before the first, of `iteration` 0; held-out rewards are in the rows of
            iterations that evaluated. None where a value was not finite. docs/metrics.md explains each.

        Raises:
            DiffrlError: metrics.jsonl is damaged.
        """
        path = self.path / "metrics.jsonl"
        return read_metrics(path) if path.exists() else []

    def samples(self, stage: str = "eval", iteration: int | None = None) -> list[Sample]:
        """Return samples of one iteration.

        Args:
            stage: eval = held-out samples, the same prompts and noise every time; train = those that were trained on.
            iteration: as in `Sample`; None = the last that has any.

        Returns:
            Them in the order in which they were drawn; none if there are none.

        Raises:
            ConfigError: no such stage.
            DiffrlError: the index of the samples cannot be read.
        """
        if stage not in STAGES:
            raise ConfigError(f"stage must be one of {', '.join(STAGES)}. Got {stage!r}.")
        with SampleStore.open_readonly(self.path) as store:
            if iteration is None:
                iteration = max(store.iterations(stage), default=None)
            rows = [] if iteration is None else store.read(stage=stage, iteration=iteration)
        return [
            Sample(s.prompt, s.iteration, s.rewards, s.total, s.advantage, s.metadata, s.error, self.path, s)
            for s in rows
        ]


def open_run(path: str | Path) -> Run:
    """Return a run that was trained before, or is being trained.

    Args:
        path: its directory.

    Raises:
        ConfigError: there is no run.
    """
    return Run(*open_run_dir(path))
