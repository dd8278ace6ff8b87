"""What the rest of the program asks of an objective's section."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from diffrl.config.base import MOST_GUIDANCE, Section, problems, show


class LossSettings(NamedTuple):
    """One of the losses that an update adds up.

    Args:
        kind: of a registered objective.
        weight: factor of its mean.
        options: of the objective.
        guidance: of the velocities that it is given, of the old policy and, where nothing else is said, the reference
            too; None = that of the rollout.
    """

    kind: str
    weight: float
    options: dict[str, Any]
    guidance: float | None = None


class ObjectiveSettings(Section):
    """What the rest of the program asks of an objective's section."""

    @property
    def losses(self) -> list[LossSettings]:
        """What an update adds up."""
        raise NotImplementedError

    @property
    def trains_steps(self) -> bool:
        """Whether stochastic steps train, by their densities."""
        return False

    @property
    def knows_on_policy(self) -> bool:
        """Whether the loss of steps takes the policy's own density as the old one, where nothing has changed yet."""
        return True

    @property
    def trains_samples(self) -> bool:
        """Whether finished samples train."""
        return False

    @property
    def trains_nodes(self) -> bool:
        """Whether the nodes that split train, on what lies below them."""
        return False

    @property
    def steps_are_pulled(self) -> bool:
        """Whether a reference pulls at every stochastic step that trains, credited or not."""
        return False

    @property
    def levels_per_sample(self) -> int:
        """Noise levels at which each finished sample trains, one network evaluation each."""
        return 0

    @property
    def whole_groups(self) -> bool:
        """Whether an update trains all samples of a prompt at a noise level, or none of them."""
        return False

    def asks_group(self, old_is_policy: bool) -> bool:
        """Whether each update asks the policy once more, without gradient, to compare what a group trains on.

        Args:
            old_is_policy: see `Config.old_is_policy`.
        """
        return False

    def needs_old_velocity(self, old_is_policy: bool) -> bool:
        """Whether examples of finished samples ask the policy that drew them once more.

        Args:
            old_is_policy: see `Config.old_is_policy`.
        """
        return not old_is_policy

    @property
    def asks_reference(self) -> bool:
        """Whether the model before alignment is asked for velocities."""
        return float(getattr(self, "kl", 0.0)) > 0

    @property
    def reference_guidance(self) -> float | None:
        """Guidance of the reference, on the rollout's scale; None = as the velocities of the losses that ask it."""
        return None

    @property
    def sample_guidance(self) -> float | None:
        """Guidance of the velocity that finished samples train; None = as the rollout."""
        return None

    @property
    def samples_are_pulled(self) -> bool:
        """Whether finished samples without advantage train too."""
        return float(getattr(self, "kl", 0.0)) > 0

    @property
    def old_policy_is_ema(self) -> bool:
        """Whether the policy that draws the samples is kept apart from the trained one."""
        return False

    def old_decay(self, updates: int) -> float:
        """How much of itself the policy that draws keeps after so many updates; 0 = it is the newest."""
        return 0.0

    @property
    def clips(self) -> tuple[float, float] | None:
        """How far below and above 1 the ratio of a step counts; None without steps."""
        return None


class PulledSettings(ObjectiveSettings):
    """What the objectives have in common whose reference does nothing but pull."""

    kl_guidance: float | None = Field(
        None,
        ge=1,
        le=MOST_GUIDANCE,
        description="Guidance of the reference that kl pulls to. Above rollout.guidance_scale the policy learns what "
        "guidance gives, and each reference costs two network evaluations. null = that of the velocity that trains: "
        "objective.guidance of finished samples, else rollout.guidance_scale.",
    )

    @model_validator(mode="after")
    def _pulls_if_guided(self) -> Self:
        if self.kl_guidance is not None and not self.asks_reference:
            raise problems(
                [
                    "objective.kl_guidance must be left at null while objective.kl is 0, where no reference is asked. "
                    f"Got {show(self.kl_guidance)}. Set kl above 0, such as 0.1, or remove kl_guidance."
                ]
            )
        return self

    @property
    def reference_guidance(self) -> float | None:
        """See the base class; `kl_guidance`."""
        return self.kl_guidance
