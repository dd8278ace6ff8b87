"""The share of a reward in the total, against numbers worked out by hand."""

import torch

from diffrl.functional.combine import scaled_reward


def test_a_share_is_the_shifted_score_over_its_scale_times_its_weight():
    assert scaled_reward(7.0, shift=3.0, scale=8.0, weight=-5.0) == -2.5
    raw = torch.tensor([[20.0, 24.0, float("nan")], [22.0, 18.0, 20.5]])
    found = scaled_reward(raw, shift=20.0, scale=0.5, weight=3.0)
    torch.testing.assert_close(found, torch.tensor([[0.0, 24.0, float("nan")], [12.0, -12.0, 3.0]]), equal_nan=True)


def test_without_numbers_a_score_is_its_own_share():
    raw = torch.randn(7, generator=torch.Generator().manual_seed(3))
    assert torch.equal(scaled_reward(raw), raw)
