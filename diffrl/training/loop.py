"""The training loop: prompts -> rollout -> reward -> credit -> update, one line a station, then what is kept of it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffrl.cost.meter import PhaseClock, network_evaluations, training_cost
from diffrl.cost.plan import is_evaluated
from diffrl.cost.process_memory import peak_bytes
from diffrl.data.sampler import prompt_batch
from diffrl.distributed.ranks import any_rank, sum_ranks
from diffrl.errors import DiffrlError
from diffrl.models.adapter import Conditioning
from diffrl.models.encodings import PromptEncodings
from diffrl.objectives.base import Examples, Velocity
from diffrl.records import Credit, Rollout
from diffrl.run.journal import Journal
from diffrl.run.kept_config import kept_config
from diffrl.run.progress import Progress
from diffrl.run.signals import Interruption, StopSignal
from diffrl.run.summary import ALWAYS, PHASES, short_name
from diffrl.tracking.metrics import OUTSIDE
from diffrl.training.crediting import Crediting
from diffrl.training.ema import EMA
from diffrl.training.evaluate import Evaluation, evaluate
from diffrl.training.guards import Learning, UpdateGuard, check_on_policy
from diffrl.training.optim import learning_rate_factor, set_learning_rate
from diffrl.training.sampling import Drawn, FidelityWatch, Sampling
from diffrl.training.sentinel import Sentinel, Watch
from diffrl.training.session import Session
from diffrl.training.update import (
    accumulate_gradient,
    clip_gradient,
    deal,
    joined_errors,
    metered,
    reference_of,
    sync_if,
    update_metrics,
    velocity_of,
)
from diffrl.trees.pictures import KeptTree
from diffrl.trees.recorder import Given, TreeKeeper

Metrics = dict[str, float | int]

APART = ("evaluations/evaluation",)
"""Counts that belong to no training iteration."""


class Trainer:
    """Runs a session from where it stands to its end.

    Args:
        session: everything loaded.
        journal: what is written down.
        progress: what is shown.
        stop: receives the signals; None if nobody does.
    """

    def __init__(self, session: Session, journal: Journal, progress: Progress, stop: StopSignal | None = None):
        self.session, self.config, self.accelerator = session, session.config, session.accelerator
        self.journal, self.progress = journal, progress
        self.encode = PromptEncodings(session.adapter)
        self.clock = PhaseClock(session.device)
        self.guard = UpdateGuard(self.config.guards, self.report)
        ema = self.config.train.ema
        self.ema = EMA(session.policy.parameters, ema.decay) if ema else None
        self.old = EMA(session.policy.parameters, 0.0) if self.config.objective.lags else None
        self.sampling = Sampling(session, self.clock, self.guard, self.report, self.report_own)
        self.crediting = Crediting(session, self.clock, self.sampling, self.guard, self.report, self.report_own)
        self.trees = TreeKeeper(session, self.clock)
        hacking = self.config.guards.reward_hacking
        self.sentinel = Sentinel(hacking, session.eval_scorers, self.accelerator, self.report)
        self.kept_config = kept_config(self.config)
        self.iteration = 0
        self.updates = 0
        self.counts_before: dict[str, float] = {}
        self.counts_total: dict[str, float] = {}
        self.peak_before = 0
        self.on_policy_error: float | None = None
        self._mark = 0.0
        self._drawn: Drawn
        self._trees: Iterator[KeptTree] = iter(())
        self.stop = stop or StopSignal()

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
            Interruption: a signal ended it, after a checkpoint if anything was trained.
        """
        with self.stop.finishing():
            if self.iteration == 0:
                self.journal.metrics({"iteration": 0, **self.held_out(), "cost/evaluations": 0, "cost/seconds": 0.0})
            if self._asked_to_stop():
                raise Interruption(self.stop.number or signal.SIGTERM)
            self._since_last_iteration()
            while self.iteration < self.config.run.iterations:
                begun = time.monotonic()
                self._iterate_and_record()
                stop = self._asked_to_stop()
                last = self.iteration == self.config.run.iterations
                if stop or last or self.iteration % self.config.run.checkpoint_every == 0:
                    with self.clock("checkpoint"):
                        self.save()
                if stop and not last:
                    raise Interruption(self.stop.number or signal.SIGTERM)
                self.stop.longest = max(self.stop.longest, time.monotonic() - begun)
            self.counts_total = self.counts()

    def _asked_to_stop(self) -> bool:
        """Whether any rank was."""
        asked = any_rank(self.accelerator, self.stop.received)
        if asked:
            self.stop.answer()
        return asked

    def _iterate_and_record(self) -> None:
        seconds, counts = dict(self.clock.seconds), self.counts()
        metrics = self.iterate()
        self.journal.require_place()
        self.journal.train_samples(self.iteration, self._drawn, self._credit)
        self._write_trees()
        self.iteration += 1
        timed = [phase for phase in (*PHASES, "trees") if phase != "other"]
        spent = {phase: self.clock.seconds.get(phase, 0.0) - seconds.get(phase, 0.0) for phase in timed}
        watching, wall = spent.pop("trees"), self._since_last_iteration()
        spent["other"] = wall - sum(spent.values())
        self.clock.seconds["other"] = self.clock.seconds.get("other", 0.0) + spent["other"]
        counted = self.counts()
        metrics |= {
            name: int(count - counts.get(name, 0)) for name, count in counted.items() if count and name not in APART
        }
        metrics["cost/evaluations"] = int(training_cost(counted))
        metrics["cost/seconds"] = sum(self.clock.seconds.get(phase, 0.0) for phase in PHASES)
        if is_evaluated(self.config, self.iteration):
            metrics.update(self.held_out())
        self.journal.metrics(
            {
                "iteration": self.iteration,
                **metrics,
                "network_evaluations": network_evaluations(self.counts()),
                "peak_memory_bytes": self.peak_memory(),
                **{f"seconds/{phase}": value for phase, value in spent.items() if value or phase in ALWAYS},
                **({"seconds/trees": watching} if watching else {}),
            }
        )
        self.progress.iteration(self.iteration, metrics["reward/mean"], wall)
        self.sentinel.act()
        self.guard.check_learning()

    def _write_trees(self) -> None:
        """Keep the iteration's trees, and let go of them. That one cannot be kept ends nothing: nobody trains on it."""
        if self._drawn.trace is None:
            return
        try:
            with self.clock("trees"):
                self.journal.trees(self._trees)
        except DiffrlError as error:
            self.sampling.keeps_trees = False
            self.report_own(f"{error} No more trees are kept until the run is resumed; training goes on.")
        self._trees, self._drawn = iter(()), replace(self._drawn, trace=None)

    def _since_last_iteration(self) -> float:
        """Wall seconds since the last call, or since training began, without what is no part of training."""
        apart = sum(self.clock.seconds.get(phase, 0.0) for phase in OUTSIDE)
        now = time.perf_counter() - apart
        wall, self._mark = now - self._mark, now
        return wall

    def iterate(self) -> Metrics:
        """One iteration: the stations in their order."""
        c, s = self.config, self.session
        for name in ("_drawn", "_credit", "_trees"):  # or two iterations' samples would be in memory
            self.__dict__.pop(name, None)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        batch = prompt_batch(s.prompts, c.prompts.per_iteration, c.run.seed, self.iteration, rank, world)
        with self.clock("rollout"):
            conditioning = self.encode([prompt.text for prompt in batch.prompts])
        with self.old_policy():
            drawn = self.sampling.draw(batch, conditioning)
        rollout = drawn.rollout
        metrics = self.sampling.fidelity(drawn)
        credit, found = self.crediting.assign(drawn, conditioning)
        metrics.update(found)
        groups = [batch.groups[row] for row in rollout.forest.sample_prompt.tolist()]
        with self.clock("reward"):
            raw = {name: found[f"reward/{name}"] for name in drawn.table.raw}
            metrics.update(self.sentinel.look(rollout.images, groups, raw))
        kept = self.crediting.kept(drawn, credit)
        predict = velocity_of(s.adapter, conditioning, c.rollout.guidance_scale)
        with self.clock("update"):
            if self.updates == 0:
                self.gate(rollout, predict)
            examples = self.examples(rollout, credit, kept, predict)
        before = self.trees.velocities(drawn, conditioning)
        with self.clock("update"):
            metrics.update(self.update(rollout, examples, predict))
        given = Given(drawn, credit, kept, examples, int(metrics["update/skipped"]))
        self._trees = self.trees.grow(given, before, conditioning)
        self._drawn, self._credit = drawn, credit
        return metrics

    def old_policy(self) -> AbstractContextManager[None]:
        """Inside, the weights are those of the policy that draws samples."""
        return self.old.applied() if self.old else nullcontext()

    def examples(self, rollout: Rollout, credit: Credit, kept: Tensor, predict: Velocity) -> list[Examples]:
        """What each loss trains on, the velocities of the policy that drew the samples included."""
        s, micro_batch = self.session, self.config.rollout.micro_batch
        old = metered(s.meter, "old", torch.no_grad()(predict))
        with self.old_policy():
            found: list[Examples] = [
                part.objective.examples(rollout, credit, kept, old, micro_batch) for part in s.parts
            ]
        self._count_skipped(found)
        return found

    def update(self, rollout: Rollout, examples: Sequence[Examples], predict: Velocity) -> Metrics:
        """The iteration's optimiser updates."""
        c, s = self.config, self.session
        reference = reference_of(s.policy, metered(s.meter, "reference", predict))
        dealt = [deal(e.prompt, rollout.batch, c.train.updates_per_iteration, c.run.seed) for e in examples]
        gradients, rates, left_out, trained = [], [], 0, 0
        for share in zip(*dealt, strict=True):
            rate = self.learning_rate()
            set_learning_rate(s.optimizer, rate)
            with s.meter.purpose("update"):
                gradient = accumulate_gradient(
                    self.accelerator,
                    s.policy,
                    list(zip(s.parts, examples, share, strict=True)),
                    predict,
                    reference,
                    c.train.micro_batch,
                )
            s.meter.skipped -= gradient.joined * c.model.facts.calls_per_step(c.rollout.guidance_scale)
            culprits = [rollout.batch.prompts[row].text for row in gradient.bad_prompts]
            approx_kl = gradient.metrics.get("approx_kl", 0.0)
            if self.guard.allows(gradient.loss, gradient.norm, gradient.largest_ratio_error, approx_kl, culprits):
                clip_gradient(s.policy, gradient.norm, c.train.max_grad_norm)
                s.optimizer.step()
                trained += gradient.norm > 0
                if self.ema:
                    self.ema.update()
            else:
                left_out += 1
            self.updates += 1
            gradients.append(gradient)
            rates.append(rate)
        self.guard.watch_learning(trained, left_out)
        self._move_old_policy()
        metrics: Metrics = {
            **update_metrics(gradients, rates),
            "update/skipped": left_out,
            "update/evaluated": int(sum_ranks(self.accelerator, torch.tensor([sum(g.evaluated for g in gradients)]))),
        }
        if self.updates == c.train.updates_per_iteration and self.on_policy_error is not None:
            metrics["update/on_policy_error"] = self.on_policy_error
        return metrics

    def _count_skipped(self, examples: Sequence[Examples]) -> None:
        """Evaluations that inactive units would have cost: of the policy, of the old one, of the reference."""
        guided = self.config.model.facts.calls_per_step(self.config.rollout.guidance_scale)
        for part, own in zip(self.session.parts, examples, strict=True):
            each = 1 + part.objective.asks_old + part.objective.needs_reference
            self.session.meter.skipped += int((~own.active).sum()) * each * guided

    def learning_rate(self) -> float:
        """Of the next update."""
        t = self.config.train
        total = self.config.run.iterations * t.updates_per_iteration
        factor = learning_rate_factor(self.updates, total, t.schedule, t.warmup_updates, t.final_learning_rate)
        return t.learning_rate * factor

    def _move_old_policy(self) -> None:
        """Let the policy that draws samples follow the trained one."""
        if self.old:
            self.old.decay = self.config.objective.old_decay(self.updates)
            self.old.update()

    def gate(self, rollout: Rollout, predict: Velocity) -> None:
        """Before the first update, the ratio of every recorded step must be 1."""
        s = self.session
        for part in self.session.parts:
            # Unsynced: forward passes without a backward pass would leave the ranks' exchanges out of step.
            with s.meter.purpose("gate"), sync_if(self.accelerator, s.adapter.transformer, False):
                own = part.objective.on_policy_errors(rollout, predict, self.config.train.micro_batch)
            if errors := joined_errors(self.accelerator, own):
                tolerance = self.config.guards.on_policy_tolerance
                self.on_policy_error = check_on_policy(errors, self.session.sigmas, tolerance)

    def held_out(self) -> Metrics:
        """Evaluate, keep some samples, show the result; with EMA, the averaged weights are what is evaluated."""
        s, c = self.session, self.config
        averaged = self.ema.applied() if self.ema else nullcontext()
        with self.clock("evaluation"), s.meter.purpose("evaluation"), averaged:
            found: Evaluation = evaluate(
                self.accelerator,
                s.adapter,
                self.eval_conditioning,
                s.eval_prompts,
                s.eval_scorers,
                c.eval,
                c.rollout.decode_batch,
            )
        s.meter.decodes += len(found.images)
        s.meter.reward_calls += len(found.images) * len(s.eval_scorers)
        if found.failed:
            self.report(f"{found.failed} of {c.eval.samples} held-out samples could not be scored.")
        self.journal.eval_samples(self.iteration, found)
        means = {name: found.means.get(name, math.nan) for name in (r.key for r in c.eval.rewards)}
        self.progress.held_out(self.iteration, "  ".join(f"{short_name(n)} {v:.3f}" for n, v in means.items()))
        judged = self.sentinel.judge(found, c.eval.samples, s.scorers_at(max(self.iteration - 1, 0)))
        unknown = {f"held_out/{reward.key}": math.nan for reward in c.eval.rewards}
        return {**unknown, **{f"held_out/{name}": value for name, value in found.means.items()}, **judged}

    @cached_property
    def eval_conditioning(self) -> Conditioning:
        """The held-out prompts, encoded once."""
        return self.encode([prompt.text for prompt in self.session.eval_prompts])

    def counts(self) -> dict[str, float]:
        """What the run has asked for since it began, over all ranks, as `CostMeter.state` names it."""
        own = self.session.meter.state()
        joined = sum_ranks(self.accelerator, torch.tensor([float(count) for count in own.values()])).tolist()
        return {name: value + self.counts_before.get(name, 0.0) for name, value in zip(own, joined, strict=True)}

    def peak_memory(self) -> int:
        """The most memory that this rank's process, or one that it resumed, has held, in bytes."""
        return max(self.peak_before, peak_bytes(self.session.device))

    def save(self) -> None:
        """Write a checkpoint of everything that the next iteration depends on."""
        counts = self.counts()
        state = {
            "iteration": self.iteration,
            "updates": self.updates,
            "counts": counts,
            "peak_memory_bytes": self.peak_memory(),
            "seconds": self.clock.seconds,
            "flat_iterations": self.guard.flat_iterations,
            "learning": asdict(self.guard.learning),
            "on_policy_error": self.on_policy_error,
            "fidelity": asdict(self.sampling.watch),
            "sentinel": asdict(self.sentinel.watch),
            "config": self.kept_config,
        }
        self.journal.checkpoint(self.iteration, self.session, {"ema": self.ema, "old": self.old}, state)

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint stood; weights and optimiser are restored by the caller."""
        self.iteration, self.updates = state["iteration"], state["updates"]
        self.counts_before, self.peak_before = state["counts"], state["peak_memory_bytes"]
        self.clock.seconds = dict(state["seconds"])
        self.guard.flat_iterations = state["flat_iterations"]
        self.guard.learning = Learning(**(state.get("learning") or {"updates": state["updates"]}))
        self.on_policy_error = state["on_policy_error"]
        self.sampling.watch = FidelityWatch(**state["fidelity"])
        self.sentinel.watch = Watch(**state["sentinel"])
