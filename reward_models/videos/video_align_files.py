"""The published files of VideoAlign: where they are, what they say, and weights without adapters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from reward_models.common.errors import RewardError
from reward_models.neural import find_file

PARTS = ("VQ", "MQ", "TA")
STEP = 11352
"""Of the published checkpoint, by third-party copies of its file list."""


def merge_lora(state: Mapping[str, Tensor], alpha: float, rslora: bool = False) -> dict[str, Tensor]:
    """Return weights of a model wrapped by PEFT under the names of the model itself, adapters added: W + s B A.

    s is alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA, and r the rows of A. Sums are in float32.

    Args:
        state: names as PEFT saves them (`base_model.model.<name>`, `base_layer`, `lora_A.default`, ...), or plain ones.
        alpha: PEFT's lora_alpha.
        rslora: PEFT's use_rslora.

    Raises:
        RewardError: there are adapters other than plain LoRA on linear layers.
    """
    merged, adapters = {}, {}
    for full, tensor in state.items():
        name = full.removeprefix("base_model.model.")
        if ".lora_" in name:
            adapters[name] = tensor
        elif ".original_module." not in name:
            merged[name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")] = tensor
    ends = (".lora_A.default.weight", ".lora_B.default.weight")
    for layer in dict.fromkeys(name.partition(".lora_")[0] for name in adapters):
        pair = [adapters.pop(layer + end, None) for end in ends]
        weight = merged.get(f"{layer}.weight")
        if pair[0] is None or pair[1] is None or weight is None:
            raise RewardError(
                f"The adapter of {layer} is no plain LoRA of one linear layer, which is all that is read."
            )
        down, up = pair[0].float(), pair[1].float()
        scale = alpha / (math.sqrt(len(down)) if rslora else len(down))
        merged[f"{layer}.weight"] = weight.float() + scale * (up @ down)
    if adapters:
        raise RewardError(f"{next(iter(adapters))} is no plain LoRA on a linear layer, which is all that is read.")
    return merged


def files_of(checkpoint: str, step: int | None, revision: str | None) -> tuple[Path, Path]:
    """Return the file of weights and model_config.json of a checkpoint's directory, file or hub id."""
    path = Path(checkpoint).expanduser()
    if path.is_file():
        above = [folder for folder in (path.parent, path.parent.parent) if (folder / "model_config.json").is_file()]
        return path, find_file(above[0] if above else path.parent, "model_config.json", "video_align")
    if not path.is_dir():
        name = f"checkpoint-{step or STEP}/model.pth"
        return tuple(find_file(checkpoint, file, "video_align", revision) for file in (name, "model_config.json"))  # type: ignore[return-value]
    steps = {int(match[1]): item for item in path.iterdir() if (match := re.fullmatch(r"checkpoint-(\d+)", item.name))}
    if step is not None and step not in steps:
        raise RewardError(f"There is no checkpoint-{step} in {path}. There are: {sorted(steps) or 'none'}.")
    folder = steps[step if step is not None else max(steps)] if steps else path
    for name in ("model.pth", "model.safetensors"):
        if (folder / name).is_file():
            return files_of(str(folder / name), None, None)
    raise RewardError(f"The reward video_align looks for model.pth or model.safetensors in {folder}. Neither is there.")


def settings_of(path: Path) -> dict[str, Any]:
    """Return model_config.json, refused where it describes another way of scoring than the one here."""
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RewardError(f"{path} of the reward video_align cannot be read: {error}.") from error
    needed = {
        "data_config": ("fps", "max_frame_pixels"),
        "model_config": (),
        "peft_lora_config": ("lora_alpha",),
        "inference_config": tuple(f"{part}_{what}" for part in PARTS for what in ("mean", "std")),
    }
    for section, keys in needed.items():
        values = config.get(section)
        missing = [key for key in keys if not isinstance(values, dict) or not isinstance(values.get(key), (int, float))]
        if not isinstance(values, dict) or missing:
            raise RewardError(
                f"{path} must hold numbers {', '.join(missing)} in {section}, as the published file does."
            )
    fixed = {
        ("data_config", "sample_type"): "uniform",
        ("data_config", "prompt_template_type"): "detailed_special",
        ("data_config", "eval_dim"): list(PARTS),
        ("model_config", "output_dim"): 1,
        ("model_config", "reward_token"): "special",
        ("model_config", "use_special_tokens"): True,
    }
    for (section, key), value in fixed.items():
        if config[section].get(key, value) != value:
            raise RewardError(f"{path} says {section}.{key} = {config[section][key]!r}. Only {value!r} is supported.")
    return dict(config)
