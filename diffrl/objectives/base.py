"""What is asked of every objective: of its loss, and of its section in the configuration.

An objective is one file: a loss (`Objective`), the section that a user writes (`ObjectiveSettings`), and a line in
`registry.py`. Whatever a file does not answer has an answer here, which is "nothing". These files are read with the
configuration, so torch is imported where it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from diffrl.objectives.examples import Examples
from diffrl.sections import MOST_GUIDANCE, Section, problems, show

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Rollout
    from diffrl.rollout.denoise import Velocity
    from diffrl.rollout.transition import Transition

Trained = Literal["samples", "steps", "nodes"]


@dataclass(frozen=True)
class RunContext:
    """What a run gives to every loss that is made for it.

    Args:
        transition: dynamics of the stochastic steps; None if there are none.
        seed: of the run.
        old_is_policy: the policy that drew the samples is the one that is trained, and every example is used before it
            changes; then v_old is the policy's own velocity, without gradient, and costs no evaluation.
    """

    transition: Transition | None
    seed: int
    old_is_policy: bool

    @property
    def steps(self) -> Transition:
        """The dynamics, of a run that has stochastic steps."""
        assert self.transition is not None
        return self.transition


Some = TypeVar("Some", bound=Examples)


class Objective(Generic[Some]):
    """A loss over examples: `examples` and `loss` must be defined; what else is asked has an answer.

    Attributes:
        trains: what a unit is: a finished sample, a stochastic step or a node that splits.
        measures: metrics that the loss gives beside reference_kl, which it gives with a reference.
        whole_groups: an update trains all samples of a prompt at a noise level, or none of them.
        precomputes_reference: `precompute_group_terms` asks the reference policy, and `loss` does not.
        knows_on_policy: a loss of steps takes the policy's own density as the old one where nothing has changed yet.
    """

    trains: ClassVar[Trained]
    measures: ClassVar[tuple[str, ...]] = ()
    whole_groups: ClassVar[bool] = False
    precomputes_reference: ClassVar[bool] = False
    knows_on_policy: ClassVar[bool] = False

    @property
    def kl(self) -> float:
        """Weight of the distance to the reference policy."""
        return 0.0

    @property
    def needs_densities(self) -> bool:
        """Whether the loss needs the density of the trained policy at what was drawn, so that no other may draw it."""
        return self.trains == "steps"

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is asked for velocities, one a unit that is active."""
        return self.kl > 0 or self.precomputes_reference

    @property
    def needs_old_velocity(self) -> bool:
        """Whether `examples` asks the old policy for velocities, one a unit that is active."""
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `loss` gives."""
        return (*self.measures, *(("reference_kl",) if self.needs_reference else ()))

    @property
    def levels(self) -> int:
        """Noise levels at which each finished sample trains, one network evaluation each."""
        return 0

    @property
    def visits(self) -> int:
        """States of each sample's own rollout that are kept to train on, the first so many; 0 = none."""
        return 0

    @property
    def trains_uncredited(self) -> bool:
        """Whether what has no advantage trains too, because the reference, or its group, gives it a gradient."""
        return self.kl > 0

    @property
    def clips(self) -> tuple[float, float] | None:
        """How far below and above 1 the ratio of a step counts; None without steps or a clip."""
        return None

    @property
    def group_evaluations(self) -> int:
        """Evaluations of the policy without gradient that `precompute_group_terms` takes, of each active unit."""
        return 0

    def examples(self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int) -> Some:
        """Return what an iteration trains on.

        Args:
            rollout: samples and recorded steps.
            credit: their advantages.
            grad_mask: (N,) bool, False for nodes whose edges pruning takes out of the gradient.
            old: velocities, without gradient, of the policy that drew the samples.
            micro_batch: evaluations a call.
        """
        raise NotImplementedError

    def idle_units(self, examples: Some) -> int:
        """Return how many of the units that the plan counts have nothing to train, and are not evaluated."""
        return int((~examples.active).sum())

    def loss(self, examples: Some, policy: Velocity, reference: Velocity | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each term, unreduced, as the caller normalises over micro-batches, and metrics like it."""
        raise NotImplementedError

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Return |ratio - 1| of each recorded step before any update, as (step, error), by step."""
        return ()

    def groups(self, examples: Some) -> Tensor | None:
        """Return (M,) int64, the groups that units are compared in and trained with; None = each alone."""
        return None

    def precompute_group_terms(
        self, examples: Some, index: Tensor, policy: Velocity, reference: Velocity, micro_batch: int
    ) -> Some:
        """Return the examples, of which the units at `index` know what their loss needs of their group.

        Args:
            examples: of the iteration.
            index: (B,) int64 units of the update that comes next, whole groups.
            policy: velocities, without gradient, of the weights that this update starts from.
            reference: the reference policy's, without gradient.
            micro_batch: evaluations a call.
        """
        return examples

    def retake_densities(self, examples: Some, calls: Sequence[Tensor], policy: Velocity) -> Some:
        """Return the examples, of whose steps the densities are those that the update's own calls give.

        Args:
            examples: of the iteration.
            calls: (B,) int64 units of each call.
            policy: velocities, without gradient.
        """
        return examples

    def on_policy(self, examples: Some, first: bool) -> Some:
        """Return the examples as the first update of an iteration takes them, or a later one."""
        return examples


class LossSettings(NamedTuple):
    """One of the losses that an update adds up.

    Args:
        objective: the loss.
        weight: factor of its mean.
        guidance: of the velocities that it is given, of the old policy and, where nothing else is said, the reference
            too; None = that of the rollout.
        kl_guidance: of the reference, on the rollout's scale; None = as the others.
    """

    objective: Objective[Any]
    weight: float = 1.0
    guidance: float | None = None
    kl_guidance: float | None = None


class ObjectiveSettings(Section):
    """An objective's section: the keys that a user writes, and the losses that they make.

    Attributes:
        steps_key: the key by which stochastic steps train beside something else; None where the kind decides it.
        trains_pairs: given images of which one was preferred train (`data.pairs`); nothing is drawn, nor scored.
        cancels_on_policy: keys that the gradient does not depend on where the old policy is the trained one.
    """

    steps_key: ClassVar[str | None] = None
    trains_pairs: ClassVar[bool] = False
    cancels_on_policy: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:
        kind: str  # each has its own Literal

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return what an update adds up."""
        raise NotImplementedError

    def planned(self, old_is_policy: bool = False) -> list[LossSettings]:
        """Return the same before there is a run: their answers hold, and nothing can be computed.

        Args:
            old_is_policy: see `Config.old_is_policy`.
        """
        return self.losses(RunContext(None, 0, old_is_policy))

    @property
    def old_policy_is_ema(self) -> bool:
        """Whether the policy that draws the samples is an average of the trained one, apart from it."""
        return False

    def old_decay(self, updates: int) -> float:
        """Return how much of itself the policy that draws keeps after so many updates; 0 = it is the newest."""
        return 0.0

    def _of(self, trained: Trained) -> list[LossSettings]:
        return [loss for loss in self.planned() if loss.objective.trains == trained]

    @property
    def trains_steps(self) -> bool:
        """Whether stochastic steps train, by their densities."""
        return bool(self._of("steps"))

    @property
    def trains_samples(self) -> bool:
        """Whether finished samples train."""
        return bool(self._of("samples"))

    @property
    def trains_nodes(self) -> bool:
        """Whether the nodes that split train, on what lies below them."""
        return bool(self._of("nodes"))

    @property
    def nodes_kept(self) -> int | float | None:
        """How many of a prompt's nodes train, or which share of them; None = all. See `tree_counts.trained_nodes`."""
        return None

    def trains_uncredited(self, trained: Trained) -> bool:
        """Return whether those without an advantage train too."""
        return any(loss.objective.trains_uncredited for loss in self._of(trained))

    @property
    def needs_densities(self) -> bool:
        """Whether a loss needs the density of the trained policy at what was drawn."""
        return any(loss.objective.needs_densities for loss in self.planned())

    @property
    def knows_on_policy(self) -> bool:
        """Whether the loss of steps takes the policy's own density as the old one, where nothing has changed yet."""
        return any(loss.objective.knows_on_policy for loss in self.planned())

    @property
    def levels_per_sample(self) -> int:
        """Noise levels at which each finished sample trains, one network evaluation each."""
        return sum(loss.objective.levels for loss in self._of("samples"))

    @property
    def visits(self) -> int:
        """States of each sample's own rollout that are kept to train on, the first so many; 0 = none."""
        return max(loss.objective.visits for loss in self.planned())

    @property
    def whole_groups(self) -> bool:
        """Whether an update trains all samples of a prompt at a noise level, or none of them."""
        return any(loss.objective.whole_groups for loss in self.planned())

    def needs_group_pass(self, old_is_policy: bool) -> bool:
        """Return whether each update asks the policy once more, without gradient, to compare what a group trains on."""
        return any(loss.objective.group_evaluations for loss in self.planned(old_is_policy))

    def needs_old_velocity(self, old_is_policy: bool) -> bool:
        """Return whether examples of finished samples ask the policy that drew them once more."""
        return any(loss.objective.needs_old_velocity for loss in self.planned(old_is_policy))

    @property
    def needs_reference(self) -> bool:
        """Whether the model before alignment is asked for velocities."""
        return any(loss.objective.needs_reference for loss in self.planned())

    @property
    def kl_weight(self) -> float:
        """Weight of the distance to the reference; 0 is off."""
        return max(loss.objective.kl for loss in self.planned())

    @property
    def adapted_to(self) -> float | None:
        """Distance to the reference that the weight is adapted to; None = the weight stays."""
        return None

    @property
    def sample_guidance(self) -> float | None:
        """Guidance of the velocity that finished samples train; None = as the rollout."""
        return next((loss.guidance for loss in self._of("samples")), None)

    @property
    def idle_keys(self) -> Mapping[str, str]:
        """Keys that do nothing beside others of the section, as dotted paths, and why."""
        return {}

    @property
    def clips(self) -> tuple[float, float] | None:
        """How far below and above 1 the ratio of a step counts; None without steps."""
        return next((loss.objective.clips for loss in self._of("steps")), None)


class KlGuidedSettings(ObjectiveSettings):
    """What the objectives have in common whose reference does nothing but hold the policy near it."""

    kl_guidance: float | None = Field(
        None,
        ge=1,
        le=MOST_GUIDANCE,
        description="Guidance of the reference that kl pulls to. Above rollout.guidance_scale the policy learns what "
        "guidance gives, and each reference costs two network evaluations. null = that of the velocity that trains: "
        "objective.guidance of finished samples, else rollout.guidance_scale.",
    )
    kl_target: float | None = Field(
        None,
        ge=1.0e-9,
        le=1.0e6,
        description="Distance to the reference, update/reference_kl, that kl is adapted to: doubled after an iteration "
        "beyond 1.5 times that far, halved after one nearer than a 1.5th (arXiv 1707.06347, section 4). null = kl "
        "stays.",
    )

    @property
    def adapted_to(self) -> float | None:
        """Distance to the reference that the weight is adapted to; None = the weight stays."""
        return self.kl_target

    @model_validator(mode="after")
    def _guides_a_reference(self) -> Self:
        keys = {"kl_guidance": self.kl_guidance, "kl_target": self.kl_target}
        faults = [
            f"objective.{key} must be left at null while objective.kl is 0, where no reference is asked. Got "
            f"{show(value)}. Set kl above 0, such as 0.1, or remove {key}."
            for key, value in keys.items()
            if value is not None and not self.needs_reference
        ]
        if faults:
            raise problems(faults)
        return self
