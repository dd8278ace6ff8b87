"""What published pipelines are made of: parts that several of them share, and how a part is described.

Sizes are those of the configs that the checkpoints ship; `published` puts the parts together.
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


def autoencoder_kl(scale: float, shift: float) -> Component:
    """The decoder of SD3 and FLUX.1, of 16 channels, with the scale and shift of its latents."""
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


def dc_autoencoder() -> Component:
    """SANA's decoder, 32 pixels a latent."""
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


def unipc(shift: float) -> Component:
    """Wan's scheduler."""
    config = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
    return Component("diffusers", "UniPCMultistepScheduler", config)


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


def flow_match(**config: Any) -> Component:
    """The scheduler of Euler's steps; `config` is what differs from its defaults."""
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
