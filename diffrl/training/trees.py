"""The station that keeps an iteration's first prompts as trees to look at, and measures what the update did to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning
from diffrl.records import Credit
from diffrl.rollout.density import edge_densities
from diffrl.training.clock import PhaseClock
from diffrl.training.sampling import Drawn
from diffrl.training.session import Session
from diffrl.training.tree_pictures import KeptTree, with_pictures
from diffrl.training.tree_records import sketch
from diffrl.training.tree_rules import rule_of, weights_of
from diffrl.training.update import velocity_of


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
        with self.clock("trees"), s.meter.paused(), torch.no_grad():
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
