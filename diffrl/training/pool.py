"""A pool of candidates: drawn and scored to choose from, and how far its ranking agrees with the true one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from diffrl.distributed.ranks import Ranks
from diffrl.functional.ranking import pair_agreement, ranking_fidelity
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Forest, Prompt, PromptBatch, RewardTable, Samples
from diffrl.rewards.score import Scoring, WeightedScorer
from diffrl.rollout.denoise import Sampler
from diffrl.rollout.explore import explore, prompt_samples
from diffrl.rollout.regenerate import Clock, Sink, ignore, no_clock
from diffrl.rollout.tree import prompt_chunks, root_addresses, subset


def draw_pool(
    adapter: ModelAdapter,
    copy: PolicyCopy | None,
    conditioning: Conditioning,
    batch: PromptBatch,
    pool: Forest,
    seed: int,
    sampler: Sampler,
    scorers: Sequence[WeightedScorer],
    *,
    decode_batch: int,
    clock: Clock = no_clock,
    prompts_at_once: int | None = None,
    each: Sink = ignore,
    ranks: Ranks | None = None,
) -> RewardTable:
    """Return rewards of a pool's pictures, which are let go of once they are scored; without latents and densities.

    Args:
        adapter: the model.
        copy: draws in place of its transformer; None = the transformer itself.
        conditioning: the batch's encoded prompts, one row a prompt.
        batch: the prompts.
        pool: the candidates.
        seed: of their noise.
        sampler: how latents are carried; its levels may be coarse.
        scorers: of the pictures.
        decode_batch: samples a decoder call.
        clock: entered with "explore", "decode" and "reward".
        prompts_at_once: prompts that are drawn together, and scored while the next are drawn; None = all.
        each: called with the pictures as they are decoded, in the order of the samples.
        ranks: joins the ranks, where each draws a pool of its own.
    """
    scoring = Scoring(scorers, *samples_of(batch, pool))

    def take(images: Tensor) -> None:
        scoring.add(images)
        each(images)

    with copy.in_place_of(adapter) if copy is not None else nullcontext():
        for samples in prompt_chunks(pool, prompts_at_once):
            part = subset(pool, samples)
            roots = root_addresses(part, batch, seed)
            explore(
                adapter=adapter,
                conditioning=conditioning,
                batch=batch,
                forest=part,
                roots=roots,
                sampler=sampler,
                decode_batch=decode_batch,
                clock=clock,
                each=take,
            )
    with clock("reward"):
        return scoring.table() if ranks is None else ranks.raise_on_all_ranks(scoring.table)


def samples_of(batch: PromptBatch, forest: Forest) -> tuple[list[Prompt], list[int]]:
    """Return the prompt and the group of every sample."""
    rows = forest.sample_prompt.tolist()
    return [batch.prompts[row] for row in rows], [batch.groups[row] for row in rows]


def fidelity_metrics(ranks: Ranks, samples: Samples) -> dict[str, float | int]:
    """Return agreement of proxy and true rewards, as means over prompts of all ranks.

    The chosen samples alone are a biased sample: they are the extremes. `audit_tau` rests on pairs with an audited
    member only; both it and the others are NaN where nothing differs.
    """
    assert samples.exploration is not None and samples.chosen is not None
    proxy, true = samples.exploration.proxy.total[samples.chosen.samples], samples.table.total
    sums = torch.zeros(8, dtype=torch.float64)
    for rows in prompt_samples(samples.rollout.forest):
        ranking = ranking_fidelity(proxy[rows], true[rows], max(1, len(rows) // 4))
        tau, rho = ranking.tau, ranking.rho
        if math.isnan(tau) and _differ(true[rows]) and not _differ(proxy[rows]):
            tau = rho = 0.0  # a proxy that tells nothing apart ranks nothing
        for i, value in enumerate((tau, rho, ranking.top_match, ranking.bottom_match)):
            if math.isfinite(value):
                sums[2 * i : 2 * i + 2] += torch.tensor([value, 1.0], dtype=torch.float64)
    agree = pair_agreement(proxy, true, samples.rollout.forest.sample_prompt, samples.chosen.audit)
    joined = ranks.sum(torch.cat([sums, torch.tensor(agree, dtype=torch.float64)]))
    means = (joined[0:8:2] / joined[1:8:2]).tolist()
    names = ("tau", "rho", "top_match", "bottom_match")
    concordant, discordant, _ = joined[8:].tolist()
    pairs = concordant + discordant
    return {
        **{f"fidelity/{name}": value for name, value in zip(names, means, strict=True)},
        "fidelity/audit_tau": (concordant - discordant) / pairs if pairs else math.nan,
        "fidelity/audit_pairs": int(pairs),
    }


def _differ(rewards: Tensor) -> bool:
    """Return whether the rewards that are known are not all equal."""
    known = rewards[rewards.isfinite()]
    return len(known) > 1 and bool((known != known[0]).any())


def single_child_splits(forest: Forest) -> int:
    """Return splits of which selection left one child only: siblings cannot be compared there."""
    families = torch.bincount(forest.parent[forest.parent >= 0], minlength=len(forest.parent))
    splitting = [step for step, children in forest.branching.items() if children > 1]
    ends = torch.isin(forest.step, torch.tensor(splitting, dtype=torch.int64))
    parents = forest.parent[ends].unique()
    return int((families[parents] == 1).sum())
