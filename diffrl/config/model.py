"""The section that says which pipeline is aligned, and where and how its parts run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffrl.errors import ConfigError
from diffrl.models.families import FAMILIES, find_family
from diffrl.models.family import MOST_OPTIONS, Family
from diffrl.precision.facts import BASE_PRECISIONS
from diffrl.sections import LONGEST_PATH, LONGEST_TEXT, MOST_ITERATIONS, Known, ListOf, Section, problems, rule, show

MOST_RANK = 4096
"""The highest rank of a LoRA: the width of the largest networks, where it would be no longer low."""

SHA256 = r"^[0-9a-f]{64}$"

LONGEST_NEGATIVE = 10_000
"""Characters of a negative prompt."""


class LoraStartSettings(Section):
    """A LoRA that exists already, to go on training from."""

    path: str = Field(
        min_length=1,
        max_length=LONGEST_PATH,
        description="Its safetensors file, or a folder with one, whoever trained it (docs/checkpoints.md); relative to "
        "where diffrl is started. Its rank and layers must be those of model.lora; another alpha is scaled in.",
    )
    sha256: str | None = Field(
        None, pattern=SHA256, description="Of the file. null = the run writes it down when it begins."
    )


class LoraSettings(Section):
    """Low-rank adapters, trained in place of the network's own weights."""

    rank: int = Field(32, ge=1, le=MOST_RANK, description="Rank of each adapter.")
    alpha: float = Field(64.0, ge=1.0e-3, le=1.0e6, description="Adapters are scaled by alpha / rank.")
    use_rslora: bool = Field(
        False,
        description="Scale them by alpha / sqrt(rank), rsLoRA (arXiv 2312.03732), so that a larger rank takes the same "
        "rate. Files hold the alpha of the plain scaling, which every loader knows.",
    )
    targets: (
        Annotated[
            ListOf[Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]], Field(min_length=1, max_length=1000)
        ]
        | None
    ) = Field(
        None,
        description="Linear layers that get an adapter: their names' last parts, as peft matches them. null = the "
        "family's attention layers.",
    )
    start: LoraStartSettings | None = Field(
        None,
        description="A LoRA that the run begins with; the reference of objective.kl stays the pipeline without it. "
        "null = one that changes nothing yet.",
    )

    @property
    def plain_alpha(self) -> float:
        """What alpha is where adapters are scaled by alpha / rank."""
        return self.alpha * math.sqrt(self.rank) if self.use_rslora else self.alpha


class InitSettings(Section):
    """Another run's trained weights, of the same model and LoRA (diffrl train --init-from)."""

    run: str = Field(
        min_length=1, max_length=LONGEST_PATH, description="That run's folder, relative to where diffrl is started."
    )
    step: int = Field(ge=1, le=MOST_ITERATIONS, description="Iteration of its checkpoint: step-000040 is 40.")
    sha256: str | None = Field(
        None,
        pattern=SHA256,
        description="Of that checkpoint's manifest.json, which names the sums of its files. null = the run writes it "
        "down when it begins.",
    )


def _known_family(name: str) -> str:
    try:
        find_family(name)
    except ConfigError as error:
        raise rule(str(error).removeprefix("model.family ")) from error
    return name


class ModelSettings(Section):
    """The pipeline that is aligned."""

    family: Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_known_family)] = Field(
        description="; ".join(f"{family.name} = {family.title}" for family in FAMILIES.values())
        + "; or 'module:Adapter' of your own."
    )
    path: str = Field(
        min_length=1,
        max_length=LONGEST_PATH,
        description="A pipeline's folder in diffusers format, or its name on the hub. assets/tiny-sd3, assets/tiny-wan "
        "and assets/tiny-words come with diffrl: they are found from any folder that has none of that name.",
    )
    revision: str | None = Field(
        None, min_length=1, max_length=LONGEST_TEXT, description="Branch, tag or commit on the hub; null = the newest."
    )
    variant: str | None = Field(
        None,
        pattern=r"^\w+$",
        max_length=LONGEST_TEXT,
        description="Of the files of weights: fp16 reads *.fp16.safetensors in the parts that have them, and the plain "
        "files of the others. null = the plain files.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of frozen weights and of network calls; trained weights are always float32."
    )
    lora: LoraSettings | None = Field(None, description="null = full fine-tuning of the transformer.")
    init_from: InitSettings | None = Field(
        None,
        description="Trained weights that the run begins with; the reference of objective.kl stays the pipeline. null "
        "= the pipeline's own.",
    )
    base_precision: Annotated[str, Known("model.base_precision", BASE_PRECISIONS)] | None = Field(
        None,
        description="Of the frozen weights under a LoRA: int8 or nf4 by bitsandbytes, a half or a quarter of "
        "bfloat16's memory, for rollout and update alike; int8 takes its inputs in float16. null = dtype.",
    )
    allow_distilled: bool = Field(
        False, description="Train a checkpoint that was distilled to few steps all the same; see docs/models.md."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto = cuda if there is one; what really runs is recorded with the run."
    )
    height: int | None = Field(
        None, ge=1, le=MOST_OPTIONS["height"], description="Image height in pixels. null = the pipeline's own."
    )
    width: int | None = Field(
        None, ge=1, le=MOST_OPTIONS["width"], description="Image width in pixels. null = the pipeline's own."
    )
    frames: int | None = Field(
        None,
        ge=1,
        le=MOST_OPTIONS["frames"],
        description="Frames of a video. null = the pipeline's own. Only with families that generate videos.",
    )
    fps: float | None = Field(
        None,
        ge=0.1,
        le=1000,
        description="Frames per second of a video, for scorers and files. null = the family's own; "
        + ", ".join(f"{family.name}: {family.fps:g}" for family in FAMILIES.values() if family.fps)
        + ".",
    )
    max_sequence_length: int | None = Field(
        None,
        ge=1,
        le=MOST_OPTIONS["max_sequence_length"],
        description="Text tokens of a prompt. null = what the pipeline's diffrl.json says, else as in the stock "
        "pipeline ("
        + ", ".join(
            f"{one.name}: {one.max_sequence_length:,}" for one in FAMILIES.values() if one.max_sequence_length != 512
        )
        + ", all others: 512). An SD3 without T5 gets zeros "
        "instead.",
    )
    true_cfg_scale: float | None = Field(
        None,
        gt=1.0,
        le=100.0,
        description="Of classifier-free guidance beside rollout.guidance_scale, which a network like FLUX.1 Kontext is "
        "given as a number: two network calls a step. null = none.",
    )
    negative_prompt: str | None = Field(
        None,
        max_length=LONGEST_NEGATIVE,
        description="What classifier-free guidance leads away from, for all prompts, in rollouts and evaluations; the "
        "reference's guidance too. null = the family's, the empty prompt.",
    )
    attention: (
        Literal[
            "native",
            "_native_cudnn",
            "_native_flash",
            "_native_efficient",
            "_native_math",
            "flash",
            "flash_hub",
            "_flash_3_hub",
            "xformers",
        ]
        | None
    ) = Field(
        None,
        description="Attention backend, as diffusers names them; tried forward and backward at the start. "
        "null = native.",
    )
    compile: bool = Field(False, description="torch.compile the transformer's blocks, for rollout and update alike.")
    offload: ListOf[Literal["text_encoders", "vae"]] = Field(
        (),
        description="Parts that rest on the CPU and come to the device for each use; text_encoders: what sees an image "
        "for the network, too.",
    )
    vae_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Of the image decoder. null = dtype; wan: float32."
    )
    vae_slicing: bool = Field(False, description="Decode one image at a time: less memory.")
    vae_tiling: bool = Field(False, description="Decode in overlapping tiles: less memory, for large images.")

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        faults = []
        if self.frames is not None and self.facts.media != "video":
            faults.append(
                f"model.frames must be null for model.family: {self.family}, which generates images. Got "
                f"{self.frames}. "
                "Remove it."
            )
        if self.fps is not None and self.facts.media != "video":
            faults.append(
                f"model.fps must be null for model.family: {self.family}, which generates images. Got {self.fps:g}. "
                "Remove it."
            )
        if self.true_cfg_scale is not None and self.facts.true_cfg_scale is None:
            faults.append(
                f"model.true_cfg_scale must be null for model.family: {self.family}, whose guidance is "
                f"rollout.guidance_scale alone. Got {self.true_cfg_scale:g}. Remove it."
            )
        if self.negative_prompt is not None and (why := self.facts.without_negative_prompt()):
            faults.append(
                f"model.negative_prompt must be null for model.family: {self.family}, {why}. Got "
                f"{show(self.negative_prompt)}. Remove it."
            )
        if self.base_precision is not None and self.lora is None:
            faults.append(
                "model.base_precision must be null without model.lora: quantised weights cannot be trained. Got "
                f"{show(self.base_precision)}. Add model.lora or remove it."
            )
        if self.init_from is not None and self.lora_start is not None:
            faults.append(
                "model.lora.start and model.init_from each say what the run begins with. Got both. Remove one of them."
            )
        if faults:
            raise problems(faults)
        return self

    @property
    def lora_start(self) -> LoraStartSettings | None:
        """The LoRA that the run begins with, if any."""
        return None if self.lora is None else self.lora.start

    @property
    def facts(self) -> Family:
        """What is known of the family."""
        family, stock = find_family(self.family), dict[str, Any]()
        if self.true_cfg_scale is not None and family.true_cfg_scale is not None:
            family = replace(family, true_cfg_scale=self.true_cfg_scale)
            stock = {"true_cfg_scale": self.true_cfg_scale, "negative_prompt": ""}
        if self.negative_prompt is not None:
            stock["negative_prompt"] = self.negative_prompt
        return replace(family, stock_options=(*family.stock_options, *stock.items())) if stock else family

    @property
    def frame_rate(self) -> float | None:
        """Frames per second of what is drawn; None for pictures."""
        return self.facts.fps if self.fps is None else self.fps

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """The layers that get an adapter; empty without LoRA."""
        if self.lora is None:
            return ()
        return self.facts.lora_targets if self.lora.targets is None else self.lora.targets

    @property
    def adapters(self) -> Mapping[str, Any] | None:
        """Rank, alpha and targets of the LoRA; None without."""
        if self.lora is None:
            return None
        return {"rank": self.lora.rank, "alpha": self.lora.plain_alpha, "targets": self.lora_targets}

    @property
    def options(self) -> dict[str, int | None]:
        """Sizes that the adapter is asked for; None leaves it the choice."""
        names = ("height", "width", "frames", "max_sequence_length")
        return {name: getattr(self, name) for name in names}
