"""How samples are drawn: the grid, the dynamics of a stochastic step, and which steps are stochastic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from diffrl.config.explore import (
    CopySettings,
    DrawSettings,
    ExplorersSettings,
    ExploreSettings,
    explore_problems,
    low_precision,
)
from diffrl.config.tree import TreeSettings
from diffrl.errors import ConfigError
from diffrl.functional.steps import stochastic_steps
from diffrl.functional.tree_counts import origins_per_tree
from diffrl.registry import DYNAMICS, require_call, resolve
from diffrl.sections import (
    MOST_GUIDANCE,
    MOST_ITERATIONS,
    MOST_SAMPLES,
    MOST_STEPS,
    OWN,
    OwnKind,
    Section,
    kind_of,
    problems,
    show,
)

LEAST_NOISE, MOST_NOISE = 1.0e-4, 100
"""Bounds of a stochastic step's noise: below, float32 keeps less than three digits of it, and densities overflow."""


STEP_ARGUMENTS = ("x", "v", "sigma", "sigma_next")
"""What the function of a stochastic step takes beside its options; see `functional.dynamics`."""


class DynamicsSettings(Section):
    """What every kind of stochastic step has."""

    kind: str

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What its function takes beside latents, velocity and noise levels."""
        return self.model_dump(exclude={"kind"})


class FlowSde(DynamicsSettings):
    """Flow-GRPO's stochastic step, std = noise_level * sqrt(sigma / (1 - sigma)) * sqrt(step length)."""

    kind: Literal["flow_sde"] = Field(description="Flow-GRPO, arXiv 2505.05470.")
    noise_level: float = Field(
        0.7, ge=LEAST_NOISE, le=MOST_NOISE, description="Size of the injected noise; 0.7 in the paper."
    )


class DanceSde(DynamicsSettings):
    """DanceGRPO's stochastic step, std = eta * sqrt(step length)."""

    kind: Literal["dance_sde"] = Field(description="DanceGRPO, arXiv 2505.07818.")
    eta: float = Field(
        0.3,
        ge=LEAST_NOISE,
        le=MOST_NOISE,
        description="Size of the injected noise, the same at every step; 0.3 in the paper.",
    )


class Cps(DynamicsSettings):
    """Coefficient-preserving sampling, std = next sigma * sin(noise_level * pi / 2)."""

    kind: Literal["cps"] = Field(description="Coefficient-preserving sampling, arXiv 2509.05952.")
    noise_level: float = Field(
        ge=LEAST_NOISE, le=1, description="Share of fresh noise in each step's noise, in (0, 1]."
    )


class OwnDynamics(DynamicsSettings):
    """A stochastic step of your own; see docs/python.md."""

    kind: OwnKind = Field(description="'module:function' of your own.")
    options: dict[str, Any] = Field({}, description="Keyword arguments of the function.")

    @model_validator(mode="after")
    def _can_be_called(self) -> Self:
        try:
            step = resolve("rollout.dynamics.kind", DYNAMICS, self.kind)
            require_call("rollout.dynamics.kind", self.kind, step, STEP_ARGUMENTS, self.options)
        except ConfigError as error:
            raise problems(error.problems) from error
        return self

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its `options`."""
        return self.options


Dynamics = Annotated[
    Annotated[FlowSde, Tag("flow_sde")]
    | Annotated[DanceSde, Tag("dance_sde")]
    | Annotated[Cps, Tag("cps")]
    | Annotated[OwnDynamics, Tag(OWN)],
    Discriminator(kind_of),
]


class SplitsOnly(Section):
    """Only the steps at which trees split are stochastic."""

    kind: Literal["splits"] = Field(description="The splits of rollout.tree alone.")


class NoSteps(Section):
    """Every step is deterministic; for objectives that train no steps."""

    kind: Literal["none"] = Field(description="No step: samples differ by their initial noise alone.")


class AllSteps(Section):
    """Every denoising step but the last is stochastic."""

    kind: Literal["all"] = Field(description="Flow-GRPO: every step but the last.")


class Window(Section):
    """Only the steps of a window and the splits are stochastic; the others are deterministic."""

    kind: Literal["window"] = Field(description="MixGRPO: a window of steps, and the splits.")
    start: int = Field(
        0, ge=0, le=MOST_STEPS, description="First stochastic step, counted from 0, in the first iteration."
    )
    size: int = Field(
        ge=1, le=MOST_STEPS, description="Number of stochastic steps. start + size must be <= rollout.steps - 1."
    )
    slide_every: int | None = Field(
        None,
        ge=1,
        le=MOST_ITERATIONS,
        description="Training iterations after which the window moves one step on; after the last place where it "
        "fits it goes back to step 0 (MixGRPO). null = it stays.",
    )


class RolloutSettings(Section):
    """How samples are generated for training."""

    steps: int = Field(
        ge=2, le=MOST_STEPS, description="Denoising steps of a sample. The last is always deterministic."
    )
    guidance_scale: float = Field(
        1.0,
        ge=1,
        le=MOST_GUIDANCE,
        description="Classifier-free guidance; 1 = none, above 1 every step costs two network evaluations.",
    )
    grid: Literal["stock", "merged"] = Field(
        "stock",
        description="Noise levels: stock = the pipeline's own for this many steps, whose last step, from about .001 to "
        "0, changes almost nothing; merged = its own for one step more, the last two in one.",
    )
    solver: Literal["ode", "ab2"] = Field(
        "ode", description="Of deterministic steps: ode = Euler; ab2 = Adams-Bashforth, second order at the same cost."
    )
    dynamics: Dynamics | None = Field(
        None, description="How a stochastic step draws its noise. Must be given unless no step is stochastic."
    )
    stochastic: Annotated[AllSteps | Window | SplitsOnly | NoSteps, Field(discriminator="kind")] = Field(
        AllSteps(kind="all"),
        description="Which steps are stochastic. Objectives on steps train these; tilt trains the splits among them.",
    )
    tree: TreeSettings
    explore: ExploreSettings | None = Field(None, description="The exploring stage. null = off.")
    draw: DrawSettings | None = Field(
        None,
        description="A low-precision copy that draws the samples which train, for objectives without a ratio. null = "
        "the policy draws.",
    )
    explorers: ExplorersSettings | None = Field(
        None, description="Other processes that draw the samples which train. null = this one does. docs/scale.md"
    )
    latents_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="What latents are rounded to where a stochastic step begins and ends, before it is scored, and "
        "stored as. bfloat16 halves what is stored; the ratio before the first update stays exactly 1.",
    )
    micro_batch: int = Field(
        128, ge=1, le=MOST_SAMPLES, description="Samples in one network call of the rollout; bounds memory."
    )
    decode_batch: int = Field(
        128, ge=1, le=MOST_SAMPLES, description="Samples in one call of the image decoder; bounds memory."
    )
    prompts_at_once: int | None = Field(
        None,
        ge=1,
        le=MOST_SAMPLES,
        description="Prompts whose samples are generated together, and scored while the next ones' are. null = "
        "all of the iteration's: fewest network calls, and images are scored while others are decoded.",
    )

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        faults = [*_window_problems(self), *_split_problems(self)]
        if self.explore is not None:
            faults += explore_problems(self.explore, self.tree, self.steps)
        if self.draw is not None:
            faults += self.draw.copy_problems("rollout.draw")
        if self.explorers is not None and self.explore is not None:
            faults.append(
                "rollout.explorers must be null with rollout.explore: a pool is drawn, and what is chosen of it drawn "
                "again, in one process. Got both. Use rollout.draw for servers that draw in low precision."
            )
        if self.draw is not None and self.explore is not None:
            faults.append(
                "rollout.draw must be null with rollout.explore, which generates in low precision already and draws "
                "what trains again in the training precision. Got both. Remove one."
            )
        if faults:
            raise problems(faults)
        return self

    @property
    def policy_copy(self) -> CopySettings | None:
        """The section that asks for a copy of the policy in another precision; None without one."""
        settings: CopySettings | None = self.explore or self.draw
        return settings if settings is not None and settings.is_copy else None

    @property
    def policy_copy_key(self) -> str:
        """Its dotted path, for messages."""
        return "rollout.draw" if self.draw is not None else "rollout.explore"

    @property
    def low_precision(self) -> dict[str, str]:
        """Purposes of network evaluations that a copy serves, with its precision; see `diffrl.cost.meter`."""
        return low_precision(
            explore=None if self.explore is None else self.explore.precision,
            draw=None if self.draw is None else self.draw.precision,
        )

    @property
    def samples(self) -> int:
        """Samples of a prompt that train."""
        return self.tree.samples if self.explore is None else self.explore.keep

    @property
    def redrawn(self) -> int:
        """Samples of a prompt that are drawn in the training precision: those that train, and those that check."""
        return self.samples + (0 if self.explore is None else self.explore.audit)

    def steps_at(self, iteration: int) -> tuple[int, ...]:
        """Return the stochastic steps of a training iteration, from 0."""
        s, splits = self.stochastic, self.tree.splits
        if isinstance(s, Window):
            return stochastic_steps("window", self.steps, iteration, splits, s.start, s.size, s.slide_every)
        return stochastic_steps(s.kind, self.steps, iteration, splits)

    def branching_at(self, iteration: int) -> dict[int, int]:
        """Return stochastic step -> children of a node there, 1 where the tree does not split, of an iteration."""
        return {step: self.tree.branching.get(step, 1) for step in self.steps_at(iteration)}

    @property
    def trees(self) -> int:
        """Trees of a prompt that samples are chosen from, or that are all sampled."""
        return self.tree.roots if self.explore is None else self.explore.candidates // self.tree.leaves_per_root

    def starts_at(self, iteration: int) -> dict[int, int]:
        """Return stochastic step -> nodes of a prompt that it starts from; upper bounds where samples are chosen."""
        each = origins_per_tree(self.branching_at(iteration))
        return {step: min(self.redrawn, self.trees * count) for step, count in each.items()}

    @property
    def window_places(self) -> range:
        """Iterations in which a sliding window takes each of its places once."""
        s = self.stochastic
        if not isinstance(s, Window) or s.slide_every is None:
            return range(1)
        return range(0, s.slide_every * (self.steps - s.size), s.slide_every)


def _window_problems(r: RolloutSettings) -> list[str]:
    window, trainable = r.stochastic, r.steps - 1
    if not isinstance(window, Window):
        return []
    if window.start + window.size > trainable:
        return [
            "rollout.stochastic.start + size must be <= rollout.steps - 1, because the last step is always "
            f"deterministic. Got start={window.start}, size={window.size}, steps={r.steps}. Lower start or "
            "size, or add steps."
        ]
    if window.slide_every is not None and window.size == trainable:
        return [
            "rollout.stochastic.slide_every must be null if the window covers every step but the last: there "
            f"is nowhere to slide. Got slide_every={window.slide_every}, size={window.size}, "
            f"steps={r.steps}. Remove slide_every or lower size."
        ]
    return []


def _split_problems(r: RolloutSettings) -> list[str]:
    splits = list(r.tree.splits)
    problems = []
    if r.dynamics is None and not isinstance(r.stochastic, NoSteps):
        problems.append(
            "rollout.dynamics is missing: it says how the stochastic steps draw their noise. Give one, such as "
            "{kind: flow_sde, noise_level: 0.7}, or set rollout.stochastic.kind to none."
        )
    if r.dynamics is not None and isinstance(r.stochastic, NoSteps):
        problems.append(
            "rollout.dynamics must be null with rollout.stochastic.kind: none, where no step draws noise. Got "
            f"kind={r.dynamics.kind}. Remove it."
        )
    if splits and splits[-1] > r.steps - 2:
        problems.append(
            "rollout.tree.splits must lie within steps 0 to rollout.steps - 2, because the last step is always "
            f"deterministic. Got splits={show(splits)}, steps={r.steps}. Move the splits or add steps."
        )
    if not splits and isinstance(r.stochastic, SplitsOnly):
        problems.append(
            "rollout.stochastic.kind must not be splits without rollout.tree.splits: no step would be stochastic. Got "
            "kind=splits, splits=[]. Add splits, or choose all, window or none."
        )
    if splits and isinstance(r.stochastic, NoSteps):
        problems.append(
            "rollout.tree.splits must be empty with rollout.stochastic.kind: none, because siblings differ by noise. "
            f"Got splits={show(splits)}. Remove the splits or choose splits, window or all."
        )
    if r.tree.samples > MOST_SAMPLES:
        problems.append(
            f"rollout.tree.roots * the leaves of a tree must be <= {MOST_SAMPLES}, the samples of a prompt. Got "
            f"roots={r.tree.roots}, leaves={show(r.tree.leaves_per_root)}. Lower roots or branches, or remove splits."
        )
    if r.tree.samples < 2 and r.explore is None:
        problems.append(
            "rollout.tree.roots must be >= 2 without splits: a group needs samples to compare. "
            f"Got roots={r.tree.roots}. Add roots or splits."
        )
    return problems
