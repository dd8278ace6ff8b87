"""What `diffrl score --pipeline` asks for before it scores; drawing itself is diffrl's business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Drawing:
    """Pictures to draw.

    Args:
        pipeline: a pipeline's directory or hub id, or a run's directory for its aligned weights.
        images: folder for the pictures; new or empty.
        prompt: one prompt, or None.
        prompts: a source of prompts as `diffrl generate` takes it, or None.
        limit: only the first prompts.
        per_prompt: pictures of each.
        seed: of the noise.
        steps: denoising steps; None: the default.
        guidance_scale: None: the default.
        device: auto, cpu or cuda.
        dtype: of the pipeline; None: float32.
    """

    pipeline: str
    images: Path
    prompt: str | None = None
    prompts: str | None = None
    limit: int | None = None
    per_prompt: int = 1
    seed: int = 0
    steps: int | None = None
    guidance_scale: float | None = None
    device: str = "auto"
    dtype: str | None = None


Draw = Callable[[Drawing], Sequence[str]]
"""Draws and writes the pictures and their samples.jsonl; returns lines for the user."""
