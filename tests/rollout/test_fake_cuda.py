"""Rollout and decoding of published models on a CUDA device that is not there: nothing mixes devices, little waits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiers import daily

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from measuring import fake_cuda

    return fake_cuda


@pytest.mark.parametrize("family", daily(["sd3", "flux", "sana", "wan"], ["sd3"]))
def test_trees_are_drawn_recorded_and_decoded_on_the_device(fake, family):
    """FakeTensorMode refuses every operation on tensors of two devices, as the device would."""
    with fake.FakeCuda() as cuda:
        rollout, (first, second, third, _) = fake.drawn(cuda, family)
    edges, latents = rollout.edges, rollout.latents
    columns = (latents, edges.latents, edges.next_latents, edges.node, edges.prompt, edges.old_log_prob)
    assert {column.device for column in columns} == {fake.CUDA}
    assert latents.dtype == torch.float32 and len(latents) == 8 and len(edges.node) == 12
    size = fake.CASES[family].size
    assert rollout.images.dtype == torch.uint8 and rollout.images.shape[-2:] == (size["height"], size["width"])
    assert second == {"to device": 1, "read": 1}, "a stochastic step sends its noise, and asks once for its density"
    assert first == third == {}, "a deterministic step waits for nothing"
