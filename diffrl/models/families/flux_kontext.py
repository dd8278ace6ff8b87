"""FLUX.1 Kontext: FLUX.1 that edits an image, whose latents pass through the network beside those that are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diffrl.functional.guidance import beside
from diffrl.models.adapter import Conditioning
from diffrl.models.editing import PackedEditingAdapter
from diffrl.models.families import flux

if TYPE_CHECKING:
    import torch
    from torch import Tensor


FAMILY = replace(
    flux.FAMILY,
    name="flux_kontext",
    title="FLUX.1 Kontext",
    adapter="diffrl.models.families.flux_kontext:FluxKontextAdapter",
    pipelines=("FluxKontextPipeline",),
    sol_rl_exclude=(),
    edits=True,
    negative_prompt="",
    true_cfg_scale=1.0,
)


class FluxKontextAdapter(PackedEditingAdapter, flux.FluxAdapter):
    """A `FluxKontextPipeline` as velocities over sigmas.

    An image to edit is scaled to the size that is drawn. The stock pipeline scales it to that of the sizes near 1024 x
    1024 whose ratio of sides is nearest to the image's, whatever is drawn: at 1024 x 1024 that is the same.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: of images in pixels; None takes the pipeline's own.
        width: of images in pixels; None takes the pipeline's own.
        max_sequence_length: T5 tokens of a prompt.
        true_cfg_scale: of classifier-free guidance with the empty prompt and the same source, beside the guidance that
            the network is given as a number. 1 = none.
    """

    family = FAMILY

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
        true_cfg_scale: float = 1.0,
    ):
        super().__init__(pipeline, dtype, height, width, max_sequence_length)
        self.true_cfg_scale = true_cfg_scale

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Return what a pipeline's own settings file may hold: no guidance, which plans have to know of."""
        return tuple(name for name in super().options() if name != "true_cfg_scale")

    def calls_per_step(self, guidance_scale: float) -> int:
        """Return two with true classifier-free guidance, whatever the other one is."""
        return 2 if beside(guidance_scale, self.true_cfg_scale) > 1 else 1

    def guide(self, unconditional: Tensor, conditional: Tensor, guidance_scale: float) -> Tensor:
        """Guide by true classifier-free guidance, or a loss's own; the distilled one is in both predictions."""
        return super().guide(unconditional, conditional, beside(guidance_scale, self.true_cfg_scale))

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return T5 embeddings (B, L, D) and CLIP's pooled (B, P), with true guidance those of the empty prompt too."""
        if self.true_cfg_scale <= 1:
            return super().encode_prompts(prompts)
        with self.on_device("text_encoder"):
            conditioning = super().encode_prompts(prompts)
            return self.with_empty(
                conditioning, {} if self.empty_prompt_cached else super().encode_prompts([self.negative_prompt])
            )

    def stock_call(self) -> Mapping[str, Any]:
        """Return sizes: the stock call would draw about a million pixels, and take a source of as many."""
        height, width = self.height, self.width
        return {"height": height, "width": width, "max_area": height * width, "_auto_resize": False}

    def _image_ids(self, like: Tensor) -> Tensor:
        """Return positions (tokens, 3) of the generated image and then, first coordinate 1, of the source."""
        import torch

        generated = super()._image_ids(like)
        source = generated.clone()
        source[:, 0] = 1
        return torch.cat([generated, source])[: like.shape[1]]


TINY_SETTINGS = flux.TINY_SETTINGS


def build_tiny(words: Sequence[str]) -> Any:
    """Build a pipeline for 32 x 32 images of FLUX.1's tiny parts, as the published pipelines share theirs."""
    from diffusers import FluxKontextPipeline

    parts = flux.build_tiny(words).components
    return FluxKontextPipeline(**{name: part for name, part in parts.items() if part is not None})
