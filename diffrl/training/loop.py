"""The training loop: prompts -> rollout -> reward -> credit -> update, one line a station.

`Trainer.iterate` does an iteration and returns all of it as one record; what is written of it is `run.execution`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch

from diffrl.cost.meter import PhaseClock
from diffrl.cost.process_memory import peak_bytes
from diffrl.data.sampler import prompt_batch
from diffrl.data.worlds import noise_stream
from diffrl.errors import SourceError
from diffrl.models.adapter import Conditioning
from diffrl.models.encodings import PromptEncodings
from diffrl.precision.compiled import compiled_blocks
from diffrl.records import Iteration, PromptBatch
from diffrl.training.crediting import Crediting
from diffrl.training.drawing import Drawing, FidelityWatch
from diffrl.training.evaluate import Evaluation, evaluate
from diffrl.training.guards import Learning, UpdateGuard
from diffrl.training.messages import Messages
from diffrl.training.observing import MeteredUpdates
from diffrl.training.pairs import judge_pairs
from diffrl.training.reward_hacking import MonitorState, RewardHackingMonitor
from diffrl.training.sampling import Sampling
from diffrl.training.session import Session
from diffrl.training.update import Updater
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
        self.session, self.config, self.ranks = session, session.config, session.ranks
        self.messages = messages
        self.encode = PromptEncodings(session.adapter)
        self.clock = PhaseClock(session.device)
        self.guard = UpdateGuard(self.config.guards, messages.report)
        calls = self.config.model.facts.calls_per_step
        asked = [calls(loss.guidance) for loss in session.losses]
        observer = MeteredUpdates(session.meter, asked, calls(self.config.kl_guidance))
        self.updater = Updater(session, self.clock, self.guard, messages, observer)
        drawing = Drawing(session, self.clock, messages, self.updater.drawing)
        self.sampling = Sampling(session, self.clock, self.guard, messages, drawing)
        self.crediting = Crediting(session, self.clock, self.sampling, self.guard, messages)
        writes = session.ranks.is_main
        self.trees = TreeRecorder(
            config=self.config,
            adapter=session.adapter,
            transition=session.transition,
            meter=session.meter,
            clock=self.clock,
            writes=bool(writes),
        )
        guards = self.config.guards
        times = guards.recover.times if guards.recover else 0
        self.hacking = RewardHackingMonitor(
            guards.reward_hacking, session.eval_scorers, self.ranks, messages.report, times, guards.safety
        )
        self.iteration = 0
        self._counts_before: dict[str, float] = {}
        self._peak_before = 0
        self._missed = 0

    def iterations(self) -> Iterator[Iteration]:
        """Yield all that are left. Let go of each before asking for the next, or the samples of two are in memory."""
        while self.iteration < self.config.run.iterations:
            yield self.iterate()

    def iterate(self) -> Iteration:
        """Return one iteration: the stations in their order."""
        s = self.session
        batch = self.next_batch()
        conditioning = self.encoded(batch)
        tracer = self.trees.tracer(batch)
        with self.updater.old_policy():
            following = self.next_batch(ahead=1) if self.sampling.drawing.overlaps else None
            samples = self.sampling.draw(batch, conditioning, tracer, following)
            metrics: Metrics = self.sampling.audit(samples, conditioning)
        metrics |= self.sampling.fidelity(samples)
        credit, rewards = self.crediting.assign(samples, conditioning)
        if not self.config.objective.trains_pairs:  # whose images are given, and tell nothing of the policy
            with self.clock("reward"):
                metrics |= rewards | self.hacking.measure(samples, rewards)
        grad_mask = self.crediting.grad_mask(samples, credit)
        predict = self.updater.velocities(conditioning)
        with self.sampling.drawing.in_place():  # the densities are those of what drew
            self.updater.gate(samples.rollout, predict, replayed=self.sampling.drawing.copy is not None)
        examples = self.updater.examples(samples.rollout, credit, grad_mask, predict)
        trace = tracer.trace(samples) if tracer else None
        before = self.trees.velocities(trace, conditioning)
        metrics |= self.updater.update(samples.rollout, examples, predict, conditioning)
        trees = self.trees.record(
            trace=trace,
            samples=samples,
            credit=credit,
            grad_mask=grad_mask,
            examples=examples,
            conditioning=conditioning,
            before=before,
            skipped=int(metrics["update/skipped"]),
            learning_rate=float(s.optimizer.param_groups[0]["lr"]),  # that of the last update still stands there
            weights=weights_of(s.scorers_at(batch.iteration)),
        )
        metrics |= self.compilation()
        self.iteration += 1
        return Iteration(
            number=self.iteration, samples=samples, credit=credit, grad_mask=grad_mask, metrics=metrics, trees=trees
        )

    def compilation(self) -> Metrics:
        """Return how many graphs torch.compile has made of the policy, and what it left out, which is told once."""
        compiled = [blocks for network in self.session.policy.networks() if (blocks := compiled_blocks(network))]
        missed = list(dict.fromkeys(why for blocks in compiled for why in blocks.missed))
        for why in missed[self._missed :]:
            self.messages.report(f"model.compile left a part of the blocks uncompiled: {' '.join(why.split())}")
        self._missed = len(missed)
        graphs = sum(blocks.graphs for blocks in compiled)
        return {"compile/graphs": graphs, "compile/missed": len(missed)} if compiled else {}

    def next_batch(self, ahead: int = 0) -> PromptBatch:
        """Return this rank's prompts of the next iteration, or of one so many after it."""
        c, ranks = self.config, self.ranks
        world, rank = ranks.world, ranks.rank
        return prompt_batch(
            prompts=self.session.prompts,
            per_iteration=c.prompts.per_iteration,
            seed=c.run.seed,
            iteration=self.iteration + ahead,
            rank=rank,
            world_size=world,
        )

    def encoded(self, batch: PromptBatch) -> Conditioning:
        """Return the batch's prompts as the network takes them, one row a prompt.

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
        if self.config.model.facts.edits and self.ranks.any(lost is not None):
            raise lost or SourceError("An image to edit cannot be read by another process, which names it.")
        assert conditioning is not None
        return conditioning

    def evaluate(self) -> Evaluation:
        """Return held-out prompts from held-out noise; with an EMA, the averaged weights are what is evaluated."""
        s, c = self.session, self.config
        ema = self.updater.ema
        averaged = ema.applied() if ema else nullcontext()
        with self.clock("evaluation"), s.meter.purpose("evaluation"), averaged:
            evaluation = evaluate(
                ranks=self.ranks,
                adapter=s.adapter,
                conditioning=self.eval_conditioning,
                prompts=s.eval_prompts,
                scorers=s.eval_scorers,
                settings=c.eval,
                decode_batch=c.decode_batch,
                stream=noise_stream(c.prompts.held_out),
            )
            pairs = judge_pairs(s, s.eval_prompts, self.eval_conditioning, c.forward_batch)
        s.meter.decodes += len(evaluation.images)
        s.meter.reward_calls += len(evaluation.images) * len(s.eval_scorers)
        if evaluation.failed:
            self.messages.report(f"{evaluation.failed} of {c.eval.samples} held-out samples could not be scored.")
        return replace(evaluation, pairs=pairs)

    def compare(self, evaluation: Evaluation) -> Metrics:
        """Return an evaluation against the best so far, as the reward-hacking monitor sees it."""
        weighted = self.session.scorers_at(max(self.iteration - 1, 0))
        return self.hacking.compare(evaluation, self.config.eval.samples, weighted)

    @cached_property
    def eval_conditioning(self) -> Conditioning:
        """The held-out prompts, encoded once."""
        return self.encode(self.session.eval_prompts)

    def counts(self) -> dict[str, float]:
        """Return what the run has asked for since it began, over all ranks, as `CostMeter.state` names it."""
        counts = self.session.meter.state()
        joined = self.ranks.sum(torch.tensor([float(count) for count in counts.values()])).tolist()
        return {name: value + self._counts_before.get(name, 0.0) for name, value in zip(counts, joined, strict=True)}

    def peak_memory(self) -> int:
        """Return the most memory that this rank's process, or one that it resumed, has held, in bytes."""
        return max(self._peak_before, peak_bytes(self.session.device))

    def state(self) -> dict[str, Any]:
        """Return everything besides weights that the next iteration depends on, as plain values."""
        return {
            "iteration": self.iteration,
            "updates": self.updater.updates,
            "counts": self.counts(),
            "peak_memory_bytes": self.peak_memory(),
            "seconds": self.clock.seconds,
            "flat_iterations": self.guard.flat_iterations,
            "learning": asdict(self.guard.learning),
            "on_policy_error": self.updater.on_policy_error,
            "kl_factor": self.updater.kl_factor,
            "fidelity": asdict(self.sampling.watch),
            "sentinel": asdict(self.hacking.state),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint stood; weights and optimiser are restored by the caller."""
        self.iteration, self.updater.updates = state["iteration"], state["updates"]
        self._counts_before, self._peak_before = state["counts"], state["peak_memory_bytes"]
        self.clock.seconds = dict(state["seconds"])
        self.guard.flat_iterations = state["flat_iterations"]
        self.guard.learning = Learning(**(state.get("learning") or {"updates": state["updates"]}))
        self.updater.on_policy_error = state["on_policy_error"]
        self.updater.kl_factor = state.get("kl_factor", 1.0)  # of a run from before, 1
        self.sampling.drawing.watch = FidelityWatch(**state["fidelity"])
        self.hacking.state = MonitorState(**state["sentinel"])
        self.updater.recoveries = self.hacking.state.recoveries

    def recovered(self) -> None:
        """Go on with weights of an earlier checkpoint, which the caller has put back, at the rate of a recovery."""
        self.hacking.state.recoveries += 1
        self.hacking.state.alarmed = 0
        self.updater.recoveries = self.hacking.state.recoveries
        self.sampling.forget()
        with self.updater.old_policy():
            self.sampling.drawing.reload()
