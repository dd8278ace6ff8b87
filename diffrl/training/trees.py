"""The station that keeps an iteration's first prompts as trees to look at, and measures what the update did to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.functional.gaussian import log_prob
from diffrl.models.adapter import Conditioning
from diffrl.objectives.base import Velocity
from diffrl.records import Credit, Edges
from diffrl.rollout.denoise import take_origins
from diffrl.training.clock import PhaseClock
from diffrl.training.sampling import Drawn
from diffrl.training.session import Session
from diffrl.training.tree_pictures import KeptTree, with_pictures
from diffrl.training.tree_records import sketch
from diffrl.training.tree_rules import rule_of, weights_of
from diffrl.training.update import velocity_of
from diffrl.transition import Transition


@dataclass
class TreeKeeper:
    """Makes the trees of a session. It changes nothing: no weight, no random state, no count.

    Args:
        session: everything loaded.
        clock: seconds by phase; all of this is "trees".
    """

    session: Session
    clock: PhaseClock

    def densities(self, drawn: Drawn, conditioning: Conditioning) -> Tensor | None:
        """(E,) density of the traced steps under the weights as they are now; None without a trace or stochastic steps.

        Before and after the updates the same batches are asked, so that what differs is the weights alone.
        """
        s = self.session
        if drawn.trace is None or s.transition is None:
            return None
        predict = velocity_of(s.adapter, conditioning, s.config.rollout.guidance_scale)
        with self.clock("trees"), s.meter.paused():
            return edge_densities(drawn.trace.edges, predict, s.transition, s.config.rollout.micro_batch)

    def grow(
        self,
        drawn: Drawn,
        credit: Credit,
        kept: Tensor,
        before: Tensor | None,
        conditioning: Conditioning,
        skipped: int = 0,
    ) -> Iterator[KeptTree]:
        """The trees of an iteration whose updates are done, their pictures made as they are asked for, one by one.

        None come in iterations that keep none.

        Args:
            drawn: what it drew.
            credit: what it deserved.
            kept: (N,) bool, False where pruning took the edge out of the gradient.
            before: (E,) densities of the traced steps before the updates; None where there are none.
            conditioning: the batch's encoded prompts.
            skipped: updates that a guard left out.
        """
        trace, settings = drawn.trace, self.session.config.track.trees
        if trace is None or settings is None:
            return iter(())
        after = self.densities(drawn, conditioning)
        ratio = torch.full(credit.values.shape, torch.nan)
        if after is not None and before is not None:
            ratio[trace.edges.node.cpu()] = (after - before).cpu()
        adapter, batch = self.session.adapter, self.session.config.rollout.decode_batch
        with self.clock("trees"):
            config, weights = self.session.config, weights_of(self.session.scorers_at(drawn.rollout.batch.iteration))
            rate = float(self.session.optimizer.param_groups[0]["lr"])  # that of the last update still stands there
            rule = rule_of(config, drawn, skipped, rate)
            rows = range(trace.prompts)
            sketches = [sketch(config, drawn, credit, kept, ratio, row, rule, weights) for row in rows]
        return (with_pictures(one, drawn, adapter, batch, settings.pictures) for one in sketches)


@torch.no_grad()
def edge_densities(edges: Edges, policy: Velocity, transition: Transition, micro_batch: int) -> Tensor:
    """(E,) float32 log-densities of recorded steps under a policy, averaged over latent dimensions.

    Args:
        edges: the steps.
        policy: its velocities, conditioned as when they were drawn.
        transition: the dynamics that drew them.
        micro_batch: origins a network call.
    """
    densities = torch.zeros_like(edges.old_log_prob)
    for index in torch.arange(len(edges.step), device=edges.step.device).split(micro_batch):
        if not len(index):
            continue
        piece, rows = take_origins(edges, index)
        velocity = policy(piece.latents, piece.sigma, piece.prompt)
        mean, std = transition(piece.latents, velocity, piece.sigma, piece.sigma_next)
        mean, std = mean[piece.origin], std.expand(len(mean), *std.shape[1:])[piece.origin]
        densities[rows] = log_prob(piece.next_latents, mean, std)
    return densities
