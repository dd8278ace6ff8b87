"""A run's aligned model, for everything that comes after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffrl.checkpoint.files import Checkpoint
from diffrl.config import Config
from diffrl.errors import ConfigError
from diffrl.models.adapter import ModelAdapter
from diffrl.run.choose import NEWEST, Choice, choose_checkpoint
from diffrl.run.directory import open_run_dir
from diffrl.run.inputs import warn_of_inputs
from diffrl.training.inputs import digest_base, digest_packages
from diffrl.training.policy import Policy
from diffrl.training.session import open_adapter


@dataclass(frozen=True)
class AlignedModel:
    """A run's model and one of its checkpoints.

    `messages` say why that one, where it was not simply the newest, and what is not as it was when it was trained.
    """

    run_dir: Path
    config: Config
    checkpoint: Checkpoint
    adapter: ModelAdapter
    policy: Policy
    messages: tuple[str, ...]

    def align(self) -> None:
        """Put the checkpoint's weights into the model; the EMA's, where the run has one."""
        self.policy.restore(aligned_weights(self.checkpoint)[1])


def aligned_weights(checkpoint: Checkpoint) -> tuple[str, Mapping[str, Tensor]]:
    """The weights that a run is evaluated with, and their name in the checkpoint: of its EMA, else of the policy."""
    name = "ema" if "ema" in checkpoint.tensors else "policy"
    return name, checkpoint.tensors[name]


def load_aligned(run: Path, device: torch.device, choice: Choice = NEWEST) -> AlignedModel:
    """Load a run's model and put a checkpoint into it.

    Args:
        run: a run's directory.
        device: where the model runs.
        choice: of its checkpoints.

    Raises:
        ConfigError: there is no such run or checkpoint, or its model cannot be loaded.
        CheckpointError: it has no checkpoint that can be used.
    """
    model = open_run_model(run, device, choice)
    model.align()
    return model


def open_run_model(run: Path, device: torch.device, choice: Choice = NEWEST) -> AlignedModel:
    """Load a run's model as it was before any alignment, a checkpoint beside it.

    Args:
        run: a run's directory.
        device: where the model runs.
        choice: of its checkpoints.

    Raises:
        ConfigError: there is no such run or checkpoint, or its model cannot be loaded.
        CheckpointError: it has no checkpoint that can be used.
    """
    run_dir, config = open_run_dir(run)
    messages: list[str] = []
    checkpoint = choose_checkpoint(run_dir, config, choice, messages.append)
    now = {**digest_base(config.model), **digest_packages()}
    messages += warn_of_inputs(checkpoint.state.get("inputs"), now, str(run_dir))
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
