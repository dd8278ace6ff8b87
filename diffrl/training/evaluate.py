"""Held-out evaluation: deterministic sampling of the same prompts from the same noise, every time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffrl.config.schema import EvalSettings
from diffrl.distributed.ranks import Ranks
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.records import Prompt, RewardTable
from diffrl.rewards.score import Scoring, WeightedScorer
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.regenerate import Sink, decode, ignore
from diffrl.rollout.tree import chains
from diffrl.statistics import Estimate, estimate_of_sums


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Args:
        means: per reward, and per "reward/part", the mean over the samples that could be scored, of all ranks.
        deviations: the same samples' population standard deviation.
        counts: how many samples these are of.
        estimates: per reward and part the interval of that mean, over the prompts: samples of one go together.
        failed: samples that could not be scored, of all ranks.
        prompts: this rank's prompts, one a sample.
        addresses: this rank's initial noises.
        images: (S, 3, H, W) uint8, this rank's pictures.
        table: their rewards.
        pairs: how the list's pairs stand; see `training.pairs.judge_pairs`.
    """

    means: dict[str, float]
    deviations: dict[str, float]
    counts: dict[str, int]
    estimates: dict[str, Estimate]
    failed: int
    prompts: Sequence[Prompt]
    addresses: Sequence[Address]
    images: Tensor
    table: RewardTable
    pairs: Mapping[str, float] = field(default_factory=dict)


def shared_out(samples: int, prompts: int, rank: int, world: int, scopes: Collection[str]) -> list[int]:
    """Return a rank's samples: a contiguous part; with scorers of groups, that of a contiguous part of the prompts.

    Args:
        samples: of the evaluation; sample i takes prompt i modulo their number.
        prompts: their number.
        rank: this one.
        world: how many there are.
        scopes: of the scorers.
    """
    if "group" not in scopes:
        return list(range(samples * rank // world, samples * (rank + 1) // world))
    used = min(samples, prompts)
    members = range(used * rank // world, used * (rank + 1) // world)
    return [i for i in range(samples) if i % prompts in members]


def draw(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    prompts: Sequence[Prompt],
    places: Sequence[tuple[int, int]],
    settings: EvalSettings,
    decode_batch: int,
    stream: str,
    each: Sink = ignore,
) -> tuple[list[Address], Tensor]:
    """Return held-out samples, each from the noise of its place.

    Args:
        adapter: the policy.
        conditioning: the encoded prompts, one row a prompt.
        prompts: the held-out prompts.
        places: S pairs of a prompt's row and its how-manieth sample, from 0.
        settings: the eval section.
        decode_batch: samples a decoder call.
        stream: of the noise, see `data.worlds.noise_stream`.
        each: called with each decoder call's pictures.

    Returns:
        Their initial noises' addresses and (S, 3, H, W) uint8 pictures, or (S, frames, 3, H, W).
    """
    rows = torch.tensor([row for row, _ in places], dtype=torch.int64)
    addresses = [
        Address(stream=stream, seed=settings.seed, iteration=0, group=row, root=root, path=()) for row, root in places
    ]
    sampler = Sampler(
        adapter.sigmas(settings.steps),
        solver=settings.solver,
        guidance_scale=settings.guidance_scale,
        micro_batch=settings.batch,
    )
    latents = denoise(adapter, conditioning, chains(rows), addresses, sampler)
    return addresses, decode(adapter, latents, decode_batch, [prompts[row].text for row, _ in places], each)


def evaluate(
    ranks: Ranks,
    adapter: ModelAdapter,
    conditioning: Conditioning,
    prompts: Sequence[Prompt],
    scorers: Sequence[WeightedScorer],
    settings: EvalSettings,
    decode_batch: int,
    stream: str = "eval",
) -> Evaluation:
    """Sample i takes prompt i modulo their number; `shared_out` says which rank draws it.

    Args:
        ranks: joins the ranks.
        adapter: the policy.
        conditioning: the encoded prompts, one row a prompt.
        prompts: the held-out prompts.
        scorers: what is measured.
        settings: the eval section.
        decode_batch: samples a decoder call.
        stream: of the noise, see `data.worlds.noise_stream`.
    """
    world, rank = ranks.world, ranks.rank
    mine = shared_out(settings.samples, len(prompts), rank, world, [scorer.scorer.spec.scope for scorer in scorers])
    places = [(i % len(prompts), i // len(prompts)) for i in mine]
    chosen = [prompts[row] for row, _ in places]
    scoring = Scoring(scorers, chosen)
    addresses, images = draw(
        adapter=adapter,
        conditioning=conditioning,
        prompts=prompts,
        places=places,
        settings=settings,
        decode_batch=decode_batch,
        stream=stream,
        each=scoring.add,
    )
    table = ranks.raise_on_all_ranks(scoring.table)
    values = {**table.raw, **table.parts}
    names = ranks.shared_names(sorted(values))
    unknown = torch.full((len(chosen),), torch.nan)
    columns = torch.stack([values.get(name, unknown).double() for name in names])  # (R, S)
    good = torch.isfinite(columns)
    columns = columns.nan_to_num(0.0, 0.0, 0.0)
    sums = torch.stack([columns.sum(1), columns.square().sum(1), good.double().sum(1)]).flatten()
    rows = torch.tensor([row for row, _ in places], dtype=torch.int64)
    each = torch.zeros(2 * len(names), len(prompts), dtype=torch.float64)  # of a prompt: sum, and samples with a value
    each.index_add_(1, rows, torch.cat([columns, good.double()]))
    totals = ranks.sum(torch.cat([sums, (~table.ok).double().sum().reshape(1), each.flatten()]))
    first, second, count = totals[: len(sums)].reshape(3, -1)
    of_prompts, samples = totals[len(sums) + 1 :].reshape(2, len(names), len(prompts))
    mean = first / count  # NaN where no sample could be scored
    deviation = (second / count - mean.square()).clamp_min(0).sqrt()
    known = [i for i in range(len(names)) if count[i] > 0]
    return Evaluation(
        means={names[i]: float(mean[i]) for i in known},
        deviations={names[i]: float(deviation[i]) for i in known},
        counts={names[i]: int(count[i]) for i in known},
        estimates={names[i]: _over_prompts(of_prompts[i], samples[i]) for i in known},
        failed=int(totals[len(sums)]),
        prompts=chosen,
        addresses=addresses,
        images=images,
        table=table,
    )


def _over_prompts(sums: Tensor, samples: Tensor) -> Estimate:
    used = samples > 0
    return estimate_of_sums(sums[used].tolist(), samples[used].tolist())
