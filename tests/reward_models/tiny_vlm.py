"""Tiny Qwen2-VL reward models with random weights in the published key layout, and judges on a local server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from reward_models import load_reward
from reward_models.images.hpsv3 import INSTRUCTION as IMAGE_INSTRUCTION
from reward_models.videos.video_align import INSTRUCTION as VIDEO_INSTRUCTION
from tests.reward_models.judges.judge_server import Judge

HIDDEN, LORA_RANK, LORA_ALPHA = 32, 4, 8
MARKS = [f"<|{name}|>" for name in ("endoftext", "im_start", "im_end")]
MARKS += [f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")]
NORM = {"VQ_mean": 0.3, "VQ_std": 0.5, "MQ_mean": -0.2, "MQ_std": 2.0, "TA_mean": 0.1, "TA_std": 0.25}
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2-VL's chat template, without the numbering of images."""


def save_base(folder: Path) -> Path:
    """config.json and a word-level tokenizer in the layout of Qwen2-VL's repository."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = (
        f"{IMAGE_INSTRUCTION} {VIDEO_INSTRUCTION} a red blue green yellow circle square triangle moving right system"
    )
    words = ["?", *MARKS, *dict.fromkeys(re.findall(r"\w+|[^\w\s]+", known + "user assistant"))]
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(dict.fromkeys(words))}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="?", pad_token=MARKS[0], eos_token=MARKS[2], extra_special_tokens=MARKS[1:]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config(tokenizer, len(tokenizer)).save_pretrained(folder)
    return folder


def config(tokenizer: Any, words: int) -> Any:
    from transformers import Qwen2VLConfig

    text = {
        "vocab_size": words,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": HIDDEN, "num_heads": 2, "mlp_ratio": 2}
    ids = dict(zip(MARKS, tokenizer.convert_tokens_to_ids(MARKS), strict=True))
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def random_model(base: Path, tokens: int, seed: int) -> Any:
    """A Qwen2-VL with a language head and with `tokens` new tokens, as both published models were before saving."""
    from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(config(tokenizer, len(tokenizer) + tokens)).eval()
    for parameter in model.parameters():  # HF's own initialisation is so small that nothing would depend on positions
        parameter.data.normal_(0, 0.2 if parameter.ndim > 1 else 0.05).add_(1.0 if parameter.ndim == 1 else 0.0)
    return model


def old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The key layout of transformers 4.45, in which both checkpoints are published."""
    swap = {"model.visual.": "visual.", "model.language_model.": "model."}
    found = {}
    for name, tensor in state.items():
        prefix = next((old for old in swap if name.startswith(old)), "")
        found[swap.get(prefix, "") + name[len(prefix) :]] = tensor.clone()
    return found


def save_hpsv3(folder: Path) -> tuple[Path, Path]:
    """The checkpoint's file and the base model's folder."""
    base = save_base(folder / "Qwen2-VL-7B-Instruct")
    state = old_names(random_model(base, tokens=1, seed=1).state_dict())
    for name, shape in {"0": (1024, HIDDEN), "3": (16, 1024), "5": (2, 16)}.items():
        state[f"rm_head.{name}.weight"] = torch.randn(shape) / shape[1] ** 0.5
        state[f"rm_head.{name}.bias"] = torch.randn(shape[0]) * 0.1
    save_file(state, folder / "HPSv3.safetensors")
    return folder / "HPSv3.safetensors", base


def settings(**changes: Any) -> dict[str, Any]:
    """model_config.json with what the published one is known to hold; changes are `section__key=value`."""
    made: dict[str, Any] = {
        "data_config": {
            "fps": 2.0,
            "num_frames": None,
            "max_frame_pixels": 200704,
            "eval_dim": ["VQ", "MQ", "TA"],
            "prompt_template_type": "detailed_special",
            "sample_type": "uniform",
        },
        "model_config": {"output_dim": 1, "use_special_tokens": True, "reward_token": "special"},
        "peft_lora_config": {"lora_r": LORA_RANK, "lora_alpha": LORA_ALPHA, "use_rslora": False},
        "inference_config": dict(NORM),
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        made[section][key] = value
    return made


def peft_model(base: Path, seed: int = 2, rslora: bool = False) -> Any:
    """A PEFT-wrapped tiny model with random adapters on the language model, and a head of one number."""
    from peft import LoraConfig, get_peft_model

    model = random_model(base, tokens=3, seed=seed)
    model.rm_head = torch.nn.Linear(HIDDEN, 1, bias=False)
    targets = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and "layers" in name]
    wrapped = get_peft_model(
        model, LoraConfig(target_modules=targets, r=LORA_RANK, lora_alpha=LORA_ALPHA, use_rslora=rslora)
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
    return wrapped


def save_video_align(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """The checkpoint's folder and the base model's."""
    base = save_base(folder / "Qwen2-VL-2B-Instruct")
    checkpoint = folder / "VideoReward" / "checkpoint-11352"
    checkpoint.mkdir(parents=True)
    state = peft_model(base, rslora=bool(changes.get("peft_lora_config__use_rslora"))).state_dict()
    old = old_names({name.removeprefix("base_model.model."): tensor for name, tensor in state.items()})
    torch.save({f"base_model.model.{name}": tensor for name, tensor in old.items()}, checkpoint / "model.pth")
    (checkpoint.parent / "model_config.json").write_text(json.dumps(settings(**changes)))
    return checkpoint.parent, base


@cache
def judge_url() -> str:
    """A judge that runs as long as the tests."""
    return Judge().url


def tiny_hpsv3(folder: Path, **options: Any) -> Any:
    checkpoint, base = save_hpsv3(folder)
    return load_reward("hpsv3", checkpoint=str(checkpoint), model=str(base), **options)


def tiny_video_align(folder: Path, **options: Any) -> Any:
    checkpoint, base = save_video_align(folder)
    return load_reward("video_align", checkpoint=str(checkpoint), model=str(base), **options)


TINY: dict[str, Callable[[Path], Any]] = {
    "hpsv3": tiny_hpsv3,
    "video_align": tiny_video_align,
    "vlm_judge": lambda folder: load_reward("vlm_judge", url=judge_url(), model="judge"),
    "unified_reward": lambda folder: load_reward("unified_reward", url=judge_url()),
}
