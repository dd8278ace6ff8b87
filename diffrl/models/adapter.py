"""What diffrl needs of a model family: six methods over diffusers components.

A family's file wraps a diffusers pipeline; it never copies a pipeline's `__call__`. Everything above this file sees
latents, sigmas and velocities only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Conditioning = Mapping[str, "Tensor"]
"""Encoded prompts: named tensors whose first axis is the prompt, so that rows can be selected and repeated."""

DrawNoise = Callable[[tuple[int, ...]], "Tensor"]
"""Given the shape of one sample's noise, returns (B, *shape) unit normal float32 for the samples at hand."""


class ModelAdapter(Protocol):
    """A flow-matching generator: text to velocity to picture."""

    transformer: nn.Module

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode B prompts; row i belongs to prompt i. Deterministic, so callers may cache it."""
        ...

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Return latents at sigma = 1: asks `draw` for noise of this family's shape and packs it; (B, ...)."""
        ...

    def sigmas(self, steps: int) -> Tensor:
        """Return the grid the stock pipeline runs for `steps` steps: (steps + 1,) float32, 1 down to 0."""
        ...

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return predicted v = noise - image, (B, ...), for latents (B, ...) at noise levels sigma (B,) in [0, 1]."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Return pictures of latents at sigma = 0: uint8 RGB (B, 3, H, W)."""
        ...

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """Return the modules that alignment may train, by their name in the pipeline."""
        ...


@runtime_checkable
class EditingAdapter(ModelAdapter, Protocol):
    """A generator of edits, or of videos that begin with an image: prompts come with one each. `Family.edits` says so.

    Images come and go at `height` x `width` pixels.
    """

    height: int
    width: int

    def encode_edits(self, prompts: Sequence[str], sources: Sequence[Tensor]) -> Conditioning:
        """Encode prompts with what the network needs of B images to edit, (3, H, W) uint8 RGB of any size each.

        Raises:
            ConfigError: an image has another ratio of sides than what is drawn.
        """
        ...

    def stock_call(self) -> Mapping[str, Any]:
        """Return arguments by which a call of the stock pipeline scales an image, and draws, as it is done here."""
        ...


def take_rows(conditioning: Conditioning, rows: Tensor) -> dict[str, Tensor]:
    """Return the conditioning of the given rows, in that order; `rows` is (B,) int64."""
    return {name: tensor.index_select(0, rows.to(tensor.device)) for name, tensor in conditioning.items()}


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter."""
    return next(module.parameters()).device
