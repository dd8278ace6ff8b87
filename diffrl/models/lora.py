"""LoRA on a transformer through peft: add, read, write, switch off for the reference policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.targets import names_layer

ADAPTER_NAME = "default"

PEFT_LORA = "adapter_model.safetensors"
"""What peft calls a LoRA, beside its adapter_config.json."""


def add_lora(transformer: Any, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Add trainable LoRA weights in float32; B starts at zero, so the policy starts as the base model.

    Args:
        transformer: a diffusers transformer with peft support.
        rank: r of the update B A, (out, r) x (r, in).
        alpha: the update is scaled by alpha / rank.
        targets: module names as peft matches them: whole names, or endings after a dot.
        seed: of A's Gaussian initialisation.

    Raises:
        ConfigError: a target matches no module.
    """
    from peft import LoraConfig

    linears = [name for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
    missing = [t for t in targets if not any(names_layer(t, name) for name in linears)]
    if missing:
        endings = sorted({".".join(name.split(".")[2:]) for name in linears if name.count(".") > 1})
        raise ConfigError(
            f"model.lora.targets must name linear layers of the transformer. Got {', '.join(missing)}, "
            f"which match none. Layers inside its blocks: {', '.join(endings)}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), init_lora_weights="gaussian")
        _add_adapter(transformer, config)


def attach_matrices(
    transformer: Any, down: Mapping[str, Tensor], up: Mapping[str, Tensor], alpha: Mapping[str, float]
) -> None:
    """Add a LoRA that is there already, frozen, in float32: W + (alpha / rank) B A for each of its layers.

    Smaller ranks are filled up with zeros, which change nothing.

    Args:
        transformer: a diffusers transformer with peft support.
        down: A by the layer's name, (rank, in).
        up: B, (out, rank).
        alpha: of each layer.
    """
    from peft import LoraConfig

    rank = max(map(len, down.values()))
    targets = "|".join(map(re.escape, down))  # a list of names would be taken for endings of names, too
    _add_adapter(transformer, LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, init_lora_weights=False))
    for name in down:
        layer, size = transformer.get_submodule(name), len(down[name])
        layer.scaling[ADAPTER_NAME] = alpha[name] / size
        layer.lora_A[ADAPTER_NAME].weight.data.zero_()[:size] = down[name]
        layer.lora_B[ADAPTER_NAME].weight.data.zero_()[:, :size] = up[name]
        layer.lora_A.requires_grad_(False)
        layer.lora_B.requires_grad_(False)


class HalfOfLora(nn.Linear):
    """A or B: float32 weights that are cast to what comes in, so that the network's activations keep their dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., in) to (..., out), in the dtype of x."""
        return nn.functional.linear(x, self.weight.to(x.dtype))


def _add_adapter(transformer: Any, config: Any) -> None:
    """Add a LoRA's layers in float32, where the network is; they compute in the network's dtype."""
    device = next(transformer.parameters()).device
    transformer.add_adapter(config, adapter_name=ADAPTER_NAME)
    for layer in [module for module in transformer.modules() if hasattr(module, "lora_A")]:
        layer.cast_input_dtype_enabled = False  # peft would cast what comes in to float32
        for half in (layer.lora_A[ADAPTER_NAME], layer.lora_B[ADAPTER_NAME]):
            half.__class__ = HalfOfLora  # in place: names, hooks and weights stay
            half.weight.data = half.weight.data.to(device, torch.float32)


def lora_layers(transformer: nn.Module) -> dict[str, Tensor]:
    """Return the LoRA weights in peft's naming, which diffusers' `save_lora_weights` takes."""
    from peft.utils import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(transformer, adapter_name=ADAPTER_NAME))


def lora_metadata(transformer: Any) -> Mapping[str, Any]:
    """Return the peft configuration that must travel with the weights: without it a loader guesses alpha = rank."""
    return dict(transformer.peft_config[ADAPTER_NAME].to_dict())


def save_adapter(transformer: Any, folder: Path) -> None:
    """Write the LoRA as peft does: adapter_config.json and adapter_model.safetensors."""
    layers = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in lora_layers(transformer).items()}
    transformer.peft_config[ADAPTER_NAME].save_pretrained(str(folder))
    save_file(layers, folder / PEFT_LORA, {"format": "pt"})


@contextmanager
def lora_disabled(transformer: Any) -> Iterator[None]:
    """Let the transformer be the base model until the block ends."""
    transformer.disable_adapters()
    try:
        yield
    finally:
        transformer.enable_adapters()
