"""What PyTorch's allocator for GPUs is told. It reads its settings once, so they are set before torch is imported."""

from __future__ import annotations

import os

NAME = "PYTORCH_ALLOC_CONF"
VARIABLES = (NAME, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where PyTorch looks; the later ones are its older names."""
GROWING = "expandable_segments:True"


def set_allocator() -> None:
    """Let segments grow, unless the user has set the allocator: batches of many sizes leave holes in fixed ones."""
    if allocator_settings() is None:
        os.environ[NAME] = GROWING


def allocator_settings() -> str | None:
    """Return what the allocator is told, by us or by the user; None where nobody did."""
    return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), None)
