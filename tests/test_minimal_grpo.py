"""docs/minimal_grpo.py: its mathematics is the library's, it is on policy before it learns, and it learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from diffrl.functional.advantages import group_advantage
from diffrl.functional.dynamics import flow_sde_step
from diffrl.functional.gaussian import log_prob
from diffrl.functional.losses import clipped_surrogate

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("minimal_grpo", ROOT / "docs/minimal_grpo.py")
minimal = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(minimal)


@pytest.fixture
def drawn(random_sd3, monkeypatch):
    """A rollout of two prompts, three samples each, by a small random pipeline."""
    monkeypatch.setattr(minimal, "SAMPLES", 3)
    pipeline = StableDiffusion3Pipeline.from_pretrained(random_sd3)
    words = minimal.encode(pipeline, ["a red circle", "a blue square"])
    images, transitions = minimal.rollout(pipeline, words, torch.Generator().manual_seed(0))
    assert images.dtype == torch.uint8 and len(images) == 6
    return pipeline, words, transitions


def test_steps_densities_and_advantages_are_the_librarys(monkeypatch):
    monkeypatch.setattr(minimal, "SAMPLES", 4)
    generator = torch.Generator().manual_seed(1)
    x, v, new = (torch.randn(8, 2, 3, 3, generator=generator) for _ in range(3))
    levels = minimal.noise_levels()
    for s, n in zip(levels[:-2], levels[1:-1], strict=True):
        mean, std = minimal.step(x, v, s, n, levels[1])
        known = flow_sde_step(x, v, s, n, minimal.NOISE_LEVEL, levels[1])
        torch.testing.assert_close(mean, known.mean)
        torch.testing.assert_close(std, known.std.squeeze())
        torch.testing.assert_close(minimal.log_prob(new, mean, std), log_prob(new, known.mean, known.std))
    rewards = torch.rand(8, generator=generator)
    known = group_advantage(rewards, torch.arange(8) // 4).advantage
    torch.testing.assert_close(minimal.advantages(rewards), known)


def test_the_ratio_is_one_before_an_update_and_the_loss_is_the_clipped_surrogate_after_it(drawn):
    pipeline, words, transitions = drawn
    advantage = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 0.0])
    assert len(transitions) == minimal.STEPS - 1
    for transition in transitions:
        loss, ratio = minimal.loss_of(pipeline, words, transition, advantage)
        torch.testing.assert_close(ratio, torch.ones(6), atol=1e-5, rtol=0)
    loss.backward()
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter -= 0.05 * parameter.grad.sign() if parameter.grad is not None else 0
    loss, ratio = minimal.loss_of(pipeline, words, transitions[-1], advantage)
    assert (ratio - 1).abs().max() > 10 * minimal.CLIP
    known, _ = clipped_surrogate(ratio.log(), torch.zeros(6), advantage, minimal.CLIP, minimal.CLIP)
    torch.testing.assert_close(loss, known.mean())


@pytest.mark.slow
def test_scores_rise(monkeypatch):
    """Over 40 iterations, by three times the spread of a mean over 128 samples, which is about .01."""
    monkeypatch.chdir(ROOT)
    means = minimal.main(40)
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.03
