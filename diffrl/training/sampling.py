"""The samples of an iteration: all of the trees, or the two stages explore -> choose -> regenerate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffrl.config.explore import ExploreSettings
from diffrl.config.rollout import RolloutSettings
from diffrl.config.schema import Config
from diffrl.cost.meter import TREES, PhaseClock
from diffrl.distributed.ranks import Ranks
from diffrl.functional.ranking import pair_agreement, ranking_fidelity
from diffrl.functional.steps import coarse_levels
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Exploration, Forest, Prompt, PromptBatch, RewardTable, Rollout, Samples
from diffrl.rewards.score import Scoring, WeightedScorer
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.explore import explore, prompt_samples
from diffrl.rollout.observers import of_whole
from diffrl.rollout.regenerate import Clock, Sink, ignore, no_clock, regenerate
from diffrl.rollout.select import choose
from diffrl.rollout.transition import Transition
from diffrl.rollout.tree import paths_to, plan_forest, prompt_chunks, root_addresses, subset
from diffrl.training.drawing import Drawing, FidelityWatch, mean_cosine, taught
from diffrl.training.explorers import Explorers
from diffrl.training.guards import UpdateGuard
from diffrl.training.messages import Messages
from diffrl.training.pairs import given_samples
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


def draw_pool(
    adapter: ModelAdapter,
    copy: PolicyCopy | None,
    conditioning: Conditioning,
    batch: PromptBatch,
    pool: Forest,
    seed: int,
    sampler: Sampler,
    scorers: Sequence[WeightedScorer],
    *,
    decode_batch: int,
    clock: Clock = no_clock,
    prompts_at_once: int | None = None,
    each: Sink = ignore,
    ranks: Ranks | None = None,
) -> RewardTable:
    """Return rewards of a pool's pictures, which are let go of once they are scored; without latents and densities.

    Args:
        adapter: the model.
        copy: draws in place of its transformer; None = the transformer itself.
        conditioning: the batch's encoded prompts, one row a prompt.
        batch: the prompts.
        pool: the candidates.
        seed: of their noise.
        sampler: how latents are carried; its levels may be coarse.
        scorers: of the pictures.
        decode_batch: samples a decoder call.
        clock: entered with "explore", "decode" and "reward".
        prompts_at_once: prompts that are drawn together, and scored while the next are drawn; None = all.
        each: called with the pictures as they are decoded, in the order of the samples.
        ranks: joins the ranks, where each draws a pool of its own.
    """
    scoring = Scoring(scorers, *samples_of(batch, pool))

    def take(images: Tensor) -> None:
        scoring.add(images)
        each(images)

    with copy.in_place_of(adapter) if copy is not None else nullcontext():
        for samples in prompt_chunks(pool, prompts_at_once):
            part = subset(pool, samples)
            roots = root_addresses(part, batch, seed)
            explore(
                adapter=adapter,
                conditioning=conditioning,
                batch=batch,
                forest=part,
                roots=roots,
                sampler=sampler,
                decode_batch=decode_batch,
                clock=clock,
                each=take,
            )
    with clock("reward"):
        return scoring.table() if ranks is None else ranks.raise_on_all_ranks(scoring.table)


def samples_of(batch: PromptBatch, forest: Forest) -> tuple[list[Prompt], list[int]]:
    """Return the prompt and the group of every sample."""
    rows = forest.sample_prompt.tolist()
    return [batch.prompts[row] for row in rows], [batch.groups[row] for row in rows]


def fidelity_metrics(ranks: Ranks, samples: Samples) -> dict[str, float | int]:
    """Return agreement of proxy and true rewards, as means over prompts of all ranks.

    The chosen samples alone are a biased sample: they are the extremes. `audit_tau` rests on pairs with an audited
    member only; both it and the others are NaN where nothing differs.
    """
    assert samples.exploration is not None and samples.chosen is not None
    proxy, true = samples.exploration.proxy.total[samples.chosen.samples], samples.table.total
    sums = torch.zeros(8, dtype=torch.float64)
    for rows in prompt_samples(samples.rollout.forest):
        ranking = ranking_fidelity(proxy[rows], true[rows], max(1, len(rows) // 4))
        tau, rho = ranking.tau, ranking.rho
        if math.isnan(tau) and _differ(true[rows]) and not _differ(proxy[rows]):
            tau = rho = 0.0  # a proxy that tells nothing apart ranks nothing
        for i, value in enumerate((tau, rho, ranking.top_match, ranking.bottom_match)):
            if math.isfinite(value):
                sums[2 * i : 2 * i + 2] += torch.tensor([value, 1.0], dtype=torch.float64)
    agree = pair_agreement(proxy, true, samples.rollout.forest.sample_prompt, samples.chosen.audit)
    joined = ranks.sum(torch.cat([sums, torch.tensor(agree, dtype=torch.float64)]))
    means = (joined[0:8:2] / joined[1:8:2]).tolist()
    names = ("tau", "rho", "top_match", "bottom_match")
    concordant, discordant, _ = joined[8:].tolist()
    pairs = concordant + discordant
    return {
        **{f"fidelity/{name}": value for name, value in zip(names, means, strict=True)},
        "fidelity/audit_tau": (concordant - discordant) / pairs if pairs else math.nan,
        "fidelity/audit_pairs": int(pairs),
    }


def _differ(rewards: Tensor) -> bool:
    """Return whether the rewards that are known are not all equal."""
    known = rewards[rewards.isfinite()]
    return len(known) > 1 and bool((known != known[0]).any())


def single_child_splits(forest: Forest) -> int:
    """Return splits of which selection left one child only: siblings cannot be compared there."""
    families = torch.bincount(forest.parent[forest.parent >= 0], minlength=len(forest.parent))
    splitting = [step for step, children in forest.branching.items() if children > 1]
    ends = torch.isin(forest.step, torch.tensor(splitting, dtype=torch.int64))
    parents = forest.parent[ends].unique()
    return int((families[parents] == 1).sum())
