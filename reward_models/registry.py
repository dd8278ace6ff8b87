"""Names of reward models, resolved lazily so that listing them imports nothing heavy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from reward_models.errors import RewardError

if TYPE_CHECKING:
    from reward_models.base import Scorer

SCORERS: Mapping[str, str] = {
    "aesthetic": "reward_models.aesthetic:AestheticScorer",
    "clip_score": "reward_models.clip_score:ClipScorer",
    "colourfulness": "reward_models.picture_statistics:ColourfulnessScorer",
    "contrast": "reward_models.picture_statistics:ContrastScorer",
    "diversity": "reward_models.diversity:DiversityScorer",
    "dynamic_degree_proxy": "reward_models.optical_flow:DynamicDegreeScorer",
    "geneval": "reward_models.geneval:GenEvalScorer",
    "geneval_strict": "reward_models.geneval:StrictGenEvalScorer",
    "hpsv2": "reward_models.hpsv2:HPSv2Scorer",
    "hpsv3": "reward_models.hpsv3:HPSv3Scorer",
    "image_reward": "reward_models.image_reward:ImageRewardScorer",
    "jpeg_compressibility": "reward_models.jpeg:CompressibilityScorer",
    "jpeg_incompressibility": "reward_models.jpeg:IncompressibilityScorer",
    "motion_smoothness_proxy": "reward_models.flicker:MotionSmoothnessScorer",
    "moving_shapes": "reward_models.moving_shapes:MovingShapesScorer",
    "moving_shapes_strict": "reward_models.moving_shapes:StrictMovingShapesScorer",
    "ocr": "reward_models.ocr:OcrScorer",
    "pickscore": "reward_models.pickscore:PickScorer",
    "remote": "reward_models.remote:RemoteScorer",
    "shapes": "reward_models.shapes:ShapesScorer",
    "shapes_strict": "reward_models.shapes:StrictShapesScorer",
    "sharpness": "reward_models.picture_statistics:SharpnessScorer",
    "temporal_flicker": "reward_models.flicker:TemporalFlickerScorer",
    "unified_reward": "reward_models.unified_reward:UnifiedRewardScorer",
    "video_align": "reward_models.video_align:VideoAlignScorer",
    "video_mean": "reward_models.video_mean:VideoMeanScorer",
    "vlm_judge": "reward_models.vlm_judge:VlmJudgeScorer",
}


def resolve_scorer(name: str) -> str:
    """The "module:Object" path of a registered name, or `name` itself if it already is such a path.

    Raises:
        RewardError: the name is neither; the message lists the known names.
    """
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return name
    close = difflib.get_close_matches(name, SCORERS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise RewardError(
        f"A reward is a known name or 'module:Object'. Got {name!r}.{hint} Known names: {', '.join(sorted(SCORERS))}."
    )


def load_reward(name: str, **options: Any) -> Scorer:
    """Make a scorer.

    Args:
        name: a registered name, or "module:Object" for a scorer of your own.
        **options: keyword arguments of the scorer's constructor.

    Returns:
        A callable `Scorer`.

    Raises:
        RewardError: unknown name, or options that the scorer does not take.
    """
    module_name, _, attribute = resolve_scorer(name).partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RewardError(f"The reward {name!r} cannot be imported: {error}.") from error
    try:
        return cast("Scorer", factory(**options))
    except TypeError as error:
        raise RewardError(f"The reward {name!r} does not take these options: {options}. {error}.") from error
