"""Qwen-Image's attention, given the prompts' masks straight and not through the network's call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0

if TYPE_CHECKING:
    from torch import Tensor


class MaskedAttention(QwenDoubleStreamAttnProcessor2_0):  # type: ignore[misc]
    """The stock attention, which takes masks (B, L) as `text_mask` of `attention_kwargs` too.

    Given masks itself, diffusers' network also counts each prompt's tokens, copies a number to the device for it, and
    drops what it counted: every call would wait for the device.
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
        text_mask: Tensor | None = None,
    ) -> Any:
        """As in diffusers; attention hands on only what this signature names."""
        mask = encoder_hidden_states_mask if text_mask is None else text_mask
        return super().__call__(attn, hidden_states, encoder_hidden_states, mask, attention_mask, image_rotary_emb)
