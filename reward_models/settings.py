"""The settings of one reward: the same in a training configuration, on the command line and in a server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from reward_models.common.errors import RewardError
from reward_models.common.messages import show
from reward_models.common.sections import ListOf, Section, problems, rule
from reward_models.registry import resolve_scorer


def _known_scorer(name: str) -> str:
    try:
        resolve_scorer(name)
    except RewardError as error:
        raise rule(f"is not a known reward. {error}") from error
    return name


SMALLEST = 1.0e-6
"""The least size of a factor that is not 0: with far smaller ones float32 would make every total 0."""


def _zero_or_large_enough(factor: float) -> float:
    if 0 < abs(factor) < SMALLEST:
        raise rule(f"must be 0 or at least {SMALLEST:g} in size: less would train nothing. Got {factor:g}. Raise it.")
    return factor


def _divides(scale: float) -> float:
    if scale == 0:
        raise rule("must not be 0: it divides. Got 0. To keep a reward out of the total set its weight to 0.")
    if abs(scale) < SMALLEST:
        raise rule(f"must be at least {SMALLEST:g} in size: it divides. Got {scale:g}. Raise it.")
    return scale


SchedulePoint = Annotated[
    tuple[
        Annotated[int, Field(ge=0, le=1_000_000_000)],
        Annotated[float, Field(ge=0, le=1.0e6), AfterValidator(_zero_or_large_enough)],
    ],
    Field(strict=False),
]


def _ascending(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    iterations = [iteration for iteration, _ in points]
    if any(later <= earlier for earlier, later in zip(iterations, iterations[1:], strict=False)):
        raise rule(f"must have ascending iterations. Got {show(iterations)}. Sort the pairs.")
    return points


class RewardSettings(Section):
    """One reward. Its share of the total is weight * (raw - shift) / scale."""

    name: Annotated[str, AfterValidator(_known_scorer)] = Field(
        max_length=200, description="A registered reward, or 'module:Object' of your own."
    )
    weight: Annotated[float, AfterValidator(_zero_or_large_enough)] = Field(
        1.0,
        ge=-1.0e6,
        le=1.0e6,
        description="Factor in the total; negative for a score to be lowered, 0 to only watch, else at least 1e-6 in "
        "size.",
    )
    shift: float = Field(0.0, ge=-1.0e9, le=1.0e9, description="Subtracted from the raw score, in the scorer's units.")
    scale: Annotated[float, AfterValidator(_divides)] = Field(
        1.0,
        ge=-1.0e9,
        le=1.0e9,
        description="Divides the shifted score, in the scorer's units; at least 1e-6 in size.",
    )
    options: dict[str, Any] = Field({}, description="Keyword arguments of the scorer.")
    label: str | None = Field(
        None,
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        description="What it is called in metrics and files, where one scorer is used twice. null = its name.",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Samples given to the scorer at once; bounds memory. null = the scorer's own default.",
    )
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda(:\d{1,3})?)$",
        description="Where its weights live: cpu, cuda or cuda:1. null = beside the model. Rewards of one device take "
        "turns; those of different devices, and servers, work at the same time.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Precision of its weights, for scorers that have some. null = the scorer's own default."
    )
    schedule: Annotated[ListOf[SchedulePoint], Field(max_length=1000), AfterValidator(_ascending)] = Field(
        (),
        description="[iteration, factor] pairs: the weight's factor there, straight lines between, constant outside. "
        "While it is 0 the scorer is not asked. Empty = always 1.",
    )
    timeout: float | None = Field(
        1800.0,
        gt=0,
        le=1.0e6,
        description="Seconds that a batch may take before the run is stopped. null = as long as it takes.",
    )

    @property
    def key(self) -> str:
        """What it is called in metrics and files."""
        return self.label or self.name

    @property
    def corners(self) -> tuple[int, ...]:
        """The iterations of its schedule's points, between which the factor only rises or only falls."""
        return tuple(iteration for iteration, _ in self.schedule)

    def factor(self, iteration: int) -> float:
        """Return what the weight is multiplied by in a training iteration, from 0."""
        points = self.schedule
        if not points or iteration <= points[0][0]:
            return points[0][1] if points else 1.0
        for (start, low), (end, high) in zip(points, points[1:], strict=False):
            if iteration <= end:
                return low + (high - low) * (iteration - start) / (end - start)
        return points[-1][1]

    def weight_at(self, iteration: int) -> float:
        """Return factor in the total of a training iteration."""
        return self.weight * self.factor(iteration)

    def asked(self, iteration: int) -> bool:
        """Return whether its scorer is asked in a training iteration: it counts there, or is only watched."""
        return self.weight == 0 or self.factor(iteration) != 0

    @model_validator(mode="after")
    def _watched_has_no_schedule(self) -> Self:
        if self.weight == 0 and self.schedule:
            raise problems(
                [
                    f"rewards.schedule has no effect on a weight of 0. Got it for {show(self.key)}. Set a weight or "
                    "remove the schedule."
                ]
            )
        return self
