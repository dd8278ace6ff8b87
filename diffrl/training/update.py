"""An iteration's optimiser updates: the gate before the first, learning rates, guards, and averages of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.cost.meter import PhaseClock
from diffrl.models.adapter import Conditioning
from diffrl.objectives.base import Objective
from diffrl.objectives.examples import Examples
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity, velocity_of
from diffrl.rollout.density import drawn_calls
from diffrl.rollout.observers import take_origins
from diffrl.training.densities import own_densities
from diffrl.training.ema import EMA
from diffrl.training.gradient import Gradient, LossTerm, accumulate_gradient, clip_gradient, minibatches
from diffrl.training.guards import UpdateGuard, check_on_policy, clip_note
from diffrl.training.messages import Messages
from diffrl.training.observing import UpdateObserver
from diffrl.training.optim import learning_rate_factor, set_learning_rate
from diffrl.training.policy import Policy
from diffrl.training.session import Session

Metrics = dict[str, float | int]


class Updater:
    """Trains a session's policy on what an iteration has drawn; it stands after `updates` optimiser updates.

    Args:
        session: everything loaded.
        clock: seconds by phase.
        guard: may leave an update out.
        messages: what the user is told.
        observer: hears what is asked of the networks.
    """

    def __init__(
        self, session: Session, clock: PhaseClock, guard: UpdateGuard, messages: Messages, observer: UpdateObserver
    ):
        self.session, self.clock = session, clock
        self.guard, self.messages, self.observer = guard, messages, observer
        ema, parameters = self.config.train.ema, session.policy.parameters
        self.ema = EMA(parameters, ema.decay) if ema else None
        self.old = EMA(parameters, 0.0) if self.config.objective.old_policy_is_ema else None
        self.drawing = EMA(parameters, 0.0) if self.config.keeps_drawing_weights else None
        self.updates = 0
        self.recoveries = 0
        self.kl_factor = 1.0
        self.on_policy_error: float | None = None

    @property
    def config(self) -> Config:
        """The run's."""
        return self.session.config

    @property
    def averages(self) -> dict[str, EMA | None]:
        """Weights that follow the trained ones, by what a checkpoint calls them."""
        return {"ema": self.ema, "old": self.old, "drawing": self.drawing}

    def old_policy(self) -> AbstractContextManager[None]:
        """Let the network have the weights of the policy that samples until the block ends."""
        return self.old.applied() if self.old else nullcontext()

    def velocities(self, conditioning: Conditioning) -> list[Velocity]:
        """Return the policy's, as each loss is given them."""
        return [velocity_of(self.session.adapter, conditioning, loss.guidance) for loss in self.session.losses]

    def gate(self, rollout: Rollout, predict: Sequence[Velocity], replayed: bool = False) -> None:
        """Require a ratio of 1 of every recorded step before the first update.

        Args:
            rollout: what was drawn.
            predict: velocities of what drew, one function a loss.
            replayed: ask for the rollout's own calls, where rounding differs between batches.
        """
        s, tolerance = self.session, self.config.guards.on_policy_tolerance
        with self.clock("update"):
            for loss, velocity in zip(s.losses, predict, strict=True) if self.updates == 0 else ():
                # Unsynced: forward passes without a backward pass would leave the ranks' exchanges out of step.
                with self.observer.during("gate"), s.ranks.sync_if(s.adapter.transformer, False):
                    errors_here = self._errors(loss.objective, rollout, velocity, replayed)
                if errors := self._largest(errors_here):
                    self.on_policy_error = check_on_policy(errors, s.sigmas, tolerance)
                    if note := clip_note(self.on_policy_error, self.config):
                        self.messages.report(note)

    def _errors(
        self, objective: Objective[Any], rollout: Rollout, velocity: Velocity, replayed: bool
    ) -> Sequence[tuple[int, float]]:
        """Return |ratio - 1| of each step on this rank, by step."""
        if not replayed:
            return objective.on_policy_errors(rollout, velocity, self.config.train.micro_batch)
        worst: dict[int, float] = {}
        for rows in drawn_calls(rollout.edges, self.config.rollout.prompts_at_once, self.config.rollout.micro_batch):
            call = replace(rollout, edges=take_origins(rollout.edges, rows)[0])
            for step, error in objective.on_policy_errors(call, velocity, len(rows)):
                worst[step] = max(error, worst.get(step, 0.0)) if math.isfinite(error) else math.inf
        return sorted(worst.items())

    def _largest(self, errors: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Return the largest error of each step over all ranks; every rank brings the same steps."""
        if not errors:
            return []
        worst = self.session.ranks.gather(torch.tensor([[error for _, error in errors]])).amax(0)
        return [(step, float(error)) for (step, _), error in zip(errors, worst, strict=True)]

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, predict: Sequence[Velocity]
    ) -> list[Examples]:
        """Return what each loss trains on; what it asks of the old policy is asked here."""
        losses = self.session.losses
        phase = "old" if any(loss.objective.needs_old_velocity for loss in losses) else "update"
        with self.clock(phase), self.old_policy():
            return [
                loss.objective.examples(
                    rollout, credit, grad_mask, self.observer.heard("old", velocity), self.config.forward_batch
                )
                for loss, velocity in zip(losses, predict, strict=True)
            ]

    def update(
        self, rollout: Rollout, examples: Sequence[Examples], predict: Sequence[Velocity], conditioning: Conditioning
    ) -> Metrics:
        """Return the iteration's optimiser updates."""
        with self.clock("update"):
            self._count_inactive(examples)
            before = velocity_of(self.session.adapter, conditioning, self.config.kl_guidance)
            reference = reference_of(self.session.policy, self.observer.heard("reference", before))
            shares = self._shares(rollout, examples)
            if self.config.retakes_densities:
                examples = self._retake_densities(examples, shares, predict)
            gradients, rates, made = list[Gradient](), list[float](), list[bool]()
            for number, share in enumerate(zip(*shares, strict=True)):
                rates.append(self.learning_rate())
                set_learning_rate(self.session.optimizer, rates[-1])
                examples = self._prepare(examples, share, predict, reference, first=number == 0)
                gradients.append(self._accumulate(examples, share, predict, reference))
                made.append(self._step(gradients[-1], rollout))
                self.updates += 1
            trained = sum(step and gradient.norm > 0 for step, gradient in zip(made, gradients, strict=True))
            self.guard.watch_learning(trained, made.count(False))
            if self.old:
                self.old.decay = self.config.objective.old_decay(self.updates)
                self.old.update()
            return self._adapt_kl(self._metrics(gradients, rates, made))

    def _adapt_kl(self, metrics: Metrics) -> Metrics:
        """Return an iteration's metrics with the weight of kl that it had, and set that of the next (kl_target)."""
        target, distance = self.config.objective.adapted_to, metrics.get("update/reference_kl")
        if target is None or distance is None:
            return metrics
        weight = self.config.objective.kl_weight * self.kl_factor
        self.kl_factor = adapted(self.kl_factor, distance, target)
        return {**metrics, "update/kl_weight": weight}

    def _losses(self) -> Sequence[LossTerm]:
        """Return the losses with the weight that kl has now."""
        if self.kl_factor == 1.0:
            return self.session.losses
        scaled = []
        for loss in self.session.losses:
            objective: Any = loss.objective
            scaled.append(replace(loss, objective=replace(objective, kl=objective.kl * self.kl_factor)))
        return scaled

    def _shares(self, rollout: Rollout, examples: Sequence[Examples]) -> list[list[Tensor]]:
        """Divide the units of each loss among the updates."""
        updates, seed = self.config.train.updates_per_iteration, self.config.run.seed
        return [
            minibatches(part.prompt, rollout.batch, updates, seed, loss.objective.groups(part))
            for loss, part in zip(self.session.losses, examples, strict=True)
        ]

    def _count_inactive(self, examples: Sequence[Examples]) -> None:
        """Count evaluations that idle units would have cost, of whichever network the objective evaluates."""
        policy, reference = [], 0
        for loss, part in zip(self.session.losses, examples, strict=True):
            o, inactive = loss.objective, loss.objective.idle_units(part)
            policy.append(inactive * (1 + o.needs_old_velocity + o.group_evaluations))
            reference += inactive * o.needs_reference
        self.observer.left_out(policy, reference)

    def _retake_densities(
        self, examples: Sequence[Examples], shares: Sequence[Sequence[Tensor]], predict: Sequence[Velocity]
    ) -> list[Examples]:
        """Return densities of steps in the update's own batches; see `training.densities`."""
        policy = [self.observer.heard("old", velocity) for velocity in predict]
        with self.clock("old"):
            retaken, idle = own_densities(self.session.losses, examples, shares, policy, self.config.train.micro_batch)
        self.observer.left_out(idle)
        return retaken

    def _prepare(
        self,
        examples: Sequence[Examples],
        share: Sequence[Tensor],
        predict: Sequence[Velocity],
        reference: Velocity,
        first: bool,
    ) -> list[Examples]:
        """Return what an update's losses need to know before it, without gradient."""
        prepared = []
        for loss, part, index, velocity in zip(self.session.losses, examples, share, predict, strict=True):
            if self.config.retakes_densities:
                part = loss.objective.on_policy(part, first)
            policy, micro_batch = self.observer.heard("group", velocity), self.config.forward_batch
            prepared.append(loss.objective.precompute_group_terms(part, index, policy, reference, micro_batch))
        return prepared

    def _accumulate(
        self, examples: Sequence[Examples], share: Sequence[Tensor], predict: Sequence[Velocity], reference: Velocity
    ) -> Gradient:
        """Return the gradient of an update."""
        s = self.session
        parts = list(zip(self._losses(), examples, share, strict=True))
        with self.observer.during("update"):
            gradient = accumulate_gradient(
                ranks=s.ranks,
                policy=s.policy,
                shares=parts,
                predict=predict,
                reference=reference,
                micro_batch=self.config.train.micro_batch,
            )
        self.observer.left_out([-count for count in gradient.joined], -gradient.joined_reference)
        return gradient

    def _step(self, gradient: Gradient, rollout: Rollout) -> bool:
        """Make an update, unless its guard leaves it out."""
        culprits = [rollout.batch.prompts[row].text for row in gradient.bad_prompts]
        approx_kl = gradient.metrics.get("approx_kl", 0.0)
        if not self.guard.allows(gradient.loss, gradient.norm, gradient.largest_ratio_error, approx_kl, culprits):
            return False
        clip_gradient(self.session.policy, gradient.norm, self.config.train.max_grad_norm)
        self.session.optimizer.step()
        if self.ema:
            self.ema.update()
        return True

    def learning_rate(self) -> float:
        """Return the rate of the next update."""
        t = self.config.train
        total = self.config.run.iterations * t.updates_per_iteration
        factor = learning_rate_factor(self.updates, total, t.schedule, t.warmup_updates, t.final_learning_rate)
        recover = self.config.guards.recover
        return t.learning_rate * factor * (recover.rate**self.recoveries if recover else 1.0)

    def _metrics(self, gradients: Sequence[Gradient], rates: Sequence[float], made: Sequence[bool]) -> Metrics:
        metrics: Metrics = {
            **update_metrics(gradients, rates),
            "update/skipped": made.count(False),
            "update/evaluated": self.session.ranks.count(sum(gradient.evaluated for gradient in gradients)),
        }
        if self.updates == self.config.train.updates_per_iteration and self.on_policy_error is not None:
            metrics["update/on_policy_error"] = self.on_policy_error
        return metrics


def adapted(factor: float, distance: float, target: float) -> float:
    """Return the next factor of a pull's weight, within 1/1024 and 1024 (Schulman et al. 2017, section 4).

    Args:
        factor: of this iteration.
        distance: to what it pulls to, that it had.
        target: that it is to have.
    """
    if distance > 1.5 * target:
        return min(2 * factor, 1024.0)
    return max(factor / 2, 1 / 1024) if distance < target / 1.5 else factor


def reference_of(policy: Policy, predict: Velocity) -> Velocity:
    """Return the same velocities of the model before alignment, without gradient."""

    @torch.no_grad()
    def reference(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
        with policy.reference():
            return predict(latents, sigma, prompt)

    return reference


def update_metrics(gradients: Sequence[Gradient], rates: Sequence[float]) -> dict[str, float]:
    """Return an iteration's updates in one row: means over the updates that have them, and the largest ratio error.

    Args:
        gradients: of its updates.
        rates: their learning rates.
    """
    rows = [
        {"loss": gradient.loss, "grad_norm": gradient.norm, "learning_rate": rate, **gradient.metrics}
        for gradient, rate in zip(gradients, rates, strict=True)
    ]
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        means[f"update/{name}"] = sum(values) / len(values)
    if any("ratio_error" in gradient.metrics for gradient in gradients):
        means["update/ratio_error_max"] = max(gradient.largest_ratio_error for gradient in gradients)
    return means
