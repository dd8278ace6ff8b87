"""The station that keeps an iteration's first prompts as trees to look at, and measures what the update did to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.cost.meter import PhaseClock
from diffrl.models.adapter import Conditioning
from diffrl.objectives.base import Examples
from diffrl.records import Credit
from diffrl.rollout.density import densities_under, origin_velocities
from diffrl.training.sampling import Drawn
from diffrl.training.session import Session
from diffrl.training.update import velocity_of
from diffrl.trees.document import sketch
from diffrl.trees.pictures import KeptTree, with_pictures
from diffrl.trees.pushes import pushes_of, with_pushes
from diffrl.trees.rules import rule_of, weights_of


@dataclass(frozen=True)
class Given:
    """What an iteration whose updates are done gives to its trees.

    Args:
        drawn: what it drew.
        credit: what it deserved.
        kept: (N,) bool, False where pruning took the edge out of the gradient.
        examples: what each loss trained on.
        skipped: updates that a guard left out.
    """

    drawn: Drawn
    credit: Credit
    kept: Tensor
    examples: Sequence[Examples]
    skipped: int = 0


@dataclass
class TreeKeeper:
    """Makes the trees of a session. It changes nothing: no weight, no random state, no count.

    Args:
        session: everything loaded.
        clock: seconds by phase; all of this is "trees".
    """

    session: Session
    clock: PhaseClock

    def velocities(self, drawn: Drawn, conditioning: Conditioning) -> Tensor | None:
        """(O, ...) velocities at the origins of the traced steps, under the weights as they are now.

        None without a trace or stochastic steps.

        Before and after the updates the same batches are asked, so that what differs is the weights alone.
        """
        s = self.session
        if drawn.trace is None or s.transition is None:
            return None
        predict = velocity_of(s.adapter, conditioning, s.config.rollout.guidance_scale)
        with self.clock("trees"), s.meter.paused(), torch.no_grad():
            return origin_velocities(drawn.trace.edges, predict, s.config.rollout.micro_batch)

    def densities(self, drawn: Drawn, velocity: Tensor) -> Tensor:
        """(E,) density of the traced steps by the velocities (O, ...) at their origins."""
        assert drawn.trace is not None and self.session.transition is not None
        micro_batch = self.session.config.rollout.micro_batch
        return densities_under(drawn.trace.edges, velocity, self.session.transition, micro_batch)

    def grow(self, given: Given, before: Tensor | None, conditioning: Conditioning) -> Iterator[KeptTree]:
        """The trees of an iteration whose updates are done, their pictures made as they are asked for, one by one.

        None come in iterations that keep none.

        Args:
            given: the iteration.
            before: what `velocities` gave before the updates.
            conditioning: the batch's encoded prompts.
        """
        drawn, credit = given.drawn, given.credit
        trace, settings = drawn.trace, self.session.config.track.trees
        if trace is None or settings is None:
            return iter(())
        after = self.velocities(drawn, conditioning)
        ratio, pushes = torch.full(credit.values.shape, torch.nan), None
        with self.clock("trees"):
            if after is not None and before is not None:
                ratio[trace.edges.node.cpu()] = (self.densities(drawn, after) - self.densities(drawn, before)).cpu()
                pushes = pushes_of(drawn, credit, given.kept, given.examples, before, after)
        adapter, batch = self.session.adapter, self.session.config.rollout.decode_batch
        with self.clock("trees"):
            config, weights = self.session.config, weights_of(self.session.scorers_at(drawn.rollout.batch.iteration))
            rate = float(self.session.optimizer.param_groups[0]["lr"])  # that of the last update still stands there
            rule = rule_of(config, drawn, given.skipped, rate)
            rows = range(trace.prompts)
            sketches = [
                with_pushes(sketch(config, drawn, credit, given.kept, ratio, row, rule, weights), pushes)
                for row in rows
            ]
        return (with_pictures(one, drawn, adapter, batch, settings.pictures, pushes) for one in sketches)
