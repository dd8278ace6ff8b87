"""Architectures of checkpoints on the hub, so that a plan or a benchmark needs no download.

Taken from the scripts that made these checkpoints (diffusers,
scripts/convert_{flux,sd3,sana,wan,hunyuan_video1_5}_to_diffusers.py) and from the configs that they ship; a test holds
every parameter count to the published one. Tokenizers and revisions are not described here: whatever is downloaded
decides.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """One part of a pipeline.

    Args:
        package: diffusers or transformers.
        name: its class.
        config: as in its config.json; what is left out is the class's default.
    """

    package: str
    name: str
    config: Values

    def build(self) -> Any:
        """The module or scheduler, weights random; on whatever device is the default, the meta device included."""
        made = getattr(importlib.import_module(self.package), self.name)
        if self.package == "transformers":
            return made(made.config_class(**self.config))
        return made(**self.config)


@dataclass(frozen=True)
class Published:
    """A pipeline on the hub.

    Args:
        pipeline: its diffusers class.
        components: the parts that hold weights, by their names in the pipeline.
        scheduler: its noise levels.
        options: what else the pipeline is made with.
    """

    pipeline: str
    components: Mapping[str, Component]
    scheduler: Component
    options: Values = field(default_factory=dict)


def _clip(width: int, layers: int, heads: int, act: str, projected: bool) -> Component:
    name = "CLIPTextModelWithProjection" if projected else "CLIPTextModel"
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": width, "hidden_act": act}
    return Component("transformers", name, {**sizes, "num_hidden_layers": layers, "num_attention_heads": heads})


_XXL = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
CLIP_L = _clip(768, 12, 12, "quick_gelu", projected=True)
CLIP_L_POOLED = _clip(768, 12, 12, "quick_gelu", projected=False)
CLIP_BIG_G = _clip(1280, 32, 20, "gelu", projected=True)
T5_XXL = Component("transformers", "T5EncoderModel", {**_XXL, "vocab_size": 32128})
UMT5_XXL = Component("transformers", "UMT5EncoderModel", {**_XXL, "vocab_size": 256384})
GEMMA_2_2B = Component(
    "transformers",
    "Gemma2Model",
    {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
)


def _autoencoder_kl(scale: float, shift: float) -> Component:
    return Component(
        "diffusers",
        "AutoencoderKL",
        {
            "down_block_types": ["DownEncoderBlock2D"] * 4,
            "up_block_types": ["UpDecoderBlock2D"] * 4,
            "block_out_channels": [128, 256, 512, 512],
            "layers_per_block": 2,
            "latent_channels": 16,
            "sample_size": 1024,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
            "scaling_factor": scale,
            "shift_factor": shift,
        },
    )


def _dc_autoencoder() -> Component:
    each: dict[str, Any] = {
        "block_types": ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3,
        "block_out_channels": [128, 256, 512, 512, 1024, 1024],
        "qkv_multiscales": [[], [], [], [5], [5], [5]],
    }
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
    layers = {"encoder_layers_per_block": [2, 2, 2, 3, 3, 3], "decoder_layers_per_block": [3] * 6}
    samplers = {"upsample_block_type": "interpolate", "downsample_block_type": "Conv"}
    return Component(
        "diffusers", "AutoencoderDC", {**sides, **layers, **samplers, "latent_channels": 32, "scaling_factor": 0.41407}
    )


def _sd3(layers: int, positions: int, qk_norm: str | None, dual: int = 0) -> Published:
    network = {
        "sample_size": 128,
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "num_layers": layers,
        "num_attention_heads": layers,
        "attention_head_dim": 64,
        "caption_projection_dim": 64 * layers,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 2048,
        "pos_embed_max_size": positions,
        "dual_attention_layers": list(range(dual)),
        "qk_norm": qk_norm,
    }
    return Published(
        "StableDiffusion3Pipeline",
        {
            "transformer": Component("diffusers", "SD3Transformer2DModel", network),
            "vae": _autoencoder_kl(1.5305, 0.0609),
            "text_encoder": CLIP_L,
            "text_encoder_2": CLIP_BIG_G,
            "text_encoder_3": T5_XXL,
        },
        Component("diffusers", "FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    )


def _sana(layers: int, width: int, cross_heads: int, size: int = 1024, qk_norm: str | None = None) -> Published:
    network = {
        "sample_size": size // 32,
        "num_layers": layers,
        "num_attention_heads": width // 32,
        "attention_head_dim": 32,
        "num_cross_attention_heads": cross_heads,
        "cross_attention_head_dim": width // cross_heads,
        "cross_attention_dim": width,
        "caption_channels": 2304,
        "in_channels": 32,
        "out_channels": 32,
        "patch_size": 1,
        "mlp_ratio": 2.5,
        "qk_norm": qk_norm,
    }
    scheduler = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return Published(
        "SanaPipeline",
        {
            "transformer": Component("diffusers", "SanaTransformer2DModel", network),
            "vae": _dc_autoencoder(),
            "text_encoder": GEMMA_2_2B,
        },
        Component("diffusers", "DPMSolverMultistepScheduler", scheduler),
    )


OPEN_CLIP_H = Component(
    "transformers",
    "CLIPVisionModel",
    {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "gelu",
    },
)


def _wan(
    heads: int, hidden: int, layers: int, boundary: float | None = None, image: bool = False, clip: bool = False
) -> Published:
    """A Wan: of two networks above and below a level; to which an image is joined; that sees it through CLIP, too."""
    sees = {"image_dim": 1280, "added_kv_proj_dim": 128 * heads} if clip else {}
    network = Component(
        "diffusers",
        "WanTransformer3DModel",
        {
            "patch_size": [1, 2, 2],
            "num_attention_heads": heads,
            "attention_head_dim": 128,
            "in_channels": 36 if image else 16,
            "out_channels": 16,
            "text_dim": 4096,
            "freq_dim": 256,
            "ffn_dim": hidden,
            "num_layers": layers,
            **sees,
        },
    )
    return Published(
        "WanImageToVideoPipeline" if image else "WanPipeline",
        {
            "transformer": network,
            **({} if boundary is None else {"transformer_2": network}),
            "vae": Component("diffusers", "AutoencoderKLWan", {"base_dim": 96, "z_dim": 16}),
            "text_encoder": UMT5_XXL,
            **({"image_encoder": OPEN_CLIP_H} if clip else {}),
        },
        _unipc(3.0),
        {} if boundary is None else {"boundary_ratio": boundary},
    )


def _unipc(shift: float) -> Component:
    config = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
    return Component("diffusers", "UniPCMultistepScheduler", config)


def _wan_ti2v_5b() -> Published:
    like = _wan(24, 14336, 30)
    network = {**like.components["transformer"].config, "in_channels": 48, "out_channels": 48}
    vae = {
        "base_dim": 160,
        "decoder_base_dim": 256,
        "z_dim": 48,
        "is_residual": True,
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 16,
        "latents_mean": [float(value) for value in WAN_22_MEAN.split()],
        "latents_std": [float(value) for value in WAN_22_STD.split()],
    }
    components = {
        "transformer": Component("diffusers", "WanTransformer3DModel", network),
        "vae": Component("diffusers", "AutoencoderKLWan", vae),
        "text_encoder": UMT5_XXL,
    }
    return Published("WanPipeline", components, _unipc(5.0), {"expand_timesteps": True})


WAN_22_MEAN = """
-0.2289 -0.0052 -0.1323 -0.2339 -0.2799 0.0174 0.1838 0.1557 -0.1382 0.0542 0.2813 0.0891
0.1570 -0.0098 0.0375 -0.1825 -0.2246 -0.1207 -0.0698 0.5109 0.2665 -0.2108 -0.2158 0.2502
-0.2055 -0.0322 0.1109 0.1567 -0.0729 0.0899 -0.2799 -0.1230 -0.0313 -0.1649 0.0117 0.0723
-0.2839 -0.2083 -0.0520 0.3748 0.0152 0.1957 0.1433 -0.2944 0.3573 -0.0548 -0.1681 -0.0667
"""
WAN_22_STD = """
0.4765 1.0364 0.4514 1.1677 0.5313 0.4990 0.4818 0.5013 0.8158 1.0344 0.5894 1.0901
0.6885 0.6165 0.8454 0.4978 0.5759 0.3523 0.7135 0.6804 0.5833 1.4146 0.8986 0.5659
0.7069 0.5338 0.4889 0.4917 0.4069 0.4999 0.6866 0.4093 0.5709 0.6065 0.6415 0.4944
0.5726 1.2042 0.5458 1.6887 0.3971 1.0600 0.3943 0.5537 0.5444 0.4089 0.7468 0.7744
"""


def _flux(pipeline: str = "FluxPipeline") -> Published:
    network = {
        "patch_size": 1,
        "in_channels": 64,
        "num_layers": 19,
        "num_single_layers": 38,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
        "axes_dims_rope": [16, 56, 56],
    }
    shift = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
    return Published(
        pipeline,
        {
            "transformer": Component("diffusers", "FluxTransformer2DModel", network),
            "vae": _autoencoder_kl(0.3611, 0.1159),
            "text_encoder": CLIP_L_POOLED,
            "text_encoder_2": T5_XXL,
        },
        Component(
            "diffusers", "FlowMatchEulerDiscreteScheduler", {**shift, "shift": 3.0, "use_dynamic_shifting": True}
        ),
    )


def _flow_match(**config: Any) -> Component:
    return Component("diffusers", "FlowMatchEulerDiscreteScheduler", config)


QWEN_VL_7B: Values = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
"""The language model of Qwen2.5-VL 7B."""

BYT5_SMALL: Values = {
    "vocab_size": 384,
    "d_model": 1472,
    "d_kv": 64,
    "d_ff": 3584,
    "num_layers": 12,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
"""The encoder of ByT5 small; HunyuanVideo's has more tokens, for fonts and colours, a few millions of its numbers."""


def _qwen_image(pipeline: str = "QwenImagePipeline", **more: bool) -> Published:
    network = {
        "patch_size": 2,
        "in_channels": 64,
        "out_channels": 16,
        "num_layers": 60,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 3584,
        "axes_dims_rope": [16, 56, 56],
        **more,
    }
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    vae = {"base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
    encoder = "Qwen2_5_VLForConditionalGeneration"
    shift = {"base_image_seq_len": 256, "max_image_seq_len": 8192, "base_shift": 0.5, "max_shift": 0.9}
    return Published(
        pipeline,
        {
            "transformer": Component("diffusers", "QwenImageTransformer2DModel", network),
            "vae": Component("diffusers", "AutoencoderKLQwenImage", vae),
            "text_encoder": Component("transformers", encoder, {"text_config": QWEN_VL_7B, "vision_config": vision}),
        },
        _flow_match(**shift, use_dynamic_shifting=True, shift_terminal=0.02),
    )


def _qwen3(width: int, hidden: int) -> Values:
    return {
        "vocab_size": 151936,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }


QWEN3_4B = _qwen3(2560, 9728)
QWEN3_8B = _qwen3(4096, 12288)


def _z_image() -> Published:
    network = {
        "in_channels": 16,
        "dim": 3840,
        "n_layers": 30,
        "n_refiner_layers": 2,
        "n_heads": 30,
        "n_kv_heads": 30,
        "cap_feat_dim": 2560,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
    }
    return Published(
        "ZImagePipeline",
        {
            "transformer": Component("diffusers", "ZImageTransformer2DModel", network),
            "vae": _autoencoder_kl(0.3611, 0.1159),
            "text_encoder": Component("transformers", "Qwen3Model", QWEN3_4B),
        },
        _flow_match(shift=6.0),
    )


def _flux2_klein(double: int, single: int, heads: int, text: Values, tied: bool) -> Published:
    network = {
        "patch_size": 1,
        "in_channels": 128,
        "num_layers": double,
        "num_single_layers": single,
        "attention_head_dim": 128,
        "num_attention_heads": heads,
        "joint_attention_dim": 3 * text["hidden_size"],
        "timestep_guidance_channels": 256,
        "mlp_ratio": 3.0,
        "axes_dims_rope": [32, 32, 32, 32],
        "rope_theta": 2000,
        "guidance_embeds": False,
    }
    vae = {
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "latent_channels": 32,
        "sample_size": 1024,
        "patch_size": [2, 2],
    }
    shift = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
    return Published(
        "Flux2KleinPipeline",
        {
            "transformer": Component("diffusers", "Flux2Transformer2DModel", network),
            "vae": Component("diffusers", "AutoencoderKLFlux2", vae),
            "text_encoder": Component("transformers", "Qwen3ForCausalLM", {**text, "tie_word_embeddings": tied}),
        },
        _flow_match(**shift, shift=3.0, use_dynamic_shifting=True),
        {"is_distilled": False},
    )


def _hunyuan_video(target: int, shift: float) -> Published:
    network = {
        "in_channels": 65,
        "out_channels": 32,
        "num_attention_heads": 16,
        "attention_head_dim": 128,
        "num_layers": 54,
        "num_refiner_layers": 2,
        "mlp_ratio": 4.0,
        "patch_size": 1,
        "patch_size_t": 1,
        "qk_norm": "rms_norm",
        "text_embed_dim": 3584,
        "text_embed_2_dim": 1472,
        "image_embed_dim": 1152,
        "rope_theta": 256.0,
        "rope_axes_dim": [16, 56, 56],
        "target_size": target,
        "task_type": "t2v",
    }
    vae = {
        "latent_channels": 32,
        "block_out_channels": [128, 256, 512, 1024, 1024],
        "layers_per_block": 2,
        "spatial_compression_ratio": 16,
        "temporal_compression_ratio": 4,
        "scaling_factor": 1.03682,
    }
    return Published(
        "HunyuanVideo15Pipeline",
        {
            "transformer": Component("diffusers", "HunyuanVideo15Transformer3DModel", network),
            "vae": Component("diffusers", "AutoencoderKLHunyuanVideo15", vae),
            "text_encoder": Component("transformers", "Qwen2_5_VLTextModel", QWEN_VL_7B),
            "text_encoder_2": Component("transformers", "T5EncoderModel", BYT5_SMALL),
        },
        _flow_match(shift=shift),
    )


PUBLISHED: Mapping[str, Published] = {
    "black-forest-labs/FLUX.1-dev": _flux(),
    "black-forest-labs/FLUX.1-Kontext-dev": _flux("FluxKontextPipeline"),
    "black-forest-labs/FLUX.2-klein-base-4B": _flux2_klein(5, 20, 24, QWEN3_4B, tied=True),
    "black-forest-labs/FLUX.2-klein-base-9B": _flux2_klein(8, 24, 32, QWEN3_8B, tied=False),
    "Qwen/Qwen-Image": _qwen_image(),
    "Qwen/Qwen-Image-2512": _qwen_image(),
    "Qwen/Qwen-Image-Edit-2509": _qwen_image("QwenImageEditPlusPipeline"),
    "Qwen/Qwen-Image-Edit-2511": _qwen_image("QwenImageEditPlusPipeline", zero_cond_t=True),
    "Tongyi-MAI/Z-Image": _z_image(),
    "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v": _hunyuan_video(640, 5.0),
    "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v": _hunyuan_video(960, 9.0),
    "stabilityai/stable-diffusion-3-medium-diffusers": _sd3(24, 192, None),
    "stabilityai/stable-diffusion-3.5-medium": _sd3(24, 384, "rms_norm", dual=13),
    "stabilityai/stable-diffusion-3.5-large": _sd3(38, 192, "rms_norm"),
    "Efficient-Large-Model/Sana_600M_512px_diffusers": _sana(28, 1152, 16, size=512),
    "Efficient-Large-Model/Sana_600M_1024px_diffusers": _sana(28, 1152, 16),
    "Efficient-Large-Model/Sana_1600M_512px_diffusers": _sana(20, 2240, 20, size=512),
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": _sana(20, 2240, 20),
    "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": _sana(20, 2240, 20),
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": _sana(20, 2240, 20, qk_norm="rms_norm_across_heads"),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": _wan(12, 8960, 30),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": _wan(40, 13824, 40),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": _wan(40, 13824, 40, boundary=0.875),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": _wan_ti2v_5b(),
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers": _wan(40, 13824, 40, image=True, clip=True),
    "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers": _wan(40, 13824, 40, image=True, clip=True),
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": _wan(40, 13824, 40, boundary=0.9, image=True),
}
