"""What diffrl adds to `python -m reward_models`: pictures of prompts, drawn before they are scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_models.scoring.drawing import Drawing


def draw_pictures(drawing: Drawing) -> list[str]:
    """Draw what is to be scored; returns lines for the user.

    Raises:
        ConfigError: the pipeline cannot be loaded, there are no prompts, or the folder holds something already.
    """
    from diffrl.errors import ConfigError
    from diffrl.export.generate import GenerateRequest, generate_pictures

    if drawing.images.exists() and (not drawing.images.is_dir() or any(drawing.images.iterdir())):
        raise ConfigError(
            f"--images must be a new or empty folder, so that nothing is overwritten. Got {drawing.images}. To score "
            f"what is there: diffrl score {drawing.images}."
        )
    run = Path(drawing.pipeline) if (Path(drawing.pipeline) / "config.yaml").is_file() else None
    return generate_pictures(
        GenerateRequest(
            out=drawing.images,
            model=drawing.pipeline if run is None else None,
            run=run,
            prompts=(drawing.prompt,) if drawing.prompt is not None else (),
            source=drawing.prompts,
            limit=drawing.limit,
            per_prompt=drawing.per_prompt,
            seed=drawing.seed,
            steps=drawing.steps,
            guidance_scale=drawing.guidance_scale,
            device=drawing.device,
            dtype=drawing.dtype or "float32",
        )
    )
