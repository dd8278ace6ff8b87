"""Prompt encodings, computed once and kept on the CPU. Text encoders are frozen, so an encoding never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from diffrl.data.sources import read_source
from diffrl.errors import ConfigError, SourceError
from diffrl.models.adapter import Conditioning, EditingAdapter, ModelAdapter, device_of
from diffrl.models.family import ENCODINGS_KEPT
from diffrl.models.pipeline import EMPTY, PipelineAdapter, keep_on_device
from diffrl.records import Prompt
from reward_models.common.messages import quote


class PromptEncodings:
    """Encodes prompts on demand and keeps the most recently used.

    Prompts are encoded one at a time: batched matrix products round differently for different batch-mates, and a
    resumed run, or one on more ranks, meets the same prompt among others. The empty prompt's rows, which are all the
    same, are kept once, unless they depend on the image to edit (`Family.empty_sees_source`). What a family makes of
    such an image is kept with its prompt.

    Args:
        adapter: the model.
        capacity: bytes kept; FLUX's T5 takes 4 MiB a prompt.
    """

    def __init__(self, adapter: ModelAdapter, capacity: int = ENCODINGS_KEPT):
        self._adapter = adapter
        self._capacity, self._held = capacity, 0
        self._known: OrderedDict[tuple[str, str | None], Conditioning] = OrderedDict()
        self._empty: Conditioning = {}

    def __call__(self, prompts: Sequence[Prompt]) -> Conditioning:
        """Return the conditioning of B prompts on the transformer's device, one row each, in their order.

        The empty prompt's rows are views of one: select from them, and do not write into them.

        Raises:
            ConfigError: an image to edit cannot be read, or is not of the size that is drawn.
        """
        new = [prompt for prompt in prompts if prompt.key not in self._known]
        with ExitStack() as stack:  # parts that rest elsewhere travel once for all new prompts
            if new:
                stack.enter_context(keep_on_device(self._adapter, "text_encoder"))
            if any(prompt.source is not None for prompt in new):
                for part in ("vae", "image_encoder"):
                    stack.enter_context(keep_on_device(self._adapter, part))
            rows = [self._row(prompt) for prompt in prompts]
        device = device_of(self._adapter.transformer)
        tensors = {name: torch.cat([row[name] for row in rows]).to(device) for name in rows[0]}
        empty = {name: row.to(device).expand(len(rows), *row.shape[1:]) for name, row in self._empty.items()}
        return {**tensors, **empty}

    def _row(self, prompt: Prompt) -> Conditioning:
        key = prompt.key
        if key not in self._known:
            row = {name: tensor.cpu() for name, tensor in self._encoded(prompt).items()}
            if isinstance(self._adapter, PipelineAdapter) and not self._adapter.family.empty_sees_source:
                empty = {name: row.pop(name) for name in list(row) if name.startswith(EMPTY)}
                self._empty = self._empty or empty
            self._known[key] = row
            self._held += _bytes(row)
            while self._held > self._capacity and len(self._known) > 1:
                self._held -= _bytes(self._known.popitem(last=False)[1])
        self._known.move_to_end(key)
        return self._known[key]

    def _encoded(self, prompt: Prompt) -> Conditioning:
        if prompt.source is None or not isinstance(self._adapter, EditingAdapter):
            return self._adapter.encode_prompts([prompt.text])
        source = read_source(prompt.source)
        try:
            return self._adapter.encode_edits([prompt.text], [source])
        except ConfigError as error:  # it has another size than it had: the adapter sees pixels, not their file
            raise SourceError(f"The image to edit {quote(prompt.source)} cannot be used. {error}") from error


def _bytes(row: Conditioning) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in row.values())
