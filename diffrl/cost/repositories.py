"""What is known of repositories on the hub before they are fetched: size, licence, and whether terms stand before them.

Sizes are parameters by the bytes that the files hold of each: parameters are counted from the architecture, and a test
holds both numbers. Licences and gates are those that the repositories' own pages showed; they may change, and the hub
has the last word. What was not seen is None, and is told as "not known here".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from diffrl.models.architecture import describe_pipeline
from reward_models.parameters import PARAMETERS

NOT_KNOWN = "not known here"
HALF, FULL = 2, 4


@dataclass(frozen=True)
class Repository:
    """What is known of a repository.

    Args:
        licence: of its files.
        gated: whether its terms must be accepted by an account on the hub before it can be fetched.
        stored: bytes of each number in its files: of all parts, or by part with "" for all others.
        size: bytes that are fetched, where they are no weights that can be counted.
    """

    licence: str | None = None
    gated: bool | None = None
    stored: int | Mapping[str, int] | None = None
    size: int | None = None


_FLUX = Repository("FLUX.1 [dev] Non-Commercial License", gated=True, stored=HALF)
_SD3 = Repository("Stability AI Community License", gated=True, stored=HALF)
_SANA = Repository(
    "NVIDIA's (NSCL v2-custom); its text encoder: Gemma Terms of Use", gated=False, stored={"": FULL, "text_encoder": 2}
)
_HUNYUAN = Repository("Tencent Hunyuan Community License")
_WAN = Repository("Apache-2.0", gated=False, stored=FULL)

REPOSITORIES: Mapping[str, Repository] = {
    # LICENSE.md of huggingface.co/black-forest-labs/FLUX.1-dev and of its sisters, whose pages ask for consent
    "black-forest-labs/FLUX.1-dev": _FLUX,
    "black-forest-labs/FLUX.1-Kontext-dev": _FLUX,
    "black-forest-labs/FLUX.2-klein-base-4B": Repository("Apache-2.0", gated=False, stored=HALF),
    "black-forest-labs/FLUX.2-klein-base-9B": Repository("FLUX Non-Commercial License", gated=True, stored=HALF),
    # huggingface.co/Qwen/Qwen-Image/tree/main: 57.7 GB
    "Qwen/Qwen-Image": Repository("Apache-2.0", gated=False, stored=HALF),
    "Qwen/Qwen-Image-2512": Repository("Apache-2.0", gated=False),
    "Qwen/Qwen-Image-Edit-2509": Repository("Apache-2.0", gated=False),
    "Qwen/Qwen-Image-Edit-2511": Repository("Apache-2.0", gated=False),
    # huggingface.co/Tongyi-MAI/Z-Image: its transformer in two files of at most 10 GB
    "Tongyi-MAI/Z-Image": Repository("Apache-2.0", gated=False, stored=HALF),
    # LICENSE.md of huggingface.co/stabilityai/stable-diffusion-3.5-medium, whose transformer's file has 4.94 GB, T5's
    # 9.52 GB, and of -large and 3-medium
    "stabilityai/stable-diffusion-3-medium-diffusers": _SD3,
    "stabilityai/stable-diffusion-3.5-medium": _SD3,
    "stabilityai/stable-diffusion-3.5-large": _SD3,
    # huggingface.co/Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers/tree/main: transformer 6.42 GB, VAE 1.25 GB
    # in the files without a variant in their names, which are those that are fetched
    "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": _SANA,
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": _SANA,
    # huggingface.co/Wan-AI/Wan2.1-T2V-1.3B-Diffusers/tree/main: transformer 5.68 GB, text encoder 22.7 GB, VAE .51 GB
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": _WAN,
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": _WAN,
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": Repository("Apache-2.0", gated=False),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": Repository("Apache-2.0", gated=False),
    # Image to video, and HunyuanVideo: how their files hold their numbers was not seen, nor whether terms stand before
    # the diffusers version of the latter. Tencent's licence does not hold in the EU, the UK and South Korea.
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers": Repository("Apache-2.0", gated=False),
    "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers": Repository("Apache-2.0", gated=False),
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": Repository("Apache-2.0", gated=False),
    "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v": _HUNYUAN,
    "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v": _HUNYUAN,
    # huggingface.co/openai/clip-vit-large-patch14: model.safetensors 1.71 GB
    "openai/clip-vit-large-patch14": Repository("MIT (OpenAI's repository; the card names none)", False, stored=FULL),
    # huggingface.co/yuvalkirstain/PickScore_v1/tree/main: model.safetensors 3.94 GB
    "yuvalkirstain/PickScore_v1": Repository("none named on its card", gated=False, stored=FULL),
    "xswu/HPSv2": Repository("Apache-2.0", gated=False, stored=HALF),  # the file is called compressed: float16
    "THUDM/ImageReward": Repository("Apache-2.0", gated=False, stored=FULL),
    "facebook/mask2former-swin-small-coco-instance": Repository(
        "'other' on its card (its code is MIT)", gated=False, stored=FULL
    ),
    "KwaiVGI/VideoReward": Repository("Apache-2.0", gated=False),
    "MizzenAI/HPSv3": Repository("Apache-2.0", gated=False),
    # config and tokenizer alone: vocab.json 2.8 MB, merges.txt 1.7 MB, tokenizer.json 7 MB
    "Qwen/Qwen2-VL-2B-Instruct": Repository("Apache-2.0", gated=False, size=12_000_000),
    "Qwen/Qwen2-VL-7B-Instruct": Repository("Apache-2.0", gated=False, size=12_000_000),
    # huggingface.co/datasets/CarperAI/pickapic_v1_no_images_training_sfw/tree/main
    "CarperAI/pickapic_v1_no_images_training_sfw": Repository("MIT", size=89_000_000),
    # huggingface.co/datasets/WenhaoWang/VidProM/tree/main: VidProM_unique.csv
    "WenhaoWang/VidProM": Repository("CC BY-NC 4.0", size=383_000_000),
}
"""Repositories that recipes and rewards name, and what of them was seen where."""


def parameters_of(name: str) -> Mapping[str, int]:
    """Numbers in a repository's weights, by part of the pipeline; empty if they are not known."""
    found = describe_pipeline(name) if name not in WEIGHTS_OF_REWARDS else None
    if found is not None:
        return {part: sum(math.prod(shape) for shape in shapes.values()) for part, shapes in found.shapes.items()}
    return {"": WEIGHTS_OF_REWARDS[name]} if name in WEIGHTS_OF_REWARDS else {}


def bytes_of_numbers(name: str) -> Mapping[str, int] | None:
    """Return the bytes of each number in a repository's files, by part of the pipeline; None if they are not known."""
    known = REPOSITORIES.get(name, Repository()).stored
    if known is None:
        return None
    stored = {"": known} if isinstance(known, int) else known
    return {part: stored.get(part, stored[""]) for part in parameters_of(name)}


def size_of(name: str) -> int | None:
    """Bytes that are fetched of a repository; None if how its files hold their numbers is not known."""
    known, parameters, stored = REPOSITORIES.get(name, Repository()), parameters_of(name), bytes_of_numbers(name)
    if known.size is not None or not stored:
        return known.size
    return sum(count * stored[part] for part, count in parameters.items())


def size_words(name: str) -> str:
    """How much is fetched of a repository, in words."""
    size, count = size_of(name), sum(parameters_of(name).values())
    if size is not None:
        return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    if count:
        each = " or ".join(f"{count * n / 1e9:.1f} GB as {kind}" for kind, n in (("bfloat16", HALF), ("float32", FULL)))
        return f"{each}, which of them is {NOT_KNOWN}"
    return f"size {NOT_KNOWN}"


def terms_words(name: str) -> str:
    """A repository's licence and whether it is gated, in words."""
    known = REPOSITORIES.get(name, Repository())
    gate = f"whether it is gated: {NOT_KNOWN}" if known.gated is None else "not gated"
    if known.gated:
        gate = "gated: accept its terms on that page with an account, then run `hf auth login`"
    return f"licence: {known.licence or NOT_KNOWN}; {gate}"


WEIGHTS_OF_REWARDS: Mapping[str, int] = {
    repository: max(weights.get(repository, 0) for weights in PARAMETERS.values())
    for repository in {name for weights in PARAMETERS.values() for name in weights}
}
"""Parameters of the repositories that rewards take: of the whole one where some take a part of it."""
