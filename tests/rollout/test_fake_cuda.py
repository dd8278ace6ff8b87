"""Rollout and decoding of published models on a CUDA device that is not there: nothing mixes devices, little waits."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.observers import EdgeRecorder
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest
from tests.rollout.fake_cuda import CUDA, FakeCuda
from tests.tiers import daily

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHALLOW = {
    "flux": {"num_layers": 1, "num_single_layers": 1},
    "sd3": {"num_layers": 2},
    "sana": {"num_layers": 1},
    "wan": {"num_layers": 1},
}
"""Two blocks or one of each model: every operation and every shape of the whole, in seconds."""


@pytest.fixture
def models(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_models

    return bench_models


def on_cuda(models, family, monkeypatch):
    """A published architecture of few blocks in bfloat16 on the device, its case, and encodings of two prompts."""
    case = models.CASES[family]
    published = models.PUBLISHED[case.path]
    network = published.components["transformer"]
    shallow = replace(network, config={**network.config, **SHALLOW[family]})
    parts = {**published.components, "transformer": shallow}
    monkeypatch.setattr(models, "PUBLISHED", {case.path: replace(published, components=parts)})
    monkeypatch.setattr(torch.nn.Module, "_apply", lambda module, *_, **__: module)  # it is there, in its dtype
    adapter = models.full_adapter(case, CUDA)
    one = models.random_encodings(adapter, family, torch.device("cpu"))
    return adapter, case, {name: value.repeat(2, *[1] * (value.ndim - 1)).to(CUDA) for name, value in one.items()}


@pytest.mark.parametrize("family", daily(SHALLOW, ["sd3"]))
def test_trees_are_drawn_recorded_and_decoded_on_the_device(models, family, monkeypatch):
    """FakeTensorMode refuses every operation on tensors of two devices, as the device would."""
    forest = plan_forest(2, 1, {0: 2, 2: 2})
    roots = [Address("train", 0, 0, group, 0) for group in range(2)]
    with FakeCuda() as cuda:
        adapter, case, conditioning = on_cuda(models, family, monkeypatch)
        sigmas = adapter.sigmas(4)
        transition = make_transition("flow_sde", sigmas, noise_level=0.7)
        sampler = Sampler(sigmas, None, transition, 4.0, "ab2", case.guidance_scale, micro_batch=3)
        edges, waits = EdgeRecorder(), []
        observe = (edges, lambda level: waits.append(Counter(cuda.waits)))
        latents = denoise(adapter, conditioning, forest, roots, sampler, observe=observe)
        recorded = edges.edges()
        pictures = adapter.decode(latents[:2])
    columns = (recorded.latents, recorded.node, recorded.prompt, recorded.old_log_prob, pictures)
    assert latents.device == CUDA and {column.device for column in columns} == {CUDA}
    assert latents.dtype == torch.float32 and len(latents) == 8 and len(recorded.node) == 12
    assert pictures.dtype == torch.uint8 and pictures.shape[-2:] == (case.size["height"], case.size["width"])
    first, *others = [dict(after - before) for before, after in itertools.pairwise(waits)]
    assert others[0] == {"to device": 1, "read": 1}, "a stochastic step sends its noise, and asks once for its density"
    assert first == others[1] == {}, "a deterministic step waits for nothing"
