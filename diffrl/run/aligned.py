"""A run's aligned model, for everything that comes after training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from diffrl.checkpoint.files import Checkpoint, latest_checkpoint
from diffrl.config import Config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.models.adapter import ModelAdapter
from diffrl.run.directory import open_run_dir
from diffrl.run.journal import CHECKPOINTS
from diffrl.training.policy import Policy
from diffrl.training.session import open_adapter


@dataclass(frozen=True)
class AlignedModel:
    """A run's model and its newest whole checkpoint."""

    run_dir: Path
    config: Config
    checkpoint: Checkpoint
    adapter: ModelAdapter
    policy: Policy
    messages: tuple[str, ...]

    def align(self) -> None:
        """Put the checkpoint's weights into the model; the EMA's, where the run has one."""
        tensors = self.checkpoint.tensors
        self.policy.restore(tensors.get("ema", tensors["policy"]))


def load_aligned(run: Path, device: torch.device) -> AlignedModel:
    """Load a run's model and put its newest whole checkpoint into it.

    Raises:
        ConfigError: there is no such run, or its model cannot be loaded.
        CheckpointError: it has no checkpoint that can be used.
    """
    model = open_run_model(run, device)
    model.align()
    return model


def open_run_model(run: Path, device: torch.device) -> AlignedModel:
    """Load a run's model as it was before the first iteration, its newest whole checkpoint beside it.

    Raises:
        ConfigError: there is no such run, or its model cannot be loaded.
        CheckpointError: it has no checkpoint that can be used.
    """
    run_dir, config = open_run_dir(run)
    messages: list[str] = []
    checkpoint = latest_checkpoint(run_dir / CHECKPOINTS, messages.append)
    if checkpoint is None:
        raise CheckpointError(f"The run {run_dir} has no checkpoint yet. Let it reach run.checkpoint_every iterations.")
    adapter = open_adapter(config, device)
    policy = Policy(adapter, config.model.adapters, config.run.seed)
    return AlignedModel(run_dir, config, checkpoint, adapter, policy, tuple(messages))


def require_empty(directory: Path, option: str) -> None:
    """Refuse to write into a folder that holds something.

    Raises:
        ConfigError: it does.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{option} must be a new or empty folder, so that nothing is overwritten. Got {directory}.")
