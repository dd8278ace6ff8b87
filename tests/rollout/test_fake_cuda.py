"""Rollout and decoding of published models on a CUDA device that is not there: nothing mixes devices, little waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from diffrl.bundled import recipes
from diffrl.models.families import FAMILIES as ALL
from tests.models.unlike import unlike
from tests.tiers import daily

FAMILIES = [name for name in ALL if f"{name}/diffrl" in recipes() and unlike(name).waits is not None]
SLOW = [family for family in FAMILIES if family not in ("sd3", "flux")]
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from measuring import fake_cuda

    return fake_cuda


@pytest.mark.parametrize("family", daily(FAMILIES, ["sd3"], SLOW))
def test_trees_are_drawn_recorded_and_decoded_on_the_device(fake, family):
    """FakeTensorMode refuses every operation on tensors of two devices, as the device would."""
    case = fake.case_of(family)
    with fake.FakeCuda() as cuda:
        rollout, (*waits, _) = fake.record_trees(cuda, case)
    edges, latents = rollout.edges, rollout.latents
    columns = (latents, edges.latents, edges.next_latents, edges.node, edges.prompt, edges.old_log_prob)
    assert {column.device for column in columns} == {fake.CUDA}
    assert latents.dtype == torch.float32 and len(latents) == 8 and len(edges.node) == 12
    size = case.size
    assert rollout.images.dtype == torch.uint8 and rollout.images.shape[-2:] == (size["height"], size["width"])
    of_calls = [{what: counts[i] for what, counts in unlike(family).waits.items()} for i in range(3)]
    first, second, third = (Counter(found) - Counter(known) for found, known in zip(waits, of_calls, strict=True))
    assert all(found[what] >= known[what] for found, known in zip(waits, of_calls, strict=True) for what in known)
    assert second == {"to device": 1, "read": 1}, "a stochastic step sends its noise, and asks once for its density"
    assert first == third == {}, "a deterministic step waits for nothing"


@pytest.mark.parametrize("family", daily(FAMILIES, ["flux"], SLOW))
def test_a_pool_is_explored_and_an_evaluation_drawn_on_the_device(fake, family):
    """Their pictures come back to the host, where they are scored and written."""
    case = fake.case_of(family)
    with fake.FakeCuda():
        pool, held_out = fake.explored_and_evaluated(case)
    size = case.size
    for pictures, count in ((pool, 6), (held_out, 3)):
        assert pictures.dtype == torch.uint8 and pictures.device.type == "cpu" and len(pictures) == count
        assert pictures.shape[-3:] == (3, size["height"], size["width"])
