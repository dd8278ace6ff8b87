"""Wan 2.1 and 2.2, text to video: UMT5 prompts, latents (B, C, f, h, w), CFG, one network or two by noise level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.family import Family
from diffrl.models.pipeline import PipelineAdapter, require_frames, require_multiple
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

STOCK_HEIGHT, STOCK_WIDTH, STOCK_FRAMES = 480, 832, 81
"""What the stock call takes."""


COMFYUI = {
    "attn1.to_": "self_attn.",
    "attn2.to_": "cross_attn.",
    "attn2.add_k_proj": "cross_attn.k_img",
    "attn2.add_v_proj": "cross_attn.v_img",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "out.0": "o",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "proj_out": "head.head",
}
"""Parts of layers' names in diffusers, and in the original code, whose names ComfyUI keeps."""


def comfyui_key(layer: str) -> str:
    """Return the original name, under the prefix that ComfyUI has for layers of any model."""
    for ours, theirs in COMFYUI.items():
        layer = layer.replace(ours, theirs)
    return f"diffusion_model.{layer}"


def _text_length(tokenizer: Any, text: str) -> int:
    """Return tokens of a prompt as the stock pipeline cleans it."""
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    return plain_length(tokenizer, prompt_clean(text))


FAMILY = Family(
    name="wan",
    title="Wan 2.1 and 2.2, text to video",
    adapter="diffrl.models.families.wan:WanAdapter",
    pipelines=("WanPipeline",),
    negative_prompt="",
    media="video",
    fps=16.0,
    exclude=("patch_embedding", "condition_embedder", "proj_out"),
    distilled=(*Family.distilled, "causvid", "self-forcing", "fastwan", "lightx2v"),
    vae_dtype="float32",  # as its makers run it; bfloat16 shows banding
    comfyui=comfyui_key,
    text_encoders=(TextEncoder("tokenizer", "UMT5", _text_length),),
)


class WanAdapter(PipelineAdapter):
    """A `WanPipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline; with `transformer_2` both networks are trained.
        dtype: what the transformer computes in.
        height: of the video in pixels; None takes the stock call's 480.
        width: of the video in pixels; None takes the stock call's 832.
        frames: of the video; None takes the stock call's 81.
        max_sequence_length: UMT5 tokens of a prompt.
    """

    family = FAMILY
    text_width = "text_dim"

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        config = pipeline.transformer.config
        height, width, frames = height or STOCK_HEIGHT, width or STOCK_WIDTH, frames or STOCK_FRAMES
        scale, period = pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal
        self._patch = config.patch_size[1:]
        require_multiple(height, width, scale * max(self._patch))
        require_frames(frames, period)
        self.height, self.width, self.frames = height, width, frames
        self.latent_shape = (config.out_channels, (frames - 1) // period + 1, height // scale, width // scale)
        boundary = pipeline.config.get("boundary_ratio")
        self._two = boundary is not None and pipeline.transformer_2 is not None
        if self._two:
            from diffrl.models.two_networks import TwoNetworks

            self.transformer = TwoNetworks(pipeline.transformer, pipeline.transformer_2, boundary * 1000.0)

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D) of the prompts, zeros after their ends, and of the empty prompt for guidance."""
        with self.on_device("text_encoder") as device:
            embeds, negative = self.pipeline.encode_prompt(
                list(prompts),
                negative_prompt=self.negative_prompt,
                do_classifier_free_guidance=not self.empty_prompt_cached,
                device=device,
                max_sequence_length=self.max_sequence_length,
            )
        return self.with_empty({"prompt_embeds": embeds}, {"prompt_embeds": negative})

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, C, f, h, w)."""
        timestep = sigma * 1000.0
        if self.pipeline.config.get("expand_timesteps"):  # Wan 2.2 TI2V: a noise level for every token
            _, frames, rows, columns = self.latent_shape
            high, wide = self._patch
            timestep = timestep[:, None].expand(-1, frames * (rows // high) * (columns // wide))
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_image=conditioning.get("image_embeds"),
            return_dict=False,
        )[0]
        return output

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """Return the transformer, or both."""
        if not self._two:
            return super().trainable_modules()
        return {name: getattr(self.pipeline, name) for name in ("transformer", "transformer_2")}


TEXT_TOKENS = 8
"""Prompt length with the tiny pipeline; a plain call of the stock pipeline pads to 512."""

FLOW_SHIFT = 3.0
"""Shift of its noise schedule, as in Wan 2.1 for small videos."""

TINY_SETTINGS = {"max_sequence_length": TEXT_TOKENS, "height": 32, "width": 32, "frames": 9}

_TEXT_WIDTH, CHANNELS = 64, 8


def build_tiny(words: Sequence[str], boundary_ratio: float | None = None) -> Any:
    """Return a `WanPipeline` for videos of 4 n + 1 frames and sides in multiples of 16.

    Args:
        words: each becomes a single token; letter case does not matter, and any other word is unknown.
        boundary_ratio: None as in Wan 2.1; in (0, 1) a second transformer takes the timesteps below this share of
            1,000, as in Wan 2.2.
    """
    from diffusers import UniPCMultistepScheduler, WanPipeline
    from transformers import UMT5Config, UMT5EncoderModel

    from diffrl.models.tiny import build_word_tokenizer

    tokenizer = build_word_tokenizer(words)
    text = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=_TEXT_WIDTH,
        d_kv=32,
        d_ff=128,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=UMT5EncoderModel(text),
        transformer=build_tiny_transformer(),
        vae=build_tiny_vae(),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=FLOW_SHIFT, num_train_timesteps=1000
        ),
        transformer_2=None if boundary_ratio is None else build_tiny_transformer(),
        boundary_ratio=boundary_ratio,
    )


def build_tiny_vae(mean: float = 0.0, std: float = 1.0) -> Any:
    """Return videos (3, 4 n + 1, 8 h, 8 w) to latents (8, n + 1, h, w): the layers of the Wan 2.2 5B autoencoder.

    It works on 2 x 2 pixel patches and has shortcuts around its resampling, so it is fast and learns fast.

    Args:
        mean: of every channel of its latents, as its config says.
        std: their deviation.
    """
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=16,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        is_residual=True,
        patch_size=2,
        in_channels=12,
        out_channels=12,
        latents_mean=[mean] * CHANNELS,
        latents_std=[std] * CHANNELS,
    )


def build_tiny_transformer(**changed: Any) -> Any:
    """Return four blocks over 2 x 2 patches of each latent frame; `changed` are settings that are not these."""
    from diffusers import WanTransformer3DModel

    config: dict[str, Any] = {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "in_channels": CHANNELS,
        "out_channels": CHANNELS,
        "text_dim": _TEXT_WIDTH,
        "freq_dim": 64,
        "ffn_dim": 512,
        "num_layers": 4,
        "rope_max_seq_len": 64,
    }
    return WanTransformer3DModel(**config | changed)
