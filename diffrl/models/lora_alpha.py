"""How strong a LoRA is: alpha from wherever trainers write it, one number a layer, or a refusal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from diffrl.errors import ConfigError
from diffrl.models.files import read_object
from reward_models.common.messages import show
from reward_models.common.reading import parse_json

PEFT_CONFIG = "adapter_config.json"
"""peft's own, beside its adapter_model.safetensors."""

OBJECTS = ("lora_adapter_metadata", "lora_config", "adapter_config", "peft_config")
"""Metadata of a safetensors file that hold peft's settings as JSON; the first is diffusers'."""

ALPHAS = ("lora_alpha", "alpha", "network_alpha", "ss_network_alpha")
RANKS = ("r", "rank", "lora_rank", "network_dim", "network_rank")
"""Metadata that are a number."""

UNSAID = ("None", "Dynamic")
"""What kohya's scripts write into ss_network_alpha where there is no such number."""

MORE = (
    "bias", "lora_bias", "modules_to_save", "layer_replication", "target_parameters", "trainable_token_indices",
    "alora_invocation_tokens", "arrow_config", "kasa_config", "use_bdlora", "use_qalora",
)  # fmt: skip
"""Of peft's settings, what makes more of a LoRA than W + (alpha / rank) B A."""

OWN_STARTS = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Values of init_lora_weights with which peft changes the base's weights too."""

Alphas = dict[str, float]


def find_alphas(
    file: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], ranks: Mapping[str, int], peft: bool
) -> tuple[Alphas, list[str]]:
    """Find the alpha of each layer, with which it is scaled by alpha / rank.

    Args:
        file: the LoRA, for messages and for its neighbour adapter_config.json.
        metadata: of the safetensors file.
        tensors: alphas among its tensors, by layer.
        ranks: of the layers' matrices.
        peft: whether it has peft's layout.

    Returns:
        alpha by layer, and what the user should know.

    Raises:
        ConfigError: what it says is no number, is not true of its matrices, or differs from place to place.
    """
    stated = [(origin, alphas) for origin, alphas in _statements(file, metadata, tensors, ranks, peft) if alphas]
    alphas_by_layer: Alphas = {}
    for layer in ranks:
        values = [(origin, alphas[layer]) for origin, alphas in stated if layer in alphas]
        for origin, alpha in values[1:]:
            if not math.isclose(alpha, values[0][1], rel_tol=0.01):  # an alpha saved in bfloat16 has three digits
                raise ConfigError(
                    f"{file} must have one alpha for {layer}. {values[0][0]} has {values[0][1]:g}, and {origin} has "
                    f"{alpha:g}. Remove the one that is wrong."
                )
        if values:
            alphas_by_layer[layer] = values[0][1]
    if peft and len(alphas_by_layer) < len(ranks):
        raise ConfigError(
            f"{file} must have its {PEFT_CONFIG} beside it, with lora_alpha: peft's layout has no alpha in the file. "
            "Put it there."
        )
    notes = []
    if missing := len(ranks) - len(alphas_by_layer):
        which = "" if missing == len(ranks) else f" for {missing} of {len(ranks)} layers"
        notes.append(f"{file} has no alpha{which}: it is taken to be the rank, so that B A is added as it is.")
    dim = metadata.get("ss_network_dim", "")
    if dim.isdecimal() and dim not in map(str, ranks.values()):
        notes.append(f"{file} says ss_network_dim {dim}, and its matrices have another rank: they are believed.")
    return {layer: alphas_by_layer.get(layer, float(rank)) for layer, rank in ranks.items()}, notes


def _statements(
    file: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], ranks: Mapping[str, int], peft: bool
) -> Iterator[tuple[str, Alphas]]:
    """Yield the places that say an alpha, and what they say."""
    for layer, tensor in tensors.items():
        if tensor.numel() != 1:
            shape = " x ".join(map(str, tensor.shape))
            raise ConfigError(f"{file}: the alpha of {layer} must be one number. Got {shape}. Save the LoRA again.")
    yield "its alpha tensor", {layer: _number(file, "alpha", t.item()) for layer, t in tensors.items()}
    for key in OBJECTS:
        if key in metadata:
            for settings in _per_network(_parsed(file, key, metadata[key])):
                yield from _peft_alphas(file, key, settings, ranks)
    beside = file.parent / PEFT_CONFIG
    if peft and beside.is_file():
        yield from _peft_alphas(beside, PEFT_CONFIG, read_object(beside), ranks)
    for settings in _per_network(metadata):
        for key in RANKS:
            if key in settings and _number(file, key, settings[key]) not in ranks.values():
                raise _other_rank(file, key, settings[key], *next(iter(ranks.items())))
        for key in ALPHAS:
            if key in settings and not (key.startswith("ss_") and settings[key] in UNSAID):
                yield key, dict.fromkeys(ranks, _number(file, key, settings[key]))


def _parsed(file: Path, key: str, text: str) -> Mapping[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{file}: {key} must be a JSON object. It {error}. Save the LoRA again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: {key} must be a JSON object. Got {show(content)}. Save the LoRA again.")
    return content


def _per_network(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List peft's settings: as they are, below a network's name, or with a network's name before each."""
    networks = ("transformer", "transformer_2")
    below = [content[network] for network in networks if isinstance(content.get(network), dict)]
    before = [{k.removeprefix(f"{n}."): v for k, v in content.items() if k.startswith(f"{n}.")} for n in networks]
    return [settings for settings in ({k: v for k, v in content.items() if "." not in k}, *below, *before) if settings]


def _peft_alphas(
    file: Path, origin: str, settings: Mapping[str, Any], ranks: Mapping[str, int]
) -> Iterator[tuple[str, Alphas]]:
    """Yield what peft's settings say, by each word for alpha that they have.

    Raises:
        ConfigError: they are no settings of a plain LoRA, or not those of these matrices.
    """
    for key in ("use_dora", "use_rslora"):
        if not isinstance(settings.get(key), bool | None):
            raise ConfigError(f"{file}: {key} must be true or false. Got {show(settings[key])}. Save the LoRA again.")
    if settings.get("use_dora"):
        raise ConfigError(f"{file} must be a plain LoRA, which is W + alpha / rank B A. It is a DoRA (use_dora).")
    odd = [key for key in MORE if settings.get(key) not in (None, False, {}, [], "none")]
    odd += [] if settings.get("peft_type", "LORA") == "LORA" else ["peft_type"]
    odd += ["init_lora_weights"] if str(settings.get("init_lora_weights")).startswith(OWN_STARTS) else []
    if odd:
        named = ", ".join(f"{key}={show(settings[key])}" for key in odd)
        raise ConfigError(f"{file} must be a plain LoRA, which is W + alpha / rank B A. It has {named}.")
    rank_of, alpha_of = (_pattern(file, key, settings.get(key)) for key in ("rank_pattern", "alpha_pattern"))
    for key in [key for key in RANKS if key in settings] or RANKS[:1]:
        for layer, rank in ranks.items():
            stated = rank_of(layer, settings.get(key, rank))
            if _number(file, key, stated) != rank:
                raise _other_rank(file, key, stated, layer, rank)
    words = [key for key in ALPHAS if key in settings] or (ALPHAS[:1] if settings.get("alpha_pattern") else [])
    for key in words:
        numbers = {layer: _number(file, key, alpha_of(layer, settings.get(key))) for layer in ranks}
        if settings.get("use_rslora"):  # scaled by alpha over the rank's root
            numbers = {layer: alpha * math.sqrt(ranks[layer]) for layer, alpha in numbers.items()}
        yield f"{key} in {origin}", numbers


def _pattern(file: Path, key: str, setting: Any) -> Callable[[str, Any], Any]:
    """Return a function of a layer's name and of a default that looks the layer up in one of peft's patterns."""
    try:
        patterns = [(re.compile(rf"(.*\.)?({pattern})$"), value) for pattern, value in (setting or {}).items()]
    except (AttributeError, re.error) as error:
        raise ConfigError(f"{file}: {key} must name layers. Got {show(setting)}. Save the LoRA again.") from error
    return lambda layer, default: next((value for pattern, value in patterns if pattern.match(layer)), default)


def _other_rank(file: Path, key: str, stated: Any, layer: str, rank: int) -> ConfigError:
    return ConfigError(
        f"{file} must say the rank that its matrices have. It has {key} of {show(stated)}, and {layer} has rank "
        f"{rank}: either may be meant by its alpha. Save the LoRA again."
    )


def _number(file: Path, key: str, number: Any) -> float:
    """Return a finite number other than 0.

    Raises:
        ConfigError: it is none.
    """
    try:
        value = math.nan if isinstance(number, bool) else float(number)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value == 0:
        raise ConfigError(f"{file}: {key} must be a number, finite and not 0. Got {show(number)}. Save the LoRA again.")
    return value
