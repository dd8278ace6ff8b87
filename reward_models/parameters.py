"""How many parameters a reward's published weights have, so that what they take can be told without loading anything.

Nothing heavy is imported here. Each number is counted from the architecture that the weights fill, which a test builds
without storage; the language heads of Qwen2-VL, which no reward uses, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

CLIP_L = {"openai/clip-vit-large-patch14": 427_616_513}  # ViT-L/14, its config.json
GENEVAL = {"facebook/mask2former-swin-small-coco-instance": 68_741_083, **CLIP_L}  # Swin-S, 80 classes, its config.json

PARAMETERS: Mapping[str, Mapping[str, int]] = {
    "aesthetic": {"openai/clip-vit-large-patch14": 303_966_208},  # the image tower and its projection
    "clip_score": CLIP_L,
    "edit_direction": CLIP_L,
    "geneval": GENEVAL,
    "geneval_strict": GENEVAL,
    "hpsv2": {"xswu/HPSv2": 986_109_441},  # open_clip's ViT-H-14
    "hpsv3": {"MizzenAI/HPSv3": 7_746_378_240},  # Qwen2-VL-7B
    "image_reward": {"THUDM/ImageReward": 446_206_689},  # BLIP of ViT-L/16 and BERT, as in ImageReward's code
    "pickscore": {"yuvalkirstain/PickScore_v1": 986_109_441},  # CLIP ViT-H/14, its config.json
    "preservation": {"openai/clip-vit-large-patch14": 303_966_208},  # the image tower and its projection
    "video_align": {"KwaiVGI/VideoReward": 2_208_985_600},  # Qwen2-VL-2B
}
"""Name of a reward -> repository of its weights -> parameters."""

MIB = 2**20
ACTIVATIONS: Mapping[str, tuple[int, int]] = {
    "aesthetic": (17 * MIB, 32),
    "clip_score": (17 * MIB, 32),
    "edit_direction": (17 * MIB, 32),
    "geneval": (682 * MIB, 8),
    "geneval_strict": (682 * MIB, 8),
    "hpsv2": (16 * MIB, 32),
    "hpsv3": (304 * MIB, 4),
    "image_reward": (12 * MIB, 32),
    "pickscore": (21 * MIB, 32),
    "preservation": (17 * MIB, 32),
    "video_align": (230 * MIB, 4),
}
"""Name of a reward -> bytes that scoring a sample holds at most beside the weights, in float32, and how many samples it
takes at once where nobody says otherwise. Measured on fake tensors (scripts/measure_scorers.py); `geneval` on a square,
which it looks at in 800 x 800 pixels, VideoAlign on two seconds, of which it sees four frames."""

PLACES = ("model", "checkpoint", "clip_model", "architecture", "engine", "pretrained")
"""Options that give a reward other weights than the published ones."""

CONFIGS: Mapping[str, tuple[str, ...]] = {
    "hpsv3": ("Qwen/Qwen2-VL-7B-Instruct",),
    "video_align": ("Qwen/Qwen2-VL-2B-Instruct",),
}
"""Further repositories of a reward's, of which config and tokenizer are read and no weights."""

WEIGHTLESS = frozenset(
    (
        *("colourfulness", "contrast", "sharpness", "jpeg_compressibility", "jpeg_incompressibility"),
        *("dynamic_degree_proxy", "motion_smoothness_proxy", "temporal_flicker"),
        *("shapes", "shapes_strict", "moving_shapes", "moving_shapes_strict"),
        *("ocr", "ocr_exact", "diversity", "video_mean", "remote", "unified_reward", "vlm_judge"),
    )
)
"""Rewards that put no weights beside the model: they have none, or small ones of another library, or ask a server.
Each registered reward is here or in `PARAMETERS`."""
