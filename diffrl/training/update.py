"""From a rollout and its credit to optimiser updates, and the gate before the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning, ModelAdapter, take_rows
from diffrl.objectives.base import Objective, VelocityOf
from diffrl.records import Edges, Rollout
from diffrl.rollout.denoise import take_edges
from diffrl.training.distributed import gather_rows, sum_ranks
from diffrl.training.policy import Policy


@dataclass(frozen=True)
class Gradient:
    """What one accumulated gradient amounts to.

    Args:
        loss: mean over the update's edges of all ranks.
        norm: gradient norm before clipping.
        metrics: means over the same edges.
        largest_ratio_error: max |ratio - 1| over them.
        bad_samples: rows of this rank's samples with an edge whose loss is not finite.
    """

    loss: float
    norm: float
    metrics: Mapping[str, float]
    largest_ratio_error: float
    bad_samples: Sequence[int] = ()


def deal_edges(rollout: Rollout, updates: int, seed: int) -> list[Tensor]:
    """Which edges each update trains on: every edge once, each update an equal share of every prompt.

    The shuffle is keyed by the prompt's group id, so it does not depend on how prompts are spread over ranks.

    Args:
        rollout: the edges' rollout.
        updates: number of shares.
        seed: of the run.

    Returns:
        `updates` tensors of edge rows, int64, disjoint, on the edges' device.
    """
    edges = rollout.edges
    prompt = rollout.prompt.to(edges.sample.device)[edges.sample]
    shares: list[list[Tensor]] = [[] for _ in range(updates)]
    for row, group in enumerate(rollout.batch.groups):
        own = torch.nonzero(prompt == row).flatten()
        order = np.random.default_rng([seed, rollout.batch.iteration, group]).permutation(len(own))
        for share, part in zip(shares, np.array_split(order, updates), strict=True):
            share.append(own[torch.from_numpy(part).to(own.device)])
    return [torch.cat(share) for share in shares]


def velocity_of(
    adapter: ModelAdapter, conditioning: Conditioning, rollout: Rollout, guidance_scale: float
) -> VelocityOf:
    """The policy as objectives see it: edges in, velocities out, conditioned as they were in the rollout."""
    prompt = rollout.prompt

    def predict(edges: Edges) -> Tensor:
        rows = prompt.to(edges.sample.device)[edges.sample]
        return adapter.velocity(edges.latents, edges.sigma, take_rows(conditioning, rows), guidance_scale)

    return predict


def reference_of(policy: Policy, predict: VelocityOf) -> VelocityOf:
    """The same for the model before alignment, without gradients."""

    @torch.no_grad()
    def reference(edges: Edges) -> Tensor:
        with policy.reference():
            return predict(edges)

    return reference


def on_policy_errors(
    accelerator: Any, objective: Objective, edges: Edges, predict: VelocityOf, micro_batch: int
) -> list[tuple[int, float]]:
    """Max |ratio - 1| of each trained step under the present policy, by the update's own code path and batch size.

    Args:
        accelerator: joins the ranks.
        objective: gives the ratios.
        edges: this rank's; the same steps on every rank.
        predict: velocities of the policy.
        micro_batch: edges a forward pass.

    Returns:
        (step, error) of all ranks, in the order of the steps.
    """
    errors = []
    for index in torch.arange(len(edges), device=edges.step.device).split(micro_batch):
        piece = take_edges(edges, index)
        _, metrics = objective.loss(piece, torch.zeros_like(piece.old_log_prob), predict, None)
        errors.append(metrics["ratio_error"])
    steps, every = edges.step.unique(), torch.cat(errors)
    worst = torch.stack([every[edges.step == step].max() for step in steps])
    worst = gather_rows(accelerator, worst.unsqueeze(0)).amax(0)
    return list(zip(steps.tolist(), worst.tolist(), strict=True))


def accumulate_gradient(
    accelerator: Any,
    policy: Policy,
    objective: Objective,
    edges: Edges,
    advantage: Tensor,
    predict: VelocityOf,
    reference: VelocityOf | None,
    micro_batch: int,
) -> Gradient:
    """Gradient of the mean loss over an update's edges of all ranks, whatever the micro-batch.

    Args:
        accelerator: joins the ranks.
        policy: its gradients are replaced.
        objective: gives a loss per edge.
        edges: this rank's; the same number on every rank.
        advantage: (E,) of the edges.
        predict: velocities of the policy.
        reference: velocities of the reference, or None.
        micro_batch: edges a forward and backward pass.
    """
    for parameter in policy.parameters.values():
        parameter.grad = None
    total = len(edges) * accelerator.num_processes
    sums: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    largest = torch.zeros((), device=edges.old_log_prob.device)
    pieces = torch.arange(len(edges), device=edges.step.device).split(micro_batch)
    for number, piece in enumerate(pieces, 1):
        with _sync_if(accelerator, policy.adapter.transformer, number == len(pieces)):
            loss, metrics = objective.loss(take_edges(edges, piece), advantage[piece], predict, reference)
            # Ranks are averaged, so the sum over all of them needs their number back.
            (loss.sum() * (accelerator.num_processes / total)).backward()
        losses.append(loss.detach())
        for name, values in {"loss": loss.detach(), **metrics}.items():
            sums[name] = sums.get(name, torch.zeros_like(largest)) + values.sum()
        if "ratio_error" in metrics:
            largest = torch.maximum(largest, metrics["ratio_error"].max())
    names = sorted(sums)
    totals = sum_ranks(accelerator, torch.stack([sums[name] for name in names]))
    means = {name: float(value) / total for name, value in zip(names, totals, strict=True)}
    norm = torch.nn.utils.get_total_norm([p.grad for p in policy.parameters.values() if p.grad is not None])
    worst = float(gather_rows(accelerator, largest.reshape(1)).max())
    bad = ~torch.isfinite(torch.cat(losses))
    return Gradient(means.pop("loss"), float(norm), means, worst, edges.sample[bad].unique().tolist())


def update_metrics(gradients: Sequence[Gradient], rates: Sequence[float]) -> dict[str, float]:
    """An iteration's updates in one row: means, and the largest ratio error.

    Args:
        gradients: of its updates.
        rates: their learning rates.
    """
    rows = [
        {"loss": gradient.loss, "grad_norm": gradient.norm, "learning_rate": rate, **gradient.metrics}
        for gradient, rate in zip(gradients, rates, strict=True)
    ]
    means = {f"update/{name}": sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return {**means, "update/ratio_error_max": max(gradient.largest_ratio_error for gradient in gradients)}


def clip_gradient(policy: Policy, norm: float, limit: float | None) -> None:
    """Scale the gradients down to a norm of `limit`, given the norm they have."""
    if limit is not None and norm > limit:
        for parameter in policy.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(limit / (norm + 1e-6))


@contextmanager
def _sync_if(accelerator: Any, module: torch.nn.Module, sync: bool) -> Iterator[None]:
    """Let gradients travel between ranks with the last micro-batch only."""
    with nullcontext() if sync or accelerator.num_processes == 1 else accelerator.no_sync(module):
        yield
