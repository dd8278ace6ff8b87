"""The samples of an iteration: all of the trees, or the two stages explore -> choose -> regenerate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffrl.config.explore import ExploreSettings
from diffrl.config.rollout import RolloutSettings
from diffrl.config.schema import Config
from diffrl.cost.meter import TREES, PhaseClock
from diffrl.functional.steps import coarse_levels
from diffrl.models.adapter import Conditioning
from diffrl.records import Exploration, Forest, PromptBatch, RewardTable, Rollout, Samples
from diffrl.rewards.score import Scoring
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.explore import prompt_samples
from diffrl.rollout.observers import of_whole
from diffrl.rollout.regenerate import Sink, ignore, regenerate
from diffrl.rollout.select import choose
from diffrl.rollout.transition import Transition
from diffrl.rollout.tree import paths_to, plan_forest, root_addresses, subset
from diffrl.training.drawing import Drawing, FidelityWatch, mean_cosine, taught
from diffrl.training.explorers import Explorers
from diffrl.training.guards import UpdateGuard
from diffrl.training.messages import Messages
from diffrl.training.pairs import given_samples
from diffrl.training.pool import draw_pool, fidelity_metrics, samples_of, single_child_splits
from diffrl.training.session import Session
from diffrl.trees.tracing import Tracer


@dataclass
class Sampling:
    """Draws samples for a session.

    Args:
        session: everything loaded.
        clock: seconds by phase.
        guard: stops a run whose candidates cannot be scored.
        messages: what the user is told.
        drawing: who draws what trains, and the state of the fidelity check.
    """

    session: Session
    clock: PhaseClock
    guard: UpdateGuard
    messages: Messages
    drawing: Drawing

    @cached_property
    def explorers(self) -> Explorers | None:
        """Other processes that draw; None where this one does."""
        return None if self.config.rollout.explorers is None else Explorers(self.session)

    @property
    def watch(self) -> FidelityWatch:
        """The state of the fidelity check."""
        return self.drawing.watch

    @property
    def config(self) -> Config:
        """The run's."""
        return self.session.config

    def sampler(self) -> Sampler:
        """Return how the training precision draws."""
        return full_sampler(self.config.rollout, self.session.sigmas, self.session.transition)

    def draw(
        self,
        batch: PromptBatch,
        conditioning: Conditioning,
        tracer: Tracer | None = None,
        following: PromptBatch | None = None,
    ) -> Samples:
        """Generate this iteration's samples and score them, or take those that are given.

        Args:
            batch: the prompts.
            conditioning: of them.
            tracer: is shown how the first of them are drawn.
            following: prompts of the next iteration, which explorers are to draw while this one is scored and trains.
        """
        if self.config.objective.trains_pairs:
            with self.clock("rollout"):
                return self.session.ranks.raise_on_all_ranks(lambda: given_samples(self.session, batch))
        tree, settings = self.config.rollout.tree, self.config.rollout.explore
        branching = self.config.rollout.branching_at(batch.iteration)
        if settings is None:
            forest = plan_forest(len(batch.prompts), tree.roots, branching)
            self.drawing.sync(batch.iteration)
            if self.drawing.uses_explorers:
                rollout, table = self.take(batch, conditioning, forest, tracer, following)
            else:
                with self.drawing.in_place():
                    rollout, table = self.regenerate(batch, conditioning, forest, tracer)
            return Samples(rollout, table, sampled_by=self.drawing.described(batch.iteration))
        pool = plan_forest(len(batch.prompts), settings.candidates // tree.leaves_per_root, branching)
        each = ignore if tracer is None else tracer.candidates(pool)
        exploration = self.explore(batch, conditioning, pool, settings, each)
        keep = self.watch.keep or settings.keep
        audit = min(settings.audit, settings.candidates - keep)
        chosen = choose(exploration, settings.select, keep, audit, self.config.run.seed)
        rollout, table = self.regenerate(batch, conditioning, subset(pool, chosen.samples), tracer)
        return Samples(rollout, table, exploration, chosen, self.explored(settings, keep, audit))

    def take(
        self,
        batch: PromptBatch,
        conditioning: Conditioning,
        forest: Forest,
        tracer: Tracer | None = None,
        following: PromptBatch | None = None,
    ) -> tuple[Rollout, RewardTable]:
        """Return what explorers have drawn, scored here; the tracer is shown its own prompts as they are drawn again.

        Raises:
            ExplorerError: one refuses.
            ExplorersGone: nobody has drawn some of it in time.
        """
        s, scorers, explorers = self.session, self.session.scorers_at(batch.iteration), self.explorers
        assert explorers is not None
        s.meter.decodes += len(forest)
        s.meter.reward_calls += len(forest) * len(scorers)
        with self.clock("rollout"):
            report = self.messages.report_own
            rollout = s.ranks.raise_on_all_ranks(lambda: explorers.take(batch, self.drawing.state(), report))
        if tracer is not None:
            samples = torch.nonzero(forest.sample_prompt < tracer.prompts).flatten()
            part, rows = subset(forest, samples), torch.nonzero(paths_to(forest, samples)).flatten()
            shown = [of_whole(observer, rows) for observer in tracer.observers(forest)]
            roots = root_addresses(part, batch, self.config.run.seed)
            with self.clock("trees"), s.meter.purpose(TREES), self.drawing.as_drawn():
                denoise(s.adapter, conditioning, part, roots, self.sampler(), observe=shown)
        if following is not None:
            with self.clock("push"):
                self.drawing.advance(batch.iteration)
                if following.iteration < self.config.run.iterations:  # else a longer run needs the weights alone
                    explorers.begin(following, self.drawing.state())
        scoring = Scoring(scorers, *samples_of(batch, forest))
        scoring.add(rollout.images)
        with self.clock("reward"):
            return rollout, s.ranks.raise_on_all_ranks(scoring.table)

    def forget(self) -> None:
        """Give up what explorers are drawing ahead."""
        if self.explorers is not None:
            self.explorers.forget()

    def explored(self, settings: ExploreSettings, keep: int, audit: int) -> dict[str, Any]:
        """Return how this iteration's pool was drawn, and how many of a prompt were taken from it."""
        as_configured = not self.watch.fallen_back
        copy = self.session.copy if as_configured else None
        return {
            "precision": settings.precision if as_configured else "training",
            "engine": copy.report.engine if copy else "policy",
            "steps": (as_configured and settings.steps) or self.config.rollout.steps,
            "select": settings.select,
            "candidates": settings.candidates,
            "keep": keep,
            "audit": audit,
        }

    def regenerate(
        self,
        batch: PromptBatch,
        conditioning: Conditioning,
        forest: Forest,
        tracer: Tracer | None = None,
        purpose: str = "rollout",
    ) -> tuple[Rollout, RewardTable]:
        """Return a forest by the network that is in place, with all steps; scored while it is drawn."""
        s, scorers = self.session, self.session.scorers_at(batch.iteration)
        s.meter.decodes += len(forest)
        s.meter.reward_calls += len(forest) * len(scorers)
        scoring = Scoring(scorers, *samples_of(batch, forest))
        with s.meter.purpose(purpose):
            rollout = regenerate(
                adapter=s.adapter,
                conditioning=conditioning,
                batch=batch,
                forest=forest,
                roots=root_addresses(forest, batch, self.config.run.seed),
                sampler=self.sampler(),
                record=list(forest.branching) if self.config.records_steps else (),
                predict=self.config.credit.value == "predicted_x0",
                visit=self.config.objective.visits,
                observe=() if tracer is None else tracer.observers(forest),
                decode_batch=self.config.rollout.decode_batch,
                clock=self.clock,
                each=scoring.add,
                prompts_at_once=self.config.rollout.prompts_at_once,
            )
        with self.clock("reward"):
            return rollout, s.ranks.raise_on_all_ranks(scoring.table)

    def explore(
        self,
        batch: PromptBatch,
        conditioning: Conditioning,
        pool: Forest,
        settings: ExploreSettings,
        each: Sink = ignore,
    ) -> Exploration:
        """Explore in low precision on the coarse grid, with proxy rewards; `each` receives the pool's images."""
        s, sampler, scorers = self.session, self.sampler(), self.session.scorers_at(batch.iteration)
        copy = None if self.watch.fallen_back else s.copy
        if settings.steps is not None and not self.watch.fallen_back:
            full = len(s.sigmas) - 1
            sampler = replace(sampler, levels=coarse_levels(full, list(pool.branching), settings.steps))
        if copy is not None:
            with self.clock("push"):
                copy.sync_weights(s.policy.inner)
        s.meter.decodes += len(pool)
        s.meter.reward_calls += len(pool) * len(scorers)
        with s.meter.purpose("explore"):
            proxy = draw_pool(
                adapter=s.adapter,
                copy=copy,
                conditioning=conditioning,
                batch=batch,
                pool=pool,
                seed=self.config.run.seed,
                sampler=sampler,
                scorers=scorers,
                decode_batch=self.config.rollout.decode_batch,
                clock=self.clock,
                prompts_at_once=self.config.rollout.prompts_at_once,
                each=each,
                ranks=s.ranks,
            )
        if failed := int((~proxy.ok).sum()):
            first = next(error for error in proxy.errors if error)
            self.messages.report_own(
                f"{failed} of {len(pool)} candidates could not be scored; they are chosen last. {first}"
            )
        everywhere = s.ranks.count(failed)
        self.guard.check_failures(everywhere, len(pool) * s.ranks.world)
        return Exploration(batch, pool, proxy)

    def audit(self, samples: Samples, conditioning: Conditioning) -> dict[str, float | int]:
        """Draw the first prompt again by the policy itself, hold what both teach together, and act as configured."""
        batch, draw, ranks = samples.rollout.batch, self.config.rollout.draw, self.session.ranks
        age: dict[str, float | int] = (
            {"draw/age": self.drawing.age(batch.iteration)} if self.drawing.uses_explorers else {}
        )
        if draw is None or not self.drawing.audits(batch.iteration):
            return age
        first = prompt_samples(samples.rollout.forest)[0]
        part = subset(samples.rollout.forest, first)
        again, table = self.regenerate(batch, conditioning, part, purpose="audit")
        of_copy = taught(part, samples.rollout.latents[first.to(again.latents.device)], samples.table.total[first])
        cosine = mean_cosine(of_copy, taught(part, again.latents, table.total))
        with self.clock("rollout"), self.session.meter.purpose("audit"):
            error = self.drawing.prediction_error(samples.rollout, conditioning)
        means = ranks.gather(torch.tensor([[cosine, error]], dtype=torch.float64)).nanmean(0).tolist()
        self.drawing.react(means[0], draw.fidelity)
        return {**age, "draw/cosine": means[0], "draw/prediction_error": means[1]}

    def fidelity(self, samples: Samples) -> dict[str, float | int]:
        """Compare the cheap ranking with the true one on what was regenerated, and act on it as configured."""
        settings = self.config.rollout.explore
        if settings is None or samples.exploration is None or samples.chosen is None:
            return {}
        metrics = fidelity_metrics(self.session.ranks, samples)
        self._react(metrics["fidelity/tau"], settings)
        if samples.rollout.forest.branching:
            trained = subset(samples.rollout.forest, torch.nonzero(samples.is_training_sample).flatten())
            single = single_child_splits(trained)
            metrics["explore/one_child_splits"] = self.session.ranks.count(single)
        return metrics

    def _react(self, tau: float, settings: ExploreSettings) -> None:
        f, watch = settings.fidelity, self.watch
        if math.isnan(tau):  # no prompt has a ranking to compare with
            return
        watch.low = watch.low + 1 if tau < f.below else 0
        if watch.low < f.patience or watch.fallen_back:
            return
        watch.low = 0
        seen = f"Exploration ranks with tau {tau:.2f}, below {f.below:g} for {f.patience} iterations"
        if f.action == "widen":
            before = watch.keep or settings.keep
            watch.keep = min(settings.candidates - settings.audit, before + -(-before // 2))
            if watch.keep == before:  # said when it was reached
                return
            what = f"{watch.keep} samples of a prompt are generated again instead of {before}"
        elif f.action == "fall_back":
            watch.fallen_back = True
            what = "from now on it runs in the training precision with all steps"
        else:
            what = "look at `diffrl fidelity`, or raise rollout.explore.steps"
        self.messages.report(f"{seen}: {what}. (rollout.explore.fidelity)")


def full_sampler(rollout: RolloutSettings, sigmas: Tensor, transition: Transition | None) -> Sampler:
    """Return how samples are drawn with all steps.

    Args:
        rollout: the section.
        sigmas: (T + 1,) the full grid.
        transition: dynamics of the stochastic steps; None if there are none.
    """
    r = rollout
    correlation = math.inf if r.tree.correlation is None else r.tree.correlation
    dtype: torch.dtype = getattr(torch, r.latents_dtype)
    return Sampler(
        sigmas=sigmas,
        levels=None,
        transition=transition,
        correlation=correlation,
        solver=r.solver,
        guidance_scale=r.guidance_scale,
        micro_batch=r.micro_batch,
        latents_dtype=dtype,
    )
