"""Names of reward models, resolved lazily so that listing them imports nothing heavy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from reward_models.common.errors import RewardError
from reward_models.common.messages import closest, describe, printable, quote
from reward_models.common.own_modules import import_own
from reward_models.functions import FunctionReward, kind_of, made_by

if TYPE_CHECKING:
    from reward_models.base import Scorer

SCORERS: Mapping[str, str] = {
    "aesthetic": "reward_models.images.aesthetic:AestheticScorer",
    "clip_score": "reward_models.images.clip_score:ClipScorer",
    "colourfulness": "reward_models.images.picture_statistics:ColourfulnessScorer",
    "contrast": "reward_models.images.picture_statistics:ContrastScorer",
    "diversity": "reward_models.images.diversity:DiversityScorer",
    "dynamic_degree_proxy": "reward_models.videos.optical_flow:DynamicDegreeScorer",
    "edit_direction": "reward_models.images.edits:EditDirectionScorer",
    "geneval": "reward_models.images.geneval:GenEvalScorer",
    "geneval_strict": "reward_models.images.geneval:StrictGenEvalScorer",
    "hpsv2": "reward_models.images.hpsv2:HPSv2Scorer",
    "hpsv3": "reward_models.images.hpsv3:HPSv3Scorer",
    "image_reward": "reward_models.images.image_reward:ImageRewardScorer",
    "jpeg_compressibility": "reward_models.images.jpeg:CompressibilityScorer",
    "jpeg_incompressibility": "reward_models.images.jpeg:IncompressibilityScorer",
    "motion_smoothness_proxy": "reward_models.videos.flicker:MotionSmoothnessScorer",
    "moving_shapes": "reward_models.videos.moving_shapes:MovingShapesScorer",
    "moving_shapes_strict": "reward_models.videos.moving_shapes:StrictMovingShapesScorer",
    "ocr": "reward_models.text.ocr:OcrScorer",
    "ocr_exact": "reward_models.text.ocr:ExactOcrScorer",
    "open_nsfw": "reward_models.images.open_nsfw:OpenNsfwScorer",
    "pickscore": "reward_models.images.pickscore:PickScorer",
    "preservation": "reward_models.images.edits:PreservationScorer",
    "remote": "reward_models.serving.remote:RemoteScorer",
    "shapes": "reward_models.images.shapes:ShapesScorer",
    "shapes_strict": "reward_models.images.shapes:StrictShapesScorer",
    "sharpness": "reward_models.images.picture_statistics:SharpnessScorer",
    "temporal_flicker": "reward_models.videos.flicker:TemporalFlickerScorer",
    "unified_reward": "reward_models.judges.unified_reward:UnifiedRewardScorer",
    "video_align": "reward_models.videos.video_align:VideoAlignScorer",
    "video_mean": "reward_models.videos.video_mean:VideoMeanScorer",
    "vlm_judge": "reward_models.judges.vlm_judge:VlmJudgeScorer",
}


_SCORED = {"image", "images", "video", "videos", "completions"}
"""Arguments that nobody means as a scorer's options: functions of other tools that score have them."""
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def resolve_scorer(name: str) -> str:
    """Return the "module:Object" path of a registered name, or `name` itself if it already is such a path.

    Raises:
        RewardError: the name is neither; the message lists the known names.
    """
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return name
    close = closest(name, SCORERS)
    hint = f" Did you mean {close!r}?" if close else ""
    raise RewardError(
        f"A reward is a known name or 'module:Object'. Got {quote(name)}.{hint} Known names: "
        f"{', '.join(sorted(SCORERS))}."
    )


def factory_of(name: str) -> Any:
    """Return the class, or function, behind a reward's name; of a function that scores itself, what wraps it.

    Raises:
        RewardError: unknown name, or importing its module fails, whatever it raises.
    """
    module_name, _, attribute = resolve_scorer(name).partition(":")
    try:
        with nullcontext() if name in SCORERS else _settings_kept(name):
            made = getattr(import_own(module_name), attribute)
            return made if name in SCORERS or kind_of(made) is None else made_by(made)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's module may raise anything, or be a script that exits
        raise RewardError(
            f"The reward {quote(name)} cannot be imported: {describe(error)}. Check the name, and the module."
        ) from error


def load_reward(name: str, **options: Any) -> Scorer:
    """Make a scorer.

    Args:
        name: a registered name, or "module:Object" for a scorer of your own.
        **options: keyword arguments of the scorer's constructor.

    Returns:
        A callable `Scorer`.

    Raises:
        RewardError: unknown name, options that the scorer does not take, or something that is no scorer.
    """
    factory = factory_of(name)
    if not callable(factory):
        raise RewardError(f"A reward is a class, or a function that makes a scorer. {name} is {factory!r}.")
    check_options(name, factory, options)
    try:
        with _settings_kept(name):
            made = factory(**options)
    except (RewardError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a stranger's constructor raises
        unknown = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
        if unknown and unknown.group(1) in options:  # a constructor of **options, which hands them on
            raise RewardError(
                f"The reward {name} does not take these options: {unknown.group(1)}. {printable(error)}."
            ) from error
        received = f" with the options {', '.join(options)}" if options else ""
        raise RewardError(
            f"The reward {name} cannot be made{received}: {describe(error)}. Check its options, and what it needs."
        ) from error
    if kind_of(made) is not None:
        return FunctionReward(made)
    lacking = _lacking(made)
    if lacking:
        _refuse_function_that_scores(name, made)
        raise RewardError(
            f"A reward is a callable with a `spec` and `to`. {name} gives a {type(made).__name__} without {lacking}. "
            "See reward_models.Scorer."
        )
    return cast("Scorer", made)


def move(name: str, scorer: Scorer, device: Any) -> Any:
    """Return what `scorer.to(device)` returns; of a scorer that keeps the contract, itself.

    Raises:
        RewardError: it raises.
    """
    try:
        with _settings_kept(name):
            return scorer.to(device)
    except (RewardError, KeyboardInterrupt):
        raise
    except BaseException as error:  # out of memory, no such device, or whatever a stranger's scorer raises
        raise RewardError(
            f"The reward {name} cannot be moved to {device}: {describe(error)}. Try another device."
        ) from error


def require_itself(name: str, scorer: Scorer, moved: Any) -> None:
    """Refuse a scorer whose `to` returned something else.

    Raises:
        RewardError: it did.
    """
    if moved is not scorer:
        raise RewardError(
            f"`to(device)` of a reward must return the scorer itself. That of {name} returns {type(moved).__name__}. "
            "End it with `return self`."
        )


def _settings_kept(name: str) -> AbstractContextManager[None]:
    from reward_models.process_state import settings_kept  # torch, only now that a scorer is wanted

    return settings_kept(name, scoring=False)


def check_options(name: str, factory: Any, options: Mapping[str, Any]) -> None:
    """Hold options against the constructor's signature; of one that takes **options, `__signature__` may tell more.

    Raises:
        RewardError: lists what it takes.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return
    named = {key: p for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [str(key) for key in options if key not in named]
    takes = f"It takes: {', '.join(named)}." if named else "It takes none."
    if unknown and not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        raise RewardError(f"The reward {name} does not take these options: {', '.join(unknown)}. {takes}")
    missing = [key for key, p in named.items() if p.default is p.empty and key not in options]
    if missing:
        if not options:
            _refuse_function_that_scores(name, factory)
        names = ", ".join(map(str, options)) or "no options"
        raise RewardError(f"The reward {name} needs the option {' and '.join(missing)}. Got {names}. Add it. {takes}")


def _refuse_function_that_scores(name: str, function: Any) -> None:
    """Refuse a function of the images themselves whose form is none that `reward_models.functions` knows.

    Raises:
        RewardError: it is one; says how to wrap it.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no function, or one that does not tell its arguments
        return
    takes = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    scores_batches = takes == ["batch"] and inspect.isfunction(function)
    if isinstance(function, type) or not (scores_batches or _SCORED & set(takes)):
        return
    raise RewardError(
        f"A reward is a function f(images, prompts, metadata=None) or f(prompts, completions, **columns) that returns "
        f"a number a sample, or a class with `spec`, `__call__(batch)` and `to`. {name} scores by itself, and takes "
        f"{', '.join(takes)}. Give it one of these forms: docs/rewards.md#functions-of-other-tools."
    )


def _lacking(made: Any) -> str:
    """Return what of a scorer an object has not; empty if it is one."""
    from reward_models.base import ScorerSpec  # torch, only now that a scorer is there

    if isinstance(made, type):
        return "an instance: it is a class"
    if not callable(made):
        return "a `__call__`"
    try:
        spec = made.spec
    except (Exception, SystemExit):  # also a property that raises
        spec = None
    if not isinstance(spec, ScorerSpec):
        return "a `spec` that is a reward_models.ScorerSpec"
    return "" if callable(getattr(made, "to", None)) else "a method `to(device)`"
