"""The optimiser and its learning rate, the latter a pure function of the number of updates done."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from diffrl.errors import NotHereError
from diffrl.precision.choice import dotted, installed

Schedule = Literal["constant", "cosine", "linear"]

BITSANDBYTES = (0, 50)
"""The first with 8-bit optimizers for CPUs."""


def learning_rate_factor(update: int, total: int, schedule: Schedule, warmup: int = 0, final: float = 0.1) -> float:
    """Return what the base learning rate is multiplied with.

    Args:
        update: updates already done, from 0.
        total: updates of the whole run.
        schedule: cosine and linear fall from 1 to `final` over the updates after the warm-up.
        warmup: updates of a linear rise from 1 / warmup to 1.
        final: factor that they end at.
    """
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return final + (1.0 - final) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let the next update run at this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    kind: Literal["adamw", "adamw_8bit"],
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Return AdamW from torch, or its 8-bit form from bitsandbytes.

    Raises:
        NotHereError: the 8-bit form was asked for without bitsandbytes, or with one that has none for CPUs.
    """
    options: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    if kind == "adamw":
        return torch.optim.AdamW(parameters, **options)
    version = installed("bitsandbytes")
    if version is None or version < BITSANDBYTES:
        raise NotHereError(
            f"train.optimizer=adamw_8bit needs bitsandbytes {dotted(BITSANDBYTES)} or more. Got "
            f"{'none' if version is None else dotted(version)}. Run: pip install 'diffrl[bitsandbytes]'."
        )
    from bitsandbytes.optim.adamw import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(parameters, **options)
    return optimizer
