"""The weights being trained: LoRA or the whole transformer, their reference, and how they are read and written."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.errors import CheckpointError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.lora import add_lora, lora_disabled


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
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        lora: Mapping[str, Any] | None,
        seed: int,
        keep_reference: bool = False,
        gradient_checkpointing: bool = False,
    ):
        self.adapter = adapter
        self.inner: Any = adapter.transformer
        self.lora = lora
        self._reference: nn.Module | None = None
        if keep_reference and lora is None:
            self._reference = copy.deepcopy(self.inner).requires_grad_(False).eval()
        if lora is None:
            nn.Module.to(self.inner, torch.float32).requires_grad_(True)  # diffusers' own `to` warns about it
        else:
            add_lora(self.inner, lora["rank"], lora["alpha"], lora["targets"], seed)
        if gradient_checkpointing:
            self.inner.enable_gradient_checkpointing()
        self.inner.eval()
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.inner.named_parameters() if parameter.requires_grad
        }

    def networks(self) -> list[nn.Module]:
        """The trained transformer and, where it is a network of its own, the reference."""
        return [self.inner] if self._reference is None else [self.inner, self._reference]

    def state(self) -> dict[str, Tensor]:
        """The trained weights by name."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Set the trained weights.

        Raises:
            CheckpointError: names or shapes are not this policy's.
        """
        missing, unknown = self.parameters.keys() - weights.keys(), weights.keys() - self.parameters.keys()
        if missing or unknown:
            raise CheckpointError(
                f"The checkpoint must hold the weights that this configuration trains. Missing: "
                f"{sorted(missing)[:3] or 'none'}; not trained here: {sorted(unknown)[:3] or 'none'}."
            )
        for name, parameter in self.parameters.items():
            if parameter.shape != weights[name].shape:
                raise CheckpointError(
                    f"The checkpoint's {name} has shape {tuple(weights[name].shape)}, "
                    f"the model's has {tuple(parameter.shape)}."
                )
            parameter.copy_(weights[name])

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the adapter's transformer is the model before alignment."""
        if self._reference is None:
            with lora_disabled(self.inner):
                yield
            return
        live, self.adapter.transformer = self.adapter.transformer, self._reference
        try:
            yield
        finally:
            self.adapter.transformer = live
