"""The networks of published rewards at their real sizes, and calls of them: for counting on meta or fake tensors.

A call is what a scorer of that name asks of its network; media are those that `diffrl` draws at 224 pixels or more,
since scorers resize them to a size of their own.
"""

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers.initialization import no_init_weights

from diffrl.cost.live_memory import LiveMemory


def clip(text: int, layers: int, vision: int, depth: int, projection: int):
    """Build CLIP: width and depth of its text and its image tower, and what both are projected to."""
    from transformers import CLIPConfig, CLIPModel

    def tower(width, depth, head):
        return {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth,
                "num_attention_heads": width // head, "projection_dim": projection}  # fmt: skip

    seen = tower(vision, depth, 64) | {"patch_size": 14, "image_size": 224}
    return CLIPModel(CLIPConfig(text_config=tower(text, layers, 64), vision_config=seen, projection_dim=projection))


def clip_tower():
    """Build the image tower of CLIP ViT-L/14, with its projection."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    return CLIPVisionModelWithProjection(
        CLIPVisionConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
                         patch_size=14, image_size=224, projection_dim=768)
    )  # fmt: skip


def open_clip_h():
    """Build CLIP ViT-H/14 as open_clip has it."""
    import open_clip

    return open_clip.CLIP(**open_clip.get_model_config("ViT-H-14"))


def detector():
    """Build Mask2Former on Swin-S, 80 classes."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    swin = SwinConfig(image_size=384, embed_dim=96, depths=[2, 2, 18, 2], num_heads=[3, 6, 12, 24], window_size=7,
                      out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    return Mask2FormerForUniversalSegmentation(Mask2FormerConfig(backbone_config=swin, num_labels=80))


def blip():
    """Build ImageReward's BLIP."""
    from reward_models.images.image_reward import _Blip

    return _Blip({})


def qwen(width: int, layers: int, heads: int, groups: int, inner: int, vocabulary: int):
    """Build Qwen2-VL without its language head."""
    from transformers import Qwen2VLConfig, Qwen2VLModel

    text = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary,
            "num_key_value_heads": groups, "intermediate_size": inner}  # fmt: skip
    return Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config={"hidden_size": width}))


BUILT = {
    "openai/clip-vit-large-patch14": lambda: clip(768, 12, 1024, 24, 768),
    "aesthetic": clip_tower,
    "facebook/mask2former-swin-small-coco-instance": detector,
    "xswu/HPSv2": open_clip_h,
    "yuvalkirstain/PickScore_v1": lambda: clip(1024, 24, 1280, 32, 1024),
    "THUDM/ImageReward": blip,
    "KwaiVGI/VideoReward": lambda: qwen(1536, 28, 12, 2, 8960, 151936),
    "MizzenAI/HPSv3": lambda: qwen(3584, 28, 28, 4, 18944, 152064),
}
"""Repository of the weights, or the reward where it takes a part of them -> its network, weights random."""

PICTURE_TOKENS, CLIP_TOKENS, QUESTION_TOKENS = 256, 512, {"hpsv3": 800, "video_align": 1100}
"""Places of an HPSv3 picture (448 x 448 pixels), of a VideoAlign clip (4 frames of so many: two seconds), and of what
is asked, roughly: a token has four letters."""


# Masks, tokens and sizes are no fakes, since networks read them.


def _clip(count: int):
    texts = torch.zeros(count, 77, dtype=torch.int64)
    pixels = torch.empty(count, 3, 224, 224)
    return lambda model: (model.get_image_features(pixel_values=pixels), model.get_text_features(input_ids=texts))


def _open_clip(count: int):
    pixels, texts = torch.empty(count, 3, 224, 224), torch.zeros(count, 77, dtype=torch.int64)
    return lambda model: (model.encode_image(pixels), model.encode_text(texts))


def _blip(count: int):
    pixels = torch.empty(count, 3, 224, 224)
    with unset_fake_temporarily():
        tokens, mask = torch.zeros(count, 35, dtype=torch.int64), torch.ones(count, 35, dtype=torch.int64)
    return lambda model: model(pixels, tokens, mask)


def _qwen(count: int, reward: str):
    frames, places = (1, PICTURE_TOKENS) if reward == "hpsv3" else (2, CLIP_TOKENS)
    length = places + QUESTION_TOKENS[reward]
    with unset_fake_temporarily():
        grid = torch.tensor([[frames, 32, 32]] * count)
        ids = torch.zeros(count, length, dtype=torch.int64)
        ids[:, 10 : 10 + places] = 151655 if frames == 1 else 151656
    pixels = torch.empty(count * frames * 32 * 32, 3 * 2 * 14 * 14)
    kind = {"pixel_values": pixels, "image_grid_thw": grid}
    if frames > 1:
        kind = {"pixel_values_videos": pixels, "video_grid_thw": grid}
    where = torch.arange(length).expand(3, count, length)
    return lambda model: model(
        input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=where, use_cache=False, **kind
    )


CALLS = {
    "aesthetic": ("aesthetic", lambda n: lambda model: model(pixel_values=torch.empty(n, 3, 224, 224))),
    "clip_score": ("openai/clip-vit-large-patch14", _clip),
    "geneval": (
        "facebook/mask2former-swin-small-coco-instance",
        lambda n: lambda model: model(pixel_values=torch.empty(n, 3, 800, 800)),
    ),
    "hpsv2": ("xswu/HPSv2", _open_clip),
    "hpsv3": ("MizzenAI/HPSv3", lambda n: _qwen(n, "hpsv3")),
    "image_reward": ("THUDM/ImageReward", _blip),
    "pickscore": ("yuvalkirstain/PickScore_v1", _clip),
    "video_align": ("KwaiVGI/VideoReward", lambda n: _qwen(n, "video_align")),
}
"""Reward -> its network, and what makes a call of it on so many samples."""


def sample_bytes(reward: str) -> int:
    """Return bytes that a further sample adds to what a call of a reward's network holds at most, in float32."""
    network, make = CALLS[reward]
    peaks = []
    with LiveMemory() as memory:
        with no_init_weights():
            model = BUILT[network]().eval()
        for count in (2, 4):
            before = memory.live
            call = make(count)
            memory.peak = memory.live
            with torch.no_grad():
                call(model)
            peaks.append(memory.peak - before)
            del call
    return (peaks[1] - peaks[0]) // 2
