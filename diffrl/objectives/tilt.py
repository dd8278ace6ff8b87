"""Tree tilt: at each split the clean prediction moves along the covariance of reward and sample below it.

See docs/methods/tree_tilt.md. Regression to targets that a covariance of reward and endpoint tilts is DiffusionART's
idea (arXiv 2610.12572; `objectives/art.py`), whose covariance is given the prompt. This one is given the state: the
leaves below a node are draws of x0 from its latents, so a tree gives by averages what the optimum of reward under a KL
leash asks for. It needs no ratio, no density and no fresh noise, and trains one network evaluation a node, however many
samples lie below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from diffrl.objectives.base import KlGuidedSettings, LossSettings, Objective, RunContext, Trained
from diffrl.objectives.examples import States, add_reference_kl
from diffrl.sections import MOST_SAMPLES, Section, rule, show

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Edges, Forest, PromptBatch, Rollout
    from diffrl.rollout.denoise import Velocity
    from diffrl.rollout.transition import Transition


NodeScore = Literal["contrast", "direction", "random"]


def _number_or_share(keep: Any) -> Any:
    if not (type(keep) is int and keep >= 1) and not (type(keep) is float and 0 < keep < 1):
        raise rule(
            "must be a whole number >= 1, the nodes of a prompt that train, or a share of them > 0 and < 1. Got "
            f"{show(keep)}. To train all nodes, set objective.nodes: null."
        )
    return keep


class NodeSettings(Section):
    """The contrastive subset of nodes: which of each prompt's train. The others cost no evaluation."""

    keep: Annotated[
        Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | Annotated[float, Field(ge=1.0e-6, lt=1)],
        BeforeValidator(_number_or_share),
    ] = Field(description="Nodes of each prompt that train; below 1, their share, rounded up.")
    by: NodeScore = Field(
        "contrast",
        description="contrast = those whose children's values differ most, beyond what the spread below them explains; "
        "direction = those of the longest covariance; random = any that have one.",
    )


class TiltSettings(KlGuidedSettings):
    """Tree tilt: the clean prediction at each split moves along the covariance of reward and sample below it."""

    kind: Literal["tilt"] = Field(description="Covariance of advantage and sample below each split.")
    kl: float = Field(
        0.0,
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2 at the splits; above 0 each costs one more evaluation.",
    )
    nodes: NodeSettings | None = Field(None, description="The contrastive subset of nodes. null = all train.")

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of nodes."""
        tilt = Tilt(context.transition, self.kl)
        if self.nodes is not None:
            tilt = replace(tilt, seed=context.seed, keep=self.nodes.keep, by=self.nodes.by)
        return [LossSettings(tilt, kl_guidance=self.kl_guidance)]

    @property
    def nodes_kept(self) -> int | float | None:
        """How many of a prompt's nodes train, or which share of them."""
        return None if self.nodes is None else self.nodes.keep


@dataclass(frozen=True)
class NodeExamples(States):
    """The nodes that split; a unit is a node, its latents as the network saw them.

    Args:
        node: (U,) int64 rows of the forest, on the CPU.
        direction: (U, ...) float32 covariance of advantage and clean latents below each node.
        centre: (U, ...) float32 mean of the clean latents below it.
        chosen: (U,) bool, the nodes of each prompt that are to train; others are not active.
    """

    node: Tensor
    direction: Tensor
    centre: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class Tilt(Objective[NodeExamples]):
    """The loss.

    Args:
        transition: the dynamics of the splits; its densities tell before the first update whether the update sees what
            the rollout saw. None where nothing is computed.
        kl: weight of mean |v - v_ref|^2; 0 is off.
        seed: of the run; keys random choices.
        keep: nodes of each prompt that train, or their share; None = all.
        by: what they are the largest in.
    """

    trains: ClassVar[Trained] = "nodes"
    measures: ClassVar[tuple[str, ...]] = ("direction", "prediction_error")

    transition: Transition | None
    kl: float = 0.0
    seed: int = 0
    keep: int | float | None = None
    by: NodeScore = "contrast"

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> NodeExamples:
        """Return every node that splits; without direction it is inactive, unless a reference counts where samples do.

        Nodes that are not chosen are inactive too. They count in the mean, as those without direction do. Pruning takes
        a child, with all that grows from it, out of the covariance of the node that it leaves.
        """
        import torch

        from diffrl.functional.covariance import sibling_covariance

        edges, origins = rollout.edges, split_origins(rollout)
        latents = edges.stored[edges.before[origins]].float()
        score = torch.zeros(len(origins), dtype=torch.float64, device=latents.device)
        direction, centre = (torch.zeros_like(latents, dtype=torch.float32) for _ in range(2))
        moves, used = (torch.zeros(len(origins), dtype=torch.bool, device=latents.device) for _ in range(2))
        for row, sample, child in leaves_below(rollout, origins, credit.used, grad_mask):
            below, which = torch.unique(row, return_inverse=True)
            advantage = credit.outcome[sample].to(latents.device)
            clean = rollout.latents[sample.to(latents.device)]
            tilt = sibling_covariance(clean, advantage, which, child, len(below))
            direction[below], centre[below], used[below] = tilt.direction, tilt.centre, True
            moves[below] = (tilt.direction != 0).flatten(1).any(dim=1)
            if self.keep is not None:
                score[below] = self._score(tilt.direction, advantage, which, child)
        active = used if self.trains_uncredited else moves
        chosen = torch.ones_like(moves)
        if self.keep is not None:
            chosen = self._choose(rollout.batch, edges.prompt[origins], score.masked_fill(~moves, torch.nan))
        node = origin_nodes(edges, rollout.forest)[origins.cpu()]
        return NodeExamples(
            latents=latents,
            sigma=edges.sigma[origins],
            prompt=edges.prompt[origins],
            active=active & chosen,
            node=node,
            direction=direction,
            centre=centre,
            chosen=chosen,
        )

    def _score(self, direction: Tensor, advantage: Tensor, node: Tensor, child: Tensor) -> Tensor:
        """Return (U,) float64, what nodes with these directions (U, ...) are chosen by; random choices heed none."""
        from diffrl.functional.covariance import between_variance

        if self.by == "contrast":
            return between_variance(advantage, node, child, len(direction))
        return direction.flatten(1).square().mean(dim=1).sqrt().double()

    def _choose(self, batch: PromptBatch, prompt: Tensor, score: Tensor) -> Tensor:
        """Return (U,) bool, the nodes of each prompt with the largest scores, of equal ones the first.

        Random choices are keyed by (seed, iteration, group), so they do not depend on ranks.

        Args:
            batch: the prompts.
            prompt: (U,) int64 row of each node's prompt.
            score: (U,) float64, NaN of those without direction, which are chosen last.
        """
        import torch

        from diffrl.functional.selection import largest, random_choice
        from diffrl.functional.tree_counts import trained_nodes
        from diffrl.rollout.address import Purpose
        from diffrl.rollout.noise import generator_at

        chosen, score = torch.zeros_like(prompt, dtype=torch.bool), score.cpu()
        for row in prompt.unique().tolist():
            nodes = torch.nonzero(prompt == row).flatten()
            scores, keep = score[nodes.cpu()], trained_nodes(self.keep, len(nodes))
            if self.by == "random":
                generator = generator_at(self.seed, batch.iteration, batch.groups[row], Purpose.NODES)
                order = torch.from_numpy(generator.permutation(len(nodes)))
                picked = random_choice(scores, keep, order).indices
            else:
                picked = largest(scores, keep)
            chosen[nodes[picked.to(nodes.device)]] = True
        return chosen

    def idle_units(self, examples: NodeExamples) -> int:
        """Return how many nodes that were chosen have nothing to train."""
        return int((examples.chosen & ~examples.active).sum())

    def loss(
        self, examples: NodeExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Move clean predictions; metrics are those of `tilt_loss` and, with a reference, reference_kl."""
        from diffrl.functional.losses import tilt_loss

        velocity = policy(*examples.start)
        loss, metrics = tilt_loss(velocity, examples.latents, examples.sigma, examples.direction, examples.centre)
        return add_reference_kl(
            loss=loss, metrics=metrics, velocity=velocity, examples=examples, reference=reference, weight=self.kl
        )

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Return |ratio - 1| of the steps that leave the splits.

        The loss has no ratio. But its directions belong to the latents and velocities of the rollout, and where the
        update sees others, the densities of the steps that leave the nodes are others too.
        """
        from diffrl.rollout.density import ratio_errors
        from diffrl.rollout.observers import take_origins

        assert self.transition is not None
        edges = take_origins(rollout.edges, split_origins(rollout))[0]
        return ratio_errors(edges, policy, self.transition, micro_batch)


def split_origins(rollout: Rollout) -> Tensor:
    """Return rows (U,) int64 of the rollout's recorded origins whose step splits."""
    import torch

    splits = [step for step, children in rollout.forest.branching.items() if children > 1]
    step = rollout.edges.step
    return torch.nonzero(torch.isin(step, step.new_tensor(splits))).flatten()


def origin_nodes(edges: Edges, forest: Forest) -> Tensor:
    """Return rows (O,) int64 of the forest, on the CPU: the node that the path to each recorded origin comes from."""
    import torch

    node = torch.zeros(len(edges.step), dtype=torch.int64)
    node[edges.origin.cpu()] = forest.parent[edges.node.cpu()]  # the same of all edges of an origin
    return node


def leaves_below(
    rollout: Rollout, origins: Tensor, used: Tensor, grad_mask: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, level by level, (L,) int64 each: a used sample's row in `origins`, the sample, the child in between.

    Args:
        rollout: whose samples.
        origins: (U,) int64 rows of its recorded origins.
        used: (S,) bool, samples that count.
        grad_mask: (N,) bool, False where pruning took the edge that ends in a node out of the gradient.
    """
    import torch

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
