"""The attention of Qwen-Image and of Qwen-Image 2.1, for prompts that are padded to one length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21AttnProcessor

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


class OwnLengths(QwenImage21AttnProcessor):  # type: ignore[misc]
    """Qwen-Image 2.1's attention, in which padding moves nothing.

    The network counts places of the joint sequence, and a picture's place in time is the number of text tokens before
    it, padding among them: prompts padded to 512 would be drawn as none was trained. Here that place is the number of
    a prompt's own tokens, as it is in the stock call of one prompt.

    Args:
        frames: complex numbers of the rotary embedding that are of the place in time.
    """

    def __init__(self, frames: int):
        self.frames = frames

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        attention_mask: Any = None,
        rotary_emb: Any = None,
        layer_cache: Any = None,
        kv_cache_mode: str | None = None,
        cache_write_slice: slice | None = None,
        segments: Any = None,
        key_valid: Any = None,
    ) -> Tensor:
        """Return the attention's output (B, L + tokens, D) of texts before pictures; of others, what diffusers does."""
        if key_valid is None or kv_cache_mode is not None:  # a stock call, whose texts lead nowhere else
            return super().__call__(  # type: ignore[no-any-return]
                attn,
                hidden_states,
                attention_mask,
                rotary_emb,
                layer_cache,
                kv_cache_mode,
                cache_write_slice,
                segments,
                key_valid,
            )
        words = segments[-1][1]
        rotary = rotary_emb.repeat(len(hidden_states), 1, 1)
        lengths = key_valid[:, :words].sum(dim=1)
        rotary[:, words:, : self.frames] = rotary_emb[lengths, None, : self.frames]
        value = attn.to_v(hidden_states).unflatten(-1, (attn.heads, -1))
        query, key = (
            _rotated(norm(layer(hidden_states).unflatten(-1, (attn.heads, -1))), rotary).to(value.dtype)
            for layer, norm in ((attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k))
        )
        seen = key_valid[:, None, None]
        causal = torch.ones(words, words, dtype=torch.bool, device=query.device).tril()

        def attend(rows: Tensor, columns: int, mask: Tensor) -> Tensor:
            attended: Tensor = dispatch_attention_fn(
                rows,
                key[:, :columns],
                value[:, :columns],
                attn_mask=mask,
                backend=self._attention_backend,
                parallel_config=self._parallel_config,
            )
            return attended

        text = attend(query[:, :words], words, seen[..., :words] & causal)
        image = attend(query[:, words:], key.shape[1], seen)
        joined = torch.cat([text, image], dim=1).flatten(2, 3).type_as(query)
        output: Tensor = attn.to_out[1](attn.to_out[0](joined))
        return output


def _rotated(heads: Tensor, rotary: Tensor) -> Tensor:
    """Turn (B, S, heads, D) by complex numbers (B, S, D / 2); in float32, as diffusers does."""
    turned = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2))) * rotary.unsqueeze(2)
    return torch.view_as_real(turned).flatten(3)
