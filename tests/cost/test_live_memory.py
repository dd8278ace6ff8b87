"""Peaks of living storages on fake tensors, by hand."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from diffrl.cost.live_memory import LiveMemory, rms_norm


def test_a_peak_is_what_is_alive_at_once():
    with LiveMemory() as memory:
        kept = torch.empty(1000)  # 4,000 bytes
        view = kept.view(10, 100)
        passing = view * 2  # as many
        assert memory.live == 8000
        del passing
        twice = torch.empty(700, dtype=torch.bfloat16)
        assert (memory.live, memory.peak) == (5400, 8000)
        del kept, view, twice
        assert (memory.live, memory.peak) == (0, 8000)


def test_the_backward_pass_counts_what_was_saved():
    """A chain of squares: forward keeps every input; backward lets them go, one gradient and one product at a time."""
    with LiveMemory() as memory:
        x = torch.empty(1000, requires_grad=True)
        for _ in range(5):
            x = x * x
        assert memory.live == memory.peak == 6 * 4000  # the leaf and five products
        x.sum().backward()
        assert memory.peak == (6 + 2) * 4000 + 2 * 4  # a product's gradient has two terms; and the sum, and its one


def test_checkpointing_is_seen():
    peaks = []
    for again in (False, True):
        with LiveMemory() as memory:
            layers = [nn.Sequential(nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh()) for _ in range(6)]
            x, weights = torch.empty(1000, 50, requires_grad=True), memory.live
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            peaks.append((memory.live - weights) // 200_000)
    assert peaks == [6 * 2, 6 * 1]  # of each layer what both functions gave, which they save; or the last alone


def test_a_fused_norm_keeps_its_input_and_a_number_a_row():
    with LiveMemory() as memory:
        x, weight = torch.empty(1000, 50, dtype=torch.bfloat16, requires_grad=True), torch.empty(50)
        before = memory.live
        kept = rms_norm(x, (50,), weight)
        assert memory.live - before == 1000 * (50 * 2 + 4)
        assert kept.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            assert rms_norm(x, (50,), weight).dtype == torch.float32
