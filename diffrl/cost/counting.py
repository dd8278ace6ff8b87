"""What one more sample of a pipeline holds and computes, counted on fake tensors of its architecture.

Network calls are made with two blocks of each kind, and with a third of one, which tells what each further block adds:
the first block is no measure, since no gradient goes on to what comes before it. They are made of one sample and of
two, since some bytes are there whatever the number of samples is: autocast's copies of trained weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from diffrl.config.model import ModelSettings
from diffrl.cost.activations import Activations, Bytes, count_blocks, with_blocks
from diffrl.cost.live_memory import LiveMemory, like_cuda
from diffrl.models.lora import add_lora
from diffrl.models.published import Pipeline
from diffrl.models.random_weights import random_adapter, random_encodings

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FRAMES = (3, 4)
"""Latent frames that are decoded to tell what each further one adds; decoders take them one after another."""


def count_activations(
    model: ModelSettings, pipeline: Pipeline, options: Mapping[str, Any], checkpointing: bool
) -> Activations:
    """Count what a pipeline's samples hold.

    Args:
        model: family, LoRA and dtypes.
        pipeline: what it is made of; of two networks the first, which is as large as the other.
        options: of the adapter.
        checkpointing: whether the backward pass computes activations again.
    """
    one = Pipeline(pipeline.name, pipeline.components, pipeline.scheduler, {**pipeline.options, "boundary_ratio": None})
    vae_dtype = DTYPES[model.vae_dtype or model.facts.vae_dtype or model.dtype]
    with like_cuda() as memory:
        calls = _Calls(memory, model, one, options, vae_dtype, checkpointing)
        network = one.components["transformer"].config
        counts = count_blocks(network)
        shallow = {kind: min(count, 2) for kind, count in counts.items()}
        base = calls.count(with_blocks(network, shallow), (1, 2))
        figures, samples, less = dict(base), (1, 2), base
        if model.lora is not None:  # has no copies of weights: samples add alone
            samples, less = (2,), {name: Bytes(0, line.of(2) / 2) for name, line in base.items()}
        for kind, count in counts.items():
            if count > 2:
                deeper = calls.count(with_blocks(network, shallow | {kind: 3}), samples)
                for name, line in deeper.items():
                    whole, fewer, further = figures[name], less[name], count - 2
                    fixed = whole.fixed + further * (line.fixed - fewer.fixed)
                    figures[name] = Bytes(fixed, whole.each + further * (line.each - fewer.each))
        return calls.sized(figures)


class _Calls:
    """Calls of a pipeline's network and of its decoder, within a `LiveMemory`."""

    def __init__(
        self,
        memory: LiveMemory,
        model: ModelSettings,
        pipeline: Pipeline,
        options: Mapping[str, Any],
        vae_dtype: torch.dtype,
        checkpointing: bool,
    ):
        self.memory, self.model, self.pipeline, self.options = memory, model, pipeline, options
        self.vae_dtype, self.checkpointing = vae_dtype, checkpointing

    def adapter(self, **changed: Any) -> Any:
        """Return the pipeline behind its adapter, with some settings of its transformer changed."""
        m, dtype = self.model, DTYPES[self.model.dtype]
        return random_adapter(m.family, m.facts, self.pipeline, dtype, CPU, self.options, self.vae_dtype, **changed)

    def count(self, changed: Mapping[str, Any], samples: Sequence[int]) -> dict[str, Bytes]:
        """Count operations and bytes of one and of two samples, or of two alone, without a forward pass by itself."""
        m = self.model
        adapter = self.adapter(**changed)
        if m.lora is not None:
            add_lora(adapter.transformer, m.lora.rank, m.lora.alpha, m.lora_targets, 0)
        else:
            adapter.train_whole()
            for parameter in adapter.transformer.requires_grad_(True).parameters():
                parameter.data = parameter.data.float()
        if self.checkpointing:
            adapter.transformer.enable_gradient_checkpointing()
        for parameter in adapter.transformer.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)  # as it is throughout an update of several micro-batches
        figures = [self._called(adapter, n, alone=len(samples) > 1) for n in samples]
        if len(figures) == 1:
            return {name: Bytes(0, two / 2) for name, two in figures[0].items()}
        one, two = figures
        return {name: Bytes(2 * one[name] - two[name], two[name] - one[name]) for name in one}

    def _called(self, adapter: Any, samples: int, alone: bool) -> dict[str, float]:
        """Call the network with so many samples, with gradient, and where `alone` without it."""
        rows = _rows(random_encodings(adapter, CPU, self.pipeline.components), samples)
        latents, sigma = adapter.init_latents(lambda shape: torch.empty(samples, *shape)), torch.ones(samples)
        figures = {}
        if alone:
            with torch.no_grad():
                figures["forward"], _ = self._held(lambda: adapter.velocity(latents, sigma, rows, 1.0))
        before, flops = self.memory.live, self.memory.flops
        self.memory.peak = before
        velocity = adapter.velocity(latents, sigma, rows, 1.0)
        graph, done = self.memory.live - before, self.memory.flops - flops
        velocity.square().mean().backward()
        return {**figures, "graph": graph, "update": self.memory.peak - before, "flops": done}

    def _held(self, call: Any) -> tuple[int, Any]:
        """Return the bytes that a call holds at most, and what it gives."""
        before = self.memory.live
        self.memory.peak = before
        output = call()
        return self.memory.peak - before, output

    def sized(self, figures: Mapping[str, Bytes]) -> Activations:
        """Add what is no network call's."""
        adapter = self.adapter(**with_blocks(self.pipeline.components["transformer"].config, {}))
        encodings = random_encodings(adapter, CPU, self.pipeline.components)
        latents = adapter.init_latents(lambda shape: torch.empty(1, *shape))
        decode, pixels, sides = self._decoded(adapter, latents)
        tile, side = decode, _tile_side(adapter.pipeline.vae)
        if side < max(sides):
            options = {**self.options, "height": min(side, sides[0]), "width": min(side, sides[1])}
            small = type(adapter)(adapter.pipeline, dtype=adapter.dtype, **options)
            tile, _, _ = self._decoded(small, small.init_latents(lambda shape: torch.empty(1, *shape)))

        return Activations(
            latents=latents.numel(),
            pixels=pixels,
            encoding=sum(tensor.numel() for tensor in encodings.values()),
            flops=figures["flops"].of(1),
            forward=_whole(figures["forward"]),
            graph=_whole(figures["graph"]),
            update=_whole(figures["update"]),
            decode=decode,
            tile=tile,
        )

    def _decoded(self, adapter: Any, latents: Tensor) -> tuple[int, int, tuple[int, int]]:
        """Return the bytes that decoding a sample holds at most, its pixels, and height and width."""

        def held(frames: int | None) -> tuple[int, Tensor]:
            with torch.no_grad():
                return self._held(lambda: adapter.decode(latents if frames is None else latents[:, :, :frames]))

        last = latents.shape[2] if self.model.facts.media == "video" else 0
        if last <= max(FRAMES):
            size, images = held(None)
            return size, images.numel() // 3, (images.shape[-2], images.shape[-1])
        (less, some), (more, images) = (held(frames) for frames in FRAMES)
        further = last - max(FRAMES)
        pixels = (images.numel() + further * (images.numel() - some.numel())) // 3
        return more + further * (more - less), pixels, (images.shape[-2], images.shape[-1])


def _whole(line: Bytes) -> Bytes:
    return Bytes(round(line.fixed), round(line.each))


def _tile_side(vae: Any) -> int:
    side = getattr(vae, "tile_sample_min_height", None) or vae.tile_sample_min_size
    return int(side)


def _rows(encodings: dict[str, Tensor], samples: int) -> dict[str, Tensor]:
    """Return encodings of as many prompts; masks are no fakes, since networks read them: every place is taken."""
    with unset_fake_temporarily():
        masks = {name: torch.ones(samples, *value.shape[1:], dtype=value.dtype) for name, value in encodings.items()}
    return {
        name: masks[name] if name.endswith("mask") else value.expand(samples, *value.shape[1:])
        for name, value in encodings.items()
    }
