"""One prompt's rollout as a document, to be looked at later: trees/<iteration>-<group>/tree.json and its images.

    trees/000020-3/tree.json       the nodes, their values, the edges' advantages, what was chosen and why
    trees/000020-3/node-12.webp    the image that the network predicted at node 12; of a leaf, the finished one
    trees/000020-3/proxy-40.webp   candidate 40 as the exploring precision drew it
    trees/000020-3/aim-12.webp     the prediction that training asks for at the split of node 12; before-12 and after-12
                                   are what the network predicted there before and after the updates

`trees.read` reads it with neither torch nor PIL. Keys may be added; older records lack them, and read as
unknown. Older ones say "drawn" of what is sampled and "pushed" of an update's effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""How a document is read: no other keys, no text for a number, no number without end."""
File = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A file in the tree's folder."""
Word = bool | Annotated[int, Field(gt=-(2**64), lt=2**64)] | float | str | None
Scaling = Annotated[Mapping[Annotated[str, Field(pattern="^(weight|shift|scale)$")], float], Field(min_length=3)]
"""How a reward enters the total: weight * (raw - shift) / scale."""


@dataclass(frozen=True)
class TreeLeaf:
    """A sample, or a candidate that was only explored.

    Args:
        path: the child taken at each split, () for chains.
        proxy: weighted reward of the cheaply generated image; None without an exploring stage, or where it failed.
        proxy_picture: file of that image, in the tree's folder; None if it was not kept.
        chosen: why it was generated again ("best 1", "audit", ...); None if it was not, or if nothing was chosen.
        audit: generated only to check the ranking; it trains nothing.
        total: weighted reward of the image in the training precision; None if it was not generated, or failed.
        rewards: raw value by name, parts as "reward/part".
        notes: what scorers say of the finished image, by the name of the reward.
        error: why a scorer failed on the finished image, else on the proxy's.
        advantage: of the sample as a whole; None if it was not used.
        trained: whether the sample itself trained the policy (DiffusionNFT's contrast).
        centre: what the advantage subtracts from the total; None where it is no such quotient, and in older records.
        spread: what it divides by.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    path: tuple[int, ...] = ()
    proxy: float | None = None
    proxy_picture: File | None = None
    chosen: str | None = None
    audit: bool = False
    total: float | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    advantage: float | None = None
    trained: bool = False
    centre: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class UpdateEffect:
    """What a loss that trains nodes (tree tilt) asked of one that splits, and what the iteration's updates made of it.

    There the network predicts the end x0. The direction C is the covariance of advantage and clean latents below the
    node, samples of different children compared with each other: C = sum of pulls * x0.

    Args:
        sigma: noise level at which the node splits.
        trained: whether it was in the loss with a weight: it has a direction, or is pulled to the reference, and is
            among the nodes that were chosen.
        size: root mean square of C, in latent units; 0 where there is none, None if it is not finite.
        children: of the node, those with samples that were compared.
        pulls: weight of each of these samples in C, by the node it grows from; above 0 the prediction moves towards it.
        moved: root mean square of what the updates changed of the prediction, in latent units; None if not measured.
        cosine: between that and C; None where one of them is 0.
        eta: how many C lie between the images `before` and `aim`.
        before: file of the predicted image before the updates; None if it was not kept.
        aim: of that prediction with eta * C added.
        after: of the prediction at the same latents after the updates.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    sigma: float
    trained: bool
    size: float | None
    children: int
    pulls: Mapping[int, float] = field(default_factory=dict)
    moved: float | None = None
    cosine: float | None = None
    eta: float = 1.0
    before: File | None = None
    aim: File | None = None
    after: File | None = None


@dataclass(frozen=True)
class TreeNode:
    """An initial noise, or the end of a stochastic step. The edge that ends in a node is addressed by the node.

    Args:
        id: its place in `TreeRecord.nodes`.
        parent: id of the parent, None at roots; parents come before their children.
        root: index of the initial noise within the prompt.
        child: index among its siblings, 0 at roots.
        step: the stochastic step that ends here, None at roots.
        sigma: noise level of the node, in (0, 1]; 1 at roots.
        sampled: in the training precision; False for what was only explored.
        value: the value of the node; None where that is not known.
        advantage: of the edge that ends here; None at roots and where nothing was sampled.
        turning: the edge's reward was replaced by the long-term one (TP-GRPO).
        trained: the edge was in the loss with a weight: recorded, not pruned, and of an advantage other than 0 or
            pulled to the reference. The clip, or a guard that left the update out, may still have stopped it.
        log_ratio: log(density of the edge after the iteration's updates / before), per latent dimension; above 0, the
            update made the step more likely. None where it was not measured.
        picture: file of the image predicted here, of a leaf the finished one; None if it was not kept.
        leaf: what is known of the sample that grows from here without further noise; None at inner nodes.
        credited: reward of the edge that ends here, of which the advantage was made: what it added, or at a turning
            point the way to the end; None where edges are credited with the advantages of their samples.
        update_effect: of nodes that split, where these train; None elsewhere, and in older records.
        centre: what the advantage subtracts from `credited`; None where it is no such quotient, as where edges are
            credited with the advantages of their samples, and in older records.
        spread: what it divides by. The advantage is the quotient, cut to the rule's clamp.
        turns: of the paths that turn here, by the node that their samples grow from, whether balancing kept the turn;
            None where no turning points were looked for, and in older records.
        pruned: pruning took the edge out of the gradient; None at roots, of what was not sampled, and in older records.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    id: int
    parent: int | None
    root: int
    child: int
    step: int | None
    sigma: float
    sampled: Annotated[bool, Field(validation_alias=AliasChoices("sampled", "drawn"))] = True
    value: float | None = None
    advantage: float | None = None
    turning: bool = False
    trained: bool = False
    log_ratio: float | None = None
    picture: File | None = None
    leaf: TreeLeaf | None = None
    credited: float | None = None
    update_effect: Annotated[UpdateEffect | None, Field(validation_alias=AliasChoices("update_effect", "pushed"))] = (
        None
    )
    centre: float | None = None
    spread: float | None = None
    turns: Mapping[int, bool] | None = None
    pruned: bool | None = None


@dataclass(frozen=True)
class TreeRecord:
    """All trees of one prompt in one iteration.

    Args:
        iteration: in which they were sampled, from 0; its updates lead to the weights after iteration + 1.
        group: the slot of the iteration's batch that holds the prompt.
        prompt: its text.
        seed: of the run.
        sigmas: T + 1 noise levels, 1 down to 0.
        branching: stochastic step -> children of each node there.
        rule: words and numbers on how credit was given; older records have fewer of them. Of rewards: reward, value,
            fusion, with turning points constraint and balance (bool). Of comparisons: normalise, baseline, std,
            combine, clamp (largest advantage). Of the update: objective, edges (bool: steps train), samples (bool:
            samples train), nodes (bool: nodes that split train), kl (weight of the pull to the reference), prune
            (bool: some steps are taken out of the gradient), clip and clip_high (of the steps' loss, where they train),
            prompts (of the iteration, of all processes), updates (of the iteration), skipped (of these, that a guard
            left out), learning_rate (of the last of them), dimensions (numbers of a latent), dtype.
        explored: words on the exploring stage: precision, engine ("policy" where no copy explored), steps, select,
            candidates, keep, audit; None without.
        nodes: parents before children.
        metadata: JSON values that came with the prompt.
        weights: of each reward that was asked, "weight", "shift" and "scale" in this iteration: a leaf's total is the
            sum of weight * (raw - shift) / scale.
        sampled_by: words on the copy that drew the samples: precision, engine, and age of its weights in iterations;
            None where the policy drew them.
        format: of the document.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    iteration: int
    group: int
    prompt: str
    seed: int
    sigmas: Sequence[float]
    branching: Mapping[int, int]
    rule: Mapping[str, Word]
    explored: Mapping[str, Word] | None
    nodes: Sequence[TreeNode]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Scaling] = field(default_factory=dict)
    sampled_by: Mapping[str, Word] | None = None
    format: Literal[1] = 1

    @property
    def name(self) -> str:
        """What its folder is called."""
        return tree_name(self.iteration, self.group)

    def children(self) -> dict[int | None, list[TreeNode]]:
        """Return nodes by the id of their parent, None for roots."""
        children: dict[int | None, list[TreeNode]] = {}
        for node in self.nodes:
            children.setdefault(node.parent, []).append(node)
        return children


TREES, DOCUMENT = "trees", "tree.json"


def tree_name(iteration: int, group: int) -> str:
    """Return the folder of a tree below trees/."""
    return f"{iteration:06d}-{group}"


def node_image(node: int) -> str:
    """Return the file of a node's picture."""
    return f"node-{node}.webp"


def proxy_image(node: int) -> str:
    """Return the file of the cheaply generated image of the candidate that grows from a node."""
    return f"proxy-{node}.webp"


EFFECT_IMAGES = ("before", "aim", "after")
"""The images of a split that trains."""


def effect_image(which: str, node: int) -> str:
    """Return the file of one of `EFFECT_IMAGES` at a node."""
    return f"{which}-{node}.webp"
