"""How samples are drawn: dynamics, stochastic steps, trees, and the exploring stage before them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from diffrl.config.base import (
    LONGEST_TEXT,
    MOST_GUIDANCE,
    MOST_ITERATIONS,
    MOST_SAMPLES,
    MOST_STEPS,
    ListOf,
    Section,
    problems,
    rule,
    show,
)

LEAST_NOISE, MOST_NOISE = 1.0e-4, 100
"""Of a stochastic step: below it float32 keeps less than three digits of the noise, and densities overflow."""

MOST_CHILDREN = 1000


class FlowSde(Section):
    """Flow-GRPO's stochastic step, std = noise_level * sqrt(sigma / (1 - sigma)) * sqrt(step length)."""

    kind: Literal["flow_sde"] = Field(description="Flow-GRPO, arXiv 2505.05470.")
    noise_level: float = Field(
        0.7, ge=LEAST_NOISE, le=MOST_NOISE, description="Size of the injected noise; 0.7 in the paper."
    )


class DanceSde(Section):
    """DanceGRPO's stochastic step, std = eta * sqrt(step length)."""

    kind: Literal["dance_sde"] = Field(description="DanceGRPO, arXiv 2505.07818.")
    eta: float = Field(
        0.3,
        ge=LEAST_NOISE,
        le=MOST_NOISE,
        description="Size of the injected noise, the same at every step; 0.3 in the paper.",
    )


class Cps(Section):
    """Coefficient-preserving sampling, std = next sigma * sin(noise_level * pi / 2)."""

    kind: Literal["cps"] = Field(description="Coefficient-preserving sampling, arXiv 2509.05952.")
    noise_level: float = Field(
        ge=LEAST_NOISE, le=1, description="Share of fresh noise in each step's noise, in (0, 1]."
    )


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


def _split_steps(splits: tuple[int, ...]) -> tuple[int, ...]:
    if any(step < 0 for step in splits) or list(splits) != sorted(set(splits)):
        raise rule(f"must be steps in ascending order, each once, from 0. Got {show(list(splits))}. Sort them.")
    return splits


def _children(given: Any) -> Any:
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    if not items or any(type(item) is not int or not 2 <= item <= MOST_CHILDREN for item in items):
        raise rule(
            f"must be a whole number >= 2 and <= {MOST_CHILDREN}, or a list of them with one entry a split. Got "
            f"{show(given)}. A step without a split needs no entry."
        )
    return tuple(items) if isinstance(given, (list, tuple)) else given


class TreeSettings(Section):
    """The paths drawn for one prompt. Without splits these are chains: one path from each root."""

    roots: int = Field(
        ge=1,
        le=MOST_SAMPLES,
        description="Initial noises of a prompt, each the root of a tree; of a chain, the sample.",
    )
    branches: Annotated[
        Annotated[int, Field(ge=2, le=MOST_CHILDREN)]
        | Annotated[ListOf[Annotated[int, Field(ge=2, le=MOST_CHILDREN)]], Field(max_length=MOST_STEPS)],
        BeforeValidator(_children),
    ] = Field(
        2, description="Children of a node at a split; a list gives each split its own. No effect without splits."
    )
    splits: Annotated[ListOf[int], Field(max_length=MOST_STEPS), AfterValidator(_split_steps)] = Field(
        (), description="Steps in which every node gets several children, from 0. Empty = chains."
    )
    correlation: float | None = Field(
        4.0,
        ge=0,
        le=1.0e6,
        description="Weight c of a sibling's own noise: siblings correlate by 1 / (1 + c^2). null = independent. No "
        "effect without splits.",
    )

    @model_validator(mode="after")
    def _a_branching_for_each_split(self) -> Self:
        if isinstance(self.branches, tuple) and len(self.branches) != len(self.splits):
            raise problems(
                [
                    "rollout.tree.branches must have one entry for each of rollout.tree.splits, or be one number. Got "
                    f"branches={show(list(self.branches))}, splits={show(list(self.splits))}. Add or remove entries."
                ]
            )
        return self

    @property
    def branching(self) -> Mapping[int, int]:
        """Split step -> children."""
        every = self.branches if isinstance(self.branches, tuple) else (self.branches,) * len(self.splits)
        return dict(zip(self.splits, every, strict=True))

    @property
    def leaves_per_root(self) -> int:
        """Samples of one tree."""
        return math.prod(self.branching.values())

    @property
    def samples(self) -> int:
        """Samples of one prompt that train."""
        return self.roots * self.leaves_per_root


class FidelitySettings(Section):
    """What happens when the cheap ranking disagrees with the true one."""

    below: float = Field(
        0.3, ge=-1, le=1, description="Kendall's tau between proxy and true rewards under which the action is taken."
    )
    action: Literal["warn", "widen", "fall_back"] = Field(
        "warn",
        description="warn = say so; widen = keep half as many samples more; fall_back = explore in the training "
        "precision and with all steps from then on.",
    )
    patience: int = Field(
        3, ge=1, le=MOST_ITERATIONS, description="Iterations in a row below it before the action is taken."
    )


class ExploreSettings(Section):
    """A larger pool of candidates, drawn cheaply; only the chosen ones are drawn again and train the policy."""

    precision: Literal["training", "bfloat16", "nvfp4", "mxfp8", "fp8", "int8"] = Field(
        description="Of the network that draws the pool; training = the policy itself."
    )
    engine: Literal["auto", "emulated", "torch", "torchao", "te", "modelopt"] = Field(
        "auto",
        description="auto = real arithmetic of this precision, or an error if the hardware has none; emulated = the "
        "same rounding without the speed; torch, torchao, te = this library's; modelopt = its emulation. "
        "docs/precision.md says what runs where.",
    )
    compile: bool = Field(
        False, description="Let torch.compile make the copy's graph; the first rollout then waits for it."
    )
    exclude: (
        Annotated[ListOf[Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]], Field(max_length=1000)] | None
    ) = Field(
        None, description="Linear layers that stay as they are, by parts of their names. null = the family's own list."
    )
    steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Denoising steps of the pool: a part of the full grid, all stochastic steps in it. null = all.",
    )
    candidates: int = Field(
        ge=2, le=MOST_SAMPLES, description="Samples of a prompt's pool, a multiple of the leaves of a tree."
    )
    keep: int = Field(
        ge=2, le=MOST_SAMPLES, description="Samples of a prompt that are drawn again: roots * leaves of a tree."
    )
    select: Literal["best_worst", "max_variance", "sibling_contrast", "random", "all"] = Field(
        "best_worst", description="How they are chosen by their proxy rewards."
    )
    audit: int = Field(
        1,
        ge=0,
        le=MOST_SAMPLES,
        description="Further samples of a prompt, drawn again at random to check the ranking; not trained.",
    )
    fidelity: FidelitySettings = FidelitySettings()


class RolloutSettings(Section):
    """How samples are drawn for training."""

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
        "ode",
        description="Of deterministic steps: ode = Euler; ab2 = Adams-Bashforth, second order at the same cost.",
    )
    dynamics: Annotated[FlowSde | DanceSde | Cps, Field(discriminator="kind")] | None = Field(
        None, description="How a stochastic step draws its noise. Must be given unless no step is stochastic."
    )
    stochastic: Annotated[AllSteps | Window | SplitsOnly | NoSteps, Field(discriminator="kind")] = Field(
        AllSteps(kind="all"),
        description="Which steps are stochastic. Objectives on steps train these; tilt trains the splits among them.",
    )
    tree: TreeSettings
    explore: ExploreSettings | None = Field(None, description="The exploring stage. null = off.")
    micro_batch: int = Field(
        128, ge=1, le=MOST_SAMPLES, description="Samples in one network call of the rollout; bounds memory."
    )
    decode_batch: int = Field(
        128, ge=1, le=MOST_SAMPLES, description="Samples in one call of the picture decoder; bounds memory."
    )
    prompts_at_once: int | None = Field(
        None,
        ge=1,
        le=MOST_SAMPLES,
        description="Prompts whose samples are drawn together, and scored while the next ones' are drawn. null = "
        "all of the iteration's: fewest network calls, and pictures are scored while others are decoded.",
    )

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        found = [*_window_problems(self), *_split_problems(self), *_explore_problems(self)]
        if found:
            raise problems(found)
        return self


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
    found = []
    if r.dynamics is None and not isinstance(r.stochastic, NoSteps):
        found.append(
            "rollout.dynamics is missing: it says how the stochastic steps draw their noise. Give one, such as "
            "{kind: flow_sde, noise_level: 0.7}, or set rollout.stochastic.kind to none."
        )
    if r.dynamics is not None and isinstance(r.stochastic, NoSteps):
        found.append(
            "rollout.dynamics must be null with rollout.stochastic.kind: none, where no step draws noise. Got "
            f"kind={r.dynamics.kind}. Remove it."
        )
    if splits and splits[-1] > r.steps - 2:
        found.append(
            "rollout.tree.splits must lie within steps 0 to rollout.steps - 2, because the last step is always "
            f"deterministic. Got splits={show(splits)}, steps={r.steps}. Move the splits or add steps."
        )
    if not splits and isinstance(r.stochastic, SplitsOnly):
        found.append(
            "rollout.stochastic.kind must not be splits without rollout.tree.splits: no step would be stochastic. Got "
            "kind=splits, splits=[]. Add splits, or choose all, window or none."
        )
    if splits and isinstance(r.stochastic, NoSteps):
        found.append(
            "rollout.tree.splits must be empty with rollout.stochastic.kind: none, because siblings differ by noise. "
            f"Got splits={show(splits)}. Remove the splits or choose splits, window or all."
        )
    if r.tree.samples > MOST_SAMPLES:
        found.append(
            f"rollout.tree.roots * the leaves of a tree must be <= {MOST_SAMPLES}, the samples of a prompt. Got "
            f"roots={r.tree.roots}, leaves={show(r.tree.leaves_per_root)}. Lower roots or branches, or remove splits."
        )
    if r.tree.samples < 2:
        found.append(
            "rollout.tree.roots must be >= 2 without splits: a group needs samples to compare. "
            f"Got roots={r.tree.roots}. Add roots or splits."
        )
    return found


def _explore_problems(r: RolloutSettings) -> list[str]:
    e, tree = r.explore, r.tree
    if e is None:
        return []
    found = []
    if e.keep != tree.samples:
        found.append(
            "rollout.explore.keep must be rollout.tree.roots * the leaves of a tree, the samples that train. Got "
            f"keep={e.keep}, roots={tree.roots}, leaves={tree.leaves_per_root}. Set keep={tree.samples}."
        )
    if e.candidates % tree.leaves_per_root:
        found.append(
            "rollout.explore.candidates must be a multiple of the leaves of a tree. Got "
            f"candidates={e.candidates}, leaves={tree.leaves_per_root}. Round it."
        )
    if e.candidates < e.keep + e.audit:
        found.append(
            "rollout.explore.candidates must be >= keep + audit. Got "
            f"candidates={e.candidates}, keep={e.keep}, audit={e.audit}. Lower keep or audit, or add candidates."
        )
    if e.precision in ("training", "bfloat16") and e.engine != "auto":
        found.append(
            f"rollout.explore.engine must be auto with precision {e.precision}, which every machine has. "
            f"Got {e.engine}. Remove it."
        )
    if e.precision == "training" and e.compile:
        found.append(
            "rollout.explore.compile must be false with precision: training, where the policy itself explores. "
            "Set model.compile, or another precision."
        )
    if e.precision == "training" and e.exclude is not None:
        found.append(
            "rollout.explore.exclude must be null with precision: training, where nothing is quantised. Remove it."
        )
    if e.select == "all" and (e.candidates != e.keep or e.audit):
        found.append(
            "rollout.explore.select: all keeps every candidate. Got "
            f"candidates={e.candidates}, keep={e.keep}, audit={e.audit}. Set keep to candidates and audit to 0."
        )
    if e.steps is not None and e.steps > r.steps:
        found.append(
            "rollout.explore.steps must be <= rollout.steps, of whose grid it is a part. Got "
            f"explore.steps={e.steps}, steps={r.steps}. Lower it."
        )
    return found
