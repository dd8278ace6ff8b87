"""Attention backends, quantised bases and optimisers, each through a whole network forward and backward."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffrl.checkpoint.state import optimizer_tensors, restore_optimizer
from diffrl.config.model import ModelSettings
from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import Step, distance, open_step, write_tiny
from diffrl.errors import ConfigError, NotHereError
from diffrl.precision.facts import BASE_PRECISIONS
from diffrl.training.optim import make_optimizer

FAMILIES = ("flux", "sd3", "wan")
"""Networks that attention is tried in: norms of queries and keys before and after rotation, joint attention, videos."""


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Yield the attention backends, then base precisions, then optimisers."""
    with TemporaryDirectory() as folder:
        paths = {family: write_tiny(family, Path(folder) / family) for family in FAMILIES}
        for family, path in paths.items():
            for backend in choices(ModelSettings, "attention"):
                yield Row(
                    f"attention {backend}, {family}",
                    "velocity and gradient in bfloat16 within 4 of its units of the math backend's",
                    partial(_attention, family, path, device, backend),
                )
        for precision, base in BASE_PRECISIONS.items():
            yield Row(
                f"base in {precision}, sd3",
                f"velocity within {base.largest_error:.0%} of bfloat16's, layers see bfloat16, finite gradient",
                partial(_base, paths["sd3"], device, precision),
            )
        for kind in ("adamw", "adamw_8bit"):
            yield Row(
                f"optimiser {kind}",
                "saved, loaded and continued it gives the weights of a run without interruption, bit by bit",
                partial(_optimizer, kind, device),
            )


def choices(section: Any, name: str) -> tuple[str, ...]:
    """Return what a setting may be, of those that are words."""

    def words(kind: Any) -> tuple[str, ...]:
        names = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        return names or tuple(word for part in typing.get_args(kind) for word in words(part))

    return words(section.model_fields[name].annotation)


def _attention(family: str, path: Path, device: torch.device, backend: str) -> Result:
    from diffusers.models.attention_dispatch import AttentionBackendName, _check_attention_backend_requirements

    try:
        _check_attention_backend_requirements(AttentionBackendName(backend))
    except (RuntimeError, ValueError, ImportError) as error:
        raise NotHereError(str(error).strip()) from error
    if backend not in ("native", "_native_math") and device.type == "cpu":
        raise NotHereError("it needs a CUDA device")
    exact = _pass(open_step(family, path, device, "bfloat16", attention="_native_math"))
    try:
        result = _pass(open_step(family, path, device, "bfloat16", attention=backend))
    except ConfigError as error:
        if "always goes through PyTorch" in str(error):
            raise NotHereError(str(error)) from error
        raise
    apart = [distance(one, other) for one, other in zip(result, exact, strict=True)]
    bound = 4 * torch.finfo(torch.bfloat16).eps
    message = f"velocity {apart[0]:.1e}, gradient {apart[1]:.1e}"
    return Result(max(apart) <= bound, message, dict(zip(("velocity", "gradient"), apart, strict=True)))


def _pass(step: Step) -> tuple[Tensor, list[Tensor]]:
    """Return velocity and gradient."""
    with torch.no_grad():
        velocity = step.velocity()
    return velocity, step.gradient()


def _base(path: Path, device: torch.device, precision: str) -> Result:
    try:
        import bitsandbytes
    except ImportError as error:
        raise NotHereError("bitsandbytes is not installed: pip install 'diffrl[bitsandbytes]'") from error
    exact, _ = _pass(open_step("sd3", path, device, "bfloat16"))
    step = open_step("sd3", path, device, "bfloat16", base_precision=precision)
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    seen: set[torch.dtype] = set()
    layers = [module for module in step.adapter.transformer.modules() if isinstance(module, kinds)]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype)) for layer in layers]
    velocity, gradient = _pass(step)
    for hook in hooks:
        hook.remove()
    apart, finite = distance(velocity, exact), all(bool(one.isfinite().all()) for one in gradient)
    dtypes = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in seen))
    passed = apart <= BASE_PRECISIONS[precision].largest_error and finite and seen == {torch.bfloat16}
    words = f"velocity {apart:.1%}, {len(layers)} layers see {dtypes}, gradient {'finite' if finite else 'not finite'}"
    return Result(passed, words, {"velocity": apart, "layers": len(layers), "dtypes": dtypes})


def _optimizer(kind: Literal["adamw", "adamw_8bit"], device: torch.device) -> Result:
    """Make four updates; and two, saved, loaded into another optimiser, and two more."""
    whole = _Updates(kind, device)
    whole.step(range(4))
    first, second = _Updates(kind, device), _Updates(kind, device)
    first.step(range(2))
    restore_optimizer(second.optimizer, *optimizer_tensors(first.optimizer))
    with torch.no_grad():
        for new, old in zip(second.weights, first.weights, strict=True):
            new.copy_(old)
    second.step(range(2, 4))
    apart = max(float((a - b).detach().abs().max()) for a, b in zip(second.weights, whole.weights, strict=True))
    moved = float((whole.weights[0] - _Updates(kind, device).weights[0]).detach().abs().max())
    return Result(apart == 0 and moved > 0, f"largest difference {apart:.1e}, weights moved by {moved:.1e}")


class _Updates:
    """Weights (one large enough for 8-bit states) and an optimiser, with a gradient for each update."""

    def __init__(self, kind: Literal["adamw", "adamw_8bit"], device: torch.device):
        generator = torch.Generator().manual_seed(0)
        shapes = ((128, 64), (64,))
        self.weights = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
        self.optimizer = make_optimizer(self.weights, kind, 1e-2, (0.9, 0.999), 1e-8, 1e-4)

    def step(self, updates: range) -> None:
        """Make these updates."""
        for update in updates:
            generator = torch.Generator().manual_seed(update)
            for weight in self.weights:
                weight.grad = torch.randn(weight.shape, generator=generator).to(weight.device)
            self.optimizer.step()
