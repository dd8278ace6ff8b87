"""Compiled blocks in whole iterations: rollout, update and reference, batches of one, another attention.

Dynamo's graphs run as they are: what a compiler would make of them takes minutes.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from diffrl.precision import compiled, copies
from diffrl.precision.compiled import compiled_blocks
from tests.training.harness import make_run, settings
from tests.training.test_two_networks import wan22, wan_settings  # noqa: F401

LORA = {"rank": 3, "alpha": 6}


@pytest.fixture(autouse=True)
def graphs_as_they_are(monkeypatch):
    monkeypatch.setattr(compiled.compile_network, "__defaults__", (lambda graph, _: graph.forward, False))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled_run(pipeline, directory, family, **model):
    """Six samples in calls of five and of one, twelve steps in calls of five and of two; with a reference."""
    return settings(
        pipeline,
        directory,
        model={"family": family, "path": str(pipeline), "device": "cpu", "compile": True, **model},
        rollout={"micro_batch": 5},
        objective={"kind": "grpo", "kl": 0.1},
        train={"micro_batch": 5},
    )


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        pytest.param("sd3", LORA, marks=pytest.mark.long),
        pytest.param("flux", None, marks=pytest.mark.slow),
    ],
)
def test_nothing_runs_uncompiled(random_pipelines, tmp_path, family, lora):
    trainer, run = make_run(compiled_run(random_pipelines(family), tmp_path, family, lora=lora))
    trainer.iterate()
    assert trainer.updater.on_policy_error < 1e-5
    networks = trainer.session.policy.networks()
    made = [compiled_blocks(network) for network in networks]
    assert len(networks) == (1 if lora else 2) and all(blocks.graphs > 0 and not blocks.missed for blocks in made)
    assert not counters["unimplemented"] and not counters["graph_break"]
    seen = [blocks.graphs for blocks in made]
    metrics = trainer.iterate().metrics
    run.journal.close()
    assert [blocks.graphs for blocks in made] == seen, "weights that change must not compile anything anew"
    assert (metrics["compile/graphs"], metrics["compile/missed"]) == (sum(seen), 0)
    assert "uncompiled" not in run.shown.getvalue()


@pytest.mark.slow
def test_a_copy_of_two_networks_is_compiled(wan22, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(copies, "COMPILER", lambda graph, _: graph.forward)
    data = wan_settings(wan22, tmp_path, start=1, size=2)
    explore = {"precision": "bfloat16", "steps": 4, "candidates": 4, "keep": 3, "compile": True}
    data["rollout"] |= {"explore": explore, "tree": {"roots": 3}}
    trainer, run = make_run(data)
    trainer.iterate()
    run.journal.close()
    blocks = trainer.session.copy.module.compiled
    assert blocks.graphs > 0 and not blocks.again
