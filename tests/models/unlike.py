"""In what a family is unlike the others where all are tested together: its own test file says it, as `UNLIKE`."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Unlike:
    """What the tests over all families must know of one that its facts do not say.

    Args:
        rounding: how far its bfloat16 network may be from the stock pipeline's, as a share.
        output: what its network gives, as a tensor.
        stock_latents: latents as the stock call takes them.
        waits: what the network calls of three steps make the host wait for, by kind; None where the network lays its
            tokens out by masks that it reads from the device, which a fake one cannot answer.
        alone: whether its stock pipeline is asked for one sample a call; a batch would draw others.
        pictures: what the stock call's pictures (B, H, W, channels) in [0, 1] look like.
        slow: whether a call takes so long that CI leaves it out where it adds little.
    """

    rounding: float = 0.0
    output: Callable[[Any], Any] = lambda output: output
    stock_latents: Callable[[Any], Any] = lambda latents: latents
    waits: Mapping[str, tuple[int, int, int]] | None = field(default_factory=dict)
    alone: bool = False
    pictures: Callable[[Any], Any] = lambda pictures: pictures
    slow: bool = False


def unlike(family: str) -> Unlike:
    """Return what the family's own test file says; without such a file, nothing."""
    name = f"tests.models.test_{family}"
    if importlib.util.find_spec(name) is None:
        return Unlike()
    return getattr(importlib.import_module(name), "UNLIKE", Unlike())
