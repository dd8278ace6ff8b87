"""A LoRA's frozen base in int8 or nf4, by bitsandbytes: the same quantised weights in rollout and update.

What is quantised is what a low-precision copy would quantise: the family's excluded layers keep their dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from diffrl.errors import ConfigError
from diffrl.precision.layers import matches


def quantise_base(transformer: nn.Module, exclude: Sequence[str], precision: str, dtype: torch.dtype) -> int:
    """Replace a transformer's linear layers by quantised ones, on the CPU; moving them to a device quantises them.

    nf4 is QLoRA's 4-bit NormalFloat (Dettmers et al., arXiv 2305.14314), int8 is LLM.int8's vector-wise product without
    its outliers, which would make a sample depend on its batch-mates.

    Args:
        transformer: on the CPU, its weights loaded.
        exclude: patterns of the layers that stay as they are; see `precision.layers.matches`.
        precision: int8 or nf4.
        dtype: that the products of nf4 are computed in.

    Returns:
        How many layers were replaced.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise ConfigError(
            f"model.base_precision={precision} needs bitsandbytes. Run: pip install 'diffrl[bitsandbytes]'."
        ) from error
    linears = [(name, module) for name, module in transformer.named_modules() if type(module) is nn.Linear]
    chosen = [(n, m) for n, m in linears if not any(matches(pattern, n) for pattern in exclude)]
    for name, linear in chosen:
        transformer.set_submodule(name, _quantised(bitsandbytes, linear, precision, dtype))
    # peft looks here for the layers that it wraps.
    setattr(transformer, "is_loaded_in_4bit" if precision == "nf4" else "is_loaded_in_8bit", True)
    return len(chosen)


def _quantised(library: Any, linear: nn.Linear, precision: str, dtype: torch.dtype) -> nn.Module:
    sizes = {"input_features": linear.in_features, "output_features": linear.out_features}
    layer: Any
    if precision == "nf4":
        layer = library.nn.Linear4bit(
            **sizes, bias=linear.bias is not None, compute_dtype=dtype, quant_type="nf4", device="meta"
        )
        layer.support_avx512bf16_for_cpu = False  # its packed form for CPUs has no gradient
        layer.weight = library.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    else:
        layer = library.nn.Linear8bitLt(
            **sizes, bias=linear.bias is not None, has_fp16_weights=False, threshold=0.0, device="meta"
        )
        layer.weight = library.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    return layer.requires_grad_(False)  # type: ignore[no-any-return]
