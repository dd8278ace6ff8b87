"""What the stages of an opening share: what is known of a run before it is loaded, and what of it is loaded so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.config import Config
from diffrl.cost.plan import Plan, make_plan
from diffrl.cost.process_memory import Offer, offer_here, offer_of
from diffrl.data.prompts import PromptList, read_prompts
from diffrl.errors import NotHereError
from diffrl.preflight.downloads import is_away
from diffrl.training.prompt_report import PromptReport

if TYPE_CHECKING:  # a plan needs no torch
    import torch

    from diffrl.distributed.ranks import Ranks
    from diffrl.preflight.machine import TargetMachine
    from diffrl.records import Prompt
    from diffrl.rewards.score import WeightedScorer
    from diffrl.training.session import Session

TRAIN, EVAL = "prompts.train", "prompts.eval"


@dataclass
class Preview:
    """A run before it is loaded. Each property is computed once, whichever stage needs it first.

    Args:
        config: of the run.
        processes: that will share it.
        target: a machine that is not this one, which memory and arithmetic are judged for.
        resumes: whether the run has begun: problems of its prompts are notes then, and its directory is its own.
        loads_rewards: judge rewards by scorers that are loaded where their weights are here, not by their classes.
        probes_rewards: with that, score an image of noise with each.
        started: processes of the run that have loaded their libraries on this machine.
    """

    config: Config
    processes: int = 1
    target: TargetMachine | None = None
    resumes: bool = False
    loads_rewards: bool = False
    probes_rewards: bool = False
    started: int = 1

    @cached_property
    def offer(self) -> Offer | None:
        """Return what the machine offers before anything is loaded; None where its device is missing."""
        if self.target is not None:
            return offer_of(self.target.memory)
        with suppress(NotHereError):
            return offer_here(self.device, self.started)
        return None

    @property
    def device(self) -> torch.device:
        """Return the device of this process.

        Raises:
            NotHereError: this machine has no such device.
        """
        import torch

        from diffrl.models.loading import choose_device

        device = choose_device(self.config.model.device)
        rank = os.environ.get("LOCAL_RANK")  # which the launcher sets
        return torch.device("cuda", int(rank)) if device.type == "cuda" and rank is not None else device

    @cached_property
    def plan(self) -> Plan:
        """Return what the run will cost."""
        return make_plan(self.config, self.processes)

    @cached_property
    def pinned(self) -> Config:
        """Return the configuration with the sha256 of what the run begins with.

        Raises:
            ConfigError: that is not there, is of another model, or is not what the sha256 says.
        """
        from diffrl.run.start_weights import pin_initial

        return self.config if self.resumes else pin_initial(self.config)

    @cached_property
    def train_list(self) -> PromptList | None:
        """Return the training prompts; None where they would have to be fetched."""
        source = self.config.prompts.train
        return None if is_away(source) else read_prompts(source)

    @cached_property
    def eval_list(self) -> PromptList | None:
        """Return all held-out prompts; None where they would have to be fetched."""
        source = self.config.prompts.held_out
        return None if is_away(source) else read_prompts(source)

    @property
    def prompts(self) -> dict[str, Sequence[Prompt]]:
        """Return the prompts that are here and used, by their keys."""
        lists: dict[str, Sequence[Prompt]] = {}
        if self.train_list is not None:
            lists[TRAIN] = self.train_list.prompts
        if self.eval_list is not None:  # taken in turn, so no others are used
            lists[EVAL] = self.eval_list.prompts[: self.config.eval.samples]
        return lists

    @cached_property
    def encoder_report(self) -> tuple[PromptReport, bool]:
        """Return what the tokenizers of the model cut off the prompts, and whether that is all that it cuts."""
        from diffrl.preflight.prompts import report_encoders

        return report_encoders(self.config, self.prompts)


@dataclass
class Opening:
    """A run while it is loaded, stage by stage.

    Args:
        preview: whose dry halves have passed.
        run_dir: the run's directory.
    """

    preview: Preview
    run_dir: Path
    ranks: Ranks = field(init=False)
    prompts: dict[str, Sequence[Prompt]] = field(default_factory=dict)
    scorers: dict[str, Sequence[WeightedScorer]] = field(default_factory=dict)
    report: PromptReport = field(default_factory=PromptReport)
    listing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    session: Session | None = None

    @property
    def config(self) -> Config:
        """Return the run's configuration, with the sha256 of what it begins with."""
        return self.preview.pinned


def below(first: str, more: Sequence[str]) -> str:
    """Return a finding with further lines below it, indented as in the report of `diffrl check`."""
    return "\n".join([first, *(f"{'':<12} {line}" for line in more)])
