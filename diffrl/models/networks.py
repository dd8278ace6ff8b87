"""A pipeline's networks, loaded one by one: what loading says of each is heard, and NaN or inf is named."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.files import read_object
from diffrl.models.weights import (
    loading_comparison,
    names_part,
    network_class,
    part_variant,
    require_weights,
    silent_transformers,
)
from reward_models.common.messages import quote

if TYPE_CHECKING:
    import torch
    from torch import nn

PIECE = 2**18
"""Numbers that are looked at together: in float32 they fit a processor's cache."""


def load_networks(
    folder: Path,
    pipeline: Any,
    dtype: torch.dtype,
    variant: str | None = None,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> dict[str, nn.Module]:
    """Load the components with weights that a pipeline is made of.

    Args:
        folder: a vetted one, in diffusers format.
        pipeline: its class.
        dtype: of the weights.
        variant: of the files, for components that have it.
        dtypes: of components that have another, by name.

    Raises:
        ConfigError: weights that no file gave, or that are NaN or inf.
    """
    index = read_object(folder / "model_index.json")
    networks = {}
    for name in inspect.signature(pipeline.__init__).parameters:
        if names_part(named := index.get(name)) and (made := network_class(*named)) is not None:
            networks[name] = _load(folder / name, made, (dtypes or {}).get(name, dtype), variant)
    return networks


def _load(part: Path, made: Any, dtype: torch.dtype, variant: str | None) -> nn.Module:
    from transformers import PreTrainedModel

    named = {"dtype" if issubclass(made, PreTrainedModel) else "torch_dtype": dtype}
    with silent_transformers():
        network, info = made.from_pretrained(
            str(part),
            variant=part_variant(part, variant),
            use_safetensors=True,
            output_loading_info=True,
            **named,
        )
    weights = loading_comparison(info)
    if getattr(network, "quantization_method", None) or getattr(network, "hf_quantizer", None):
        weights = replace(weights, unexpected=())  # scales that its layers do take
    require_weights(part, made.__name__, weights)
    _require_finite(part, network)
    return network  # type: ignore[no-any-return]


def _require_finite(part: Path, network: nn.Module) -> None:
    """Refuse weights that are no numbers: some networks swallow them without a trace.

    A sum is NaN or inf if one of its terms is. It takes a tenth of the time of looking at each: measured once, .4 s of
    one core for 10^9 numbers in float32 or bfloat16.
    """
    import torch

    for name, tensor in network.state_dict().items():
        if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            continue
        number = tensor if type(tensor) is torch.Tensor else tensor.dequantize()  # torchao's
        sums = (piece.float().sum() for piece in number.flatten().split(PIECE))
        if not all(bool(total.isfinite()) for total in sums) and not bool(number.float().isfinite().all()):
            raise ConfigError(f"{quote(name)} of {part} holds NaN or inf. Fetch its files again.")
