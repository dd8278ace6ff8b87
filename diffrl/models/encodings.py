"""Prompt encodings, computed once. Text encoders are frozen, so a prompt's encoding never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from diffrl.models.adapter import Conditioning, ModelAdapter


class PromptEncodings:
    """Encodes prompts on demand and keeps the most recently used.

    Prompts are encoded one at a time: batched matrix products round differently for different batch-mates, and a
    resumed run, or one on more ranks, meets the same prompt among others.

    Args:
        adapter: the model.
        capacity: encodings kept.
    """

    def __init__(self, adapter: ModelAdapter, capacity: int = 4096):
        self._adapter = adapter
        self._capacity = capacity
        self._known: OrderedDict[str, Conditioning] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> Conditioning:
        """The conditioning of B prompts, one row each, in their order."""
        rows = [self._row(text) for text in texts]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _row(self, text: str) -> Conditioning:
        if text not in self._known:
            self._known[text] = self._adapter.encode_prompts([text])
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        self._known.move_to_end(text)
        return self._known[text]
