"""The tree of one prompt: how many roots, where it splits, and how alike siblings are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from diffrl.sections import MOST_SAMPLES, MOST_STEPS, ListOf, Section, problems, rule, show

MOST_CHILDREN = 1000


def _split_steps(splits: tuple[int, ...]) -> tuple[int, ...]:
    if any(step < 0 for step in splits) or list(splits) != sorted(set(splits)):
        raise rule(f"must be steps in ascending order, each once, from 0. Got {show(list(splits))}. Sort them.")
    return splits


def _children(branches: Any) -> Any:
    items = list(branches) if isinstance(branches, (list, tuple)) else [branches]
    if not items or any(type(item) is not int or not 2 <= item <= MOST_CHILDREN for item in items):
        raise rule(
            f"must be a whole number >= 2 and <= {MOST_CHILDREN}, or a list of them with one entry a split. Got "
            f"{show(branches)}. A step without a split needs no entry."
        )
    return tuple(items) if isinstance(branches, (list, tuple)) else branches


class TreeSettings(Section):
    """The paths generated for one prompt. Without splits these are chains: one path from each root."""

    roots: int = Field(
        ge=1,
        le=MOST_SAMPLES,
        description="Initial noises of a prompt, each the root of a tree; of a chain, the sample. No effect with "
        "rollout.explore, whose candidates say how many trees there are.",
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
                "rollout.tree.branches must have one entry for each of rollout.tree.splits, or be one number. Got "
                f"branches={show(list(self.branches))}, splits={show(list(self.splits))}. Add or remove entries."
            )
        return self

    @property
    def branching(self) -> Mapping[int, int]:
        """Split step -> children of a node there."""
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
