"""Objectives of the user's own: a subclass of `SampleObjective` or `StepObjective` with a loss.

The configuration names it: `objective: {kind: "my_module:Mine"}`. docs/python.md has one of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from diffrl.errors import ConfigError
from diffrl.objectives.base import LossSettings, ObjectiveSettings, RunContext
from diffrl.objectives.examples import States, predict_active
from diffrl.objectives.grpo import GRPO, EdgeExamples
from diffrl.registry import OBJECTIVES, require_call, resolve
from diffrl.sections import OwnKind, problems, show
from reward_models.common.messages import describe

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Rollout
    from diffrl.rollout.denoise import Velocity

RENAMED = {"asks_old": "needs_old_velocity", "noisiest": "noise_range"}
"""Attributes of an objective of the user's own in earlier versions, and what they are called now."""


class OwnObjectiveSettings(ObjectiveSettings):
    """An objective of your own, a subclass of diffrl.SampleObjective or diffrl.StepObjective; see docs/python.md."""

    kind: OwnKind = Field(description="'module:Object' of your own.")
    options: dict[str, Any] = Field({}, description="Keyword arguments of its class.")

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        try:
            made = self.made
        except ConfigError as error:
            raise problems(error.problems) from error
        if fault := self._fault(made):
            raise problems([fault])
        return self

    def _fault(self, made: Any) -> str | None:
        """Return why an object is no objective; None if it is one."""
        if isinstance(made, type) or getattr(made, "trains", None) not in ("samples", "steps"):
            return (
                "objective.kind must name a subclass of diffrl.SampleObjective, which trains finished samples, or of "
                f"diffrl.StepObjective, which trains stochastic steps. Got {show(self.kind)}, which makes a "
                f"{type(made).__name__}. Subclass one of them."
            )
        for was, name in RENAMED.items():
            if hasattr(made, was):
                return f"`{was}` of the objective {self.kind} is called `{name}` now. Rename it."
        levels, names, noise_range = made.levels, made.metrics, getattr(made, "noise_range", 1.0)
        if type(levels) is not int or not 1 <= levels <= 1000:
            return (
                f"`levels` of the objective {self.kind} must be a whole number from 1 to 1000, the noise levels at "
                f"which each sample trains. Got {show(levels)}. Change it."
            )
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            return (
                f"`metrics` of the objective {self.kind} must be a tuple of the names of the metrics that its loss "
                f"gives. Got {show(names)}. Change it."
            )
        if not isinstance(noise_range, int | float) or not 0 < noise_range <= 1:
            return (
                f"`noise_range` of the objective {self.kind} must be a number above 0 and at most 1: noise levels lie "
                f"in [1 - noise_range, 1]. Got {show(noise_range)}. Change it."
            )
        return None

    @cached_property
    def made(self) -> Any:
        """The objective, as it is asked for what it needs; the one that trains is made in the run.

        Raises:
            ConfigError: it cannot be imported or made.
        """
        made_by = resolve("objective.kind", OBJECTIVES, self.kind)
        require_call("objective.kind", self.kind, made_by, (), self.options)
        try:
            return made_by(**self.options)
        except Exception as error:  # whatever a stranger's constructor raises
            raise ConfigError(
                f"The objective {self.kind} cannot be made: {describe(error)}. Check objective.options."
            ) from error

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, made anew for a run and held against its contract."""
        from diffrl.objectives.checked import Checked

        made = resolve("objective.kind", OBJECTIVES, self.kind)(**self.options)
        object.__setattr__(made, "context", context)  # also of a frozen dataclass
        return [LossSettings(Checked(made))]

    def planned(self, old_is_policy: bool = False) -> list[LossSettings]:
        """Return the one that was made when the configuration was read."""
        from diffrl.objectives.checked import Checked

        return [LossSettings(Checked(self.made))]


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


class OwnObjective:
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

    def examples(self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int) -> Any:
        """Return the units that the loss is computed of."""
        raise NotImplementedError

    def loss(self, examples: Any, policy: Velocity, reference: Velocity | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each term: the one method that a subclass must define.

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
        """Return no errors: no step has a ratio."""
        return ()


class SampleObjective(OwnObjective):
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
        """Return every sample at its noise levels."""
        from diffrl.objectives.noised import noised

        units = noised(rollout, self.context.seed, self.levels, self.noise_range)
        active, advantage = (c[units.sample].to(units.prompt.device) for c in (credit.used, credit.outcome))
        velocity = predict_active(old, units.start, active & self.needs_old_velocity, micro_batch)
        return SampleExamples(*units.start, active, units.clean, units.target, advantage, velocity)


class StepObjective(OwnObjective):
    """An objective on the stochastic steps of the rollout, by their densities; a term is one step.

    A step whose advantage is 0 earned nothing or could not be scored: its loss should be 0, and where all steps from
    the same latents are such, the network is not asked. Subclasses define `loss`, which gets `EdgeExamples`: its
    `advantage` is (T,), and `edges.old_log_prob` the density under the policy that drew the step.
    """

    trains: Literal["samples", "steps"] = "steps"

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> EdgeExamples:
        """Return all recorded steps but the pruned, as GRPO has them."""
        return GRPO(self.context.steps, 0.0, 0.0).examples(rollout, credit, grad_mask, old, micro_batch)

    def log_prob(self, examples: EdgeExamples, velocity: Tensor) -> Tensor:
        """Return density of each step under a policy.

        Args:
            examples: the steps.
            velocity: what the policy predicts at their origins, `policy(*examples.start)`.

        Returns:
            (T,) log-density, averaged over latent dimensions, as `examples.edges.old_log_prob` is.
        """
        from diffrl.functional.gaussian import log_prob
        from diffrl.rollout.density import step_of_edges

        edges = examples.edges
        return log_prob(edges.next_latents, *step_of_edges(edges, velocity, self.context.steps))

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Return largest |ratio - 1| of every recorded step, as for GRPO."""
        return GRPO(self.context.steps, 0.0, 0.0).on_policy_errors(rollout, policy, micro_batch)
