"""Rollout and decoding of published models on a CUDA device that is not there: nothing mixes devices, little waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.tiers import daily

OF_CALLS = {
    "qwen_image_edit": {"to device": (2, 2, 3)},
    "z_image": {"read": (8, 8, 16)},
    "hunyuan_video": {"read": (102, 102, 201)},
}
"""What the network calls of three steps wait for by themselves: diffusers' Qwen-Image copies to the device which tokens
are an edit's source; Z-Image's network takes each text at its length, which the host asks for (one wait, but each
number is counted); HunyuanVideo's takes the masked tokens of each row apart, twelve times, and asks once whether there
is an image.
"""

FAMILIES = ["sd3", "flux", "sana", "wan", "hunyuan_video", "qwen_image", "z_image", "flux2_klein", "wan_i2v"]
FAMILIES += ["flux_kontext", "qwen_image_edit"]
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from measuring import fake_cuda

    return fake_cuda


@pytest.mark.parametrize("family", daily(FAMILIES, ["sd3"], ["hunyuan_video"]))
def test_trees_are_drawn_recorded_and_decoded_on_the_device(fake, family):
    """FakeTensorMode refuses every operation on tensors of two devices, as the device would."""
    with fake.FakeCuda() as cuda:
        rollout, (*waits, _) = fake.record_trees(cuda, family)
    edges, latents = rollout.edges, rollout.latents
    columns = (latents, edges.latents, edges.next_latents, edges.node, edges.prompt, edges.old_log_prob)
    assert {column.device for column in columns} == {fake.CUDA}
    assert latents.dtype == torch.float32 and len(latents) == 8 and len(edges.node) == 12
    size = fake.CASES[family].size
    assert rollout.images.dtype == torch.uint8 and rollout.images.shape[-2:] == (size["height"], size["width"])
    of_calls = [{what: counts[i] for what, counts in OF_CALLS.get(family, {}).items()} for i in range(3)]
    first, second, third = (Counter(found) - Counter(known) for found, known in zip(waits, of_calls, strict=True))
    assert all(found[what] >= known[what] for found, known in zip(waits, of_calls, strict=True) for what in known)
    assert second == {"to device": 1, "read": 1}, "a stochastic step sends its noise, and asks once for its density"
    assert first == third == {}, "a deterministic step waits for nothing"


@pytest.mark.parametrize("family", daily(FAMILIES, ["flux"], ["hunyuan_video"]))
def test_a_pool_is_explored_and_an_evaluation_drawn_on_the_device(fake, family):
    """Their pictures come back to the host, where they are scored and written."""
    with fake.FakeCuda():
        pool, held_out = fake.explored_and_evaluated(family)
    size = fake.CASES[family].size
    for pictures, count in ((pool, 6), (held_out, 3)):
        assert pictures.dtype == torch.uint8 and pictures.device.type == "cpu" and len(pictures) == count
        assert pictures.shape[-3:] == (3, size["height"], size["width"])
