"""Bounds on what rounding does, derived instead of read off one machine.

Processors sum in other orders, and so do other batch sizes on one processor (`-p tests.rounding` plays another one on
this one). Equal to the last bit are only runs of the same code on the same shapes and alignments. Everything else is
held to one of these, or to `rtol` of 1e-4 and more where a network is compared with a network.
"""

from collections.abc import Iterable

import torch

EPS = torch.finfo(torch.float32).eps
SAFETY = 16
"""How many times larger than what was seen a difference by rounding may be: four standard deviations, and four for what
another processor's kernels do more than another batch size on this one."""
NETWORK = SAFETY * 2 * EPS
"""Of a tiny network's output, in units of its root mean square: batches of other sizes differ by two of rounding."""
SQUARED = NETWORK**2
"""Of a mean squared difference of two such outputs of size 1, which would be 0 without rounding."""


def of_spread(distances: Iterable[float], most: float = 1e-3) -> float:
    """Return the bound that the same computation's spread gives, from its distances under other splits.

    Raises:
        AssertionError: the spread is so wide that the bound would let mistakes through.
    """
    bound = SAFETY * max(EPS, *distances)
    assert bound < most, f"the same computation differs by {bound / SAFETY:.1e} by its split alone"
    return bound
