"""Wan 2.1 and 2.2, image to video: an image is the first frame, and its encoding is joined to the latents' channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.families import wan

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor

CLIP_TEXT_TOKENS = 512
"""Text tokens that diffusers' attention takes a network with CLIP's image tokens to have; all before them are images'.
"""


FAMILY = replace(
    wan.FAMILY,
    name="wan_i2v",
    title="Wan 2.1 and 2.2, image to video",
    adapter="diffrl.models.families.wan_i2v:WanImageAdapter",
    pipelines=("WanImageToVideoPipeline",),
    edits=True,
)


class WanImageAdapter(wan.WanAdapter):
    """A `WanImageToVideoPipeline` as velocities over sigmas: all of the video is drawn, its first frame too.

    What the network is told of the image, beside CLIP's tokens of it (Wan 2.1): the encoding of a clip whose first
    frame it is and whose others are grey, and a mask that says so. The mask is made anew in each call. The encoder and
    CLIP see the image scaled to the size that is drawn, as where a stock call is given one of that size.

    Args:
        pipeline: the diffusers pipeline; with `transformer_2` both networks are trained.
        dtype: what the transformer computes in.
        height: of the video in pixels; None takes the stock call's 480.
        width: of the video in pixels; None takes the stock call's 832.
        frames: of the video; None takes the stock call's 81.
        max_sequence_length: UMT5 tokens of a prompt.

    Raises:
        ConfigError: a pipeline that keeps the first latent frame or takes a last one too, or a length of prompts that
            its network cannot have.
    """

    family = FAMILY

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        max_sequence_length: int | None = None,
    ):
        _require_joined(pipeline)
        super().__init__(pipeline, dtype, height, width, frames, max_sequence_length)
        self._sees = pipeline.transformer.config.image_dim is not None
        if self._sees and self.max_sequence_length != CLIP_TEXT_TOKENS:
            raise ConfigError(
                f"model.max_sequence_length must be {CLIP_TEXT_TOKENS} for a Wan that sees its image through CLIP: its "
                "attention takes all tokens but the last "
                f"{CLIP_TEXT_TOKENS} for the image's. Got {self.max_sequence_length}. Leave it out."
            )

    def encode_edits(self, prompts: Sequence[str], sources: Sequence[Tensor]) -> Conditioning:
        """Encode prompts with the first frame's latents (B, C, f, h, w) and, if the network sees it, CLIP's tokens.

        Both are in the network's dtype, to which the stock pipeline rounds them in each call.

        Args:
            prompts: B of them.
            sources: B images (3, H, W) uint8 RGB, of the ratio of sides that is drawn.

        Raises:
            ConfigError: one has another ratio.
        """
        import torch

        images = [self._scaled(source) for source in sources]
        rows = {
            **self.encode_prompts(prompts),
            "first_frame": torch.cat([self._first_frame(one) for one in images]),
        }
        if self._sees:
            rows["image_embeds"] = torch.cat([self._seen(one) for one in images])
        return rows

    def source_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return shapes of a first frame, and of CLIP's tokens if the network takes them."""
        width, clip = self.pipeline.transformer.config.image_dim, encoders.get("image_encoder", {})
        patches = clip.get("image_size", 224) // clip.get("patch_size", 14)
        seen = {} if width is None else {"image_embeds": (patches**2 + 1, width)}
        return {"first_frame": self.latent_shape, **seen}

    def stock_call(self) -> Mapping[str, Any]:
        """Return sizes; the stock call scales an image to them, too."""
        return {"height": self.height, "width": self.width}

    def _scaled(self, source: Tensor) -> Image:
        """Return a source at the size that is drawn."""
        from diffrl.data.sources import require_ratio
        from reward_models.media import to_pil

        require_ratio((source.shape[1], source.shape[2]), (self.height, self.width), "An image")
        scaled: Image = self.pipeline.video_processor.resize(to_pil(source), self.height, self.width)
        return scaled

    def _first_frame(self, image: Image) -> Tensor:
        """Return what the encoder makes of the image and grey frames after it, normalised: (1, C, f, h, w)."""
        import torch

        pixels = self.pipeline.video_processor.preprocess(image, self.height, self.width)
        channels = self.latent_shape[0]
        with self.on_device("vae") as device:
            size = {"height": self.height, "width": self.width, "num_frames": self.frames}
            unused = torch.empty(1, *self.latent_shape)  # latents, which it would draw
            arguments = {"num_channels_latents": channels, "dtype": torch.float32, "device": device, "latents": unused}
            _, condition = self.pipeline.prepare_latents(pixels.to(device), 1, **size, **arguments)
        encoded: Tensor = condition[:, -channels:]  # a mask is before it
        return encoded.to(self.dtype)

    def _seen(self, image: Image) -> Tensor:
        """Return CLIP's tokens of the image: (1, tokens, width)."""
        with self.on_device("image_encoder") as device:
            tokens: Tensor = self.pipeline.encode_image(image, device)
        return tokens.to(self.dtype)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, C, f, h, w) of the whole video."""
        import torch

        period = self.pipeline.vae_scale_factor_temporal
        mask = latents.new_zeros(len(latents), period, *latents.shape[2:])
        mask[:, :, 0] = 1.0
        joined = torch.cat([latents, mask, conditioning["first_frame"].to(latents.dtype)], dim=1)
        return super().predict(joined, sigma, conditioning, guidance_scale)


def _require_joined(pipeline: Any) -> None:
    """Refuse a pipeline that is told of its image in another way.

    Raises:
        ConfigError: says how, and what to take instead.
    """
    config, period = pipeline.transformer.config, pipeline.vae_scale_factor_temporal
    instead = "Take Wan 2.1 I2V or Wan 2.2 I2V-A14B."
    if pipeline.config.get("expand_timesteps"):
        raise ConfigError(
            "model.path must be a Wan that draws all of its video. This one keeps the first latent frame as it is "
            "(expand_timesteps, Wan 2.2 TI2V), and densities would count what never moves. "
            f"{instead} model.family wan draws with TI2V from words alone."
        )
    if config.pos_embed_seq_len is not None:
        raise ConfigError(
            "model.path must be a Wan that takes one image. This one takes the last frame too (pos_embed_seq_len, "
            f"Wan 2.1 FLF2V), and prompts have one image. {instead}"
        )
    if config.in_channels != 2 * config.out_channels + period:
        raise ConfigError(
            f"model.path must be a Wan whose transformer takes latents, a mask of {period} channels and the encoded "
            f"first frame: in_channels {2 * config.out_channels + period}. Got {config.in_channels}. {instead}"
        )


TINY_SETTINGS = {**wan.TINY_SETTINGS, "frames": 5, "max_sequence_length": CLIP_TEXT_TOKENS}


def build_tiny(words: Sequence[str], boundary_ratio: float | None = None) -> Any:
    """Return a `WanImageToVideoPipeline` for videos of 4 n + 1 frames and sides in multiples of 16.

    Args:
        words: each becomes a single token; letter case does not matter, and any other word is unknown.
        boundary_ratio: None as in Wan 2.1, whose network sees the image through CLIP; in (0, 1) as in Wan 2.2, which
            has a second transformer for the timesteps below this share of 1,000 and no CLIP.
    """
    from diffusers import WanImageToVideoPipeline

    parts = {name: part for name, part in wan.build_tiny(words).components.items() if part is not None}
    vae = wan.build_tiny_vae(mean=0.3, std=1.7)
    layout = {"in_channels": 2 * wan.CHANNELS + vae.config.scale_factor_temporal, "num_layers": 2}
    if boundary_ratio is not None:
        networks = {name: wan.build_tiny_transformer(**layout) for name in ("transformer", "transformer_2")}
        return WanImageToVideoPipeline(**parts | networks | {"vae": vae}, boundary_ratio=boundary_ratio)
    encoder, processor = _build_tiny_clip()
    network = wan.build_tiny_transformer(**layout, image_dim=encoder.config.hidden_size, added_kv_proj_dim=128)
    changed = {"vae": vae, "transformer": network, "image_encoder": encoder, "image_processor": processor}
    return WanImageToVideoPipeline(**parts | changed)


def _build_tiny_clip() -> tuple[Any, Any]:
    """Return CLIP's encoder of images, of 32 x 32 in 17 tokens, and what prepares them."""
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    encoder = CLIPVisionModel(CLIPVisionConfig(**sizes, image_size=32, patch_size=8))
    return encoder, CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
