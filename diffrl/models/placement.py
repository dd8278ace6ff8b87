"""Where a pipeline's parts live and how they are run: device, offloading, attention backend, compilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from diffrl.errors import ConfigError, NotHereError


@dataclass(frozen=True)
class Placement:
    """Where a pipeline's parts live and how they are run.

    Args:
        device: of the transformer, and of whatever is not offloaded.
        offload: "text_encoders" (with one that sees an image for the network) and "vae" rest on the CPU and come to the
            device for each use.
        vae_dtype: None leaves the choice to the family.
        vae_slicing: decode one picture at a time.
        vae_tiling: decode in overlapping tiles.
        attention: a backend of diffusers' attention dispatcher; None is diffusers' own choice, "native".
        base_precision: int8 or nf4 keeps the transformer's frozen weights so; None keeps them in `dtype`.
        compile: torch.compile the transformer's blocks.
    """

    device: torch.device = torch.device("cpu")
    offload: tuple[str, ...] = ()
    vae_dtype: torch.dtype | None = None
    vae_slicing: bool = False
    vae_tiling: bool = False
    attention: str | None = None
    base_precision: str | None = None
    compile: bool = False


ALIGNMENT = 64
"""Bytes: where torch itself begins a tensor."""


def align(module: nn.Module) -> None:
    """Copy weights that begin elsewhere than torch's own do, as those of a mapped file mostly do.

    Kernels of CPUs round by alignment, too. Where a file's header ends would else decide the last digits of a run.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type == "cpu" and type(tensor.data) is torch.Tensor and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def set_attention(transformer: Any, name: str) -> None:
    """Run attention by another backend of diffusers.

    Raises:
        ConfigError: unknown, its package is not here, or this transformer's attention can be reached neither through
            diffusers' dispatcher nor by `dispatched_attention`, and would run on unchanged.
    """
    try:
        transformer.set_attention_backend(name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"model.attention {name!r} cannot be used: {str(error).strip().rstrip('.')}. Set model.attention: native."
        ) from error
    processors = [module.processor for module in transformer.modules() if hasattr(module, "processor")]
    if name == "native" or any(hasattr(processor, "_attention_backend") for processor in processors):
        return
    from diffrl.models.dispatched_attention import dispatch_plain

    if not dispatch_plain(transformer, name):
        raise ConfigError(
            f"model.attention {name!r} cannot be used: the attention of a {type(transformer).__name__} always goes "
            "through PyTorch, which chooses the fastest kernel that it has. Set model.attention: native."
        )


def try_attention(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Run a backend once, forward and backward: some only infer, some take no float32 or not this device.

    Raises:
        NotHereError: it fails or gives no gradient.
    """
    from diffusers.models.attention_dispatch import (
        AttentionBackendName,
        _check_attention_backend_requirements,
        dispatch_attention_fn,
    )

    problem = None
    x = torch.randn(1, 64, 2, 64, device=device, dtype=dtype, requires_grad=True)
    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
        dispatch_attention_fn(x, x, x, backend=AttentionBackendName(name)).float().sum().backward()
        if x.grad is None or not bool(torch.isfinite(x.grad).all()):
            problem = "it gives no gradient"
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AttributeError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if problem is not None:
        raise NotHereError(
            f"model.attention {name!r} cannot be used on {device.type} in {str(dtype).removeprefix('torch.')}: "
            f"{problem.rstrip('.')}. Set model.attention: native."
        )


def keep_dtype(transformer: nn.Module) -> None:
    """Let each norm give back the dtype that it takes, as it does without autocast: CUDA's would make it float32.

    Queries and keys, which mostly come from one, so have the values' dtype, as some attention backends ask.
    """
    for module in transformer.modules():
        if type(module).__name__.endswith("Norm") and not any(module.children()):
            module.register_forward_hook(_as_taken)


def _as_taken(module: nn.Module, given: tuple[torch.Tensor, ...], found: torch.Tensor) -> torch.Tensor:
    return found.to(given[0].dtype)


def compile_blocks(transformer: nn.Module) -> None:
    """Compile each of the transformer's repeated blocks in place; shapes may vary without a graph for each.

    Raises:
        ConfigError: diffusers names no repeated blocks for this transformer.
    """
    names = {name for kind in {type(module) for module in transformer.modules()} for name in _block_names(kind)}
    blocks = [module for module in transformer.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigError(
            f"model.compile needs a transformer of repeated blocks. Got a {type(transformer).__name__}, which names "
            "none. Set it to false."
        )
    for block in blocks:
        block.compile(dynamic=True)


def _block_names(kind: type) -> tuple[str, ...]:
    """Class names of a diffusers model's repeated blocks."""
    return tuple(getattr(kind, "_repeated_blocks", None) or getattr(kind, "_no_split_modules", None) or ())
