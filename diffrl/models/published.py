"""Architectures of checkpoints on the hub, so that a plan or a benchmark needs no download.

Taken from the scripts that made these checkpoints (diffusers,
scripts/convert_{flux,sd3,sana,wan,hunyuan_video1_5}_to_diffusers.py) and from the configs that they ship; a test holds
every parameter count to the published one. Tokenizers and revisions are not described here: whatever is downloaded
decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffrl.models.published_parts import (
    BYT5_SMALL,
    CLIP_BIG_G,
    CLIP_L,
    CLIP_L_POOLED,
    GEMMA_2_2B,
    OPEN_CLIP_H,
    QWEN3_4B,
    QWEN3_8B,
    QWEN_VL_7B,
    T5_XXL,
    UMT5_XXL,
    WAN_22_MEAN,
    WAN_22_STD,
    Component,
    Published,
    Values,
    autoencoder_kl,
    dc_autoencoder,
    flow_match,
    unipc,
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
            "vae": autoencoder_kl(1.5305, 0.0609),
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
            "vae": dc_autoencoder(),
            "text_encoder": GEMMA_2_2B,
        },
        Component("diffusers", "DPMSolverMultistepScheduler", scheduler),
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
        unipc(3.0),
        {} if boundary is None else {"boundary_ratio": boundary},
    )


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
    return Published("WanPipeline", components, unipc(5.0), {"expand_timesteps": True})


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
            "vae": autoencoder_kl(0.3611, 0.1159),
            "text_encoder": CLIP_L_POOLED,
            "text_encoder_2": T5_XXL,
        },
        Component(
            "diffusers", "FlowMatchEulerDiscreteScheduler", {**shift, "shift": 3.0, "use_dynamic_shifting": True}
        ),
    )


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
        flow_match(**shift, use_dynamic_shifting=True, shift_terminal=0.02),
    )


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
            "vae": autoencoder_kl(0.3611, 0.1159),
            "text_encoder": Component("transformers", "Qwen3Model", QWEN3_4B),
        },
        flow_match(shift=6.0),
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
        flow_match(**shift, shift=3.0, use_dynamic_shifting=True),
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
        flow_match(shift=shift),
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
