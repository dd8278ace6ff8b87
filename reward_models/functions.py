"""Rewards as other tools have them, plain functions of images: what they are given, and what they may return.

    def reward(images, prompts, metadata=None, **options): ...      # ddpo, Flow-GRPO: floats (B, 3, H, W) in [0, 1]
    def reward(prompts, completions, **columns): ...                # TRL: PIL images, and a list a key of the metadata

Both return B numbers (a list, an array or a tensor; None or NaN where a sample has no score), or these and anything
else, as Flow-GRPO's `scores, {}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_models.common.errors import RewardError
from reward_models.common.messages import show

if TYPE_CHECKING:
    from reward_models.base import RewardBatch, RewardOutput, ScorerSpec

TRL, IMAGES = "TRL", "Flow-GRPO and ddpo"
GIVEN = {
    TRL: "prompts, completions (PIL images) and a list for each key beside the prompts",
    IMAGES: "images (float, B x 3 x H x W, in [0, 1]), prompts and metadata",
}
_ARGUMENTS = {"prompts", "completions", "images", "videos", "metadata"}


def kind_of(function: Any) -> str | None:
    """Return whose form a function of samples has; None for anything else, a function that makes a scorer among it."""
    parameters = _parameters(function)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = {name for name, p in parameters.items() if p.default is p.empty and p.kind in named}
    if not (inspect.isfunction(function) or isinstance(function, partial)) or hasattr(function, "spec"):
        return None
    if {"prompts", "completions"} <= required:
        return TRL
    return IMAGES if required & {"images", "videos"} and "prompts" in parameters else None


class FunctionReward:
    """A scorer that asks a function; called as a class is, it takes the function's further arguments as options.

    Args:
        function: of the form that `kind_of` names.
        options: its further arguments.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None):
        self.function, self.options = function, dict(options or {})
        self.kind = kind_of(function)
        self._parameters = _parameters(function)
        self._open = any(p.kind == p.VAR_KEYWORD for p in self._parameters.values())

    @property
    def spec(self) -> ScorerSpec:
        """What a function does not tell of itself is not known: its range, whether it reads the prompt."""
        from reward_models.base import ScorerSpec

        name = getattr(self.function, "__name__", "function")
        about = (inspect.getdoc(self.function) or f"What the function {name} returns.").splitlines()[0]
        media = ("image", "video") if "videos" in self._parameters else ("image",)
        about = f"{about} (A function as of {self.kind}: it is given {GIVEN[self.kind or IMAGES]}.)"
        return ScorerSpec(name, about, (float("-inf"), float("inf")), media=media)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Return the function's scores.

        Raises:
            RewardError: it does not return a number a sample.
        """
        import torch

        from reward_models.base import output_of_scores

        self.spec.require(batch)
        returned = self.function(**self._given(batch), **self.options)
        scores = returned[0] if isinstance(returned, tuple) else returned
        try:
            values = [float("nan") if score is None else float(score) for score in scores]
        except (TypeError, ValueError):
            values = []
        if len(values) != len(batch):
            raise RewardError(
                f"A reward's function returns a number for each of its {len(batch)} samples. {self.spec.name} returned "
                f"{show(scores)}. Return a list of floats."
            )
        return output_of_scores(torch.tensor(values, dtype=torch.float64))

    def to(self, device: Any) -> FunctionReward:
        """Stay where the function is: it moves what it needs by itself."""
        return self

    def _given(self, batch: RewardBatch) -> dict[str, Any]:
        from reward_models.media import to_pil

        metadata = [dict(batch.meta(row)) for row in range(len(batch))]
        if self.kind == TRL:
            names = dict.fromkeys(key for one in metadata for key in one)
            columns = {name: [one.get(name) for one in metadata] for name in names if self._takes(name)}
            return {"prompts": list(batch.prompts), "completions": [to_pil(i) for i in batch.media], **columns}
        media = batch.media.float() / 255
        arguments = {"images": media, "videos": media, "prompts": list(batch.prompts), "metadata": metadata}
        return {name: value for name, value in arguments.items() if name in self._parameters}

    def _takes(self, name: str) -> bool:
        return name not in _ARGUMENTS and name not in self.options and (self._open or name in self._parameters)


def made_by(function: Callable[..., Any]) -> Callable[..., FunctionReward]:
    """Return what makes a scorer of a function: its signature has the function's further arguments."""

    def make(**options: Any) -> FunctionReward:
        return FunctionReward(function, options)

    further = [p for name, p in _parameters(function).items() if name not in _ARGUMENTS and p.kind != p.VAR_POSITIONAL]
    if kind_of(function) == TRL:  # columns are arguments too: those without a default come from the metadata
        further = [p for p in further if p.default is not p.empty or p.kind == p.VAR_KEYWORD]
    keyword = [p if p.kind == p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in further]
    make.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    make.__wrapped__ = function  # type: ignore[attr-defined]  # whose file is the reward's
    make.__module__, make.__doc__ = function.__module__, function.__doc__
    make.spec = FunctionReward(function).spec  # type: ignore[attr-defined]
    return make


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters if callable(function) else {}
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return {}
