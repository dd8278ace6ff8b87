"""Objectives of the user's own: a subclass of `SampleObjective` or `StepObjective` with a loss.

The configuration names it: `objective: {kind: "my_module:Mine"}`. docs/python.md has one of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.functional.gaussian import log_prob
from diffrl.objectives.base import Examples, RunContext, States, asked
from diffrl.objectives.grpo import GRPO, EdgeExamples
from diffrl.objectives.noised import noised
from diffrl.records import Credit, Rollout
from diffrl.registry import own_code
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.density import ratio_errors, step_of_edges
from reward_models.common.messages import show


@dataclass(frozen=True)
class SampleExamples(States):
    """Finished samples, noised again: latents = (1 - sigma) * clean + sigma * noise.

    Args:
        clean: (M, ...) the samples.
        target: (M, ...) the velocity noise - clean.
        advantage: (M,) float32, 0 for a sample as good as its group's mean.
        old_velocity: (M, ...) of the policy that drew the samples; zeros unless `needs_old_velocity`.
    """

    clean: Tensor
    target: Tensor
    advantage: Tensor
    old_velocity: Tensor


class _OwnObjective:
    """What both kinds have: what a subclass may set, and how a run makes it.

    Attributes:
        needs_reference: whether the loss asks the model before alignment; a call each unit more.
        needs_old_velocity: whether examples ask the policy that drew the samples once more.
        metrics: names of the metrics that the loss gives; each is logged as update/NAME.
        levels: noise levels at which each finished sample trains, one network evaluation each.
        context: of the run: its seed and dynamics. It is there from `examples` on, not yet in `__init__`.
    """

    trains: Literal["samples", "steps"]
    needs_reference = False
    needs_old_velocity = False
    metrics: tuple[str, ...] = ()
    levels = 1
    context: RunContext

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> Checked:
        """Of a run; options are the arguments of `__init__`."""
        made = cls(**options)
        object.__setattr__(made, "context", context)  # also of a frozen dataclass
        return Checked(made)

    def examples(self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int) -> Any:
        """See `objectives.base.Objective`."""
        raise NotImplementedError

    def loss(self, examples: Any, policy: Velocity, reference: Velocity | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of each term: the one method that a subclass must define.

        Args:
            examples: a micro-batch; the network is asked for its velocities by `policy(*examples.start)`.
            policy: the network that trains, with gradient.
            reference: the model before alignment, without; None unless `needs_reference`.

        Returns:
            (T,) the loss of each term, not reduced: the mean is taken over all micro-batches and processes. And the
            metrics, (T,) each, by the names in `metrics`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(self, examples, policy, reference).")

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """See `objectives.base.Objective`; none, where no step has a ratio."""
        return ()


class SampleObjective(_OwnObjective):
    """An objective on finished samples, each noised again to `levels` random noise levels; a term is one of these.

    Every sample that was scored trains, whatever its advantage. Subclasses define `loss`, which gets `SampleExamples`.

    Attributes:
        noise_range: noise levels lie in [1 - noise_range, 1], in (0, 1].
    """

    trains: Literal["samples", "steps"] = "samples"
    noise_range = 1.0

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> SampleExamples:
        """Every sample at its noise levels."""
        units = noised(rollout, self.context.seed, self.levels, self.noise_range)
        active, advantage = (c[units.sample].to(units.prompt.device) for c in (credit.used, credit.outcome))
        velocity = asked(old, units.start, active & self.needs_old_velocity, micro_batch)
        return SampleExamples(*units.start, active, units.clean, units.target, advantage, velocity)


class StepObjective(_OwnObjective):
    """An objective on the stochastic steps of the rollout, by their densities; a term is one step.

    A step whose advantage is 0 earned nothing or could not be scored: its loss should be 0, and where all steps from
    the same latents are such, the network is not asked. Subclasses define `loss`, which gets `EdgeExamples`: its
    `advantage` is (T,), and `edges.old_log_prob` the density under the policy that drew the step.
    """

    trains: Literal["samples", "steps"] = "steps"

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> EdgeExamples:
        """All recorded steps but the pruned, as GRPO has them."""
        assert self.context.transition is not None
        return GRPO(self.context.transition, 0.0, 0.0).examples(rollout, credit, grad_mask, old, micro_batch)

    def log_prob(self, examples: EdgeExamples, velocity: Tensor) -> Tensor:
        """Density of each step under a policy.

        Args:
            examples: the steps.
            velocity: what the policy predicts at their origins, `policy(*examples.start)`.

        Returns:
            (T,) log-density, averaged over latent dimensions, as `examples.edges.old_log_prob` is.
        """
        assert self.context.transition is not None
        return log_prob(examples.edges.next_latents, *step_of_edges(examples.edges, velocity, self.context.transition))

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Largest |ratio - 1| of every recorded step, as for GRPO."""
        assert self.context.transition is not None
        return ratio_errors(rollout.edges, policy, self.context.transition, micro_batch)


class Checked:
    """An objective of the user's own, whose every answer is held against the contract.

    What does not keep it would train something else, or end in a message about nothing that its author has written.

    Args:
        inner: the objective.
    """

    def __init__(self, inner: _OwnObjective):
        self.inner = inner
        self.name = f"{type(inner).__module__}:{type(inner).__name__}"
        self.metrics = tuple(inner.metrics)
        self.needs_reference, self.needs_old_velocity = bool(inner.needs_reference), bool(inner.needs_old_velocity)

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> Examples:
        """Its examples.

        Raises:
            DiffrlError: it raised, they are not as many as planned, or belong to no prompt of the batch.
        """
        before = _versions((rollout, credit, grad_mask))
        with own_code(f"The objective {self.name}"):
            found: Any = self.inner.examples(rollout, credit, grad_mask, old, micro_batch)
        if _versions((rollout, credit, grad_mask)) != before:
            raise self._error("`examples` must leave the rollout as it is. It works in place on a tensor of it")
        if not isinstance(getattr(found, "prompt", None), Tensor):
            raise self._error(f"`examples` must return diffrl.objectives.base.Examples. Got {_shape(found)}")
        planned, given = len(rollout) * self.inner.levels, len(found.prompt)
        if self.inner.trains == "samples" and given != planned:
            raise self._error(
                f"`examples` must give a unit for each of {len(rollout)} samples at each of `levels` = "
                f"{self.inner.levels} noise levels, {planned} in all. Got {given}"
            )
        rows = found.prompt.unique().tolist()
        if not set(rows) <= set(range(len(rollout.batch.prompts))):
            raise self._error(
                f"`examples` must name prompts by their rows in the batch, 0 to {len(rollout.batch.prompts) - 1}. Got "
                f"{rows}"
            )
        return cast(Examples, found)

    def loss(
        self, examples: Examples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Its loss. One that is not finite is the guards' affair (guards.nonfinite_loss), as of every objective.

        Raises:
            DiffrlError: it raised, is no loss of each term, has no gradient, or its metrics are not those declared.
        """
        before, velocities = _versions(examples), list[Any]()

        def watched(*asked: Tensor) -> Tensor:
            velocity = policy(*asked)
            velocities.append(velocity.grad_fn)
            return velocity

        with own_code(f"The objective {self.name}"):
            given: Any = self.inner.loss(examples, watched, reference)
        if _versions(examples) != before:
            raise self._error("`loss` must leave its examples as they are. It works in place on a tensor of them")
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Mapping):
            raise self._error(f"`loss` must return a pair, (loss, metrics). Got a {type(given).__name__}")
        loss, metrics = given
        terms, device = (len(examples.term_prompt),), examples.term_prompt.device
        if not _is_of_terms(loss, terms, device):
            raise self._error(
                f"`loss` must give the loss of each term, {terms}, not reduced, on {device}, in real numbers. "
                f"Got {_shape(loss)}"
            )
        if not _follows(loss, velocities):
            raise self._error(
                "`loss` must depend on the policy with gradient, policy(*examples.start). Got a loss that has none"
            )
        if set(metrics) != set(self.metrics):
            raise self._error(
                f"`loss` must give the metrics that the class declares, metrics = {self.metrics}. Got "
                f"{tuple(map(str, metrics))}"
            )
        for name, values in metrics.items():
            if not _is_of_terms(values, terms, device):
                raise self._error(
                    f"`loss` must give the metric {name} of each term, {terms}, on {device}, in real numbers. "
                    f"Got {_shape(values)}"
                )
        return loss, {name: values.detach() for name, values in metrics.items()}

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """As the objective has it.

        Raises:
            DiffrlError: it raised, or gives no pairs of numbers.
        """
        with own_code(f"The objective {self.name}"):
            given: Any = self.inner.on_policy_errors(rollout, policy, micro_batch)
        if not isinstance(given, Sequence) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, int | float) for part in pair)
            for pair in given
        ):
            raise self._error(f"`on_policy_errors` must return pairs (step, error). Got {show(given)}")
        return given

    def _error(self, problem: str) -> DiffrlError:
        return DiffrlError(f"The objective {self.name} does not keep its contract: {problem}. Mend it.")


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = "" if value.is_floating_point() else f" of {value.dtype}"
    return f"a tensor {tuple(value.shape)}{kind}" + (f" on {value.device}" if value.device.type != "cpu" else "")


def _follows(loss: Tensor, velocities: Sequence[Any]) -> bool:
    """Whether gradient goes from a loss to one of the velocities, given by their nodes; None is a leaf itself."""
    waiting, known = [loss.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and (node in velocities or None in velocities):
            return True
        if node is not None and node not in known:
            known.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _is_of_terms(values: Any, terms: tuple[int], device: torch.device) -> bool:
    fits = isinstance(values, Tensor) and tuple(values.shape) == terms and values.device == device
    return fits and values.is_floating_point()


def _versions(record: Any) -> list[int]:
    """How often each tensor of a record, and of the records in it, was changed in place."""
    if isinstance(record, Tensor):
        return [] if record.is_inference() else [record._version]
    parts = record if isinstance(record, tuple) else vars(record).values() if is_dataclass(record) else ()
    return [version for part in parts for version in _versions(part)]
