"""Two networks as one, each for its share of the noise levels, as in Wan 2.2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TwoNetworks(nn.Module):
    """Wan 2.2's two networks as one: each row goes to the network of its noise level.

    Args:
        high: for timesteps >= boundary.
        low: for timesteps below.
        boundary: timestep, 0 to 1000.
    """

    def __init__(self, high: nn.Module, low: nn.Module, boundary: float):
        super().__init__()
        self.high, self.low, self.boundary = high, low, boundary

    @property
    def config(self) -> Any:
        """Configuration of the first network; both have the same sizes."""
        return self.high.config

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **kwargs: Any) -> Any:
        """Run the network in whose range of noise the step lies, with return_dict=False."""
        level = timestep if timestep.ndim == 1 else timestep[:, 0]
        output: Tensor | None = None
        for network, rows in ((self.high, level >= self.boundary), (self.low, level < self.boundary)):
            if bool(rows.any()):
                part = network(
                    hidden_states=hidden_states[rows],
                    timestep=timestep[rows],
                    encoder_hidden_states=encoder_hidden_states[rows],
                    **{name: value[rows] if isinstance(value, Tensor) else value for name, value in kwargs.items()},
                )[0]
                output = part.new_empty((len(rows), *part.shape[1:])) if output is None else output
                output = output.index_put((torch.nonzero(rows).flatten(),), part)
        return (output,)

    def add_adapter(self, config: Any, adapter_name: str = "default") -> None:
        """Add a LoRA to both."""
        for network in (self.high, self.low):
            network.add_adapter(config, adapter_name=adapter_name)  # type: ignore[operator]

    def disable_adapters(self) -> None:
        """Run both as they were loaded."""
        for network in (self.high, self.low):
            network.disable_adapters()  # type: ignore[operator]

    def enable_adapters(self) -> None:
        """Run both with their LoRA again."""
        for network in (self.high, self.low):
            network.enable_adapters()  # type: ignore[operator]

    def enable_gradient_checkpointing(self) -> None:
        """Checkpoint activations in both."""
        for network in (self.high, self.low):
            network.enable_gradient_checkpointing()  # type: ignore[operator]

    def set_attention_backend(self, name: str) -> None:
        """Set the attention of both."""
        for network in (self.high, self.low):
            network.set_attention_backend(name)  # type: ignore[operator]
