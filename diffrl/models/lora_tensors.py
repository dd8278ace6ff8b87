"""What a LoRA's file holds, whoever wrote it: matrices by the names that its trainer gave the layers, checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffrl.errors import ConfigError
from diffrl.models.architecture import header_shapes
from diffrl.models.lora import PEFT_LORA
from diffrl.models.lora_alpha import find_alphas
from reward_models.common.messages import brief

START = "model.lora.start.path"

MATRIX = re.compile(
    r"(?P<layer>[\w.-]+?)\.(?:lora_|lora\.|lora_linear_layer\.|(?<=_lora\.)|(?<=_lora[12]\.))"
    r"(?P<side>A|B|down|up)(?:\.[\w-]+)?\.weight"
)
"""A matrix as peft, kohya and diffusers call it, with an adapter's name or without, or XLabs (qkv_lora1.up.weight)."""

PREFIXES = re.compile(
    r"(?:base_model\.model\.|(?:model\.)?diffusion_model\.|transformer(?:_2)?\.|unet\.|module\."
    r"|lora_unet_|lora_transformer_|lycoris_)*"
)
"""What trainers put before the names of a network's layers."""

TEXT_ENCODERS = re.compile(
    r"(?:base_model\.model\.)?(?:lora_te|text_encoder|text_model\.|conditioner\.|cond_stage_model\.)"
)

KINDS = {
    r"dora_scale|lora_magnitude_vector": "a DoRA, which scales the rows of the weights too",
    r"\.lokr_": "a LoKr",
    r"\.hada_": "a LoHa",
    r"\.ia3_|\.on_input$": "an IA3",
    r"oft_(?:blocks|diag|r|s)\b": "an OFT",
    r"\.vera_lambda": "a VeRA",
    r"\.lora_mid\.": "a LoCon of convolutions",
    r"\.lora_embedding_": "a LoRA of an embedding",
    r"\.lora_(?:A|B|down|up)(?:\.\w+)?\.bias$": "a LoRA with biases",
    r"^(?:emb_params|clip_[lg]|t5xxl|string_to_param.*|<[^.]*>)$": "a textual inversion, which has words and no layers",
}
"""Files that people call a LoRA and that are more, or something else: patterns of their tensors' names."""

ALPHA = re.compile(r"(?P<layer>[\w.-]+)\.alpha")
DIFFERENCE = re.compile(r"\.diff(?:_b)?$")


@dataclass(frozen=True)
class LoraWeights:
    """A LoRA of one network: W + (alpha / rank) B A for some of its linear layers.

    Args:
        down: A of each layer by the layer's name, (rank, in) float32.
        up: B, (out, rank) float32.
        alpha: of each layer.
        file: where it is from.
        notes: what the user should know of it.
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    alpha: Mapping[str, float]
    file: Path
    notes: Sequence[str] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks of its layers, each once, in order."""
        return sorted({len(down) for down in self.down.values()})


def has_peft_layout(file: Path, names: Collection[str]) -> bool:
    """Decide whether peft wrote a file, whose alpha is in an adapter_config.json beside it then."""
    return file.name == PEFT_LORA or any(name.startswith("base_model.model.") for name in names)


def first_few(names: Collection[str]) -> str:
    """Name the first three, and count the others."""
    shown = ", ".join(map(brief, sorted(names)[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def open_lora(file: Path, asked: str = START) -> LoraWeights:
    """Read a LoRA's file as it is, its layers named as in the file but for what stands before all of them.

    Args:
        file: safetensors.
        asked: the key or option that names it, for messages.

    Raises:
        ConfigError: it is no LoRA or more than one, or holds what no network can be given.
    """
    refused = f"{asked} must be a LoRA of this network. Got {file}, "
    every = list(header_shapes(file))
    names = [name for name in every if DIFFERENCE.search(name) is None]
    _require_kind(names, refused)
    down, up, alphas, text = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor](), set[str]()
    try:
        with safe_open(str(file), framework="pt") as content:
            metadata = content.metadata() or {}
            if other := next((n for n in every if DIFFERENCE.search(n) and content.get_tensor(n).any()), None):
                raise ConfigError(f"{refused}which also holds differences of whole weights or biases ({brief(other)}).")
            for name in names:
                matrix = MATRIX.fullmatch(name)
                stem = name.removesuffix(".alpha") if matrix is None else matrix["layer"]
                if TEXT_ENCODERS.match(name):
                    text.add(stem)
                    continue
                half = down if matrix and matrix["side"] in ("A", "down") else up
                side = alphas if matrix is None else half
                layer = PREFIXES.sub("", stem, count=1)
                if layer in side:
                    raise ConfigError(f"{refused}which names {layer} twice. Leave one of the two out.")
                side[layer] = content.get_tensor(name)
    except (SafetensorError, AttributeError, KeyError) as error:  # a dtype that torch has not is the second
        raise ConfigError(f"{file} must be a safetensors file that PyTorch reads. {error}. Save it again.") from error
    _require_matrices(down, up, file, asked)
    if not down:
        what = f"layers of text encoders alone ({first_few(text)})" if text else "no LoRA"
        raise ConfigError(f"{refused}which holds {what}. Take one of the transformer.")
    if orphans := alphas.keys() - down.keys():
        raise ConfigError(f"{refused}which has an alpha and no matrices for {first_few(orphans)}.")
    ranks = {layer: len(matrix) for layer, matrix in down.items()}
    alpha_of, notes = find_alphas(file, metadata, alphas, ranks, has_peft_layout(file, names))
    if text:
        notes.append(f"Layers of text encoders in {file} are left out ({len(text)}): {first_few(text)}.")
    return LoraWeights(
        {layer: matrix.float() for layer, matrix in down.items()},
        {layer: matrix.float() for layer, matrix in up.items()},
        alpha_of,
        file,
        notes,
    )


def _require_kind(names: Sequence[str], refused: str) -> None:
    """Refuse by its name what is no plain LoRA.

    Args:
        names: of its tensors.
        refused: how the sentence begins.

    Raises:
        ConfigError: says what it is.
    """
    for pattern, kind in KINDS.items():
        if match := next((name for name in names if re.search(pattern, name)), None):
            raise ConfigError(f"{refused}{kind} ({brief(match)}). Take a plain LoRA, which is W + alpha / rank B A.")
    others = [name for name in names if not (MATRIX.fullmatch(name) or ALPHA.fullmatch(name))]
    if not others:
        return
    if len(others) < len(names):
        raise ConfigError(f"{refused}which also holds {first_few(others)}, and that is no matrix of a LoRA.")
    if any(name.endswith((".weight", ".bias")) for name in others):
        raise ConfigError(
            f"{refused}a checkpoint of whole weights ({first_few(others)}). Take a LoRA; a pipeline's folder goes into "
            "model.path or --model."
        )
    raise ConfigError(f"{refused}which holds no LoRA but {first_few(others)}.")


def _require_matrices(down: Mapping[str, Tensor], up: Mapping[str, Tensor], file: Path, asked: str) -> None:
    """Refuse matrices that are no pairs of finite numbers with one rank.

    Raises:
        ConfigError: names the first layer.
    """
    refused = f"{asked} must be a LoRA of linear layers in finite numbers. {file} "
    for layer in sorted(down.keys() | up.keys()):
        if layer not in down or layer not in up:
            raise ConfigError(f"{refused}has only half of the LoRA of {layer}: no {'BA'[layer in up]}.")
        for matrix in (down[layer], up[layer]):
            if not matrix.is_floating_point():
                kind = str(matrix.dtype).removeprefix("torch.")
                raise ConfigError(f"{refused}holds {kind} in {layer}. Save it in floating point.")
            if matrix.ndim != 2:
                shape = " x ".join(map(str, matrix.shape))
                raise ConfigError(f"{refused}holds a tensor of {shape} in {layer}. Leave that layer out.")
            numbers = matrix.float()
            if not bool(torch.isfinite(numbers).all()):
                what = "NaN" if bool(numbers.isnan().any()) else "infinity"
                raise ConfigError(f"{refused}holds {what} in {layer}. Take an earlier one.")
        ranks = len(down[layer]), up[layer].shape[1]
        if ranks[0] != ranks[1] or ranks[0] == 0:
            raise ConfigError(f"{refused}has a B for rank {ranks[1]} and an A of rank {ranks[0]} in {layer}.")
