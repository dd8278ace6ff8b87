"""A made-up stochastic step and network, for objectives that train on steps and on splits."""

import torch

from diffrl.functional.dynamics import Step

SHAPE = (2, 3, 5)


def transition(x, v, s, n):
    """A Gaussian step that is easy to follow by hand: mean x - 2 v, std 0.5 + s - n."""
    return Step(x - 2 * v, (0.5 + s - n).reshape(-1, 1, 1, 1))


class Network:
    """A velocity with a weight to be trained; remembers how many rows it was asked for."""

    def __init__(self, weight=0.3):
        self.weight, self.rows = torch.tensor(weight, requires_grad=True), 0

    def __call__(self, latents, sigma, prompt):
        self.rows += len(latents)
        assert len(latents) == len(sigma) == len(prompt)
        return self.weight * latents.tanh() * (1 + sigma + 0.1 * prompt).reshape(-1, 1, 1, 1)
