"""The low-precision copy that explores or draws, made of the policy and tried on one sample at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from diffrl.models.adapter import EditingAdapter, ModelAdapter, device_of
from diffrl.precision.copies import PolicyCopy, make_copy
from diffrl.training.policy import Policy

LEVELS = (0.99, 0.01)
"""Noise levels of the trial: a model of two experts runs both."""


def make_explorer(
    policy: Policy,
    precision: str,
    engine: str,
    exclude: Sequence[str],
    device: torch.device,
    guidance_scale: float,
    batches: Sequence[int],
    compile: bool = False,
    section: str = "rollout.explore",
) -> PolicyCopy:
    """Return a checked copy: a whole forward of one sample, then every matrix product of the rollout's batch sizes.

    Args:
        policy: what is copied.
        precision: as for `make_copy`.
        engine: as for `make_copy`.
        exclude: as for `make_copy`.
        device: as for `make_copy`.
        guidance_scale: of the rollout: guidance doubles the rows.
        batches: samples in a network call of the rollout, its smallest and its largest.
        compile: as for `make_copy`.
        section: as for `make_copy`.

    Raises:
        ConfigError: this precision cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    copy = make_copy(
        source=policy.inner,
        precision=precision,
        engine=engine,
        exclude=exclude,
        device=device,
        compile=compile,
        section=section,
    )
    copy.check(policy.inner, _trial(copy, policy.adapter, guidance_scale), sorted(set(batches)))
    return copy


def _trial(copy: PolicyCopy, adapter: ModelAdapter, guidance_scale: float) -> Callable[[], None]:
    """Return runs the copy on one sample in place of the adapter's transformer."""
    if isinstance(adapter, EditingAdapter):
        grey = torch.full((3, adapter.height, adapter.width), 128, dtype=torch.uint8)
        conditioning = adapter.encode_edits(["a picture"], [grey])
    else:
        conditioning = adapter.encode_prompts(["a picture"])
    conditioning = {name: row.to(device_of(adapter.transformer)) for name, row in conditioning.items()}
    generator = torch.Generator().manual_seed(0)
    latents = adapter.init_latents(lambda shape: torch.randn(1, *shape, generator=generator))

    def run() -> None:
        with copy.in_place_of(adapter), torch.no_grad():
            for level in LEVELS:
                sigma = torch.tensor([level], device=latents.device)
                adapter.velocity(latents, sigma, conditioning, guidance_scale)

    return run
