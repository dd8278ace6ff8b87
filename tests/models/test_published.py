"""The published architectures against the published numbers of parameters, counted on the meta device."""

import json
import math
from pathlib import Path

import pytest
import transformers

from diffrl.cost.repositories import parameters_of
from diffrl.models.architecture import describe_pipeline
from diffrl.models.families import FAMILIES
from diffrl.models.published import published_pipelines
from diffrl.models.vetting import vet_numbers

HUNYUAN = "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v"
SIZES = {
    "black-forest-labs/FLUX.1-dev": (11_901_408_320, "12 B: model card"),
    "black-forest-labs/FLUX.2-klein-base-4B": (3_875_544_576, "4 B: model card"),
    "black-forest-labs/FLUX.2-klein-base-9B": (9_078_581_248, "9 B: model card"),
    "Qwen/Qwen-Image": (20_430_401_088, "20 B: arXiv 2508.02324"),
    "Qwen/Qwen-Image-2.1": (7_115_124_736, "7 B: its makers' page"),
    "krea/Krea-2-Raw": (12_820_073_036, "12 to 12.9 B by their pages"),
    "Tongyi-MAI/Z-Image": (6_154_908_736, "6 B: model card"),
    "stabilityai/stable-diffusion-3-medium-diffusers": (2_028_328_000, "2 B: model card"),
    "stabilityai/stable-diffusion-3.5-medium": (2_243_171_520, "2.5 B with its position table: model card"),
    "stabilityai/stable-diffusion-3.5-large": (8_056_627_520, "8.1 B: model card"),
    "Efficient-Large-Model/Sana_600M_1024px_diffusers": (591_747_872, "590 M: arXiv 2410.10629, table 1"),
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": (1_604_462_752, "1.6 B: arXiv 2410.10629, table 1"),
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": (1_604_641_952, "1.6 B: arXiv 2501.18427"),
    HUNYUAN: (8_326_608_160, "8.3 B: arXiv 2511.18870"),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": (1_418_996_800, "1.3 B by name, 1.42 B in its files"),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": (14_288_491_584, "14 B: arXiv 2503.20314"),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": (2 * 14_288_491_584, "27 B in two networks of 14 B: model card"),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": (4_999_787_712, "5 B: model card"),
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers": (16_394_878_784, "16.4 B: 32.8 GB of bfloat16"),
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": (2 * 14_288_901_184, "27 B in two networks of 14 B: model card"),
}
"""Transformers, without fixed tables. The exact numbers were counted once; they move if a config does."""

OTHERS = {
    ("black-forest-labs/FLUX.1-dev", "text_encoder"): 123_060_480,  # CLIP ViT-L/14's text model: 123 M
    ("black-forest-labs/FLUX.1-dev", "text_encoder_2"): 4_762_310_656,  # the encoder of T5-XXL, 11 B in all
    ("black-forest-labs/FLUX.1-dev", "vae"): 83_819_683,  # 84 M
    ("black-forest-labs/FLUX.2-klein-base-4B", "text_encoder"): 4_022_468_096,  # Qwen3 4B, its head tied: 4.02 B
    ("black-forest-labs/FLUX.2-klein-base-4B", "vae"): 84_046_372,  # 84 M, and 257 statistics of its latents
    ("black-forest-labs/FLUX.2-klein-base-9B", "text_encoder"): 8_190_735_360,  # Qwen3 8B: 8.19 B
    ("Qwen/Qwen-Image", "text_encoder"): 8_292_166_656,  # Qwen2.5-VL 7B: 8.29 B in its files
    ("Qwen/Qwen-Image", "vae"): 126_892_531,  # Wan 2.1's: 127 M
    ("Qwen/Qwen-Image-2.1", "text_encoder"): 8_767_123_696,  # Qwen3-VL 8B: 8.77 B
    ("krea/Krea-2-Raw", "text_encoder"): 4_437_815_808,  # Qwen3-VL 4B: 4.44 B, its head tied
    ("Tongyi-MAI/Z-Image", "text_encoder"): 4_022_468_096,  # Qwen3 4B: 4.02 B
    ("stabilityai/stable-diffusion-3.5-large", "text_encoder"): 123_650_304,  # with its projection
    ("stabilityai/stable-diffusion-3.5-large", "text_encoder_2"): 694_659_840,  # OpenCLIP ViT-bigG/14's: 695 M
    ("Efficient-Large-Model/Sana_1600M_1024px_diffusers", "text_encoder"): 2_614_341_888,  # Gemma 2 2B: 2.61 B
    ("Efficient-Large-Model/Sana_1600M_1024px_diffusers", "vae"): 312_250_275,  # DC-AE f32c32: 312 M
    (HUNYUAN, "text_encoder"): 7_070_619_136,  # Qwen2.5-VL 7B's language model without its head: 7.07 B
    (HUNYUAN, "text_encoder_2"): 217_657_472,  # the encoder of ByT5 small, 300 M in all
    (HUNYUAN, "vae"): 1_260_634_115,  # counted; no number is published
    ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "text_encoder"): 5_680_910_336,  # the encoder of UMT5-XXL: 5.68 B
    ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "vae"): 126_892_531,  # 127 M: arXiv 2503.20314, section 4.1
    ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "vae"): 704_688_668,  # 705 M
    (
        "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
        "image_encoder",
    ): 630_766_080,  # OpenCLIP ViT-H/14's: 632 M with its projection
}


EVERYDAY = {name for name, _ in OTHERS} - {"black-forest-labs/FLUX.2-klein-base-9B"}
"""At least one pipeline of each family; the others are counted with the long tests."""


def count(name, component):
    shapes = describe_pipeline(name).shapes[component]
    return sum(math.prod(shape) for key, shape in shapes.items() if key != "pos_embed.pos_embed")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.long) for name in SIZES]
)
def test_transformers_have_the_published_size(name):
    found = describe_pipeline(name)
    assert sum(count(name, network) for network in found.networks) == SIZES[name][0]
    assert len(found.networks) == 1 + ("A14B" in name)


@pytest.mark.parametrize(("name", "component"), OTHERS)
def test_encoders_and_decoders_have_the_published_size(name, component):
    assert count(name, component) == OTHERS[name, component]


@pytest.mark.parametrize("name", published_pipelines())
def test_a_published_pipeline_belongs_to_a_family(name):
    known = published_pipelines()[name]
    assert known.name in {pipeline for family in FAMILIES.values() for pipeline in family.pipelines}
    scheduler = known.scheduler.build()
    assert scheduler.config.num_train_timesteps == 1000


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in EVERYDAY else pytest.mark.long) for n in SIZES])
def test_the_file_of_a_pipeline_counts_as_its_architecture_does(name):
    shapes = describe_pipeline(name).shapes
    assert parameters_of(name) == {part: sum(map(math.prod, sizes.values())) for part, sizes in shapes.items()}


def test_an_unknown_name_is_not_guessed(tmp_path):
    assert describe_pipeline("someone/model") is None and describe_pipeline(str(tmp_path)) is None


@pytest.mark.long
def test_what_published_pipelines_say_is_within_the_bounds():
    """Of transformers' parts with all their defaults, as their files hold them."""
    for name, known in published_pipelines().items():
        shapes = describe_pipeline(name).shapes
        for part, component in known.components.items():
            config = component.config
            if component.package == "transformers":
                config = getattr(transformers, component.name).config_class(**config).to_dict()
            largest = max(size for shape in shapes[part].values() for size in shape)
            vet_numbers(Path(name) / part, json.loads(json.dumps(config, default=str)), largest)
        vet_numbers(Path(name) / "scheduler", dict(known.scheduler.config), 0)
