"""From examples to a gradient: shares of updates, and their gradient over all micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrl.distributed.ranks import Ranks
from diffrl.distributed.sharding import total_norm
from diffrl.objectives.base import Objective
from diffrl.objectives.examples import Examples
from diffrl.records import PromptBatch
from diffrl.rollout.address import Purpose
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.noise import generator_at
from diffrl.training.policy import Policy


@dataclass(frozen=True)
class LossTerm:
    """One of the losses that an update adds up.

    Args:
        objective: gives the loss of each term.
        weight: factor of its mean.
        guidance: of the velocities that it is given; 1 is off.
    """

    objective: Objective[Any]
    weight: float = 1.0
    guidance: float = 1.0


@dataclass(frozen=True)
class Gradient:
    """What one accumulated gradient amounts to.

    Args:
        loss: sum of the losses' weighted means over the update's terms of all ranks.
        norm: gradient norm before clipping.
        metrics: means over the terms that were evaluated.
        largest_ratio_error: max |ratio - 1| over them.
        evaluated: network evaluations on this rank, guidance and references left out.
        bad_prompts: rows of this rank's prompts with a term whose loss is not finite.
        joined: of each loss the evaluations that this rank made for nothing but to take part in the ranks' exchange,
            guidance and references left out.
        joined_reference: the same, of the reference.
    """

    loss: float
    norm: float
    metrics: Mapping[str, float]
    largest_ratio_error: float
    evaluated: int
    bad_prompts: Sequence[int] = ()
    joined: Sequence[int] = ()
    joined_reference: int = 0


def minibatches(
    prompt: Tensor, batch: PromptBatch, updates: int, seed: int, cell: Tensor | None = None
) -> list[Tensor]:
    """Return which units each update trains on: every unit once, each update an equal share of every prompt.

    The shuffle is keyed by the prompt's group id, so it does not depend on how prompts are spread over ranks.

    Args:
        prompt: (M,) int64 row of each unit's prompt.
        batch: the prompts.
        updates: number of shares.
        seed: of the run.
        cell: (M,) int64; units of one cell, which all belong to one prompt, stay together. None = each is its own.

    Returns:
        `updates` tensors of rows, int64, disjoint, on the device of `prompt`.
    """
    shares: list[list[Tensor]] = [[] for _ in range(updates)]
    for row, group in enumerate(batch.groups):
        units = torch.nonzero(prompt == row).flatten()
        group_index = (
            torch.arange(len(units), device=units.device)
            if cell is None
            else cell[units].unique(return_inverse=True)[1]
        )
        count = int(group_index.max()) + 1 if len(units) else 0
        order = generator_at(seed, batch.iteration, group, Purpose.UPDATE_SHARES).permutation(count)
        for share, part in zip(shares, np.array_split(order, updates), strict=True):
            dealt = torch.from_numpy(part).to(units.device)
            share.append(units[dealt] if cell is None else units[torch.isin(group_index, dealt)])
    return [torch.cat(share) for share in shares]


def accumulate_gradient(
    ranks: Ranks,
    policy: Policy,
    shares: Sequence[tuple[LossTerm, Examples, Tensor]],
    predict: Sequence[Velocity],
    reference: Velocity | None,
    micro_batch: int,
) -> Gradient:
    """Return gradient of the sum of the mean losses over the terms of all ranks, whatever the micro-batch.

    Units without anything to train count in the mean and are not evaluated.

    Args:
        ranks: joins the ranks.
        policy: its gradients are replaced.
        shares: of each loss its examples and the units (B,) that this update trains on.
        predict: velocities of the policy, as each loss is given them.
        reference: velocities of the reference, or None.
        micro_batch: units a forward and backward pass.
    """
    for parameter in policy.parameters.values():
        parameter.grad = None
    lockstep = ranks.lockstep
    if lockstep:
        lockstep.forget()
    by_hand = policy.alternates and not lockstep
    pieces = [batches(examples, index, micro_batch) for _, examples, index in shares]
    idle = [0] * len(shares) if by_hand else _idle_passes(ranks, [len(calls) for calls in pieces])
    numbered = enumerate(zip(pieces, idle, strict=True))
    passes = [(number, piece) for number, (calls, none) in numbered for piece in [*calls, *[None] * none]]
    terms = ranks.sum(torch.stack([examples.terms[index].sum() for _, examples, index in shares]))
    planned = terms.tolist()
    sums = [_Sums() for _ in shares]
    joined, joined_reference = [0] * len(shares), 0
    with lockstep.equal_calls() if lockstep else nullcontext():
        for count, (number, piece) in enumerate(passes, 1):
            term, examples, _ = shares[number]
            o = term.objective
            asked = reference if o.needs_reference and not o.precomputes_reference else None
            with ranks.sync_if(policy.adapter.transformer, count == len(passes)):
                if piece is None:
                    _join_with_nothing(examples, predict[number], asked)
                    joined[number] += 1
                    joined_reference += asked is not None
                    continue
                taken = examples.take(piece)
                loss, metrics = term.objective.loss(taken, predict[number], asked)
                # Ranks are averaged, so the sum over all of them needs their number back.
                (loss.sum() * (term.weight * ranks.world / planned[number])).backward()
            sums[number].add({"loss": loss.detach(), **metrics}, taken.term_prompt)
    if by_hand:
        ranks.average_gradients(policy.parameters.values())
    means, loss_total = _means(ranks, shares, sums, planned)
    norm = total_norm([p.grad for p in policy.parameters.values() if p.grad is not None])
    largest = torch.tensor([max(one.largest_ratio_error() for one in sums)])
    return Gradient(
        loss=loss_total,
        norm=norm,
        metrics=means,
        largest_ratio_error=float(ranks.gather(largest).max()),
        evaluated=sum(len(piece) for calls in pieces for piece in calls),
        bad_prompts=sorted({prompt for one in sums for prompt in one.bad_prompts()}),
        joined=joined,
        joined_reference=joined_reference,
    )


def batches(examples: Examples, index: Tensor, micro_batch: int) -> list[Tensor]:
    """Return the units of a share (B,) that are evaluated, cut into the update's network calls."""
    return [piece for piece in index[examples.active[index]].split(micro_batch) if len(piece)]


class _Sums:
    """Sums of one loss's metrics over its terms, on the device: they are read when all micro-batches have been sent."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.count = 0
        self._ratio_errors: list[Tensor] = []
        self._bad: list[Tensor] = []

    def add(self, metrics: Mapping[str, Tensor], prompt: Tensor) -> None:
        for name, values in metrics.items():
            total = values.sum(dtype=torch.float64)
            self.values[name] = self.values[name] + total if name in self.values else total
        loss = metrics["loss"]
        self.count += len(loss)
        self._bad.append(torch.where(torch.isfinite(loss), -1, prompt.to(loss.device)))
        if "ratio_error" in metrics:
            self._ratio_errors.append(metrics["ratio_error"].max())

    def largest_ratio_error(self) -> float:
        return max(torch.stack(self._ratio_errors).tolist()) if self._ratio_errors else 0.0

    def bad_prompts(self) -> set[int]:
        return set(torch.cat(self._bad).tolist()) - {-1} if self._bad else set()

    def row(self, names: Sequence[str]) -> list[float]:
        """Return sums of some metrics, 0 of those that there are none of, and the number of terms."""
        sums = torch.stack(list(self.values.values())).tolist() if self.values else []
        read = dict(zip(self.values, sums, strict=True))
        return [read.get(name, 0.0) for name in names] + [self.count]


def _means(
    ranks: Ranks,
    shares: Sequence[tuple[LossTerm, Examples, Tensor]],
    sums: Sequence[_Sums],
    planned: Sequence[float],
) -> tuple[dict[str, float], float]:
    """Return each loss's metrics as means over the evaluated terms of all ranks, and the total loss."""
    means: dict[str, float] = {}
    total = 0.0
    for (term, _, _), sum_of_loss, number in zip(shares, sums, planned, strict=True):
        names = term.objective.metrics
        joined = ranks.sum(torch.tensor(sum_of_loss.row(("loss", *names)), dtype=torch.float64)).tolist()
        total += term.weight * joined[0] / number
        if joined[-1]:
            means |= {name: value / joined[-1] for name, value in zip(names, joined[1:-1], strict=True)}
    return means, total


def _idle_passes(ranks: Ranks, passes: Sequence[int]) -> list[int]:
    """Return how many idle passes of each loss this rank makes: forward and backward, with a gradient of 0.

    A backward pass reduces gradients over all ranks, so a rank that has nothing to train would leave the others
    waiting. With DDP ranks meet in their last pass only (`sync_if`): one will do for a rank without any. With sharded
    weights they meet in every call, so all make as many as the rank with the most.

    Args:
        ranks: joins the ranks.
        passes: of each loss that this rank has something to train in.
    """
    if ranks.world == 1:
        return [0] * len(passes)
    most = ranks.gather(torch.tensor([passes])).amax(0).tolist()
    if ranks.lockstep:
        return [m - n for m, n in zip(most, passes, strict=True)]
    return [int(any(most) and not any(passes)), *[0] * (len(passes) - 1)]


def _join_with_nothing(examples: Examples, predict: Velocity, reference: Velocity | None) -> None:
    """Call the networks as a loss does and go back with a gradient of zero."""
    first = torch.arange(len(examples.prompt), device=examples.prompt.device)[:1]
    latents, sigma, prompt = examples.take(first).start
    nothing = torch.zeros_like(latents)  # whatever is wrong with a unit that is not trained stays out of the gradient
    velocity = predict(nothing, sigma, prompt)
    if reference is not None:
        reference(nothing, sigma, prompt)
    (0.0 * velocity.sum()).backward()


def clip_gradient(policy: Policy, norm: float, limit: float | None) -> None:
    """Scale the gradients down to a norm of `limit`, given the norm they have."""
    if limit is not None and norm > limit:
        for parameter in policy.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(limit / (norm + 1e-6))
