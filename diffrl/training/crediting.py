"""From scored samples to credit: which samples count, what nodes are worth, and what each edge deserves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.cost.meter import PhaseClock
from diffrl.credit.assign import CreditRule, assign_credit, kept_edges
from diffrl.credit.rules import reward_rule
from diffrl.functional.advantages import gdpo_advantage
from diffrl.functional.combine import scaled_reward
from diffrl.models.adapter import Conditioning
from diffrl.records import Credit, RewardTable, Rollout, Samples
from diffrl.rewards.score import Scoring
from diffrl.rollout.complete import complete, inner_nodes
from diffrl.rollout.regenerate import decode
from diffrl.rollout.tree import paths_to, root_addresses
from diffrl.training.guards import UpdateGuard, failed_samples
from diffrl.training.messages import Messages
from diffrl.training.pairs import pair_credit
from diffrl.training.sampling import Sampling
from diffrl.training.session import Session

Metrics = dict[str, float | int]


@dataclass
class Crediting:
    """Gives credit for a session's samples.

    Args:
        session: everything loaded.
        clock: seconds by phase.
        sampling: how samples are drawn, for completions.
        guard: watches failures and spread.
        messages: what the user is told.
    """

    session: Session
    clock: PhaseClock
    sampling: Sampling
    guard: UpdateGuard
    messages: Messages

    @property
    def config(self) -> Config:
        """The run's."""
        return self.session.config

    def assign(self, samples: Samples, conditioning: Conditioning) -> tuple[Credit, Metrics]:
        """Credit for an iteration's samples, and what is logged of their rewards."""
        if self.config.objective.trains_pairs:
            return pair_credit(samples), {}
        c, ranks = self.config.credit, self.session.ranks
        rollout, forest, table = samples.rollout, samples.rollout.forest, samples.table
        groups = torch.tensor(rollout.batch.groups, dtype=torch.int64)[forest.sample_prompt]
        prompts = [rollout.batch.prompts[int(p)] for p in forest.sample_prompt]
        action = self.config.guards.nonfinite_reward
        ok = ranks.raise_on_all_ranks(lambda: failed_samples(table, groups, prompts, action, self.messages.report_own))
        usable = ok & samples.is_training_sample
        everyone = tuple(ranks.gather(column) for column in (table.total, usable.long()))
        batch = (everyone[0], everyone[1].bool())
        credit = assign_credit(
            forest,
            table.total,
            usable,
            self.rule(),
            values=self.values(rollout, conditioning),
            log_prob=_log_prob(rollout) if c.fusion == "path_probability" else None,
            batch=batch if c.std == "batch" else None,
            finished=self._gdpo(rollout.batch.iteration, table, groups, usable) if c.combine == "gdpo" else None,
        )
        counts = ranks.sum(torch.tensor([int((~table.ok).sum()), credit.zero_spread_groups, credit.dropped_groups]))
        failed, flat, dropped = (int(count) for count in counts)
        self.guard.check_failures(failed, len(batch[1]))
        self.guard.watch_spread(flat, self.config.prompts.per_iteration)
        if dropped:
            self.messages.report(f"{dropped} groups had too few scored samples and are left out of this update.")
        return credit, {
            **self._reward_metrics(samples, everyone[0][batch[1]].double()),
            "groups/zero_spread": flat,
            "groups/dropped": dropped,
            "samples/failed": failed,
            **self._turning_metrics(credit),
        }

    def rule(self) -> CreditRule:
        """Return the credit section as the pure functions take it."""
        c = self.config.credit
        return CreditRule(
            reward=c.reward,
            fusion=c.fusion,
            beta=c.beta if c.fusion == "path_probability" else 0.0,
            constraint=c.turning_points.constraint,
            balance=c.turning_points.balance,
            normalise=c.normalise,
            baseline=c.baseline,
            std=c.std,
            clamp=c.clamp,
            minimum=c.minimum_samples,
        )

    def grad_mask(self, samples: Samples, credit: Credit) -> Tensor:
        """Return (N,) bool, False for nodes whose edges pruning takes out of the gradient.

        Where a reference pulls at every step, those that lead to no used sample are out too: what was drawn only to
        check the ranking, or could not be scored, trains nothing. Elsewhere they have no credit to train with.
        """
        p, o, forest = self.config.credit.prune, self.config.objective, samples.rollout.forest
        steps: Sequence[int] = ()
        if p.depth is not None:
            steps = p.depth.steps_at(samples.rollout.batch.iteration, sorted(forest.branching))
        grad_mask = kept_edges(
            forest, samples.table.total, credit.used, width=p.width, best=p.best or 1, skipped_steps=steps
        )
        if o.trains_uncredited("steps"):
            grad_mask &= paths_to(forest, torch.nonzero(credit.used).flatten())
        return grad_mask

    def values(self, rollout: Rollout, conditioning: Conditioning) -> Tensor | None:
        """Return the nodes' values (N,) by the configured estimator; None where samples' rewards are all it takes."""
        c, s, forest = self.config.credit, self.session, rollout.forest
        if c.value == "leaves":
            return None
        nodes = inner_nodes(forest)
        if c.value == "predicted_x0":
            assert rollout.predicted is not None
            latents = rollout.predicted[nodes]
        else:
            roots = root_addresses(forest, rollout.batch, self.config.run.seed)
            with self.clock("values"), s.meter.purpose("values"), self.sampling.drawing.in_place():
                latents = complete(
                    adapter=s.adapter,
                    conditioning=conditioning,
                    forest=forest,
                    roots=roots,
                    edges=rollout.edges,
                    sampler=self.sampling.sampler(),
                )
        prompts = [rollout.batch.prompts[int(p)] for p in forest.prompt[nodes]]
        scorers = s.scorers_at(rollout.batch.iteration)
        scoring = Scoring(scorers, prompts, [rollout.batch.groups[int(p)] for p in forest.prompt[nodes]])
        with self.clock("decode"):
            texts = [prompt.text for prompt in prompts]
            decode(s.adapter, latents, self.config.rollout.decode_batch, texts, scoring.add)
        with self.clock("reward"):
            table = s.ranks.raise_on_all_ranks(scoring.table)
        failed = s.ranks.count(int((~table.ok).sum()))
        if failed:
            self.messages.report_own(
                f"{failed} images of nodes could not be scored; the steps beside them train nothing."
            )
            self.guard.check_failures(failed, len(nodes) * s.ranks.world)
        s.meter.decodes += len(nodes)
        s.meter.reward_calls += len(nodes) * len(scorers)
        values = torch.full((len(forest.parent),), torch.nan)
        values[nodes] = table.total
        return values

    def _gdpo(self, iteration: int, table: RewardTable, groups: Tensor, usable: Tensor) -> Tensor:
        """Return each reward normalised in its group before it is weighted; the batch is all ranks' samples."""
        scorers = [scorer for scorer in self.session.scorers_at(iteration) if scorer.weight != 0]
        rewards = torch.stack([scaled_reward(table.raw[s.name], s.shift, s.scale) for s in scorers], dim=1)
        ranks = self.session.ranks
        everyone = ranks.gather(rewards)
        weights = torch.tensor([scorer.weight for scorer in scorers])
        ok, all_groups = ranks.gather(usable.long()).bool(), ranks.gather(groups)
        advantage = gdpo_advantage(everyone.T, all_groups, weights, ok=ok, minimum=self.config.credit.minimum_samples)
        first = ranks.rank * len(groups)
        return advantage[first : first + len(groups)]

    def _reward_metrics(self, samples: Samples, good: Tensor) -> Metrics:
        """Average the rewards that no choice had a part in: of the candidates of a pool, without one of `good`.

        The samples that are chosen of a pool are its extremes; their mean is `reward/selected_mean`, and moves with the
        pool's spread.
        """
        exploration = samples.exploration
        if exploration is None:
            return self._means(samples.table, good, samples.is_training_sample)
        proxy = exploration.proxy
        pool = self.session.ranks.gather(proxy.total).double()
        metrics = self._means(proxy, pool[pool.isfinite()], torch.ones_like(proxy.total, dtype=torch.bool))
        return {**metrics, "reward/selected_mean": float(good.mean()) if len(good) else math.nan}

    def _means(self, table: RewardTable, good: Tensor, counted: Tensor) -> Metrics:
        """Return mean and spread of the totals of all ranks, and each reward's mean over the samples that count."""
        values = {**table.raw, **table.parts}
        names = self.session.ranks.shared_names(values)
        unknown = torch.full_like(table.total, torch.nan)
        rows = (
            torch.stack([values.get(name, unknown) for name in names], dim=1)
            .double()
            .masked_fill(~counted.unsqueeze(1), torch.nan)
        )
        columns = self.session.ranks.gather(rows)
        return {
            "reward/mean": float(good.mean()) if len(good) else math.nan,
            "reward/std": float(good.std(correction=0)) if len(good) else math.nan,
            **{f"reward/{name}": float(columns[:, i].nanmean()) for i, name in enumerate(names)},
        }

    def _turning_metrics(self, credit: Credit) -> Metrics:
        if not reward_rule(self.config.credit.reward).by_turns:
            return {}
        return {"credit/turning_edges": self.session.ranks.count(int(credit.turning.sum()))}


def _log_prob(rollout: Rollout) -> Tensor:
    """Return (N,) density of the edge that ends in each node, 0 at roots."""
    density = torch.zeros(len(rollout.forest.parent))
    density[rollout.edges.node.cpu()] = rollout.edges.old_log_prob.cpu()
    return density
