"""What tree tilt asked of the splits of kept trees, and what the updates made of it: numbers, and latents to decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffrl.functional.covariance import sibling_covariance
from diffrl.objectives.examples import Examples
from diffrl.objectives.tilt import NodeExamples, leaves_below, origin_nodes, split_origins
from diffrl.records import Credit, Rollout
from diffrl.trees.document import Sketch
from diffrl.trees.record import UpdateEffect
from diffrl.trees.tracing import Trace

ETA = 1.0
"""How many directions lie between the images before and aim: 1 is where p(x0) exp(A) leads to first order."""


@dataclass(frozen=True)
class UpdateEffects:
    """Of the kept prompts' nodes that split.

    Args:
        node: U rows of the rollout's forest.
        effect: U records, one a node; pulls by the forest's rows, without files.
        before: (U, ...) float32 clean latents that the network predicted there.
        direction: (U, ...) float32 covariance of advantage and clean latents below.
        after: (U, ...) float32 what it predicts at the same latents after the updates.
        dtype: of latents as the decoder takes them.
    """

    node: Sequence[int]
    effect: Sequence[UpdateEffect]
    before: Tensor
    direction: Tensor
    after: Tensor
    dtype: torch.dtype

    def row_of(self, node: int) -> int | None:
        """Return the row of a node of the forest; None if it does not split, or trains along no direction."""
        row = self.node.index(node) if node in self.node else None
        return row if row is not None and self.effect[row].trained and self.effect[row].size != 0 else None

    def predictions(self, row: int) -> Tensor:
        """Return (3, ...) latents before the updates, as asked for, and after them."""
        before = self.before[row]
        return torch.stack([before, before + ETA * self.direction[row], self.after[row]]).to(self.dtype)


def update_effects_of(
    trace: Trace,
    rollout: Rollout,
    credit: Credit,
    kept: Tensor,
    examples: Sequence[Examples],
    before: Tensor,
    after: Tensor,
) -> UpdateEffects | None:
    """Return the kept prompts' splits; None where no loss trains nodes.

    Args:
        trace: what was seen of the iteration's first prompts.
        rollout: what it drew.
        credit: what it deserved.
        kept: (N,) bool, False where pruning took the edge out of the gradient.
        examples: what each loss trained on.
        before: (O, ...) velocities at the origins of the traced steps before the updates.
        after: the same after them.
    """
    whole = next((each for each in examples if isinstance(each, NodeExamples)), None)
    if whole is None:
        return None
    rows = torch.nonzero(whole.prompt < trace.prompts).flatten()
    kept_nodes = whole.take(rows)
    origin = {node: row for row, node in enumerate(origin_nodes(trace.edges, rollout.forest).tolist())}
    places = torch.tensor([origin[node] for node in kept_nodes.node.tolist()], dtype=torch.int64, device=before.device)
    first, last = (_clean(kept_nodes, velocity[places]) for velocity in (before, after))
    compared = _compared(rollout, credit, kept, split_origins(rollout)[rows])
    moved = (last - first).double()
    measured = [_effect(kept_nodes, row, moved[row], *compared.get(row, ({}, 0))) for row in range(len(rows))]
    nodes = kept_nodes.node.tolist()
    return UpdateEffects(
        node=nodes,
        effect=measured,
        before=first,
        direction=kept_nodes.direction,
        after=last,
        dtype=kept_nodes.latents.dtype,
    )


def with_update_effects(sketch: Sketch, effects: UpdateEffects | None) -> Sketch:
    """Return a tree with the records of its splits."""
    if effects is None:
        return sketch
    number = {row: i for i, row in enumerate(sketch.node) if row >= 0}
    nodes = list(sketch.record.nodes)
    for node, effect in zip(effects.node, effects.effect, strict=True):
        if node in number:
            pulls = {number[leaf]: weight for leaf, weight in effect.pulls.items()}
            nodes[number[node]] = replace(nodes[number[node]], update_effect=replace(effect, pulls=pulls))
    return replace(sketch, record=replace(sketch.record, nodes=nodes))


def _clean(examples: NodeExamples, velocity: Tensor) -> Tensor:
    """Return (U, ...) float32 clean latents that velocities predict at the nodes."""
    ones = [1] * (velocity.ndim - 1)
    sigma = examples.sigma.float().view(-1, *ones)
    return examples.latents.float() - sigma * velocity


def _effect(examples: NodeExamples, row: int, moved: Tensor, pulls: Mapping[int, float], children: int) -> UpdateEffect:
    """Return the record of one node; `moved` (...) float64 is how far the updates moved its prediction."""
    wanted = examples.direction[row].double()
    norms = float(wanted.norm() * moved.norm())
    return UpdateEffect(
        sigma=_digits(examples.sigma[row]),
        trained=bool(examples.active[row]),
        size=_digits(wanted.square().mean().sqrt()),
        children=children,
        pulls=pulls,
        moved=_digits(moved.square().mean().sqrt()),
        cosine=_digits((wanted * moved).sum() / norms) if norms > 0 else None,
        eta=ETA,
    )


def _compared(
    rollout: Rollout, credit: Credit, kept: Tensor, origins: Tensor
) -> dict[int, tuple[dict[int, float], int]]:
    """Return by row in `origins` each compared sample's weight, by its node, and the number of children."""
    below: dict[int, list[tuple[int, int]]] = {}
    for columns in leaves_below(rollout, origins, credit.used, kept):
        for row, sample, child in zip(*(column.tolist() for column in columns), strict=True):
            below.setdefault(row, []).append((sample, child))
    return {row: _weights(rollout, credit, samples) for row, samples in below.items()}


def _weights(rollout: Rollout, credit: Credit, samples: Sequence[tuple[int, int]]) -> tuple[dict[int, float], int]:
    """Return weights of the samples (sample, child) below one node in its direction, and how many children they have.

    The direction is linear in the samples, so its weights are the direction of unit vectors in their place.
    """
    sample, child = torch.tensor(samples, dtype=torch.int64).unbind(1)
    one = torch.zeros_like(sample)
    weights = sibling_covariance(torch.eye(len(sample)), credit.outcome[sample].cpu(), one, child, 1).direction[0]
    leaves = rollout.forest.leaf[sample].tolist()
    return dict(zip(leaves, map(_digits, weights), strict=True)), len(child.unique())


def _digits(value: Tensor) -> float:
    """Return a number in the digits that it has as a float32."""
    return float(f"{float(value):.8g}")
