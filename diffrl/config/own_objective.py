"""The section of an objective of the user's own, which says itself what it asks of the rest of the program."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

from pydantic import Field, model_validator

from diffrl.config.base import OwnKind, problems, show
from diffrl.config.objective_base import LossSettings, ObjectiveSettings
from diffrl.errors import ConfigError
from diffrl.registry import OBJECTIVES, require_call, resolve
from reward_models.common.messages import describe

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
        if isinstance(made, type) or getattr(made, "trains", None) not in ("samples", "steps"):
            raise problems(
                [
                    "objective.kind must name a subclass of diffrl.SampleObjective, which trains finished samples, or "
                    f"of diffrl.StepObjective, which trains stochastic steps. Got {show(self.kind)}, which makes a "
                    f"{type(made).__name__}. Subclass one of them."
                ]
            )
        if type(made.levels) is not int or not 1 <= made.levels <= 1000:
            raise problems(
                [
                    f"`levels` of the objective {self.kind} must be a whole number from 1 to 1000, the noise levels at "
                    f"which each sample trains. Got {show(made.levels)}. Change it."
                ]
            )
        names = made.metrics
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise problems(
                [
                    f"`metrics` of the objective {self.kind} must be a tuple of the names of the metrics that its loss "
                    f"gives. Got {show(names)}. Change it."
                ]
            )
        for was, name in RENAMED.items():
            if hasattr(made, was):
                raise problems([f"`{was}` of the objective {self.kind} is called `{name}` now. Rename it."])
        noise_range = getattr(made, "noise_range", 1.0)
        if not isinstance(noise_range, int | float) or not 0 < noise_range <= 1:
            raise problems(
                [
                    f"`noise_range` of the objective {self.kind} must be a number above 0 and at most 1: noise levels "
                    f"lie in [1 - noise_range, 1]. Got {show(noise_range)}. Change it."
                ]
            )
        return self

    @cached_property
    def made(self) -> Any:
        """The objective, as it is asked for what it needs; the one that trains is made in the run.

        Raises:
            ConfigError: it cannot be imported or made.
        """
        own = resolve("objective.kind", OBJECTIVES, self.kind)
        require_call("objective.kind", self.kind, own, (), self.options)
        try:
            return own(**self.options)
        except Exception as error:  # whatever a stranger's constructor raises
            raise ConfigError(
                f"The objective {self.kind} cannot be made: {describe(error)}. Check objective.options."
            ) from error

    @property
    def kl(self) -> float:
        """Weight of a pull to the reference as far as it is known: that of an option or attribute of this name."""
        weight = getattr(self.made, "kl", 0.0)
        return float(weight) if isinstance(weight, (int, float)) else 0.0

    @property
    def losses(self) -> list[LossSettings]:
        """See the base class; one."""
        return [LossSettings(self.kind, 1.0, dict(self.options))]

    @property
    def trains_steps(self) -> bool:
        """See the base class; as its class says."""
        return bool(self.made.trains == "steps")

    @property
    def knows_on_policy(self) -> bool:
        """See the base class; its densities are taken again before every update."""
        return False

    @property
    def trains_samples(self) -> bool:
        """See the base class; as its class says."""
        return bool(self.made.trains == "samples")

    @property
    def levels_per_sample(self) -> int:
        """See the base class; `levels` of the class."""
        return int(self.made.levels) if self.trains_samples else 0

    def needs_old_velocity(self, old_is_policy: bool) -> bool:
        """See the base class; as its class says."""
        return bool(self.made.needs_old_velocity)

    @property
    def asks_reference(self) -> bool:
        """See the base class; as its class says."""
        return bool(self.made.needs_reference)

    @property
    def samples_are_pulled(self) -> bool:
        """See the base class; what a loss makes of an advantage of 0 is its own affair."""
        return True
