"""Everything a run needs, made from its configuration; what can be refused is refused before anything is written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.cost.meter import CostMeter
from diffrl.cost.plan import Plan, make_plan
from diffrl.cost.process_memory import Offer, offer_to_all, shortages
from diffrl.cost.waiting import longest_wait
from diffrl.data import sources
from diffrl.data.prompts import read_prompts
from diffrl.distributed.ranks import Ranks, open_ranks
from diffrl.distributed.sharding import make_mesh
from diffrl.errors import ConfigError, NotHereError
from diffrl.functional.schedules import merged_end
from diffrl.models.adapter import ModelAdapter
from diffrl.models.distilled import refuse_distilled
from diffrl.models.loading import DTYPES, choose_device, load_adapter
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.placement import Placement
from diffrl.models.text_encoders import TextReader, text_readers
from diffrl.objectives.base import RunContext
from diffrl.precision.copies import PolicyCopy
from diffrl.precision.facts import speed_notes
from diffrl.records import Prompt
from diffrl.rewards.lanes import Lane
from diffrl.rewards.score import WeightedScorer
from diffrl.rollout.transition import Transition, make_transition
from diffrl.training.explorer import make_explorer
from diffrl.training.gradient import LossTerm
from diffrl.training.inputs import Inputs, digest_base, digest_own, digest_packages, digest_prompts, digest_rewards
from diffrl.training.optim import make_optimizer
from diffrl.training.policy import Policy
from diffrl.training.prompt_report import add_encoders, report_prompts
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs, require_sources
from reward_models.neural import Copies

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
        copy: the policy in the precision that explores; None if that is its own.
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
        """The training rewards that are asked in an iteration, with their weights there."""
        pairs = zip(self.scorers, self.config.rewards, strict=True)
        return [replace(s, weight=r.weight_at(iteration)) for s, r in pairs if r.asked(iteration)]


def open_session(config: Config, run_dir: Path, resumes: bool = False) -> Session:
    """Load prompts, scorers and model, and prepare the policy for training.

    Args:
        config: of the run.
        run_dir: its directory.
        resumes: whether it has begun: what its prompts are like is said then, and no longer refused.

    Raises:
        ConfigError: anything in the configuration that cannot be had on this machine.
    """
    train_list, eval_list = (read_prompts(source) for source in (config.prompts.train, config.prompts.held_out))
    prompts = train_list.prompts
    eval_prompts = eval_list.prompts[: config.eval.samples]  # taken in turn, so no others are used
    patience = longest_wait(config, int(os.environ.get("WORLD_SIZE", "1")))  # which is what the launcher sets
    device = choose_device(config.model.device)
    ranks = open_ranks(device, check_trackers(config), str(run_dir), patience)
    offer = offer_to_all(ranks)  # before anything that the plan counts is loaded
    fps = config.model.frame_rate
    lanes: dict[str, Lane] = {}
    copies: Copies = {}
    scorers, eval_scorers = (
        make_scorers(settings, where, ranks.device, fps, lanes, copies)
        for settings, where in ((config.rewards, "rewards"), (config.eval.rewards, "eval.rewards"))
    )
    require_media(config.model.facts, [*scorers, *eval_scorers])
    require_metadata(scorers, prompts, "prompts.train")
    require_metadata(eval_scorers, eval_prompts, "prompts.eval")
    require_pairs(eval_scorers, config.eval.samples, len(eval_prompts))
    lists = {"prompts.train": prompts, "prompts.eval": eval_prompts}
    scored = {"prompts.train": scorers, "prompts.eval": eval_scorers}
    report = report_prompts(config.prompts, lists, scored)
    if not resumes:
        report.require()  # before the model is loaded
    for where, listed in lists.items():  # before the model is loaded; its size is not known yet
        sources.require_sources(listed, where, config.model.family, config.model.facts.edits)
    refuse_distilled(config.model.facts, config.model.path, config.model.allow_distilled)
    world = ranks.world
    check_world_size(config, world)
    plan = make_plan(config, world)
    e = config.rollout.explore
    slow = speed_notes(config.model.dtype, None if e is None else e.precision, ranks.device.type)
    notes = (*memory_notes(config, plan, offer), *slow)
    adapter = open_adapter(config, ranks.device)
    require_sources(config.model.family, adapter, lists)
    add_encoders(report, config.prompts, lists, encoders_of(adapter))
    if not resumes:
        report.require()
    listing = tuple(dict.fromkeys([*train_list.notes, *eval_list.notes, *report.notes, *report.problems]))
    sharded = config.train.sharding == "fsdp" and world > 1
    policy = Policy(
        adapter,
        config.model.adapters,
        config.run.seed,
        keep_reference=config.objective.needs_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
        to_be_sharded=sharded,
    )
    meter = CostMeter()
    meter.watch(policy.networks(), config.model.dtype)
    copy = open_copy(config, policy, ranks.device)
    if copy is not None:
        meter.watch([copy.module], copy.report.precision)
    ranks.wait()  # one may have downloaded or compiled for long; what follows is the backend's
    if sharded:
        ranks.keep_in_step(policy.shard(make_mesh(ranks)))
    t = config.train
    parameters = list(policy.parameters.values())
    optimizer = make_optimizer(parameters, t.optimizer, t.learning_rate, t.betas, t.epsilon, t.weight_decay)
    if world > 1 and not sharded and not policy.alternates:  # DDP waits for gradients of every weight in every pass
        adapter.transformer = ranks.prepare(adapter.transformer)
    sigmas = rollout_sigmas(adapter, config)
    transition = open_rounded(config, sigmas)
    return Session(
        config,
        ranks,
        plan,
        adapter,
        policy,
        copy,
        meter,
        transition,
        make_losses(config, transition),
        optimizer,
        scorers,
        eval_scorers,
        prompts,
        eval_prompts,
        sigmas,
        (*notes, *listing),
        listing,
    )


def encoders_of(adapter: ModelAdapter) -> list[TextReader]:
    """Return the text encoders of a pipeline's adapter as readers; none of another adapter."""
    if not isinstance(adapter, PipelineAdapter):
        return []
    return text_readers(adapter.family.text_encoders, adapter.pipeline.components, adapter.max_sequence_length)


def memory_notes(config: Config, plan: Plan, offer: Offer) -> tuple[str, ...]:
    """Return what to tell about memory that may not suffice.

    Raises:
        NotHereError: it does not suffice, and guards.memory is stop.
    """
    lacking = shortages(plan.memory, offer, plan.world_size) if plan.memory else []
    if lacking and config.guards.memory == "stop":
        raise NotHereError(lacking)
    return tuple(lacking)


def open_copy(config: Config, policy: Policy, device: torch.device) -> PolicyCopy | None:
    """The low-precision copy that explores, checked; None if the policy itself does.

    Raises:
        ConfigError: this precision cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    e = config.rollout.explore
    if e is None or e.precision == "training":
        return None
    r, pool = config.rollout, e.candidates * config.prompts.per_iteration
    batches = (1, min(r.micro_batch, pool))
    return make_explorer(
        policy, e.precision, e.engine, config.explore_exclude, device, r.guidance_scale, batches, e.compile
    )


def rollout_sigmas(adapter: ModelAdapter, config: Config) -> Tensor:
    """The rollout's grid: (T + 1,) from 1 to 0."""
    r = config.rollout
    return adapter.sigmas(r.steps) if r.grid == "stock" else merged_end(adapter.sigmas(r.steps + 1))


def open_transition(config: Config, sigmas: Tensor) -> Transition | None:
    """The dynamics of the stochastic steps; None if no step is stochastic."""
    if config.rollout.dynamics is None:
        return None
    dynamics = config.rollout.dynamics
    return make_transition(dynamics.kind, sigmas, **dynamics.arguments)


def open_rounded(config: Config, sigmas: Tensor) -> Transition | None:
    """As `open_transition`, where the noise of every stochastic step outlives the rounding of its latents.

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
    """The configured objective as the losses that an update adds up."""
    context = RunContext(transition, config.run.seed, config.old_is_policy)
    return [
        LossTerm(loss.objective, loss.weight, config.loss_guidance(loss.guidance))
        for loss in config.objective.losses(context)
    ]


def open_adapter(config: Config, device: torch.device) -> ModelAdapter:
    """The configured model on a device."""
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
        true_cfg_scale=m.true_cfg_scale,
        **options,
    )


def check_world_size(config: Config, world_size: int) -> None:
    """Refuse a batch that the ranks cannot share evenly.

    Raises:
        ConfigError: says which number to change.
    """
    problems = []
    if config.prompts.per_iteration % world_size:
        problems.append(
            f"prompts.per_iteration must be a multiple of the number of processes. Got {config.prompts.per_iteration} "
            f"with {world_size} processes. Change either."
        )
    if config.eval.samples < world_size:
        problems.append(
            f"eval.samples must be at least the number of processes. Got {config.eval.samples} with {world_size}."
        )
    if problems:
        raise ConfigError(problems)


def check_trackers(config: Config) -> list[str]:
    """Names of the asked-for trackers.

    Raises:
        NotHereError: its package is not installed.
    """
    wanted = {"tensorboard": config.track.tensorboard, "wandb": config.track.wandb is not None}
    for name in (name for name, asked in wanted.items() if asked):
        if importlib.util.find_spec(name) is None:
            raise NotHereError(f"track.{name} needs the {name} package. Run: pip install 'diffrl[{name}]'.")
    return [name for name, asked in wanted.items() if asked]
