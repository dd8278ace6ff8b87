"""The records that pass between the stations, in the order in which data passes them.

    PromptBatch -> Exploration -> Chosen -> Rollout -> RewardTable -> Credit -> Iteration

Every record is frozen; a station takes records and returns a new one. Shape letters, used everywhere:

    P prompts of an iteration on this rank     N nodes of all trees              E edges (trained denoising steps)
    T denoising steps                          S samples (finished pictures)     U origins of edges
    B any batch                                ... latent dimensions (C, h, w)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # prompts and plans need no tensors, and importing torch takes longer than making them
    from torch import Tensor


class Pair(NamedTuple):
    """Two images, or clips, of a prompt, of which one was preferred.

    Args:
        winner: its file, as an absolute path.
        loser: the other's.
        weight: of the preference in the loss, above 0.
    """

    winner: str
    loser: str
    weight: float

    @property
    def files(self) -> tuple[str, str]:
        """The winner's and the loser's."""
        return self.winner, self.loser


@dataclass(frozen=True)
class Prompt:
    """One prompt with what a scorer may need beside it (an OCR target, an object list, ...).

    Args:
        text: of the prompt.
        metadata: what stood beside it.
        source: file of the image that it asks to edit, as an absolute path; None where it asks for a new one.
        captions: texts of which training takes one an epoch (`data.sampler`), `text` the first; empty: `text` alone.
        pair: images of which one was preferred, for objectives that train on such (`data.pairs`); else None.
    """

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    captions: tuple[str, ...] = ()
    pair: Pair | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """What makes two prompts the same: the same words ask for another image where the source is another."""
        return self.text, self.source

    @property
    def beside(self) -> Mapping[str, Any]:
        """What is stored with a sample beside its prompt's text: the metadata, and the path of the source."""
        return self.metadata if self.source is None else {**self.metadata, "source": self.source}


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of one iteration on one rank.

    Args:
        prompts: P prompts.
        groups: P group ids. A group is one slot of the iteration's global batch, so two equal prompts stay two groups.
        iteration: the training iteration, from 0.
    """

    prompts: Sequence[Prompt]
    groups: Sequence[int]
    iteration: int


@dataclass(frozen=True)
class Forest:
    """Which samples are drawn, as trees: one row a node, parents before children, a prompt's samples side by side.

    A node is an initial noise or the end of a stochastic step; deterministic steps in between add none. A chain is a
    tree in which every node has one child.

    Args:
        parent: (N,) int64 row of the parent, -1 at roots.
        step: (N,) int64 stochastic step that ends in this node, -1 at roots; ascending.
        child: (N,) int64 index among its siblings, 0 at roots.
        prompt: (N,) int64 row of the prompt in the batch.
        root: (N,) int64 index of the initial noise within the prompt.
        leaf: (S,) int64 node that each sample grows from without further noise.
        branching: stochastic step -> children of each node there, in the whole tree; 1 where it does not split.
    """

    parent: Tensor
    step: Tensor
    child: Tensor
    prompt: Tensor
    root: Tensor
    leaf: Tensor
    branching: Mapping[int, int]

    def __len__(self) -> int:
        return int(self.leaf.shape[0])

    @property
    def sample_prompt(self) -> Tensor:
        """(S,) int64 row of each sample's prompt."""
        return self.prompt[self.leaf]

    @property
    def sample_root(self) -> Tensor:
        """(S,) int64 index of each sample's initial noise within its prompt."""
        return self.root[self.leaf]


@dataclass(frozen=True)
class Edges:
    """Stochastic denoising steps, each one a transition with a density.

    Siblings leave the same latents, for which the network is asked once: U origins, E edges, U <= E. Latents in which
    one step ends and the next begins are stored once.

    Args:
        stored: (V, ...) latents, V <= U + E; float32, or what they were rounded to before the steps were scored.
        before: (U,) int64 row in `stored` of the latents before the step.
        sigma: (U,) float32 noise level before the step, in (0, 1].
        sigma_next: (U,) float32 noise level after the step, in (0, 1).
        step: (U,) int64 index of the step in the sigma grid.
        prompt: (U,) int64 row of the prompt in the batch.
        origin: (E,) int64 row of the edge's origin, ascending.
        node: (E,) int64 node of the forest in which the edge ends.
        after: (E,) int64 row in `stored` of the latents after the step: what was scored.
        old_log_prob: (E,) float32 density under the policy that drew the step, averaged over latent dimensions.
    """

    stored: Tensor
    before: Tensor
    sigma: Tensor
    sigma_next: Tensor
    step: Tensor
    prompt: Tensor
    origin: Tensor
    node: Tensor
    after: Tensor
    old_log_prob: Tensor

    def __len__(self) -> int:
        return int(self.origin.shape[0])

    @property
    def latents(self) -> Tensor:
        """(U, ...) float32 latents before the step, a copy: ask few origins at a time for it."""
        return self.stored[self.before].float()

    @property
    def next_latents(self) -> Tensor:
        """(E, ...) float32 latents after the step, a copy likewise."""
        return self.stored[self.after].float()

    @property
    def edge_step(self) -> Tensor:
        """(E,) int64 index of each edge's step in the sigma grid."""
        return self.step[self.origin]


@dataclass(frozen=True)
class Visits:
    """States that chains without noise went through, and the answers there; M = S * levels, by sample.

    Args:
        latents: (M, ...) as the network saw them.
        velocity: (M, ...) what it predicted.
        sigma: (M,) float32 noise levels.
    """

    latents: Tensor
    velocity: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class Exploration:
    """Candidates drawn cheaply, in low precision or with few steps, and what their pictures scored.

    It has neither latents nor densities, so nothing of it can reach a loss: `rollout.regenerate` draws what trains.

    Args:
        batch: the prompts they were drawn for.
        forest: the candidates; S of them.
        proxy: their rewards, of pictures that are not kept.
    """

    batch: PromptBatch
    forest: Forest
    proxy: RewardTable


@dataclass(frozen=True)
class Chosen:
    """The candidates that are drawn again in the training precision.

    Args:
        samples: (K,) int64 rows of the exploration's samples, ascending, each once.
        reason: K words on why each was taken.
        audit: (K,) bool, True for those drawn only to check the ranking; they train nothing.
    """

    samples: Tensor
    reason: Sequence[str]
    audit: Tensor


@dataclass(frozen=True)
class Rollout:
    """Samples drawn in the training precision, with the densities that the update needs.

    Args:
        batch: the prompts they were drawn for.
        forest: how they were drawn; S samples.
        sigmas: (T + 1,) float32 grid, 1 down to 0.
        latents: (S, ...) at sigma = 0.
        images: (S, 3, H, W) uint8 RGB, or videos (S, F, 3, H, W).
        edges: the recorded steps.
        predicted: (N, ...) the picture that the network predicted at each node, as latents; None if not asked for.
        visits: the states that deterministic steps left; None if not asked for.
    """

    batch: PromptBatch
    forest: Forest
    sigmas: Tensor
    latents: Tensor
    images: Tensor
    edges: Edges
    predicted: Tensor | None = None
    visits: Visits | None = None

    def __len__(self) -> int:
        return len(self.forest)


@dataclass(frozen=True)
class RewardTable:
    """Rewards of S samples.

    Args:
        raw: per reward name, (S,) float32 in the scorer's units; NaN where the scorer failed.
        parts: per "reward/part", (S,) float32.
        total: (S,) float32 weighted sum of the scaled rewards; NaN where any of them failed.
        ok: (S,) bool, True where every scorer succeeded.
        errors: S messages, None where ok.
        notes: per reward name that gives reasons in words, S of them, None where there is none.
    """

    raw: Mapping[str, Tensor]
    parts: Mapping[str, Tensor]
    total: Tensor
    ok: Tensor
    errors: Sequence[str | None]
    notes: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    def notes_of(self, row: int) -> dict[str, str]:
        """Return a sample's reasons, by the name of the reward."""
        return {name: note for name, column in self.notes.items() if (note := column[row])}


@dataclass(frozen=True)
class Samples:
    """The samples of an iteration, scored, and the candidates that they were chosen from.

    Args:
        rollout: the samples in the training precision.
        table: their rewards.
        exploration: the candidates; None without an exploring stage.
        chosen: the choice; None without an exploring stage.
        explored: how the candidates were drawn: precision, engine, steps, how many; None without an exploring stage.
        sampled_by: what drew the samples, where it was a copy: precision, engine, and the age of its weights in
            iterations.
    """

    rollout: Rollout
    table: RewardTable
    exploration: Exploration | None = None
    chosen: Chosen | None = None
    explored: Mapping[str, Any] | None = None
    sampled_by: Mapping[str, Any] | None = None

    @property
    def is_training_sample(self) -> Tensor:
        """(S,) bool, False for samples that were drawn only to check the ranking."""
        import torch

        return torch.ones(len(self.rollout), dtype=torch.bool) if self.chosen is None else ~self.chosen.audit


@dataclass(frozen=True)
class CreditDetail:
    """How the advantages of a `Credit` came about: what no loss needs, and everyone who looks at them.

    An advantage is clip((reward - centre) / spread). Both are NaN where it is no such quotient, as of steps that share
    the advantages of their samples, and where it is 0 because nothing could be compared.

    Args:
        centre: (N,) float32, of the edge that ends in each node: what was subtracted from its step reward.
        spread: (N,) float32 what the difference was divided by.
        sample_centre: (S,) float32, the same of each sample's own advantage and its reward.
        sample_spread: (S,) float32.
        turn_node: (M,) int64 node in which the step of each turning point ends; M = 0 where none are looked for.
        turn_leaf: (M,) int64 node that the sample grows from on whose path it turns.
        turn_kept: (M,) bool, False where balancing dropped it, so that on this path the step earns what it adds.
    """

    centre: Tensor
    spread: Tensor
    sample_centre: Tensor
    sample_spread: Tensor
    turn_node: Tensor
    turn_leaf: Tensor
    turn_kept: Tensor


@dataclass(frozen=True)
class Credit:
    """How much each edge and each sample deserves.

    Args:
        advantage: (N,) float32, of the edge that ends in each node; 0 at roots and where a sample was left out.
        outcome: (S,) float32 advantage of each sample as a whole.
        used: (S,) bool, False for samples left out: unscored, audited, or of a dropped group.
        values: (N,) float32 worth of each node, NaN where nothing below it could be scored.
        step_reward: (N,) float32 reward of the edge that ends in each node, before it was compared with others; NaN at
            roots, where nothing below could be scored, and with reward `outcome`.
        turning: (N,) bool, True where the edge's reward was replaced by the long-term one.
        zero_spread_groups: groups whose rewards are all equal; they train nothing.
        dropped_groups: groups left out because too few of their samples could be scored.
        detail: how the advantages came about, for those who look at them; None where that is not known.
    """

    advantage: Tensor
    outcome: Tensor
    used: Tensor
    values: Tensor
    step_reward: Tensor
    turning: Tensor
    zero_spread_groups: int
    dropped_groups: int
    detail: CreditDetail | None = None


@dataclass(frozen=True)
class Iteration:
    """What one training iteration did: the records of its stations, and its metrics.

    Args:
        number: of iterations done, this one included.
        samples: what it drew, with rewards.
        credit: what these deserve.
        grad_mask: (N,) bool, False for nodes whose edges pruning took out of the gradient.
        metrics: of rewards, credit and updates.
        trees: its first prompts as documents (`trees.images.KeptTree`), made once, when they are asked for.
    """

    number: int
    samples: Samples
    credit: Credit
    grad_mask: Tensor
    metrics: Mapping[str, float | int]
    trees: Iterable[Any] = ()
