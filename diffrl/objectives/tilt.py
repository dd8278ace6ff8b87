"""Tree tilt: at each split the clean prediction moves along the covariance of reward and sample below it.

This project's own objective (docs/methods/tree_tilt.md). The leaves below a node are draws of x0 from its latents, so a
tree gives by averages what the optimum of reward under a KL leash asks for. It needs no ratio, no density and no fresh
noise, and trains one network evaluation a node, however many samples lie below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffrl.functional.covariance import sibling_covariance
from diffrl.functional.losses import tilt_loss
from diffrl.objectives.base import RunContext, States, pulled
from diffrl.records import Credit, Edges, Forest, Rollout
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.density import ratio_errors
from diffrl.rollout.observers import take_origins
from diffrl.rollout.transition import Transition


@dataclass(frozen=True)
class NodeExamples(States):
    """The nodes that split; a unit is a node, its latents as the network saw them.

    Args:
        node: (U,) int64 rows of the forest, on the CPU.
        direction: (U, ...) float32 covariance of advantage and clean latents below each node.
        centre: (U, ...) float32 mean of the clean latents below it.
    """

    node: Tensor
    direction: Tensor
    centre: Tensor


@dataclass(frozen=True)
class Tilt:
    """The objective.

    Args:
        transition: the dynamics of the splits; its densities tell before the first update whether the update sees what
            the rollout saw.
        kl: weight of mean |v - v_ref|^2; 0 is off.
    """

    transition: Transition
    kl: float = 0.0

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> Tilt:
        """Of a run; options are the fields beside the transition."""
        assert context.transition is not None
        return cls(context.transition, **options)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    @property
    def needs_old_velocity(self) -> bool:
        """The loss's gradient at the old policy needs no prediction of it."""
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the direction, and the distance to the reference."""
        return ("direction", "prediction_error", *(("reference_kl",) if self.kl > 0 else ()))

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> NodeExamples:
        """Every node that splits; without a direction it is inactive, unless the reference pulls where samples count.

        Pruning takes a child, with all that grows from it, out of the covariance of the node that it leaves.
        """
        edges, origins = rollout.edges, split_origins(rollout)
        latents = edges.stored[edges.before[origins]].float()
        direction, centre = (torch.zeros_like(latents, dtype=torch.float32) for _ in range(2))
        moves, used = (torch.zeros(len(origins), dtype=torch.bool, device=latents.device) for _ in range(2))
        for row, sample, child in leaves_below(rollout, origins, credit.used, grad_mask):
            below, place = row.unique(return_inverse=True)
            advantage = credit.outcome[sample].to(latents.device)
            found = sibling_covariance(rollout.latents[sample.to(latents.device)], advantage, place, child, len(below))
            direction[below], centre[below], used[below] = found.direction, found.centre, True
            moves[below] = (found.direction != 0).flatten(1).any(dim=1)
        active = used if self.needs_reference else moves
        node = origin_nodes(edges, rollout.forest)[origins.cpu()]
        return NodeExamples(latents, edges.sigma[origins], edges.prompt[origins], active, node, direction, centre)

    def loss(
        self, examples: NodeExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are those of `tilt_loss` and, with a reference, reference_kl."""
        velocity = policy(*examples.start)
        loss, metrics = tilt_loss(velocity, examples.latents, examples.sigma, examples.direction, examples.centre)
        return pulled(loss, metrics, velocity, examples, reference, self.kl)

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """|ratio - 1| of the steps that leave the splits.

        The loss has no ratio. But its directions belong to the latents and velocities of the rollout, and where the
        update sees others, the densities of the steps that leave the nodes are others too.
        """
        edges = take_origins(rollout.edges, split_origins(rollout))[0]
        return ratio_errors(edges, policy, self.transition, micro_batch)


def split_origins(rollout: Rollout) -> Tensor:
    """Rows (U,) int64 of the rollout's recorded origins whose step splits."""
    splits = [step for step, children in rollout.forest.branching.items() if children > 1]
    step = rollout.edges.step
    return torch.nonzero(torch.isin(step, step.new_tensor(splits))).flatten()


def origin_nodes(edges: Edges, forest: Forest) -> Tensor:
    """Rows (O,) int64 of the forest, on the CPU: the node that the path to each recorded origin comes from."""
    node = torch.zeros(len(edges.step), dtype=torch.int64)
    node[edges.origin.cpu()] = forest.parent[edges.node.cpu()]  # the same of all edges of an origin
    return node


def leaves_below(
    rollout: Rollout, origins: Tensor, used: Tensor, grad_mask: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Level by level, (L,) int64 each: the row in `origins` above a used sample, the sample, the child in between.

    Args:
        rollout: whose samples.
        origins: (U,) int64 rows of its recorded origins.
        used: (S,) bool, samples that count.
        grad_mask: (N,) bool, False where pruning took the edge that ends in a node out of the gradient.
    """
    forest, device = rollout.forest, rollout.latents.device
    row_of = torch.full_like(forest.parent, -1)
    row_of[origin_nodes(rollout.edges, forest)[origins.cpu()]] = torch.arange(len(origins))
    sample, child = torch.nonzero(used).flatten(), forest.leaf[used]
    while len(sample):
        inside = forest.parent[child] >= 0
        sample, child = sample[inside], child[inside]
        above = forest.parent[child]
        enters = (row_of[above] >= 0) & grad_mask[child]
        if enters.any():
            yield row_of[above[enters]].to(device), sample[enters], child[enters].to(device)
        child = above
