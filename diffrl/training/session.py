"""Everything a run needs, and the parts of it that are made from its configuration; `diffrl.preflight` opens it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.cost.meter import CostMeter
from diffrl.cost.plan import Plan
from diffrl.distributed.ranks import Ranks
from diffrl.errors import ConfigError
from diffrl.functional.schedules import merged_end
from diffrl.models.adapter import ModelAdapter
from diffrl.models.loading import DTYPES, load_adapter
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.placement import Placement
from diffrl.models.text_encoders import TextReader, text_readers
from diffrl.objectives.base import RunContext
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer
from diffrl.rollout.transition import Transition, make_transition
from diffrl.training.gradient import LossTerm
from diffrl.training.inputs import Inputs, digest_base, digest_own, digest_packages, digest_prompts, digest_rewards
from diffrl.training.low_precision import make_explorer
from diffrl.training.policy import Policy

LEAST_ROUNDED = 0.01
"""Deviation of a step below which its latents are not rounded to bfloat16; see `require_noise`."""


@dataclass
class Session:
    """A loaded run, ready to train.

    Args:
        config: as resolved.
        ranks: joins the ranks.
        plan: what the run will cost.
        adapter: the model, its transformer prepared for training.
        policy: the trained weights.
        copy: the policy in the precision that explores or draws; None if that is its own.
        meter: counts this rank's network evaluations, decodes and reward calls.
        transition: dynamics of the stochastic steps; None if there are none.
        losses: what an update adds up.
        optimizer: over the policy's weights.
        scorers: training rewards.
        eval_scorers: held-out rewards.
        prompts: training prompts.
        eval_prompts: held-out prompts that are evaluated.
        sigmas: (T + 1,) the rollout's grid.
        notes: what the user should know before the run begins.
        prompt_notes: those of them that are about its prompts.
        input_changes: where the run went on with other inputs: after which iteration, and their names.
    """

    config: Config
    ranks: Ranks
    plan: Plan
    adapter: ModelAdapter
    policy: Policy
    copy: PolicyCopy | None
    meter: CostMeter
    transition: Transition | None
    losses: Sequence[LossTerm]
    optimizer: torch.optim.Optimizer
    scorers: Sequence[WeightedScorer]
    eval_scorers: Sequence[WeightedScorer]
    prompts: Sequence[Prompt]
    eval_prompts: Sequence[Prompt]
    sigmas: Tensor
    notes: Sequence[str] = ()
    prompt_notes: Sequence[str] = ()
    input_changes: list[tuple[int, list[str]]] = field(default_factory=list)

    @cached_property
    def inputs(self) -> Inputs:
        """Digests of what the run depends on and its configuration only names, taken once.

        Raises:
            ConfigError: a file cannot be read.
        """
        c = self.config
        return {
            "prompts.train": digest_prompts(self.prompts),
            "prompts.eval": digest_prompts(self.eval_prompts),
            **digest_base(c.model),
            **digest_own(c),
            **digest_rewards("rewards", c.rewards, [one.scorer.spec for one in self.scorers]),
            **digest_rewards("eval.rewards", c.eval.rewards, [one.scorer.spec for one in self.eval_scorers]),
            **digest_packages(),
        }

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        return self.ranks.device

    def scorers_at(self, iteration: int) -> list[WeightedScorer]:
        """Return the training rewards that are asked in an iteration, with their weights there."""
        pairs = zip(self.scorers, self.config.rewards, strict=True)
        return [replace(s, weight=r.weight_at(iteration)) for s, r in pairs if r.asked(iteration)]


def encoders_of(adapter: ModelAdapter) -> list[TextReader]:
    """Return the text encoders of a pipeline's adapter as readers; none of another adapter."""
    if not isinstance(adapter, PipelineAdapter):
        return []
    return text_readers(adapter.family.text_encoders, adapter.pipeline.components, adapter.max_sequence_length)


def open_copy(config: Config, policy: Policy, device: torch.device) -> PolicyCopy | None:
    """Return the low-precision copy that explores or draws, checked; None if the policy itself does.

    Raises:
        ConfigError: this precision cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    r = config.rollout
    settings, samples = r.policy_copy, r.tree.samples if r.explore is None else r.explore.candidates
    if settings is None:
        return None
    batches = (1, min(r.micro_batch, samples * config.prompts.per_iteration))
    return make_explorer(
        policy=policy,
        precision=settings.precision,
        engine=settings.engine,
        exclude=config.copy_exclude,
        device=device,
        guidance_scale=r.guidance_scale,
        batches=batches,
        compile=settings.compile,
        section=r.policy_copy_key,
    )


def rollout_sigmas(adapter: ModelAdapter, config: Config) -> Tensor:
    """Return the rollout's grid: (T + 1,) from 1 to 0."""
    r = config.rollout
    return adapter.sigmas(r.steps) if r.grid == "stock" else merged_end(adapter.sigmas(r.steps + 1))


def open_transition(config: Config, sigmas: Tensor) -> Transition | None:
    """Return the dynamics of the stochastic steps; None if no step is stochastic."""
    if config.rollout.dynamics is None:
        return None
    dynamics = config.rollout.dynamics
    return make_transition(dynamics.kind, sigmas, **dynamics.arguments)


def open_rounded(config: Config, sigmas: Tensor) -> Transition | None:
    """Return what `open_transition` does if the noise of each of its steps outlives the rounding of latents, or None.

    Raises:
        ConfigError: one does not.
    """
    transition, r = open_transition(config, sigmas), config.rollout
    if transition is not None and r.latents_dtype != "float32":
        require_noise(transition, sigmas, {step for i in r.window_places for step in r.steps_at(i)}, r.latents_dtype)
    return transition


def require_noise(transition: Transition, sigmas: Tensor, steps: Iterable[int], dtype: str) -> None:
    """Refuse to round latents so coarsely that a step's noise, which its gradient is made of, would be lost in it.

    Rounding to bfloat16 moves latents of unit variance by .0011 on average, so a step of `LEAST_ROUNDED` is off by a
    tenth; the noise of CPS just before the end is far smaller.

    Raises:
        ConfigError: names the step whose noise is least.
    """
    least = {}
    for step in steps:
        x = torch.zeros(1, 1)
        least[step] = float(
            transition(x, x, sigmas[step].reshape(1).cpu(), sigmas[step + 1].reshape(1).cpu()).std.min()
        )
    step = min(least, key=least.__getitem__)
    if least[step] < LEAST_ROUNDED:
        raise ConfigError(
            f"rollout.latents_dtype must be float32 where a step's noise is below {LEAST_ROUNDED:g}, or rounding would "
            f"drown it. Got {dtype} and a deviation of {least[step]:.2g} at step {step}, from noise level "
            f"{float(sigmas[step]):.3g} to {float(sigmas[step + 1]):.3g}. Set it to float32, or make fewer steps "
            "stochastic (rollout.stochastic)."
        )


def make_losses(config: Config, transition: Transition | None) -> list[LossTerm]:
    """Return the configured objective as the losses that an update adds up."""
    context = RunContext(transition, config.run.seed, config.old_is_policy)
    return [
        LossTerm(loss.objective, loss.weight, config.loss_guidance(loss.guidance))
        for loss in config.objective.losses(context)
    ]


def open_adapter(config: Config, device: torch.device) -> ModelAdapter:
    """Return the configured model on a device."""
    m = config.model
    options: dict[str, Any] = m.options
    return load_adapter(
        m.family,
        m.path,
        dtype=m.dtype,
        placement=Placement(
            device=device,
            offload=m.offload,
            vae_dtype=None if m.vae_dtype is None else DTYPES[m.vae_dtype],
            vae_slicing=m.vae_slicing,
            vae_tiling=m.vae_tiling,
            attention=m.attention,
            base_precision=m.base_precision,
            compile=m.compile,
        ),
        revision=m.revision,
        variant=m.variant,
        negative_prompt=m.negative_prompt,
        true_cfg_scale=m.true_cfg_scale,
        **options,
    )
