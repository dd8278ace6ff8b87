"""How well cheap pools rank candidates: one pool, drawn in every precision and number of steps, against the full one.

`diffrl fidelity`; docs of the numbers: `functional.ranking.RankingFidelity`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffrl import pulse
from diffrl.config.schema import Config
from diffrl.cost.meter import CostMeter, PhaseClock, network_evaluations
from diffrl.data.prompts import load_prompts
from diffrl.data.sampler import prompt_batch
from diffrl.errors import ConfigError
from diffrl.files import require_empty
from diffrl.functional.ranking import ranking_fidelity
from diffrl.functional.steps import coarse_levels
from diffrl.functional.tree_counts import forwards_per_tree
from diffrl.models.adapter import Conditioning, device_of
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import choose_device
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Forest, Prompt, PromptBatch
from diffrl.rewards.score import WeightedScorer
from diffrl.rollout.denoise import Sampler
from diffrl.rollout.explore import explore, prompt_samples
from diffrl.rollout.tree import plan_forest, root_addresses, subset
from diffrl.run.checkpoints import Choice, load_aligned, require_choice
from diffrl.run.directory import environment
from diffrl.run.start_weights import restore_initial
from diffrl.studies.fidelity.request import (
    CANDIDATES,
    TRAINING,
    FidelityRequest,
    Wanted,
    default_steps,
    missing_precision,
    request_problems,
    wanted_pools,
)
from diffrl.training.low_precision import make_explorer
from diffrl.training.policy import Policy
from diffrl.training.pool import draw_pool
from diffrl.training.sampling import full_sampler
from diffrl.training.scorers import make_scorers
from diffrl.training.session import open_adapter, open_transition, rollout_sigmas

RANKING = ("tau", "rho", "top_match", "bottom_match", "mean_rank")
DIFFERENCES = ("reward_difference", "pixel_difference")


@dataclass(frozen=True)
class Mean:
    """A mean over prompts; None where there is none."""

    mean: float | None  # over the prompts that have this number
    standard_error: float | None  # of the mean, from the spread over these prompts; needs two
    prompts: int  # how many these are


@dataclass(frozen=True)
class Pool:
    """The pool as drawn in one way."""

    precision: str  # of the network that drew it
    engine: str | None  # what ran the precision; None for the training precision
    compute_dtype: str  # of the operands of the quantised layers, as seen; of the network for the training precision
    weights_quantised: float  # share of the linear layers' weights in low precision
    steps: int  # denoising steps
    levels: Sequence[int]  # the visited indices of the full grid
    seconds: Mapping[str, float]  # denoising, decoding and scoring the pool: "explore", "decode", "reward"
    network_evaluations: int  # of the pool
    failed: int  # candidates that could not be scored
    rewards: Sequence[Sequence[float | None]]  # of each prompt, its candidates' rewards; None where scoring failed
    # every number of `RANKING` and `DIFFERENCES`, prompt by prompt; empty for the truth
    per_prompt: Mapping[str, Sequence[float | None]]
    means: Mapping[str, Mean]  # the same over prompts

    @property
    def label(self) -> str:
        """Return the precision, and what stands in for it."""
        return f"{self.precision} (emulated)" if self.engine == "emulated" else self.precision


@dataclass(frozen=True)
class Fidelity:
    """What was found; `dataclasses.asdict` of it is fidelity.json."""

    settings: Mapping[str, Any]  # what was compared
    environment: Mapping[str, Any]  # what it ran on
    # rows of the prompts whose true rewards are all equal; they have no ranking and are left out
    without_spread: Sequence[int]
    # `top_match` and `bottom_match` of a random choice; ties of the true reward raise them above k / N
    chance: Mapping[str, Mean]
    perfect_mean_rank: Mean  # `mean_rank` of the truth itself
    truth: Pool  # the pool in the training precision with all steps
    variants: Sequence[Pool]  # the others, in the order asked for


@dataclass(frozen=True)
class _Setting:
    """What all pools share."""

    config: Config
    policy: Policy
    scorers: Sequence[WeightedScorer]
    batch: PromptBatch
    conditioning: Conditioning
    forest: Forest
    sampler: Sampler
    seed: int
    meter: CostMeter
    weights: Sequence[str]


def measure_fidelity(config: Config, request: FidelityRequest) -> Fidelity:
    """Draw the pool in every way and compare; writes nothing but the folder itself.

    Prompts are those of the first training iteration under the seed, and so are the addresses of the noise: the k-th
    candidate of a prompt comes from the same noise in every pool.

    Raises:
        ConfigError: the request does not fit the configuration or this machine; all problems are listed.
    """
    if config.objective.trains_pairs:
        raise ConfigError(
            "diffrl fidelity compares how pools are ranked. "
            f"Got objective.kind: {config.objective.kind}, which draws and ranks nothing. Name another recipe."
        )
    seed = config.run.seed if request.seed is None else request.seed
    source = config.prompts.held_out if request.held_out else config.prompts.train
    prompts, device = load_prompts(source), choose_device(config.model.device)
    wanted, steps = wanted_pools(config, request), request.steps or default_steps(config)
    steps = tuple(dict.fromkeys(steps))
    candidates = request.candidates or (config.rollout.explore.candidates if config.rollout.explore else CANDIDATES)
    problems = request_problems(config, request, prompts, candidates, steps)
    problems += [problem for w in wanted for problem in missing_precision(w, device)]
    if problems:
        raise ConfigError(problems)
    require_choice(Choice(request.step, request.best, request.newest), request.run)
    require_empty(request.out, "--out")
    request.out.mkdir(parents=True, exist_ok=True)
    setting = _prepare(config, request, prompts, candidates, seed, device)
    rows = prompt_samples(setting.forest)
    full = config.rollout.steps
    _warm_up(setting, None)
    pulse.begin(f"the truth: {config.model.dtype}, {full} steps", _totals(setting, full))
    images, rewards, truth = _draw(setting, None, full)
    without = [i for i, row in enumerate(rows) if not _has_spread(rewards[row])]
    variants = []
    for w in wanted:
        copy = _copy(setting, w, device)
        _warm_up(setting, copy)
        for count in steps:
            pulse.begin(f"{w.text}, {count} steps", _totals(setting, count))
            own_images, own_rewards, pool = _draw(setting, copy, count)
            numbers = _compare(own_rewards, rewards, own_images, images, rows, without, request.k)
            means = {name: mean_over_prompts(values) for name, values in numbers.items()}
            variants.append(replace(pool, per_prompt=_by_prompt(numbers), means=means))
    settings = {
        "k": request.k,
        "candidates": candidates,
        "seed": seed,
        "source": source,
        "prompts": [prompt.text for prompt in setting.batch.prompts],
        "run": None if request.run is None else str(request.run),
        "weights": list(setting.weights),
        "config": config.model_dump(mode="json"),
    }
    runs_on = {name: value for name, value in environment(device, config.model.dtype, 1).items() if name != "run_id"}
    ranked = [rewards[row] for i, row in enumerate(rows) if i not in without]
    perfect = mean_over_prompts([ranking_fidelity(true, true, request.k).mean_rank for true in ranked])
    return Fidelity(settings, runs_on, without, _chance(ranked, request.k), perfect, truth, variants)


def _totals(setting: _Setting, steps: int) -> dict[str, int]:
    """Return what a pool of so many steps counts up to, as `diffrl.pulse` has it."""
    branching, pool = setting.forest.branching, len(setting.forest)
    levels = coarse_levels(setting.config.rollout.steps, list(branching), steps)[:-1]
    trees = int((setting.forest.parent < 0).sum())
    scores = pool * len(setting.scorers)
    return {"explore": trees * forwards_per_tree(levels, branching), pulse.DECODED: pool, pulse.SCORED: scores}


def _prepare(
    config: Config,
    request: FidelityRequest,
    prompts: Sequence[Prompt],
    candidates: int,
    seed: int,
    device: torch.device,
) -> _Setting:
    """Load what draws and scores."""
    r, branching = config.rollout, config.rollout.branching_at(0)
    scorers = make_scorers(config.rewards, "rewards", device, config.model.frame_rate)
    if request.run is not None:
        aligned = load_aligned(request.run, device, Choice(request.step, request.best, request.newest))
        policy = aligned.policy
        weights = [*aligned.messages, f"Weights of {request.run} after iteration {aligned.checkpoint.step}."]
    else:
        policy = Policy(open_adapter(config, device), config.model.adapters, config.run.seed)
        weights = restore_initial(policy, config)
    meter = CostMeter()
    meter.watch(policy.networks(), config.model.dtype)
    batch = prompt_batch(prompts, request.prompts, seed, 0)
    sigmas = rollout_sigmas(policy.adapter, config)
    return _Setting(
        config,
        policy,
        scorers,
        batch,
        PromptEncodings(policy.adapter)(batch.prompts),
        plan_forest(len(batch.prompts), candidates // r.tree.leaves_per_root, branching),
        full_sampler(r, sigmas, open_transition(config, sigmas)),
        seed,
        meter,
        weights,
    )


def _copy(setting: _Setting, wanted: Wanted, device: torch.device) -> PolicyCopy | None:
    """Return the policy in a precision, counted; None for the training precision."""
    if wanted.precision == TRAINING:
        return None
    exclude = setting.config.copy_exclude
    guidance = setting.config.rollout.guidance_scale
    copy = make_explorer(setting.policy, wanted.precision, wanted.engine, exclude, device, guidance, (1,))
    setting.meter.watch([copy.module], copy.report.precision)
    return copy


def _warm_up(setting: _Setting, copy: PolicyCopy | None) -> None:
    """Draw one candidate, so that what a network does once does not count as the pool's time."""
    s, first = setting, subset(setting.forest, torch.tensor([0]))
    roots = root_addresses(first, s.batch, s.seed)
    with copy.in_place_of(s.policy.adapter) if copy is not None else nullcontext():
        explore(s.policy.adapter, s.conditioning, s.batch, first, roots, s.sampler, decode_batch=1)


def _draw(setting: _Setting, copy: PolicyCopy | None, steps: int) -> tuple[Tensor, Tensor, Pool]:
    """Return pictures (S, 3, H, W) uint8 and rewards (S,) of the pool, and what it cost."""
    s, full = setting, setting.config.rollout.steps
    levels = coarse_levels(full, list(s.forest.branching), steps)
    sampler, clock = replace(s.sampler, levels=levels), PhaseClock(device_of(s.policy.inner))
    before = network_evaluations(s.meter.state())
    pictures: list[Tensor] = []
    table = draw_pool(
        s.policy.adapter,
        copy,
        s.conditioning,
        s.batch,
        s.forest,
        s.seed,
        sampler,
        s.scorers,
        decode_batch=s.config.rollout.decode_batch,
        clock=clock,
        each=pictures.append,
    )
    pool = Pool(
        precision=TRAINING if copy is None else copy.report.precision,
        engine=None if copy is None else copy.report.engine,
        compute_dtype=s.config.model.dtype if copy is None else copy.report.compute_dtype,
        weights_quantised=0.0 if copy is None else copy.report.weights_quantised,
        steps=steps,
        levels=levels,
        seconds=clock.seconds,
        network_evaluations=network_evaluations(s.meter.state()) - before,
        failed=int((~table.ok).sum()),
        rewards=[[_plain(value) for value in table.total[row].tolist()] for row in prompt_samples(s.forest)],
        per_prompt={},
        means={},
    )
    return torch.cat(pictures), table.total, pool


def _compare(
    proxy: Tensor,
    true: Tensor,
    images: Tensor,
    true_images: Tensor,
    rows: Sequence[Tensor],
    without_spread: Sequence[int],
    k: int,
) -> dict[str, list[float]]:
    """Return every number, prompt by prompt; NaN where there is none."""
    numbers: dict[str, list[float]] = {name: [] for name in (*RANKING, *DIFFERENCES)}
    for i, row in enumerate(rows):
        ranking = ranking_fidelity(proxy[row], true[row], k)
        for name in RANKING:
            numbers[name].append(math.nan if i in without_spread else getattr(ranking, name))
        numbers["reward_difference"].append(float((proxy[row].double() - true[row].double()).abs().nanmean()))
        pixels = (images[row].float() - true_images[row].float()).abs()
        numbers["pixel_difference"].append(float(pixels.mean(dtype=torch.float64)) / 255)
    return numbers


def _has_spread(rewards: Tensor) -> bool:
    usable = rewards[rewards.isfinite()]
    return len(usable) > 1 and bool(usable.max() > usable.min())


def _chance(rewards: Sequence[Tensor], k: int) -> dict[str, Mean]:
    """Return how many of the k best and worst a random choice hits; ties count, as in `ranking_fidelity`."""
    top, bottom = [], []
    for values in rewards:
        level = values[values.isfinite()].sort().values
        if len(level) >= k:
            top.append(float((level >= level[-k]).double().mean()))
            bottom.append(float((level <= level[k - 1]).double().mean()))
    return {"top_match": mean_over_prompts(top), "bottom_match": mean_over_prompts(bottom)}


def mean_over_prompts(values: Sequence[float]) -> Mean:
    """Return mean and its standard error, sample deviation / sqrt(n), of the n finite values."""
    usable = torch.tensor([value for value in values if math.isfinite(value)], dtype=torch.float64)
    count = len(usable)
    error = float(usable.std()) / math.sqrt(count) if count > 1 else None
    return Mean(float(usable.mean()) if count else None, error, count)


def _by_prompt(numbers: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    return {name: [_plain(value) for value in values] for name, values in numbers.items()}


def _plain(value: float) -> float | None:
    """Return the value as JSON can write it: None for NaN."""
    return value if math.isfinite(value) else None
