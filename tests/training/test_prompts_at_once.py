"""Prompts drawn a few at a time make the same run as all drawn together, but for rounding."""

import pytest
import torch

from diffrl.data.sampler import prompt_batch
from diffrl.rollout.tree import plan_forest, prompt_chunks, subset
from tests.training.harness import EXPLORE, FOREST, FUSED, make_trainer, settings


def drawn(pipeline, directory, at_once, credit=FUSED, **rollout):
    data = settings(
        pipeline,
        directory,
        rollout={**FOREST, "prompts_at_once": at_once, **rollout},
        prompts={"per_iteration": 4},
        credit=credit,
    )
    trainer = make_trainer(data)
    batch = prompt_batch(trainer.session.prompts, 4, 3, 0)
    return trainer.sampling.draw(batch, trainer.encode(batch.prompts)), trainer


@pytest.mark.parametrize(("at_once", "explore"), [(1, EXPLORE), (3, None)], ids=["pools", "chains"])
def test_a_rollout_in_parts_is_the_rollout(random_sd3, tmp_path, at_once, explore):
    by_pictures = {"reward": "incremental", "value": "predicted_x0", "normalise": "depth"}
    whole, _ = drawn(random_sd3, tmp_path / "a", None, credit=by_pictures, explore=explore)
    parts, _ = drawn(random_sd3, tmp_path / "b", at_once, credit=by_pictures, explore=explore)
    for name in ("parent", "step", "child", "prompt", "root", "leaf"):
        assert torch.equal(getattr(whole.rollout.forest, name), getattr(parts.rollout.forest, name))
    for name in ("step", "prompt", "origin", "node"):
        assert torch.equal(getattr(whole.rollout.edges, name), getattr(parts.rollout.edges, name)), name
    for name in ("latents", "next_latents", "sigma", "sigma_next", "old_log_prob"):
        torch.testing.assert_close(
            getattr(whole.rollout.edges, name), getattr(parts.rollout.edges, name), rtol=1e-4, atol=1e-4
        )
    torch.testing.assert_close(whole.rollout.latents, parts.rollout.latents, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole.rollout.predicted, parts.rollout.predicted, rtol=1e-4, atol=1e-4)
    assert (whole.rollout.images.int() - parts.rollout.images.int()).abs().max() <= 1
    torch.testing.assert_close(whole.table.total, parts.table.total, rtol=0, atol=0.01)


def test_parts_share_out_every_sample_once():
    forest = plan_forest(5, 2, {0: 2, 2: 1})
    for at_once, sizes in ((None, [20]), (1, [4] * 5), (2, [8, 8, 4]), (7, [20])):
        parts = prompt_chunks(forest, at_once)
        assert [len(part) for part in parts] == sizes and torch.cat(parts).tolist() == list(range(20))
    assert [len(part) for part in prompt_chunks(subset(forest, torch.tensor([0, 7, 19])), 1)] == [1, 1, 1]
