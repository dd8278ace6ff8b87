"""Which denoising steps are stochastic, and so have a density and are trained."""

from __future__ import annotations

from typing import Literal


def stochastic_steps(
    kind: Literal["all", "window"],
    steps: int,
    iteration: int,
    start: int = 0,
    size: int | None = None,
    slide_every: int | None = None,
) -> tuple[int, ...]:
    """The stochastic steps of a training iteration, ascending. The last step never is: its noise would stay visible.

    A sliding window (MixGRPO, arXiv 2507.21802) moves on by one step every `slide_every` iterations. After the last
    place where it fits it goes back to step 0; it never wraps in two, so its size is constant.

    Args:
        kind: "all" steps but the last, or a "window" of them.
        steps: T denoising steps.
        iteration: training iteration, from 0.
        start: first step of the window in iteration 0.
        size: number of steps in the window.
        slide_every: iterations after which the window moves; None = it stays.

    Returns:
        Indices in [0, T - 2], each one the step from sigma[i] to sigma[i + 1].

    Raises:
        ValueError: the window does not fit before the last step.
    """
    if kind == "all":
        return tuple(range(steps - 1))
    if kind != "window" or size is None:
        raise ValueError(f"stochastic steps are 'all' or a 'window' with a size. Got kind={kind!r}, size={size}.")
    places = steps - size  # starts 0 ... steps - 1 - size, all before the last step
    if size < 1 or not 0 <= start < places:
        raise ValueError(f"A window must lie within steps 0 to {steps - 2}. Got start={start}, size={size}.")
    moves = 0 if slide_every is None else iteration // slide_every
    first = (start + moves) % places
    return tuple(range(first, first + size))
