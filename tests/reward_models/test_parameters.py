"""The stated numbers of parameters against the architectures themselves, built without storage."""

import re

import pytest
import torch

from reward_models.parameters import PARAMETERS
from reward_models.registry import factory_of


def clip(text, layers, vision, depth, projection):
    from transformers import CLIPConfig, CLIPModel

    def tower(width, depth, head):
        return {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth,
                "num_attention_heads": width // head, "projection_dim": projection}  # fmt: skip

    seen = tower(vision, depth, 64) | {"patch_size": 14, "image_size": 224}
    return CLIPModel(CLIPConfig(text_config=tower(text, layers, 64), vision_config=seen, projection_dim=projection))


def clip_tower():
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    return CLIPVisionModelWithProjection(
        CLIPVisionConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
                         patch_size=14, image_size=224, projection_dim=768)
    )  # fmt: skip


def open_clip_h():
    open_clip = pytest.importorskip("open_clip")
    return open_clip.CLIP(**open_clip.get_model_config("ViT-H-14"))


def detector():
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    swin = SwinConfig(image_size=384, embed_dim=96, depths=[2, 2, 18, 2], num_heads=[3, 6, 12, 24], window_size=7,
                      out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    return Mask2FormerForUniversalSegmentation(Mask2FormerConfig(backbone_config=swin, num_labels=80))


def blip():
    from reward_models.images.image_reward import _Blip

    return _Blip({})


def qwen(width, layers, heads, groups, inner, vocabulary):
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


@pytest.fixture
def built(request):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in BUILT[request.param]().parameters())


@pytest.mark.parametrize(("built", "key"), [(key, key) for key in BUILT], indirect=["built"])
def test_the_numbers_are_those_of_the_architecture(built, key):
    stated = {repository: count for counts in PARAMETERS.values() for repository, count in counts.items()}
    stated["openai/clip-vit-large-patch14"] = PARAMETERS["clip_score"]["openai/clip-vit-large-patch14"]
    stated["aesthetic"] = PARAMETERS["aesthetic"]["openai/clip-vit-large-patch14"]
    assert built == stated[key]


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_reward_says_the_same_in_words(name):
    """Its table names the repositories, and the size in memory to a decimal."""
    spec, counts = factory_of(name).spec, PARAMETERS[name]
    assert name == "aesthetic" or all(repository in spec.weights for repository in counts)
    gigabytes = [float(number) for number in re.findall(r"([\d.]+) GB", spec.memory)]
    assert gigabytes == pytest.approx([sum(counts.values()) * size / 1e9 for size in (4, 2)], abs=0.06)
