"""Copies of the policy in low precision: one that explores a larger pool, or one that draws the samples themselves."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from diffrl.config.tree import TreeSettings
from diffrl.precision.facts import AUTO, ENGINES, TRAINING
from diffrl.precision.formats import PRECISIONS
from diffrl.registry import SELECTIONS
from diffrl.sections import LONGEST_TEXT, MOST_ITERATIONS, MOST_SAMPLES, MOST_STEPS, Known, ListOf, Section, problems

EXPLORER_TOKEN = "DIFFRL_EXPLORER_TOKEN"
"""Environment variable of the token that explorers ask for, unless another is named."""
SOL_RL = "sol_rl"
"""What stands in `exclude` for the layers that Sol-RL's code leaves as they are."""


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


class CopySettings(Section):
    """A copy of the policy in another precision."""

    precision: str
    engine: Annotated[str, Known("engine", ENGINES, (AUTO,))] = Field(
        AUTO,
        description="auto = real arithmetic of this precision, or an error if the hardware has none; "
        + "; ".join(f"{engine.name} = {engine.meaning}" for engine in ENGINES.values())
        + ". docs/precision.md says what runs where.",
    )
    compile: bool = Field(
        False, description="Let torch.compile make the copy's graph; the first rollout then waits for it."
    )
    exclude: (
        Annotated[ListOf[Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]], Field(max_length=1000)] | None
    ) = Field(
        None,
        description="Linear layers that stay as they are, by parts of their names; sol_rl stands for all that Sol-RL's "
        "code leaves (sd3, flux, sana). null = the family's own list.",
    )

    @property
    def is_copy(self) -> bool:
        """Whether it is another network than the policy."""
        return self.precision != TRAINING

    def copy_problems(self, key: str) -> list[str]:
        """List where the section, whose dotted path is `key`, contradicts itself."""
        if self.engine != AUTO and (self.precision == TRAINING or PRECISIONS[self.precision].everywhere):
            return [
                f"{key}.engine must be auto with precision {self.precision}, which every machine has. "
                f"Got {self.engine}. Remove it."
            ]
        return []


class DrawFidelitySettings(Section):
    """What happens when the copy's trees teach something else than the policy's own would."""

    every: int | None = Field(
        20,
        ge=1,
        le=MOST_ITERATIONS,
        description="Iterations from one audit to the next, the first in the first: each rank's first prompt is "
        "generated and scored again by the policy itself. null = never.",
    )
    below: float = Field(
        0.5,
        ge=-1,
        le=1,
        description="Cosine between what the copy's samples and the policy's own teach (docs/methods/tree_tilt.md) "
        "under which the action is taken.",
    )
    action: Literal["warn", "sync", "fall_back"] = Field(
        "warn",
        description="warn = say so; sync = the copy gets the policy's weights in every iteration from then on; "
        "fall_back = the policy itself draws from then on.",
    )
    patience: int = Field(2, ge=1, le=MOST_ITERATIONS, description="Audits in a row below it before the action.")

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.every is None and self.action != "warn":
            raise problems(
                "rollout.draw.fidelity.action must be left at warn with every: null, where nothing is audited. "
                f"Got {self.action}. Set every, such as 20, or remove action."
            )
        return self


class DrawSettings(CopySettings):
    """A copy that draws the samples which train, for objectives that need no density of what drew them."""

    precision: Annotated[str, Known("rollout.draw.precision", PRECISIONS)] = Field(
        description="Of the copy that draws the samples."
    )
    sync_every: int = Field(
        1,
        ge=1,
        le=MOST_ITERATIONS,
        description="Iterations from one transfer of the policy's weights to the copy to the next; 1 = every one.",
    )
    fidelity: DrawFidelitySettings = DrawFidelitySettings()


class ExplorersSettings(Section):
    """Other processes that draw the samples which train, `diffrl explore`; this one scores and trains."""

    servers: Annotated[
        ListOf[Annotated[str, Field(pattern=r"^https?://[^/\s?#@]+$", max_length=LONGEST_TEXT)]],
        Field(min_length=1, max_length=1000),
    ] = Field(description="Addresses, such as http://127.0.0.1:8124; an iteration's prompts are dealt out to them.")
    overlap: bool = Field(
        False,
        description="Let them draw the next iteration while this one trains, by weights that are one update older.",
    )
    timeout: float = Field(
        600.0,
        ge=0.1,
        le=1.0e6,
        description="Seconds for one answer; a server that takes longer is asked no more for it.",
    )
    deadline: float = Field(
        3600.0, ge=0.1, le=1.0e6, description="Seconds after which a run stops whose samples nobody has drawn."
    )
    token_env: str = Field(
        EXPLORER_TOKEN,
        min_length=1,
        max_length=LONGEST_TEXT,
        description="Environment variable with the servers' token; not set = they ask for none.",
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len(set(self.servers)) < len(self.servers):
            raise problems(
                f"rollout.explorers.servers must be different. Got {', '.join(self.servers)}. Remove what is twice."
            )
        return self


class ExploreSettings(CopySettings):
    """A larger pool of candidates, generated cheaply; only the chosen ones are regenerated and train the policy."""

    precision: Annotated[str, Known("rollout.explore.precision", PRECISIONS, (TRAINING,))] = Field(
        description="Of the network that generates the pool; training = the policy itself."
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
        ge=2,
        le=MOST_SAMPLES,
        description="Samples of a prompt that are regenerated in the training precision and train.",
    )
    select: Annotated[str, Known("rollout.explore.select", SELECTIONS, arguments=("rewards", "keep"))] = Field(
        "best_worst",
        description="How they are chosen by their proxy rewards. best_worst = half from either end, of an odd number "
        "one more from the best; max_variance = as many from either end as differ most; sibling_contrast = from both "
        "sides of the splits with the largest gaps; family_contrast = whole sibling families, from both sides of the "
        "splits whose children's mean rewards differ most; random and all = whatever the rewards; or "
        "'module:function' of your own.",
    )
    audit: int = Field(
        1,
        ge=0,
        le=MOST_SAMPLES,
        description="Further samples of a prompt, chosen at random and regenerated to check the ranking; not trained.",
    )
    fidelity: FidelitySettings = FidelitySettings()


def low_precision(explore: str | None, draw: str | None) -> dict[str, str]:
    """Return purposes of network evaluations (`diffrl.cost.meter`) that a copy serves, with its precision.

    Args:
        explore: precision of the exploring stage; None without one.
        draw: of the copy that draws; None without one.
    """
    if draw is not None:
        return dict.fromkeys(("rollout", "values"), draw)
    return {} if explore is None or explore == TRAINING else {"explore": explore}


def explore_problems(e: ExploreSettings, tree: TreeSettings, steps: int) -> list[str]:
    """List where an exploring stage contradicts itself, the tree that trains, or the steps of the full grid."""
    faults = e.copy_problems("rollout.explore")
    if e.candidates % tree.leaves_per_root:
        faults.append(
            "rollout.explore.candidates must be a multiple of the leaves of a tree. Got "
            f"candidates={e.candidates}, leaves={tree.leaves_per_root}. Round it."
        )
    if e.candidates < e.keep + e.audit:
        faults.append(
            "rollout.explore.candidates must be >= keep + audit. Got "
            f"candidates={e.candidates}, keep={e.keep}, audit={e.audit}. Lower keep or audit, or add candidates."
        )
    if e.precision == TRAINING and e.compile:
        faults.append(
            "rollout.explore.compile must be false with precision: training, where the policy itself explores. "
            "Set model.compile, or another precision."
        )
    if e.precision == TRAINING and e.exclude is not None:
        faults.append(
            "rollout.explore.exclude must be null with precision: training, where nothing is quantised. Remove it."
        )
    if e.select == "all" and (e.candidates != e.keep or e.audit):
        faults.append(
            "rollout.explore.select: all keeps every candidate. Got "
            f"candidates={e.candidates}, keep={e.keep}, audit={e.audit}. Set keep to candidates and audit to 0."
        )
    if e.steps is not None and e.steps > steps:
        faults.append(
            "rollout.explore.steps must be <= rollout.steps, of whose grid it is a part. Got "
            f"explore.steps={e.steps}, steps={steps}. Lower it."
        )
    return faults
