"""Every family's tiny pipeline with random weights, loaded as a run loads it, and one trained step of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning, EditingAdapter, ModelAdapter, take_rows
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.lora import add_lora
from diffrl.models.placement import Placement
from diffrl.models.tiny import build_pipeline, save_pipeline

PROMPTS = ("a red circle above a blue square", "two green triangles")
WORDS = tuple(sorted({word for prompt in PROMPTS for word in prompt.split()}))
SIGMAS = (0.9, 0.4)
GUIDANCE = 3.0


@dataclass(frozen=True)
class Step:
    """A trained step of a tiny pipeline."""

    adapter: ModelAdapter  # with a LoRA whose weights are all non-zero
    latents: Tensor  # (B, ...) float32
    sigma: Tensor  # (B,)
    conditioning: Conditioning  # of the prompts

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """Return the LoRA's weights."""
        return [weight for weight in self.adapter.transformer.parameters() if weight.requires_grad]

    def velocity(self, at_once: int | None = None) -> Tensor:
        """Return the guided velocity (B, ...) of all samples, or of `at_once` in a network call."""
        size = at_once or len(self.latents)
        parts = []
        for rows in torch.arange(len(self.latents), device=self.latents.device).split(size):
            part = take_rows(self.conditioning, rows)
            parts.append(self.adapter.velocity(self.latents[rows], self.sigma[rows], part, GUIDANCE))
        return torch.cat(parts)

    def gradient(self, at_once: int | None = None) -> list[Tensor]:
        """Return the gradient of the mean squared velocity for every trained weight."""
        for weight in self.trained:
            weight.grad = None
        self.velocity(at_once).square().mean().backward()
        return [torch.zeros_like(weight) if weight.grad is None else weight.grad.clone() for weight in self.trained]


def write_tiny(family: str, folder: Path) -> Path:
    """Write a family's tiny pipeline with random weights in diffusers format, unless it is there."""
    if not folder.exists():
        save_pipeline(build_pipeline(family, WORDS, seed=0), folder)
    return folder


def open_step(family: str, folder: Path, device: torch.device, dtype: str, **placement: Any) -> Step:
    """Load a tiny pipeline and give it a LoRA; numbers are the same for every device and dtype."""
    facts = FAMILIES[family]
    small = {"frames": 5} if facts.media == "video" else {}
    adapter = load_adapter(family, str(folder), dtype=dtype, placement=Placement(device, **placement), **small)
    with torch.no_grad():
        if isinstance(adapter, EditingAdapter) and facts.edits:
            grey = torch.full((3, adapter.height, adapter.width), 128, dtype=torch.uint8)
            conditioning = adapter.encode_edits(PROMPTS, [grey] * len(PROMPTS))
        else:
            conditioning = adapter.encode_prompts(PROMPTS)
    generator = torch.Generator().manual_seed(0)
    latents = adapter.init_latents(lambda shape: torch.randn((len(PROMPTS), *shape), generator=generator).to(device))
    add_lora(adapter.transformer, 4, 8, facts.lora_targets, 0)
    step = Step(adapter, latents, torch.tensor(SIGMAS, device=device), conditioning)
    with torch.no_grad():
        for weight in step.trained:  # B begins at zero, and A would get no gradient
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    return step


def distance(computed: Tensor | list[Tensor], wanted: Tensor | list[Tensor]) -> float:
    """Return the root mean square of a difference, in units of what was wanted."""
    a, b = (torch.cat([x.detach().double().cpu().flatten() for x in listed(y)]) for y in (computed, wanted))
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def listed(values: Tensor | list[Tensor]) -> list[Tensor]:
    """Return one tensor or several as a list."""
    return [values] if isinstance(values, Tensor) else list(values)
