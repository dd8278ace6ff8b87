"""Sigma grids against diffusers' scheduler and their own properties."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from diffrl.functional.schedules import merged_end, sigma_grid


@pytest.mark.parametrize("steps", [1, 2, 7, 53])
@pytest.mark.parametrize("shift", [1e-20, 0.5, 1.0, 3.0, 17.0])
def test_falls_strictly_from_exactly_one_to_exactly_zero(steps, shift):
    grid = sigma_grid(steps, shift)
    assert grid.shape == (steps + 1,) and grid.dtype == torch.float32
    assert grid[0] == 1.0 and grid[-1] == 0.0
    assert bool((grid.diff() < 0).all())


@pytest.mark.parametrize("steps", [3, 11, 28])
@pytest.mark.parametrize("shift", [1.0, 3.0, 7.0])
def test_equals_the_scheduler_of_diffusers_given_the_even_grid(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=[(steps - i) / steps for i in range(steps)])
    torch.testing.assert_close(sigma_grid(steps, shift), scheduler.sigmas, rtol=1e-6, atol=1e-7)


def test_shift_multiplies_the_noise_to_signal_ratio():
    even, shifted = sigma_grid(13)[1:-1], sigma_grid(13, 5.0)[1:-1]
    torch.testing.assert_close(shifted / (1 - shifted), 5.0 * even / (1 - even), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("steps, shift", [(0, 1.0), (-3, 1.0), (4, 0.0), (4, -2.0), (4, float("nan"))])
def test_refuses_impossible_grids(steps, shift):
    with pytest.raises(ValueError, match=r"steps must be|shift must be"):
        sigma_grid(steps, shift)


def test_a_merged_end_leaves_out_the_last_level_above_zero():
    grid = torch.tensor([1.0, 0.7, 0.3, 0.001, 0.0])
    assert merged_end(grid).tolist() == pytest.approx([1.0, 0.7, 0.3, 0.0])
