"""The training loop: prompts -> rollout -> reward -> credit -> update, one line a station, then what is kept of it."""

from __future__ import annotations

import math
import signal
import time
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch

from diffrl.credit.assign import outcome_credit
from diffrl.data.sampler import prompt_batch
from diffrl.models.adapter import Conditioning
from diffrl.models.encodings import PromptEncodings
from diffrl.plan import evaluated_iterations, steps_of_iteration
from diffrl.records import Credit, PromptBatch, RewardTable, Rollout
from diffrl.rewards.score import score
from diffrl.rollout.denoise import take_edges
from diffrl.rollout.regenerate import plan_chains, regenerate
from diffrl.training.clock import PhaseClock
from diffrl.training.distributed import any_rank, gather_rows, sum_ranks
from diffrl.training.ema import EMA
from diffrl.training.evaluate import Evaluation, evaluate
from diffrl.training.guards import UpdateGuard, check_on_policy, failed_samples
from diffrl.training.journal import Journal
from diffrl.training.memory import peak_bytes
from diffrl.training.optim import learning_rate_factor, set_learning_rate
from diffrl.training.progress import Progress
from diffrl.training.report import PHASES, short_name
from diffrl.training.session import Session
from diffrl.training.signals import Interruption, StopSignal
from diffrl.training.update import (
    accumulate_gradient,
    clip_gradient,
    deal_edges,
    on_policy_errors,
    reference_of,
    update_metrics,
    velocity_of,
)

Metrics = dict[str, float | int]


class Trainer:
    """Runs a session from where it stands to its end.

    Args:
        session: everything loaded.
        journal: what is written down.
        progress: what is shown.
    """

    def __init__(self, session: Session, journal: Journal, progress: Progress):
        self.session, self.config, self.accelerator = session, session.config, session.accelerator
        self.journal, self.progress = journal, progress
        self.encode = PromptEncodings(session.adapter)
        self.clock = PhaseClock(session.device)
        self.guard = UpdateGuard(self.config.guards, self.report)
        ema = self.config.train.ema
        self.ema = EMA(session.policy.parameters, ema.decay) if ema else None
        self.iteration = 0
        self.updates = 0
        self.evaluations_before = self.evaluations_total = 0
        self.peak_before = 0
        self.on_policy_error: float | None = None
        self._mark = 0.0
        self.stop = StopSignal()

    def report(self, message: str) -> None:
        """Tell the user, once, something that all ranks know; it stays in the run's log."""
        if self.accelerator.is_main_process:
            self.report_own(message)

    def report_own(self, message: str) -> None:
        """Tell the user something that this rank alone may know."""
        self.progress.message(message)
        self.journal.log(message)

    def run(self) -> None:
        """Train to the last iteration.

        Raises:
            GuardStop: a guard ended the run.
            Interruption: a signal ended it after a checkpoint.
        """
        with self.stop.watched():
            if self.iteration == 0:
                self.journal.metrics({"iteration": 0, **self.held_out()})
            self._since_last_iteration()
            while self.iteration < self.config.run.iterations:
                self._iterate_and_record()
                stop = any_rank(self.accelerator, self.stop.received)
                last = self.iteration == self.config.run.iterations
                if stop or last or self.iteration % self.config.run.checkpoint_every == 0:
                    with self.clock("checkpoint"):
                        self.save()
                if stop and not last:
                    raise Interruption(self.stop.number or signal.SIGTERM)
            self.evaluations_total = self.network_evaluations()

    def _iterate_and_record(self) -> None:
        seconds = dict(self.clock.seconds)
        metrics = self.iterate()
        self.journal.train_samples(self.iteration, self._rollout, self._table, self._credit)
        self.iteration += 1
        spent = {p: self.clock.seconds.get(p, 0.0) - seconds.get(p, 0.0) for p in PHASES if p != "other"}
        wall = self._since_last_iteration()
        spent["other"] = wall - sum(spent.values())
        self.clock.seconds["other"] = self.clock.seconds.get("other", 0.0) + spent["other"]
        if self.iteration in evaluated_iterations(self.config):
            metrics.update(self.held_out())
        self.journal.metrics(
            {
                "iteration": self.iteration,
                **metrics,
                "network_evaluations": self.network_evaluations(),
                "peak_memory_bytes": self.peak_memory(),
                **{f"seconds/{phase}": value for phase, value in spent.items()},
            }
        )
        self.progress.iteration(self.iteration, metrics["reward/mean"], wall)

    def _since_last_iteration(self) -> float:
        """Wall seconds since the last call, or since training began, evaluations and checkpoints left out."""
        apart = sum(self.clock.seconds.get(phase, 0.0) for phase in ("evaluation", "checkpoint"))
        now = time.perf_counter() - apart
        wall, self._mark = now - self._mark, now
        return wall

    def iterate(self) -> Metrics:
        """One iteration: the stations in their order."""
        c, s = self.config, self.session
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        batch = prompt_batch(s.prompts, c.prompts.per_iteration, c.run.seed, self.iteration, rank, world)
        with self.clock("rollout"):
            conditioning = self.encode([prompt.text for prompt in batch.prompts])
        rollout = self.rollout(batch, conditioning)
        with self.clock("reward"):
            table = score(s.scorers, rollout.images, [batch.prompts[int(p)] for p in rollout.prompt])
        credit, metrics = self.credit(rollout, table)
        with self.clock("update"):
            metrics.update(self.update(rollout, credit, conditioning))
        self._rollout, self._table, self._credit = rollout, table, credit
        return metrics

    def rollout(self, batch: PromptBatch, conditioning: Conditioning) -> Rollout:
        """Draw this iteration's samples."""
        r = self.config.rollout
        return regenerate(
            self.session.adapter,
            conditioning,
            batch,
            plan_chains(batch, r.tree.roots, self.config.run.seed),
            sigmas=self.session.sigmas,
            transition=self.session.objective.transition,
            stochastic=steps_of_iteration(self.config, self.iteration),
            guidance_scale=r.guidance_scale,
            micro_batch=r.micro_batch,
            decode_batch=r.decode_batch,
            clock=self.clock,
        )

    def credit(self, rollout: Rollout, table: RewardTable) -> tuple[Credit, Metrics]:
        """Advantages, from the statistics of all ranks' samples."""
        c, accelerator = self.config.credit, self.accelerator
        own_groups = torch.tensor(rollout.batch.groups, dtype=torch.int64)[rollout.prompt]
        prompts = [rollout.batch.prompts[int(p)] for p in rollout.prompt]
        own_ok = failed_samples(table, own_groups, prompts, self.config.guards.nonfinite_reward, self.report_own)
        total, groups = gather_rows(accelerator, table.total), gather_rows(accelerator, own_groups)
        ok = gather_rows(accelerator, own_ok.long()).bool()
        first = accelerator.process_index * len(rollout)
        credit = outcome_credit(
            total,
            groups,
            ok,
            slice(first, first + len(rollout)),
            rollout.edges.sample,
            baseline=c.baseline,
            std=c.std,
            clamp=c.clamp,
            minimum=c.minimum_samples,
        )
        failed = int(sum_ranks(self.accelerator, (~table.ok).sum()))
        self.guard.check_failures(failed, len(ok))
        self.guard.watch_spread(credit.zero_spread_groups, self.config.prompts.per_iteration)
        if credit.dropped_groups:
            self.report(f"{credit.dropped_groups} groups had too few scored samples and are left out of this update.")
        good = total[ok].double()
        metrics: Metrics = {
            "reward/mean": float(good.mean()) if len(good) else math.nan,
            "reward/std": float(good.std(correction=0)) if len(good) else math.nan,
            **self._reward_means(table),
            "groups/zero_spread": credit.zero_spread_groups,
            "groups/dropped": credit.dropped_groups,
            "samples/failed": failed,
        }
        return credit, metrics

    def _reward_means(self, table: RewardTable) -> Metrics:
        values = {**table.raw, **table.parts}
        columns = gather_rows(self.accelerator, torch.stack(list(values.values()), dim=1).double())
        return {f"reward/{name}": float(columns[:, i].nanmean()) for i, name in enumerate(values)}

    def update(self, rollout: Rollout, credit: Credit, conditioning: Conditioning) -> Metrics:
        """The iteration's optimiser updates; before the very first, the on-policy gate."""
        c, s = self.config, self.session
        predict = velocity_of(s.adapter, conditioning, rollout, c.rollout.guidance_scale)
        reference = reference_of(s.policy, predict) if s.objective.needs_reference else None
        if self.updates == 0:
            self.gate(rollout, predict)
        gradients, rates, skipped = [], [], 0
        for index in deal_edges(rollout, c.train.updates_per_iteration, c.run.seed):
            factor = learning_rate_factor(
                self.updates,
                c.run.iterations * c.train.updates_per_iteration,
                c.train.schedule,
                c.train.warmup_updates,
                c.train.final_learning_rate,
            )
            rate = c.train.learning_rate * factor
            set_learning_rate(s.optimizer, rate)
            edges, advantage = take_edges(rollout.edges, index), credit.advantage[index]
            gradient = accumulate_gradient(
                self.accelerator, s.policy, s.objective, edges, advantage, predict, reference, c.train.micro_batch
            )
            culprits = [rollout.batch.prompts[int(rollout.prompt[i])].text for i in gradient.bad_samples]
            approx_kl = gradient.metrics.get("approx_kl", 0.0)
            if self.guard.allows(gradient.loss, gradient.norm, gradient.largest_ratio_error, approx_kl, culprits):
                clip_gradient(s.policy, gradient.norm, c.train.max_grad_norm)
                s.optimizer.step()
                if self.ema:
                    self.ema.update()
            else:
                skipped += 1
            self.updates += 1
            gradients.append(gradient)
            rates.append(rate)
        metrics: Metrics = {**update_metrics(gradients, rates), "update/skipped": skipped}
        if self.updates == c.train.updates_per_iteration and self.on_policy_error is not None:
            metrics["update/on_policy_error"] = self.on_policy_error
        return metrics

    def gate(self, rollout: Rollout, predict: Any) -> None:
        """Before the first update, the ratio of every trained step must be 1."""
        errors = on_policy_errors(
            self.accelerator, self.session.objective, rollout.edges, predict, self.config.train.micro_batch
        )
        self.on_policy_error = check_on_policy(errors, self.session.sigmas, self.config.guards.on_policy_tolerance)

    def held_out(self) -> Metrics:
        """Evaluate, keep some samples, show the result; with EMA, the averaged weights are what is evaluated."""
        s, c = self.session, self.config
        with self.clock("evaluation"), self.ema.applied() if self.ema else nullcontext():
            found: Evaluation = evaluate(
                self.accelerator,
                s.adapter,
                self.eval_conditioning,
                s.eval_prompts,
                s.eval_scorers,
                c.eval,
                c.rollout.decode_batch,
            )
        if found.failed:
            self.report(f"{found.failed} of {c.eval.samples} held-out samples could not be scored.")
        self.journal.eval_samples(self.iteration, found)
        means = {name: found.means.get(name, math.nan) for name in (r.name for r in c.eval.rewards)}
        self.progress.held_out(self.iteration, "  ".join(f"{short_name(n)} {v:.3f}" for n, v in means.items()))
        return {f"held_out/{name}": value for name, value in found.means.items()}

    @cached_property
    def eval_conditioning(self) -> Conditioning:
        """The held-out prompts, encoded once."""
        return self.encode([prompt.text for prompt in self.session.eval_prompts])

    def network_evaluations(self) -> int:
        """Samples that passed through the transformer since the run began, over all ranks."""
        own = torch.tensor([float(self.session.counter.count)])
        return self.evaluations_before + int(sum_ranks(self.accelerator, own)[0])

    def peak_memory(self) -> int:
        """The most memory that this rank's process, or one that it resumed, has held, in bytes."""
        return max(self.peak_before, peak_bytes(self.session.device))

    def save(self) -> None:
        """Write a checkpoint of everything that the next iteration depends on."""
        evaluations = self.network_evaluations()
        if not self.accelerator.is_main_process:
            return
        state = {
            "iteration": self.iteration,
            "updates": self.updates,
            "network_evaluations": evaluations,
            "peak_memory_bytes": self.peak_memory(),
            "seconds": self.clock.seconds,
            "flat_iterations": self.guard.flat_iterations,
            "on_policy_error": self.on_policy_error,
        }
        self.journal.checkpoint(self.iteration, self.session, self.ema, state)

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint stood; weights and optimiser are restored by the caller."""
        self.iteration, self.updates = state["iteration"], state["updates"]
        self.evaluations_before, self.peak_before = state["network_evaluations"], state["peak_memory_bytes"]
        self.clock.seconds = dict(state["seconds"])
        self.guard.flat_iterations = state["flat_iterations"]
        self.on_policy_error = state["on_policy_error"]
