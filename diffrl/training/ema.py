"""An exponential moving average of the trained weights, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diffrl.distributed.sharding import fill


class EMA:
    """Averages `decay * average + (1 - decay) * weight` after every optimiser update.

    Args:
        parameters: named trained parameters.
        decay: in [0, 1).
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float):
        self.decay = decay
        self.parameters = parameters
        self.average = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        for name, parameter in self.parameters.items():
            self.average[name].lerp_(parameter.detach(), 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the averaged weights until the block ends."""
        live = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._write(self.average)
        try:
            yield
        finally:
            self._write(live)

    def restore(self, average: Mapping[str, Tensor]) -> None:
        """Set the average, as read from a checkpoint."""
        for name, tensor in self.average.items():
            fill(tensor, average, name)

    @torch.no_grad()
    def _write(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
