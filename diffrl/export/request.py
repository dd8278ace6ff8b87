"""What `diffrl generate` and `diffrl evaluate` are asked for: their options, without anything heavy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reward_models.common.options import in_panel

if TYPE_CHECKING:
    from diffrl.records import Prompt
    from diffrl.run.checkpoints import Choice

MODEL, SAMPLING, PROMPTS = "Whose weights", "How it is sampled", "Prompts"
MEASURED, RESULT = "What is measured", "Results"
ONLY_OF_MODEL = ("height", "width", "frames", "family", "dtype", "variant", "lora", "negative_prompt")
"""Options that go with `--model` alone: a run has its own."""


@dataclass(frozen=True)
class ModelOptions:
    """Whose weights; `--run` and `--model` exclude each other."""

    run: Annotated[Path | None, in_panel(MODEL, "A run, whose aligned weights are used.")] = None
    step: Annotated[
        int | None,
        in_panel(MODEL, "With --run: the checkpoint of this iteration. Default: the newest healthy one.", min=1),
    ] = None
    best: Annotated[
        bool,
        in_panel(
            MODEL, "With --run: the checkpoint with the best first held-out reward, of those evaluated.", "--best"
        ),
    ] = False
    newest: Annotated[bool, in_panel(MODEL, "With --run: the newest checkpoint, healthy or not.", "--newest")] = False
    model: Annotated[str | None, in_panel(MODEL, "A pipeline's directory or hub id.")] = None
    family: Annotated[str | None, in_panel(MODEL, "Of --model. Default: what its pipeline class says.")] = None
    lora: Annotated[
        str | None, in_panel(MODEL, "With --model: a LoRA's file or folder, of diffrl or another trainer.")
    ] = None
    device: Annotated[str, in_panel(MODEL, "auto, cpu or cuda.")] = "auto"
    dtype: Annotated[str, in_panel(MODEL, "Of --model: float32 or bfloat16.")] = "float32"
    variant: Annotated[
        str | None, in_panel(MODEL, "Of --model's files of weights: fp16 reads *.fp16.safetensors where there are any.")
    ] = None
    negative_prompt: Annotated[
        str | None, in_panel(SAMPLING, "What guidance leads away from, with --model. Default: the empty prompt.")
    ] = None
    height: Annotated[int | None, in_panel(SAMPLING, "In pixels, with --model.", min=1, max=16383)] = None
    width: Annotated[int | None, in_panel(SAMPLING, "In pixels, with --model.", min=1, max=16383)] = None
    frames: Annotated[int | None, in_panel(SAMPLING, "Of a video, with --model.", min=1, max=4096)] = None
    steps: Annotated[
        int | None, in_panel(SAMPLING, "Denoising steps. Default: the run's, else 28.", min=1, max=1000)
    ] = None

    def require_source(self) -> None:
        """Look for the run or the pipeline on the disk, before anything heavy is imported.

        Options that do not go together are told first, by `export.pictures.require_run_or_model`: nothing is done here.

        Raises:
            ConfigError: it is not there.
        """
        from diffrl.models.hub import is_here
        from diffrl.tracking.places import require_run_dir

        others = (*ONLY_OF_MODEL, "step", "best", "newest")
        if any(getattr(self, name) != getattr(ModelOptions, name) for name in others) or (self.run and self.model):
            return
        if self.run is not None:
            require_run_dir(self.run)
        elif self.model is not None:
            is_here(self.model)

    def require_named(self, prompts: str | None, rewards: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """Look at the names of prompts and rewards before anything heavy is imported, where one model is named.

        Raises:
            ConfigError: there are no such prompts.
            RewardError: there is no such reward.
        """
        if (self.run is None) == (self.model is None):
            return  # which is told first
        if prompts is not None and not prompts.startswith("hub:") and not os.path.exists(prompts.partition("@")[0]):
            from diffrl.data.prompts import read_prompts

            read_prompts(prompts)
        if rewards:
            from reward_models.scoring.choices import choose

            choose(rewards, options)

    @property
    def negative_prompts(self) -> dict[str, Sequence[Prompt]]:
        """Return the negative prompt by its option; nothing without one."""
        from diffrl.records import Prompt

        return {} if self.negative_prompt is None else {"--negative-prompt": [Prompt(self.negative_prompt)]}

    @property
    def choice(self) -> Choice:
        """Return which of the run's checkpoints is meant."""
        from diffrl.run.checkpoints import Choice

        return Choice(self.step, self.best, self.newest)


@dataclass(frozen=True)
class GenerateRequest(ModelOptions):
    """What to generate."""

    prompt: Annotated[list[str] | None, in_panel(PROMPTS, "A prompt; may be given several times.")] = None
    image: Annotated[
        str | None, in_panel(PROMPTS, "The image that every --prompt edits, with a family that edits.")
    ] = None
    prompts: Annotated[
        str | None, in_panel(PROMPTS, "shapes:tune, a .txt or .jsonl file, a table, or hub:<dataset>.")
    ] = None
    limit: Annotated[int | None, in_panel(PROMPTS, "Take only the first prompts.", min=1, max=1_000_000)] = None
    per_prompt: Annotated[int, in_panel(PROMPTS, "Images of each prompt.", min=1, max=100_000)] = 1
    seed: Annotated[int, in_panel(SAMPLING, "Of the noise.", min=0, max=2**63 - 1)] = 0
    guidance_scale: Annotated[
        float | None, in_panel(SAMPLING, "1 is off. Default: the run's, else 1.", min=1.0, max=1000.0)
    ] = None
    batch: Annotated[int, in_panel(SAMPLING, "Images at once; bounds memory.", min=1, max=100_000)] = 64


@dataclass(frozen=True)
class EvaluateRequest(ModelOptions):
    """What to measure."""

    base: Annotated[bool, in_panel(MODEL, "With --run: measure its model before alignment too.", "--base")] = False

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
        in_panel(SAMPLING, "1 is off. Several: a row each. Default: the run's, else 1.", min=1.0, max=1000.0),
    ] = None
    batch: Annotated[
        int | None, in_panel(SAMPLING, "Samples at once. Default: the run's, else 64.", min=1, max=100_000)
    ] = None
    out: Annotated[
        Path | None, in_panel(RESULT, "Keep the samples, a folder a row; it must be new or empty. Default: not kept.")
    ] = None
    as_json: Annotated[bool, in_panel(RESULT, "Print the rows as JSON.", "--json")] = False
