"""Where a pipeline's parts live and how they are run: device, offloading, attention backend, compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from diffrl.errors import ConfigError, NotHereError
from diffrl.precision.compiled import compile_network, repeated_blocks


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


def try_attention(
    name: str, device: torch.device, dtype: torch.dtype, run: Callable[[], list[torch.Tensor]] | None = None
) -> None:
    """Run a backend forward and backward: some only infer, some take no float32, no such heads, or not this device.

    Args:
        name: of the backend.
        device: of the network.
        dtype: of the network.
        run: gives gradients of more than three tensors of random numbers, such as `block_gradients`.

    Raises:
        NotHereError: it fails or gives no gradient.
    """
    from diffusers.models.attention_dispatch import AttentionBackendName, _check_attention_backend_requirements

    problem = None
    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
        gradients = [*_plain_gradients(name, device, dtype), *([] if run is None else run())]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            problem = "its gradient is not finite"
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AttributeError, TypeError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if problem is not None:
        raise NotHereError(
            f"model.attention {name!r} cannot be used on {device.type} in {str(dtype).removeprefix('torch.')}: "
            f"{problem.rstrip('.')}. Set model.attention: native."
        )


def _plain_gradients(name: str, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    x = torch.randn(1, 64, 2, 64, device=device, dtype=dtype, requires_grad=True)
    attended = dispatch_attention_fn(x, x, x, backend=AttentionBackendName(name))
    return list(torch.autograd.grad(attended.float().sum(), [x]))


def block_gradients(transformer: nn.Module, call: Callable[[], object]) -> list[torch.Tensor]:
    """Run the first block of each kind forward and backward on what reaches it in a network call.

    Args:
        transformer: its blocks are those that diffusers names.
        call: calls it.

    Returns:
        Gradients by the numbers that came to each block.
    """
    gradients: list[torch.Tensor] = []
    kinds = set()

    def run(block: Any, args: Any, kwargs: Any) -> None:
        kind = (type(block), *(name for name, _ in block.named_children()))
        if kind in kinds:
            return
        kinds.add(kind)
        with torch.enable_grad():
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            inputs = {id(x): x.detach().requires_grad_() for x in leaves}
            args, kwargs = tree_map_only(
                torch.Tensor, lambda x: inputs[id(x)].clone() if id(x) in inputs else x, (args, kwargs)
            )
            outputs = [x for x in tree_leaves(block.forward(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            total = torch.stack([x.float().sum() for x in outputs]).sum()
            gradients.extend(
                g for g in torch.autograd.grad(total, list(inputs.values()), allow_unused=True) if g is not None
            )

    hooks = [block.register_forward_pre_hook(run, with_kwargs=True) for block in repeated_blocks(transformer)]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return gradients


def keep_dtype(transformer: nn.Module) -> None:
    """Let each norm give back the dtype that it takes, as it does without autocast: CUDA's would make it float32.

    Queries and keys, which mostly come from one, so have the values' dtype, as some attention backends ask.
    """
    for module in transformer.modules():
        if type(module).__name__.endswith("Norm") and not any(module.children()):
            module.register_forward_hook(_as_taken)


def _as_taken(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    return output.to(inputs[0].dtype)


def compile_blocks(transformer: nn.Module) -> None:
    """Compile each of the transformer's repeated blocks in place; shapes may vary without a graph for each.

    Raises:
        ConfigError: diffusers names no repeated blocks for this transformer.
    """
    if not repeated_blocks(transformer):
        raise ConfigError(
            f"model.compile needs a transformer of repeated blocks. Got a {type(transformer).__name__}, which names "
            "none. Set it to false."
        )
    compile_network(transformer)
