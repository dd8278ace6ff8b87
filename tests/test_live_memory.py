"""Peaks of living storages on fake tensors: by hand, and beside what is planned of published models."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tiers import daily

SCRIPTS = Path(__file__).parents[1] / "scripts"
FAMILIES = ("sd3", "flux", "sana", "wan", "hunyuan_video", "qwen_image", "z_image", "flux2_klein")
FAMILIES += ("wan_i2v", "qwen_image_edit")


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_a_peak_is_what_is_alive_at_once(scripts):
    from measuring.live_memory import LiveMemory

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


def test_the_backward_pass_counts_what_was_saved(scripts):
    """A chain of squares: forward keeps every input; backward lets them go, one gradient and one product at a time."""
    from measuring.live_memory import LiveMemory

    with LiveMemory() as memory:
        x = torch.empty(1000, requires_grad=True)
        for _ in range(5):
            x = x * x
        assert memory.live == memory.peak == 6 * 4000  # the leaf and five products
        x.sum().backward()
        assert memory.peak == (6 + 2) * 4000 + 2 * 4  # a product's gradient has two terms; and the sum, and its one


def test_checkpointing_is_seen(scripts):
    from measuring.live_memory import LiveMemory
    from torch.utils.checkpoint import checkpoint

    peaks = []
    for again in (False, True):
        with LiveMemory() as memory:
            layers = [nn.Sequential(nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh()) for _ in range(6)]
            x, weights = torch.empty(1000, 50, requires_grad=True), memory.live
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            peaks.append((memory.live - weights) // 200_000)
    assert peaks == [6 * 2, 6 * 1]  # of each layer what both functions gave, which they save; or the last alone


@pytest.mark.parametrize("family", daily(FAMILIES, [], set(FAMILIES) - {"flux2_klein", "sd3"}))
def test_the_plan_is_near_what_is_measured(family, scripts):
    """Of a trained call with gradient checkpointing, which most recipes have, and of one without gradient."""
    from measure_memory import CLOSE, compared

    for what, (measured, planned) in compared(family, True).items():
        assert planned == pytest.approx(measured, rel=CLOSE), what


@pytest.mark.long
def test_the_plan_of_a_full_fine_tune_is_near_what_is_measured(scripts):
    from measure_memory import CLOSE, compared_whole

    measured, planned = compared_whole()
    assert planned == pytest.approx(measured, rel=CLOSE)


def test_a_fused_norm_keeps_its_input_and_a_number_a_row(scripts):
    from measuring.live_memory import LiveMemory, rms_norm

    with LiveMemory() as memory:
        x, weight = torch.empty(1000, 50, dtype=torch.bfloat16, requires_grad=True), torch.empty(50)
        before = memory.live
        kept = rms_norm(x, (50,), weight)
        assert memory.live - before == 1000 * (50 * 2 + 4)
        assert kept.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            assert rms_norm(x, (50,), weight).dtype == torch.float32
