"""Checks of a push: exactly these weights arrived, and every storage stayed where it was."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

SAME = 1e-6
"""Relative distance, at most, of what was pushed in place and what is converted anew."""

SAMPLED = 3
"""Layers that are looked at after every push; which ones goes round."""


def pointers(module: nn.Module) -> dict[str, int]:
    """Addresses of all storages of parameters and buffers; those inside tensor subclasses one by one."""
    found: dict[str, int] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        _note(name, tensor.detach(), found)
    return found


def moved(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """That storages moved, in words; what was compiled reads the old ones."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{names[0]} moved to another storage"] if names else []


def sampled(names: list[str], push: int) -> set[str]:
    """The layers to look at after the push of this number: each has its turn."""
    return {names[(push * SAMPLED + i) % len(names)] for i in range(min(SAMPLED, len(names)))}


@torch.no_grad()
def weight_problem(held: Tensor, fresh: Tensor) -> str | None:
    """What is wrong with a layer's weight after a push, or None.

    Args:
        held: (N, K) float32, what its codes and scales stand for.
        fresh: (N, K) float32, the same of a layer that was just converted from the pushed weight.
    """
    if not bool(torch.isfinite(held).all()):
        return "its weight is not finite"
    off, size = float((held - fresh).norm()), float(fresh.norm())
    if off > SAME * size:
        return f"its weight is {off / size if size else off:.3g} from a fresh conversion of the pushed one"
    return None


def _note(name: str, tensor: Tensor, found: dict[str, int]) -> None:
    if not is_traceable_wrapper_subclass(tensor):
        found[name] = tensor.data_ptr()
        return
    for part in tensor.__tensor_flatten__()[0]:
        _note(f"{name}.{part}", getattr(tensor, part), found)
