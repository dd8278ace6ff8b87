"""Records an iteration's first prompts as trees to look at, and measures what the update did to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.cost.meter import TREES, CostMeter, PhaseClock
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.objectives.examples import Examples
from diffrl.records import Credit, PromptBatch, Samples
from diffrl.rollout.denoise import velocity_of
from diffrl.rollout.density import densities_under, origin_velocities
from diffrl.rollout.transition import Transition
from diffrl.trees.document import sketch
from diffrl.trees.images import KeptTree, with_images
from diffrl.trees.rules import rule_of
from diffrl.trees.tracing import Trace, Tracer, keeps_trees
from diffrl.trees.update_effects import update_effects_of, with_update_effects


@dataclass
class TreeRecorder:
    """Makes the trees of a run. It changes nothing: no weight, no random state, no count of the method's.

    Args:
        config: of the run.
        adapter: the model.
        transition: dynamics of the stochastic steps; None if there are none.
        meter: counts what the network is asked for nothing but a tree, apart.
        clock: seconds by phase; all of this is "trees".
        writes: whether this rank keeps trees; False, too, once one could not be written.
    """

    config: Config
    adapter: ModelAdapter
    transition: Transition | None
    meter: CostMeter
    clock: PhaseClock
    writes: bool = True

    def tracer(self, batch: PromptBatch) -> Tracer | None:
        """Return an observer for the drawing of a batch; None in iterations that keep no trees."""
        trees = self.config.track.trees
        if trees is None or not self.writes or not keeps_trees(self.config, batch.iteration):
            return None
        return Tracer(min(trees.prompts, len(batch.prompts)), trees.pictures, self.clock)

    def velocities(self, trace: Trace | None, conditioning: Conditioning) -> Tensor | None:
        """Return (O, ...) velocities at the origins of the traced steps, under the weights as they are now.

        None without a trace or stochastic steps.

        Before and after the updates the same batches are asked, so that what differs is the weights alone.
        """
        if trace is None or self.transition is None:
            return None
        r = self.config.rollout
        predict = velocity_of(self.adapter, conditioning, r.guidance_scale)
        with self.clock("trees"), self.meter.purpose(TREES), torch.no_grad():
            return origin_velocities(trace.edges, predict, r.micro_batch)

    def densities(self, trace: Trace, velocity: Tensor) -> Tensor:
        """Return (E,) density of the traced steps by the velocities (O, ...) at their origins."""
        assert self.transition is not None
        return densities_under(trace.edges, velocity, self.transition, self.config.rollout.micro_batch)

    def record(
        self,
        trace: Trace | None,
        samples: Samples,
        credit: Credit,
        grad_mask: Tensor,
        examples: Sequence[Examples],
        conditioning: Conditioning,
        *,
        before: Tensor | None,
        skipped: int,
        learning_rate: float,
        weights: Mapping[str, Mapping[str, Any]],
    ) -> Iterable[KeptTree]:
        """Return the trees of an iteration whose updates are done, images made one tree at a time as asked for.

        Args:
            trace: what was seen of its first prompts; without it there are no trees.
            samples: what it drew.
            credit: what they deserved.
            grad_mask: (N,) bool, False where pruning took the edge out of the gradient.
            examples: what each loss trained on.
            conditioning: the batch's encoded prompts.
            before: what `velocities` gave before the updates.
            skipped: updates that a guard left out.
            learning_rate: of the last update.
            weights: of the iteration's rewards, as `rules.weights_of` puts it.
        """
        settings = self.config.track.trees
        if trace is None or settings is None:
            return ()
        after = self.velocities(trace, conditioning)
        with self.clock("trees"):
            ratio, effects = torch.full(credit.values.shape, torch.nan), None
            if after is not None and before is not None:
                ratio[trace.edges.node.cpu()] = (self.densities(trace, after) - self.densities(trace, before)).cpu()
                effects = update_effects_of(
                    trace=trace,
                    rollout=samples.rollout,
                    credit=credit,
                    kept=grad_mask,
                    examples=examples,
                    before=before,
                    after=after,
                )
            rule = rule_of(self.config, trace.edges, skipped, learning_rate)
            sketches = [
                with_update_effects(
                    sketch(
                        config=self.config,
                        samples=samples,
                        credit=credit,
                        kept=grad_mask,
                        ratio=ratio,
                        row=row,
                        rule=rule,
                        weights=weights,
                    ),
                    effects,
                )
                for row in range(trace.prompts)
            ]
        decode_batch, most = self.config.rollout.decode_batch, settings.pictures
        images = samples.rollout.images
        return (
            with_images(
                sketch=one,
                trace=trace,
                images=images,
                adapter=self.adapter,
                decode_batch=decode_batch,
                asked=most,
                effects=effects,
            )
            for one in sketches
        )
