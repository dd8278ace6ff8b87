"""What diffrl adds to `python -m reward_models score`: pictures of prompts, drawn before they are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from reward_models.common.errors import RewardError
from reward_models.common.options import SampleOptions, in_panel

DRAW = "Generate first"


@dataclass(frozen=True)
class DrawOptions:
    """The pictures to draw."""

    pipeline: Annotated[str | None, in_panel(DRAW, "A pipeline, or a run, that samples --prompts into --images.")] = (
        None
    )
    images: Annotated[Path | None, in_panel(DRAW, "Folder for the images; it must be new or empty.")] = None
    per_prompt: Annotated[int, in_panel(DRAW, "Images of each prompt.", min=1)] = 1
    seed: Annotated[int, in_panel(DRAW, "Of the noise.", min=0)] = 0
    steps: Annotated[int | None, in_panel(DRAW, "Denoising steps.", min=1)] = None
    guidance_scale: Annotated[float | None, in_panel(DRAW, "1 is off.", min=1.0)] = None
    pipeline_dtype: Annotated[str | None, in_panel(DRAW, "Of the pipeline: float32 or bfloat16.")] = None


def folder_to_draw_into(drawing: DrawOptions, paths: Sequence[str]) -> Path:
    """Return the folder for the pictures.

    Raises:
        RewardError: --pipeline without --images or the other way round, or PATHs beside them.
    """
    if drawing.pipeline is None or drawing.images is None:
        raise RewardError("--pipeline PIPELINE and --images FOLDER go together. Got one without the other.")
    if paths:
        raise RewardError("Give PATHs to score, or --pipeline to sample from, and not both. Got both.")
    return drawing.images


def draw_pictures(drawing: DrawOptions, samples: SampleOptions, device: str) -> list[str]:
    """Draw what is to be scored; returns lines for the user.

    Args:
        drawing: from what, how, and into which folder.
        samples: its prompts, and how many.
        device: auto, cpu or cuda.

    Raises:
        ConfigError: the pipeline cannot be loaded, there are no prompts, or the folder holds something already.
    """
    from diffrl.export.generate import generate_pictures
    from diffrl.export.pictures import run_or_model
    from diffrl.export.request import GenerateRequest
    from diffrl.files import require_empty

    images = folder_to_draw_into(drawing, ())
    require_empty(images, "--images", f" To score what is there: diffrl score {images}.")
    run, model = run_or_model(str(drawing.pipeline))
    request = GenerateRequest(
        model=model,
        run=run,
        prompt=[samples.prompt] if samples.prompt is not None else None,
        prompts=samples.prompts,
        limit=samples.limit,
        per_prompt=drawing.per_prompt,
        seed=drawing.seed,
        steps=drawing.steps,
        guidance_scale=drawing.guidance_scale,
        device=device,
        dtype=drawing.pipeline_dtype or "float32",
    )
    return generate_pictures(request, images)
