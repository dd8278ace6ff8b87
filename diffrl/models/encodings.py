"""Prompt encodings, computed once and kept on the CPU. Text encoders are frozen, so an encoding never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from diffrl.models.adapter import Conditioning, ModelAdapter, device_of
from diffrl.models.pipeline import EMPTY, PipelineAdapter, held


class PromptEncodings:
    """Encodes prompts on demand and keeps the most recently used.

    Prompts are encoded one at a time: batched matrix products round differently for different batch-mates, and a
    resumed run, or one on more ranks, meets the same prompt among others. The empty prompt's rows, which are all the
    same, are kept once.

    Args:
        adapter: the model.
        capacity: bytes kept; FLUX's T5 takes 4 MiB a prompt.
    """

    def __init__(self, adapter: ModelAdapter, capacity: int = 4 * 2**30):
        self._adapter = adapter
        self._capacity, self._held = capacity, 0
        self._known: OrderedDict[str, Conditioning] = OrderedDict()
        self._empty: Conditioning = {}

    def __call__(self, texts: Sequence[str]) -> Conditioning:
        """The conditioning of B prompts on the transformer's device, one row each, in their order.

        The empty prompt's rows are views of one: select from them, and do not write into them.
        """
        new = any(text not in self._known for text in texts)
        with held(self._adapter, "text_encoder") if new else nullcontext():  # they travel once for all new prompts
            rows = [self._row(text) for text in texts]
        device = device_of(self._adapter.transformer)
        own = {name: torch.cat([row[name] for row in rows]).to(device) for name in rows[0]}
        empty = {name: row.to(device).expand(len(rows), *row.shape[1:]) for name, row in self._empty.items()}
        return {**own, **empty}

    def _row(self, text: str) -> Conditioning:
        if text not in self._known:
            row = {name: tensor.cpu() for name, tensor in self._adapter.encode_prompts([text]).items()}
            if isinstance(self._adapter, PipelineAdapter):
                empty = {name: row.pop(name) for name in list(row) if name.startswith(EMPTY)}
                self._empty = self._empty or empty
            self._known[text] = row
            self._held += _bytes(row)
            while self._held > self._capacity and len(self._known) > 1:
                self._held -= _bytes(self._known.popitem(last=False)[1])
        self._known.move_to_end(text)
        return self._known[text]


def _bytes(row: Conditioning) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in row.values())
