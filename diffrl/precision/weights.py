"""A network as it is without LoRA: its structure as a fresh copy, its weights with the update merged."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.distributed.gathered import Gathered, whole
from diffrl.errors import ConfigError
from diffrl.precision.report import PrecisionError

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def plain_copy(source: nn.Module, dtype: torch.dtype, device: torch.device, hollow: Collection[str] = ()) -> nn.Module:
    """Return a frozen copy in eval mode, without LoRA and without hooks; its weights are the base model's.

    No more than the copy itself is allocated: each tensor is converted on its own way over.

    Args:
        source: the network; peft may have added LoRA to it.
        dtype: of the copy's floating-point parameters and buffers.
        device: of the copy.
        hollow: names of modules whose own parameters get no storage (the meta device): they are filled in later.
    """
    memo: dict[int, Any] = {}
    meta = torch.device("meta")
    for name, parameter in source.named_parameters(remove_duplicate=False):
        if id(parameter) in memo:
            continue
        shape_only = torch.empty(0) if _is_lora(name) else parameter.detach()
        empty = name.replace(".base_layer.", ".").rpartition(".")[0] in hollow
        moved = _moved(shape_only, dtype, meta if empty else device)
        memo[id(parameter)] = nn.Parameter(moved, requires_grad=False)
    for buffer in source.buffers():
        memo[id(buffer)] = _moved(buffer.detach(), dtype, device)
    for module in source.modules():
        memo.update({id(getattr(module, hooks)): type(getattr(module, hooks))() for hooks in _HOOKS})
    plain = copy.deepcopy(source, memo)
    for name, layer in lora_layers(plain).items():
        plain.set_submodule(name, layer.get_base_layer())
    for attribute in ("peft_config", "_hf_peft_config_loaded"):
        plain.__dict__.pop(attribute, None)
    return plain.requires_grad_(False).eval()


def structure(source: nn.Module) -> nn.Module:
    """Return `plain_copy` without numbers, on the meta device."""
    return plain_copy(source, torch.float32, torch.device("meta"))


@torch.no_grad()
def merged_copy(source: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Return `plain_copy` with the active LoRA updates added to the weights.

    Raises:
        PrecisionError: a LoRA that cannot be merged.
    """
    plain, tensors, lora = plain_copy(source, dtype, device), plain_tensors(source), lora_layers(source)
    for name, target in plain_tensors(plain).items():
        if name.rpartition(".")[0] in lora:
            target.copy_(merged(name, tensors[name], lora))
    return plain


def plain_tensors(source: nn.Module) -> Mapping[str, Tensor]:
    """Return parameters and buffers by the name that they have without LoRA, the update not merged.

    Of a network that is sharded over ranks each is gathered when it is looked up.
    """
    tensors = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    plain = {name.replace(".base_layer.", "."): t.detach() for name, t in tensors.items() if not _is_lora(name)}
    return Gathered(plain)


def merged(name: str, tensor: Tensor, layers: Mapping[str, Any]) -> Tensor:
    """Return a plain tensor with its layer's active LoRA update added, in float32; any other tensor as it is.

    Args:
        name: of the tensor, from `plain_tensors`.
        tensor: the tensor.
        layers: from `lora_layers`.

    Raises:
        PrecisionError: a kind of LoRA that is not W + (alpha / rank) B A, such as DoRA.
    """
    module, _, kind = name.rpartition(".")
    layer = layers.get(module)
    if layer is None or kind != "weight" or layer.disable_adapters:
        return tensor
    weight = tensor.float()
    for active in layer.active_adapters:
        if active not in layer.lora_A or active in layer.merged_adapters:
            continue
        if active in layer.lora_variant or layer.lora_bias[active]:
            raise PrecisionError(
                f"{module} has a LoRA that is not W + (alpha / rank) B A, such as DoRA, and cannot be merged into a "
                "low-precision copy. Let the policy itself draw."
            )
        weight = weight + whole(layer.get_delta_weight(active)).float()
    return weight


def lora_layers(source: nn.Module) -> dict[str, Any]:
    """Return the layers that peft put around others, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in source.named_modules() if isinstance(module, LoraLayer)}


def _is_lora(name: str) -> bool:
    return any(part.startswith("lora_") for part in name.split("."))


def _moved(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a copy that shares no storage with `tensor`; on the meta device its shape alone."""
    if device.type == "meta":
        return torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device=device)
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def refuse_quantised(source: nn.Module) -> None:
    """Refuse to copy a network whose frozen weights are quantised: a LoRA cannot be merged into them.

    Raises:
        ConfigError: it is one of `model.base_precision`.
    """
    if any(getattr(source, f"is_loaded_in_{bits}bit", False) for bits in (4, 8)):
        raise ConfigError(
            "A copy in low precision needs a network whose weights are not quantised. Got one of model.base_precision. "
            "Set model.base_precision: null."
        )
