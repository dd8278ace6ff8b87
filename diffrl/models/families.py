"""The model families: which pipelines they load and what is known of them before anything is loaded.

Nothing heavy is imported here: configurations and plans read these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diffrl.errors import ConfigError
from diffrl.registry import resolve
from reward_models.messages import LONGEST_NAME, cut, show

JOINT_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")

MOST_OPTIONS: Mapping[str, int] = {"height": 16383, "width": 16383, "frames": 4096, "max_sequence_length": 1024}
"""The adapter options that cost memory, and how large they may be: in the configuration and in a pipeline's own
settings (`models.shipped`)."""


@dataclass(frozen=True)
class Family:
    """Facts of a model family.

    Args:
        name: as in `model.family`.
        title: what people call it.
        adapter: "module:Adapter" that runs it.
        pipelines: diffusers pipeline classes that the adapter loads.
        media: what it draws.
        guidance: classifier_free asks the network about the empty prompt too, which doubles the calls; embedded gives
            the scale to the network as a number.
        lora_targets: linear layers that get a LoRA if the configuration names none.
        exclude: linear layers that a low-precision copy leaves as they are; see `precision.layers.matches`.
        max_sequence_length: text tokens of a prompt that the stock pipeline takes by default.
        stock_options: arguments that a call of the stock pipeline needs to draw what diffrl draws.
        guidance_argument: what a call of the stock pipeline calls the guidance scale.
        idle_weights: whether some of the network's weights feed nothing and so never get a gradient.
        fps: frames per second of the videos that it was trained on; None for pictures.
        distilled: words in a checkpoint's name that say that it was distilled to few steps.
    """

    name: str
    title: str
    adapter: str
    pipelines: tuple[str, ...]
    media: Literal["image", "video"] = "image"
    guidance: Literal["classifier_free", "embedded"] = "classifier_free"
    lora_targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    exclude: tuple[str, ...] = ("proj_out",)
    max_sequence_length: int = 512
    stock_options: tuple[tuple[str, Any], ...] = ()
    guidance_argument: str = "guidance_scale"
    idle_weights: bool = False
    fps: float | None = None
    distilled: tuple[str, ...] = ("turbo", "lightning", "hyper", "lcm", "dmd", "distill")

    def calls_per_step(self, guidance_scale: float) -> int:
        """Network evaluations that one step of one sample takes."""
        return 2 if guidance_scale > 1 and self.guidance == "classifier_free" else 1


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="sd3",
            title="Stable Diffusion 3 and 3.5",
            adapter="diffrl.models.sd3:SD3Adapter",
            pipelines=("StableDiffusion3Pipeline",),
            lora_targets=JOINT_ATTENTION,
            exclude=(
                "pos_embed",
                "time_text_embed",
                "context_embedder",
                "norm_out",
                "proj_out",
                "norm1.linear",  # adaLN's modulation: a third of the parameters, but one row a sample
                "norm1_context.linear",
            ),
            max_sequence_length=256,
        ),
        Family(
            name="flux",
            title="FLUX.1",
            adapter="diffrl.models.flux:FluxAdapter",
            pipelines=("FluxPipeline",),
            guidance="embedded",
            lora_targets=JOINT_ATTENTION,
            exclude=(
                "x_embedder",
                "time_text_embed",
                "context_embedder",
                "norm_out",
                "^proj_out",  # the single blocks have one each, which is worth it
                "norm1.linear",
                "norm1_context.linear",
                "norm.linear",
            ),
            distilled=(*Family.distilled, "schnell"),
        ),
        Family(
            name="sana",
            title="SANA",
            adapter="diffrl.models.sana:SanaAdapter",
            pipelines=("SanaPipeline",),
            exclude=("patch_embed", "time_embed", "caption_projection", "proj_out"),
            max_sequence_length=300,
            stock_options=(("use_resolution_binning", False),),
            distilled=(*Family.distilled, "sprint"),
        ),
        Family(
            name="wan",
            title="Wan 2.1 and 2.2, text to video",
            adapter="diffrl.models.wan:WanAdapter",
            pipelines=("WanPipeline",),
            media="video",
            fps=16.0,
            exclude=("patch_embedding", "condition_embedder", "proj_out"),
            distilled=(*Family.distilled, "causvid", "self-forcing", "fastwan", "lightx2v"),
        ),
        Family(
            name="qwen_image",
            title="Qwen-Image",
            adapter="diffrl.models.qwen_image:QwenImageAdapter",
            pipelines=("QwenImagePipeline",),
            lora_targets=JOINT_ATTENTION[:-1],  # without to_add_out: the last block's feeds nothing, which DDP refuses
            stock_options=(("negative_prompt", " "),),
            guidance_argument="true_cfg_scale",
            idle_weights=True,  # of the last block's text half
            exclude=("img_in", "txt_in", "time_text_embed", "img_mod", "txt_mod", "norm_out", "proj_out"),
        ),
    )
}
"""A new family is one file with an adapter and one entry here; docs/add-a-model.md."""


def find_family(name: str) -> Family:
    """The facts of a family: of a name above, or of "module:Adapter", whose attribute `family` holds them.

    Raises:
        ConfigError: no such family, or an adapter that says nothing of itself.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    adapter = resolve("model.family", {known: family.adapter for known, family in FAMILIES.items()}, name)
    family = getattr(adapter, "family", None)
    if not isinstance(family, Family):
        raise ConfigError(
            f"model.family {name!r} must be an adapter with an attribute `family`, a diffrl.models.families.Family. "
            f"Got {show(family)}."
        )
    return family


def require_pipeline(family: Family, found: str, path: str) -> None:
    """Refuse a pipeline class that the family's adapter does not load.

    Raises:
        ConfigError: names the family that does, if there is one.
    """
    if found in family.pipelines:
        return
    needs = " or ".join(family.pipelines)
    other = next((known for known in FAMILIES.values() if found in known.pipelines), None)
    if other is not None:
        way_out = f"Set model.family: {other.name}, or choose another path."
    else:
        known = "; ".join(f"{known.name}: {', '.join(known.pipelines)}" for known in FAMILIES.values())
        way_out = f"No family of this version loads that class ({known}). docs/add-a-model.md tells how to add one."
    raise ConfigError(
        f"model.family={family.name} needs a {needs}. Got {cut(found, LONGEST_NAME)} in {path!r}. {way_out}"
    )
