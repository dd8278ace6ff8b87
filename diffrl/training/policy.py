"""The weights being trained: LoRA or the whole transformer, their reference, and how they are read and written."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffrl.distributed.sharding import dtype_of, fill, roots, shape_of, shard_network
from diffrl.errors import CheckpointError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.lora import add_lora, lora_disabled
from diffrl.models.pipeline import PipelineAdapter
from diffrl.precision.compiled import compile_network, compiled_blocks


class Policy:
    """An adapter whose transformer has trainable weights in float32.

    The transformer stays in eval mode: a dropout that is active in the update and not in the rollout would break the
    on-policy ratio.

    Args:
        adapter: the model; its transformer is changed in place.
        lora: None for full fine-tuning, else rank, alpha, targets.
        seed: of LoRA's initialisation.
        keep_reference: whether `reference()` will be asked for; full fine-tuning then keeps a frozen copy.
        gradient_checkpointing: recompute activations in the backward pass.
        to_be_sharded: `shard` is called next; it is what turns the weights of a full fine-tune into float32 then.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        lora: Mapping[str, Any] | None,
        seed: int,
        keep_reference: bool = False,
        gradient_checkpointing: bool = False,
        to_be_sharded: bool = False,
    ):
        self.adapter = adapter
        self.inner = cast(Any, adapter.transformer)
        self.lora = lora
        self.sharded = False
        self._reference: nn.Module | None = None
        if lora is None and isinstance(adapter, PipelineAdapter):
            adapter.train_whole()
        if keep_reference and lora is None:
            self._reference = copy.deepcopy(self.inner).requires_grad_(False).eval()
            if (compiled := compiled_blocks(self.inner)) is not None:
                compile_network(self._reference, compiled.backend)
        if lora is not None:
            add_lora(self.inner, lora["rank"], lora["alpha"], lora["targets"], seed)
        else:
            self.inner.requires_grad_(True)
            if not to_be_sharded:
                nn.Module.to(self.inner, torch.float32)  # diffusers' own `to` warns about it
        if gradient_checkpointing:
            self.inner.enable_gradient_checkpointing()
        self.inner.eval()

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained weights by name; with sharding, this rank's part of each."""
        return {name: parameter for name, parameter in self.inner.named_parameters() if parameter.requires_grad}

    def networks(self) -> list[nn.Module]:
        """Return the trained transformer and, where it is a network of its own, the reference."""
        return [self.inner] if self._reference is None else [self.inner, self._reference]

    @property
    def alternates(self) -> bool:
        """Whether a backward pass may leave weights out.

        Those of one of two networks (Wan 2.2), or weights that feed nothing (a full fine-tune of Qwen-Image).
        """
        family = getattr(self.adapter, "family", None)
        return len(roots(self.inner)) > 1 or (self.lora is None and family is not None and family.idle_weights)

    def shard(self, mesh: Any) -> list[nn.Module]:
        """Split all weights, frozen ones too, over the ranks of a mesh; before anything else asks for `parameters`.

        Returns:
            What is called as a whole: the transformer, and the reference where it is a network of its own.

        Raises:
            ConfigError: the transformer cannot be split.
        """
        self.sharded = True
        # The reference first: it is small again before the trained weights grow.
        reference = [] if self._reference is None else shard_network(self._reference, mesh, widen=False)
        return [*shard_network(self.inner, mesh, widen=self.lora is None), *reference]

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by name."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Set the trained weights; with sharding, this rank's part of them.

        Args:
            weights: whole tensors.

        Raises:
            CheckpointError: names, shapes or dtypes are not this policy's.
        """
        require_weights(self.parameters, weights)
        for name, parameter in self.parameters.items():
            fill(parameter, weights, name)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Let the adapter's transformer be the model before alignment until the block ends."""
        if self._reference is None:
            compiled = compiled_blocks(self.inner)
            with lora_disabled(self.inner), nullcontext() if compiled is None else compiled.of_reference():
                yield
            return
        live, self.adapter.transformer = self.adapter.transformer, self._reference
        try:
            yield
        finally:
            self.adapter.transformer = live


def require_weights(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not those of a policy; nothing is read for it but their headers.

    Args:
        parameters: the trained ones.
        weights: whole tensors.

    Raises:
        CheckpointError: names, shapes or dtypes differ.
    """
    missing, unknown = parameters.keys() - weights.keys(), weights.keys() - parameters.keys()
    if missing or unknown:
        raise CheckpointError(
            f"The checkpoint must hold the weights that this configuration trains. Missing: "
            f"{sorted(missing)[:3] or 'none'}; not trained here: {sorted(unknown)[:3] or 'none'}."
        )
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != (saved := shape_of(weights, name)):
            raise CheckpointError(
                f"The checkpoint's {name} has shape {saved}, the model's has {tuple(parameter.shape)}."
            )
        if str(parameter.dtype) != (dtype := dtype_of(weights, name)):
            raise CheckpointError(f"The checkpoint's {name} is {dtype}, the model's is {parameter.dtype}.")
