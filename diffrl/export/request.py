"""What `diffrl evaluate` is asked for: its options, without anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from reward_models.common.options import in_panel

MODEL, MEASURED, DRAWN, RESULT = "Whose weights", "What is measured", "How it is sampled", "Results"


@dataclass(frozen=True)
class EvaluateRequest:
    """What to measure; `--run` and `--model` exclude each other."""

    run: Annotated[Path | None, in_panel(MODEL, "A run, whose aligned weights are measured.")] = None
    step: Annotated[
        int | None, in_panel(MODEL, "With --run: the checkpoint of this iteration. Default: the newest.", min=1)
    ] = None
    best: Annotated[
        bool,
        in_panel(
            MODEL, "With --run: the checkpoint with the best first held-out reward, of those evaluated.", "--best"
        ),
    ] = False
    base: Annotated[bool, in_panel(MODEL, "With --run: measure its model before alignment too.", "--base")] = False
    model: Annotated[str | None, in_panel(MODEL, "A pipeline's directory or hub id.")] = None
    family: Annotated[str | None, in_panel(MODEL, "Of --model. Default: what its pipeline class says.")] = None
    lora: Annotated[
        str | None, in_panel(MODEL, "With --model: a LoRA's file or folder, of diffrl or another trainer.")
    ] = None
    device: Annotated[str, in_panel(MODEL, "auto, cpu or cuda.")] = "auto"
    dtype: Annotated[str, in_panel(MODEL, "Of --model: float32 or bfloat16.")] = "float32"
    variant: Annotated[
        str | None,
        in_panel(MODEL, "Of --model's files of weights: fp16 reads *.fp16.safetensors where there are any."),
    ] = None

    prompts: Annotated[
        str | None,
        in_panel(
            MEASURED,
            "shapes:report, a .txt or .jsonl file, a table, or hub:<dataset>. Default: the run's held-out ones.",
        ),
    ] = None
    samples: Annotated[
        int | None, in_panel(MEASURED, "Samples; prompts in turn. Default: the run's, else 500.", min=1, max=100_000)
    ] = None
    reward: Annotated[
        list[str] | None, in_panel(MEASURED, "As in diffrl score. Several. Default: the run's eval.rewards.")
    ] = None
    option: Annotated[list[str] | None, in_panel(MEASURED, "[LABEL.]KEY=VALUE, an option of a --reward. Several.")] = (
        None
    )
    variety: Annotated[
        int | None,
        in_panel(
            MEASURED,
            "Also sample 48 prompts so many times each: their diversity, and distance to the model before alignment.",
            min=2,
            max=1000,
        ),
    ] = None

    guidance: Annotated[
        list[float] | None,
        in_panel(DRAWN, "1 is off. Several: a row each. Default: the run's, else 1.", min=1.0, max=1000.0),
    ] = None
    steps: Annotated[int | None, in_panel(DRAWN, "Denoising steps. Default: the run's, else 28.", min=1, max=1000)] = (
        None
    )
    batch: Annotated[
        int | None, in_panel(DRAWN, "Samples at once. Default: the run's, else 64.", min=1, max=100_000)
    ] = None
    height: Annotated[int | None, in_panel(DRAWN, "In pixels, with --model.", min=1, max=16383)] = None
    width: Annotated[int | None, in_panel(DRAWN, "In pixels, with --model.", min=1, max=16383)] = None
    frames: Annotated[int | None, in_panel(DRAWN, "Of a video, with --model.", min=1, max=4096)] = None

    out: Annotated[
        Path | None, in_panel(RESULT, "Keep the samples, a folder a row; it must be new or empty. Default: not kept.")
    ] = None
    as_json: Annotated[bool, in_panel(RESULT, "Print the rows as JSON.", "--json")] = False
