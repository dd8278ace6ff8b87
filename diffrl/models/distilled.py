"""Checkpoints that were distilled to few steps: how they are known, and why they are not trained."""

from __future__ import annotations

from diffrl.bundled import pipeline_folder
from diffrl.errors import ConfigError
from diffrl.models.families import Family
from diffrl.models.files import read_object


def refuse_distilled(family: Family, path: str, allowed: bool) -> None:
    """Refuse to train a checkpoint that was distilled to few steps, unless it is asked for.

    Its velocity is no longer that of a probability flow: stochastic steps add the wrong noise, densities and ratios
    lose their meaning, and a regression at random noise levels (nft) undoes the distillation.

    Raises:
        ConfigError: says what gave it away.
    """
    sign = distilled_sign(family, path)
    if sign is None or allowed:
        return
    raise ConfigError(
        "model.path must be a checkpoint that was not distilled to few steps: grpo's stochastic steps and nft both "
        f"need the velocity of a flow. Got {path!r}, {sign}. Train its base model, or set model.allow_distilled: true "
        "if you know better."
    )


def distilled_sign(family: Family, path: str) -> str | None:
    """Return what shows that a checkpoint was distilled: its name, or what its files say; None if nothing does."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    word = next((word for word in family.distilled if word in name), None)
    if word is not None:
        return f"whose name says {word!r}"
    for file, key, value in (
        ("transformer/config.json", "guidance_embeds", False),
        ("model_index.json", "is_distilled", True),
    ):
        if file.startswith("transformer") and family.guidance != "embedded":
            continue
        if read_object(pipeline_folder(path) / file, missing={}).get(key) is value:
            return f"whose {file} has {key}: {str(value).lower()}"
    return None
