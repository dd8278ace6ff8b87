"""The training loop: prompts -> rollout -> reward -> credit -> update, one line a station.

`Trainer.iterate` does an iteration and returns all of it as one record; what is written of it is `run.execution`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffrl.cost.meter import PhaseClock
from diffrl.cost.process_memory import peak_bytes
from diffrl.data.sampler import prompt_batch
from diffrl.data.worlds import noise_stream
from diffrl.distributed.ranks import any_rank, sum_ranks
from diffrl.errors import SourceError
from diffrl.models.adapter import Conditioning
from diffrl.models.encodings import PromptEncodings
from diffrl.objectives.examples import Examples
from diffrl.precision.compiled import compiled_blocks
from diffrl.records import Iteration, PromptBatch, Rollout
from diffrl.rollout.denoise import Velocity, velocity_of
from diffrl.training.crediting import Crediting
from diffrl.training.densities import own_densities
from diffrl.training.ema import EMA
from diffrl.training.evaluate import Evaluation, evaluate
from diffrl.training.guards import Learning, UpdateGuard, check_on_policy, clip_note
from diffrl.training.messages import Messages
from diffrl.training.optim import learning_rate_factor, set_learning_rate
from diffrl.training.reward_hacking import MonitorState, RewardHackingMonitor
from diffrl.training.sampling import FidelityWatch, Sampling
from diffrl.training.session import Session
from diffrl.training.update import (
    accumulate_gradient,
    clip_gradient,
    joined_errors,
    metered,
    minibatches,
    reference_of,
    sync_if,
    update_metrics,
)
from diffrl.trees.recorder import TreeRecorder
from diffrl.trees.rules import weights_of

Metrics = dict[str, float | int]


class Trainer:
    """A session in training: it stands after `iteration` iterations and `updates` optimiser updates.

    Args:
        session: everything loaded.
        messages: what the user is told.
    """

    def __init__(self, session: Session, messages: Messages):
        self.session, self.config, self.accelerator = session, session.config, session.accelerator
        self.messages = messages
        self.encode = PromptEncodings(session.adapter)
        self.clock = PhaseClock(session.device)
        self.guard = UpdateGuard(self.config.guards, messages.report)
        ema = self.config.train.ema
        self.ema = EMA(session.policy.parameters, ema.decay) if ema else None
        self.old = EMA(session.policy.parameters, 0.0) if self.config.objective.old_policy_is_ema else None
        self.sampling = Sampling(session, self.clock, self.guard, messages)
        self.crediting = Crediting(session, self.clock, self.sampling, self.guard, messages)
        writes = session.accelerator.is_main_process
        self.trees = TreeRecorder(
            self.config, session.adapter, session.transition, session.meter, self.clock, bool(writes)
        )
        hacking = self.config.guards.reward_hacking
        self.hacking = RewardHackingMonitor(hacking, session.eval_scorers, self.accelerator, messages.report)
        self.iteration = 0
        self.updates = 0
        self.on_policy_error: float | None = None
        self._counts_before: dict[str, float] = {}
        self._peak_before = 0
        self._missed = 0

    def iterations(self) -> Iterator[Iteration]:
        """All that are left. Let go of each before asking for the next, or the samples of two are in memory."""
        while self.iteration < self.config.run.iterations:
            yield self.iterate()

    def iterate(self) -> Iteration:
        """One iteration: the stations in their order."""
        s = self.session
        batch = self.next_batch()
        conditioning = self.encoded(batch)
        tracer = self.trees.tracer(batch)
        with self.old_policy():
            samples = self.sampling.draw(batch, conditioning, tracer)
        metrics: Metrics = self.sampling.fidelity(samples)
        credit, rewards = self.crediting.assign(samples, conditioning)
        with self.clock("reward"):
            metrics |= rewards | self.hacking.measure(samples, rewards)
        grad_mask = self.crediting.grad_mask(samples, credit)
        predict = [velocity_of(s.adapter, conditioning, loss.guidance) for loss in s.losses]
        with self.clock("update"):
            self.gate(samples.rollout, predict)
        with (
            self.clock("old" if any(loss.objective.needs_old_velocity for loss in s.losses) else "update"),
            self.old_policy(),
        ):
            micro_batch = self.config.rollout.micro_batch
            examples = [
                loss.objective.examples(
                    samples.rollout, credit, grad_mask, metered(s.meter, "old", torch.no_grad()(own)), micro_batch
                )
                for loss, own in zip(s.losses, predict, strict=True)
            ]
        trace = tracer and tracer.trace(samples)
        before = self.trees.velocities(trace, conditioning)
        with self.clock("update"):
            metrics |= self.update(samples.rollout, examples, predict, conditioning)
        trees = self.trees.record(
            *(trace, samples, credit, grad_mask, examples, conditioning),
            before=before,
            skipped=int(metrics["update/skipped"]),
            learning_rate=float(s.optimizer.param_groups[0]["lr"]),  # that of the last update still stands there
            weights=weights_of(s.scorers_at(batch.iteration)),
        )
        metrics |= self.compilation()
        self.iteration += 1
        return Iteration(self.iteration, samples, credit, grad_mask, metrics, trees)

    def compilation(self) -> Metrics:
        """How many graphs torch.compile has made of the policy, and what it left out, which is told once."""
        compiled = [blocks for network in self.session.policy.networks() if (blocks := compiled_blocks(network))]
        missed = list(dict.fromkeys(why for blocks in compiled for why in blocks.missed))
        for why in missed[self._missed :]:
            self.messages.report(f"model.compile left a part of the blocks uncompiled: {' '.join(why.split())}")
        self._missed = len(missed)
        graphs = sum(blocks.graphs for blocks in compiled)
        return {"compile/graphs": graphs, "compile/missed": len(missed)} if compiled else {}

    def next_batch(self) -> PromptBatch:
        """This rank's prompts of the next iteration."""
        c, ranks = self.config, self.accelerator
        world, rank = ranks.num_processes, ranks.process_index
        return prompt_batch(self.session.prompts, c.prompts.per_iteration, c.run.seed, self.iteration, rank, world)

    def encoded(self, batch: PromptBatch) -> Conditioning:
        """The batch's prompts as the network takes them, one row a prompt.

        Raises:
            SourceError: an image to edit cannot be read any more; on all ranks. Nothing was drawn yet.
        """
        conditioning: Conditioning | None = None
        lost: SourceError | None = None
        with self.clock("rollout"):
            try:
                conditioning = self.encode(batch.prompts)
            except SourceError as error:
                lost = error
        if self.config.model.facts.edits and any_rank(self.accelerator, lost is not None):
            raise lost or SourceError("An image to edit cannot be read by another process, which names it.")
        assert conditioning is not None
        return conditioning

    def old_policy(self) -> AbstractContextManager[None]:
        """Inside, the weights are those of the policy that draws samples."""
        return self.old.applied() if self.old else nullcontext()

    def gate(self, rollout: Rollout, predict: Sequence[Velocity]) -> None:
        """Before the first update, the ratio of every recorded step must be 1."""
        s, tolerance = self.session, self.config.guards.on_policy_tolerance
        for loss, velocity in zip(s.losses, predict, strict=True) if self.updates == 0 else ():
            # Unsynced: forward passes without a backward pass would leave the ranks' exchanges out of step.
            with s.meter.purpose("gate"), sync_if(self.accelerator, s.adapter.transformer, False):
                own = loss.objective.on_policy_errors(rollout, velocity, self.config.train.micro_batch)
            if errors := joined_errors(self.accelerator, own):
                self.on_policy_error = check_on_policy(errors, s.sigmas, tolerance)
                if note := clip_note(self.on_policy_error, self.config):
                    self.messages.report(note)

    def update(
        self, rollout: Rollout, examples: Sequence[Examples], predict: Sequence[Velocity], conditioning: Conditioning
    ) -> Metrics:
        """The iteration's optimiser updates."""
        c, s = self.config, self.session
        self._count_skipped(examples)
        before = velocity_of(s.adapter, conditioning, c.kl_guidance)
        reference = reference_of(s.policy, metered(s.meter, "reference", before))
        shares = [
            minibatches(
                own.prompt, rollout.batch, c.train.updates_per_iteration, c.run.seed, loss.objective.groups(own)
            )
            for loss, own in zip(s.losses, examples, strict=True)
        ]
        if c.retakes_densities:
            with self.clock("old"), s.meter.purpose("old"):
                examples = own_densities(s, examples, shares, predict)
        gradients, rates, left_out, trained = [], [], 0, 0
        for number, share in enumerate(zip(*shares, strict=True)):
            if c.retakes_densities:
                pairs = zip(s.losses, examples, strict=True)
                examples = [loss.objective.on_policy(own, number == 0) for loss, own in pairs]
            rate = self.learning_rate()
            set_learning_rate(s.optimizer, rate)
            examples = self.precompute_group_terms(examples, share, predict, reference)
            with s.meter.purpose("update"):
                gradient = accumulate_gradient(
                    self.accelerator,
                    s.policy,
                    list(zip(s.losses, examples, share, strict=True)),
                    predict,
                    reference,
                    c.train.micro_batch,
                )
            calls, calls_before = self._calls()
            s.meter.skipped -= sum(a * b for a, b in zip(gradient.joined, calls, strict=True))
            s.meter.skipped -= gradient.joined_reference * calls_before
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
        if self.old:
            self.old.decay = c.objective.old_decay(self.updates)
            self.old.update()
        metrics: Metrics = {
            **update_metrics(gradients, rates),
            "update/skipped": left_out,
            "update/evaluated": int(sum_ranks(self.accelerator, torch.tensor([sum(g.evaluated for g in gradients)]))),
        }
        if self.updates == c.train.updates_per_iteration and self.on_policy_error is not None:
            metrics["update/on_policy_error"] = self.on_policy_error
        return metrics

    def precompute_group_terms(
        self, examples: Sequence[Examples], share: Sequence[Tensor], predict: Sequence[Velocity], reference: Velocity
    ) -> list[Examples]:
        """Before an update: what losses over whole groups need to know of its units, without gradient."""
        meter, losses = self.session.meter, self.session.losses
        policy = [metered(meter, "group", torch.no_grad()(velocity)) for velocity in predict]
        micro_batch = self.config.rollout.micro_batch
        return [
            loss.objective.precompute_group_terms(own, index, velocity, reference, micro_batch)
            for loss, own, index, velocity in zip(losses, examples, share, policy, strict=True)
        ]

    def _count_skipped(self, examples: Sequence[Examples]) -> None:
        """Evaluations that inactive units would have cost, of whichever network the objective asks."""
        calls, calls_before = self._calls()
        for loss, own, times in zip(self.session.losses, examples, calls, strict=True):
            o = loss.objective
            policy = 1 + o.needs_old_velocity + o.group_evaluations
            each = policy * times + o.needs_reference * calls_before
            self.session.meter.skipped += int((~own.active).sum()) * each

    def _calls(self) -> tuple[list[int], int]:
        """Network evaluations of one velocity: of the policy by each loss, and of the model before alignment."""
        c = self.config
        calls = c.model.facts.calls_per_step
        return [calls(loss.guidance) for loss in self.session.losses], calls(c.kl_guidance)

    def learning_rate(self) -> float:
        """Of the next update."""
        t = self.config.train
        total = self.config.run.iterations * t.updates_per_iteration
        factor = learning_rate_factor(self.updates, total, t.schedule, t.warmup_updates, t.final_learning_rate)
        return t.learning_rate * factor

    def evaluate(self) -> Evaluation:
        """Held-out prompts from held-out noise; with an EMA, the averaged weights are what is evaluated."""
        s, c = self.session, self.config
        averaged = self.ema.applied() if self.ema else nullcontext()
        with self.clock("evaluation"), s.meter.purpose("evaluation"), averaged:
            found = evaluate(
                self.accelerator,
                s.adapter,
                self.eval_conditioning,
                s.eval_prompts,
                s.eval_scorers,
                c.eval,
                c.rollout.decode_batch,
                noise_stream(c.prompts.held_out),
            )
        s.meter.decodes += len(found.images)
        s.meter.reward_calls += len(found.images) * len(s.eval_scorers)
        if found.failed:
            self.messages.report(f"{found.failed} of {c.eval.samples} held-out samples could not be scored.")
        return found

    def compare(self, found: Evaluation) -> Metrics:
        """An evaluation against the best so far, as the reward-hacking monitor sees it."""
        weighted = self.session.scorers_at(max(self.iteration - 1, 0))
        return self.hacking.compare(found, self.config.eval.samples, weighted)

    @cached_property
    def eval_conditioning(self) -> Conditioning:
        """The held-out prompts, encoded once."""
        return self.encode(self.session.eval_prompts)

    def counts(self) -> dict[str, float]:
        """What the run has asked for since it began, over all ranks, as `CostMeter.state` names it."""
        own = self.session.meter.state()
        joined = sum_ranks(self.accelerator, torch.tensor([float(count) for count in own.values()])).tolist()
        return {name: value + self._counts_before.get(name, 0.0) for name, value in zip(own, joined, strict=True)}

    def peak_memory(self) -> int:
        """The most memory that this rank's process, or one that it resumed, has held, in bytes."""
        return max(self._peak_before, peak_bytes(self.session.device))

    @property
    def averages(self) -> dict[str, EMA | None]:
        """Weights that follow the trained ones, by what a checkpoint calls them."""
        return {"ema": self.ema, "old": self.old}

    def state(self) -> dict[str, Any]:
        """Everything besides weights that the next iteration depends on, as plain values."""
        return {
            "iteration": self.iteration,
            "updates": self.updates,
            "counts": self.counts(),
            "peak_memory_bytes": self.peak_memory(),
            "seconds": self.clock.seconds,
            "flat_iterations": self.guard.flat_iterations,
            "learning": asdict(self.guard.learning),
            "on_policy_error": self.on_policy_error,
            "fidelity": asdict(self.sampling.watch),
            "sentinel": asdict(self.hacking.state),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint stood; weights and optimiser are restored by the caller."""
        self.iteration, self.updates = state["iteration"], state["updates"]
        self._counts_before, self._peak_before = state["counts"], state["peak_memory_bytes"]
        self.clock.seconds = dict(state["seconds"])
        self.guard.flat_iterations = state["flat_iterations"]
        self.guard.learning = Learning(**(state.get("learning") or {"updates": state["updates"]}))
        self.on_policy_error = state["on_policy_error"]
        self.sampling.watch = FidelityWatch(**state["fidelity"])
        self.hacking.state = MonitorState(**state["sentinel"])
