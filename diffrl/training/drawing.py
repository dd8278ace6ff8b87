"""The low-precision copy that draws what trains: when it gets the policy's weights, and how far from it that leads."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffrl.config.explore import DrawFidelitySettings, DrawSettings
from diffrl.cost.meter import PhaseClock
from diffrl.functional.covariance import sibling_covariance
from diffrl.models.adapter import Conditioning
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Forest, Rollout
from diffrl.rollout.denoise import velocity_of
from diffrl.rollout.density import origin_velocities
from diffrl.rollout.observers import take_origins
from diffrl.training.ema import EMA
from diffrl.training.messages import Messages
from diffrl.training.session import Session


@dataclass
class FidelityWatch:
    """How far a low-precision copy may be trusted, and what has been done about it.

    Args:
        low: measurements in a row below the threshold.
        keep: samples of a prompt that are drawn again now; 0 = as configured.
        fallen_back: the policy itself explores or draws, with all steps.
        synced: the copy that draws gets the policy's weights in every iteration.
    """

    low: int = 0
    keep: int = 0
    fallen_back: bool = False
    synced: bool = False

    @property
    def changed(self) -> bool:
        """Whether exploring is no longer what was configured, and so planned."""
        return self.keep > 0 or self.fallen_back


@dataclass
class Drawing:
    """Who draws the samples that train.

    Args:
        session: everything loaded.
        clock: seconds by phase.
        messages: what the user is told.
        weights: those that draw, where they lag behind the policy's; None where the copy always has the policy's.
        watch: what the audits have led to.
    """

    session: Session
    clock: PhaseClock
    messages: Messages
    weights: EMA | None
    watch: FidelityWatch = field(default_factory=FidelityWatch)
    _loaded: bool = False

    @property
    def settings(self) -> DrawSettings | None:
        """The configured section."""
        return self.session.config.rollout.draw

    @property
    def copy(self) -> PolicyCopy | None:
        """What draws; None = the policy itself."""
        return None if self.settings is None or self.watch.fallen_back else self.session.copy

    @property
    def uses_explorers(self) -> bool:
        """Whether other processes draw."""
        return self.session.config.rollout.explorers is not None and not self.watch.fallen_back

    @property
    def overlaps(self) -> bool:
        """Whether an iteration is drawn while the one before it trains."""
        explorers = self.session.config.rollout.explorers
        return self.uses_explorers and explorers is not None and explorers.overlap

    @property
    def _every(self) -> int:
        return 1 if self.settings is None or self.watch.synced else self.settings.sync_every

    def age(self, iteration: int) -> int:
        """Return how many iterations old the weights are that draw in an iteration."""
        late = int(self.overlaps and iteration > 0)
        return (iteration - late) % self._every + late

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights that draw, by name."""
        return self.session.policy.state() if self.weights is None else self.weights.average

    def advance(self, iteration: int) -> None:
        """Once an iteration is drawn, and before its update, take the weights that draw the next."""
        assert self.weights is not None
        if iteration % self._every == 0:
            self.weights.update()

    def sync(self, iteration: int) -> None:
        """Give the copy the weights that draw in an iteration: the policy's, or those that it last had."""
        copy, policy = self.copy, self.session.policy.inner
        if self.overlaps:  # `advance` has taken the weights, in the iteration before
            assert self.weights is not None
            if iteration == 0:
                self.weights.update()
            if copy is not None:
                with self.clock("push"), self.weights.applied():
                    copy.sync_weights(policy)
            return
        if copy is None:
            return
        with self.clock("push"):
            if self.age(iteration) == 0:
                if self.weights is not None:
                    self.weights.update()
                copy.sync_weights(policy)
            elif not self._loaded:  # resumed or recovered between two transfers
                assert self.weights is not None
                with self.weights.applied():
                    copy.sync_weights(policy)
        self._loaded = True

    def reload(self) -> None:
        """Let the copy draw with the policy's weights of now, which are not those that it trained to."""
        if self.weights is not None:
            self.weights.update()
        self._loaded = False

    def in_place(self) -> AbstractContextManager[None]:
        """Let what draws be the adapter's transformer until the block ends."""
        return nullcontext() if self.copy is None else self.copy.in_place_of(self.session.adapter)

    def as_drawn(self) -> AbstractContextManager[None]:
        """Let the adapter draw as the other processes did until the block ends."""
        if self.copy is not None or self.weights is None:
            return self.in_place()
        return self.weights.applied()

    def described(self, iteration: int) -> dict[str, Any] | None:
        """Return what drew an iteration, for its record; None without a copy."""
        copy = self.copy
        if copy is None and not self.uses_explorers:
            return None
        precision, engine = ("training", "policy") if copy is None else (copy.report.precision, copy.report.engine)
        return {"precision": precision, "engine": engine, "age": self.age(iteration)}

    def audits(self, iteration: int) -> bool:
        """Return whether an iteration's first prompt is drawn again by the policy."""
        every = None if self.settings is None else self.settings.fidelity.every
        return every is not None and self.copy is not None and iteration % every == 0

    def prediction_error(self, rollout: Rollout, conditioning: Conditioning) -> float:
        """Return the copy's error at the first prompt's trained nodes, |v - v_policy| / |v_policy|; NaN without any."""
        r = self.session.config.rollout
        if not self.session.config.objective.trains_nodes:
            return math.nan
        steps = rollout.edges.step.new_tensor(list(r.tree.splits))
        origins = torch.nonzero((rollout.edges.prompt == 0) & torch.isin(rollout.edges.step, steps)).flatten()
        edges, _ = take_origins(rollout.edges, origins)
        predict = velocity_of(self.session.adapter, conditioning, r.guidance_scale)
        with torch.no_grad():
            policy = origin_velocities(edges, predict, r.micro_batch)
            with self.in_place():
                copied = origin_velocities(edges, predict, r.micro_batch)
        return float((copied - policy).norm() / policy.norm())

    def react(self, cosine: float, settings: DrawFidelitySettings) -> None:
        """Act on an audit as configured."""
        watch = self.watch
        if math.isnan(cosine):  # nothing differs in the audited trees
            return
        watch.low = watch.low + 1 if cosine < settings.below else 0
        if watch.low < settings.patience:
            return
        watch.low = 0
        seen = (
            f"What the copy draws teaches something else than the policy's own samples: cosine {cosine:.2f}, below "
            f"{settings.below:g} in {settings.patience} audits in a row"
        )
        if settings.action == "fall_back":
            watch.fallen_back = True
            what = "from now on the policy itself draws"
        elif settings.action == "sync" and not watch.synced:
            watch.synced = True
            what = "from now on the copy gets the policy's weights in every iteration"
        else:
            what = "take a wider precision, or set rollout.draw.fidelity.action: fall_back"
        self.messages.report(f"{seen}: {what}. (rollout.draw.fidelity)")


def taught(forest: Forest, latents: Tensor, reward: Tensor) -> Tensor:
    """Return (U, D) covariance of reward and sample below each node that splits; of chains, over each prompt's.

    Args:
        forest: any.
        latents: (S, ...) clean.
        reward: (S,); a sample that is not finite is left out.
    """
    sample = torch.nonzero(reward.cpu().isfinite()).flatten()
    child = forest.leaf[sample]
    if not any(children > 1 for children in forest.branching.values()):
        pairs = [(forest.prompt[child], sample, child)]
    else:
        pairs = []
        siblings = torch.bincount(forest.parent[forest.parent >= 0], minlength=len(forest.parent))
        while len(sample):
            inside = forest.parent[child] >= 0
            sample, child = sample[inside], child[inside]
            above = forest.parent[child]
            splits = siblings[above] > 1
            if splits.any():
                pairs.append((above[splits], sample[splits], child[splits]))
            child = above
    directions = []
    for node, below, between in pairs:
        _, row = node.unique(return_inverse=True)
        clean = latents[below.to(latents.device)].cpu()
        tilt = sibling_covariance(clean, reward[below].cpu(), row, between, int(row.max()) + 1)
        directions.append(tilt.direction.flatten(1))
    return torch.cat(directions) if directions else latents.new_zeros((0, latents[0].numel())).cpu()


def mean_cosine(one: Tensor, other: Tensor) -> float:
    """Return the mean cosine of rows (U, D) that are other than 0 in both; NaN without any."""
    both = (one != 0).any(1) & (other != 0).any(1)
    if not both.any():
        return math.nan
    return float(torch.nn.functional.cosine_similarity(one[both].double(), other[both].double(), dim=1).mean())
