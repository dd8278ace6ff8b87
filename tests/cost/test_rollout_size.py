"""The plan's bytes of a rollout against the tensors of a real one."""

from dataclasses import fields, is_dataclass

import pytest
import torch

from diffrl.cost.plan import make_plan
from tests.tiers import daily
from tests.training.harness import EXPLORE, make_trainer, settings

CHAINS = {"stochastic": {"kind": "all"}, "tree": {"roots": 3}}
WINDOW = {"stochastic": {"kind": "window", "start": 1, "size": 3, "slide_every": 1}}
TREE = {"stochastic": {"kind": "all"}, "tree": {"roots": 1, "branches": 3, "splits": [0, 2]}}
SPLITS = {"stochastic": {"kind": "splits"}, "solver": "ab2", "tree": {"roots": 2, "splits": [0, 2]}}
CASES = {
    "chains": {"rollout": CHAINS},
    "chains, window": {"rollout": WINDOW | {"tree": {"roots": 3}}},
    "chains, some prompts at once": {"rollout": CHAINS | {"prompts_at_once": 1}},
    "tree": {"rollout": TREE, "credit": {"reward": "fused", "normalise": "depth"}},
    "tree, splits alone": {"rollout": SPLITS, "credit": {"reward": "fused", "normalise": "depth"}},
    "tree, predictions": {"rollout": SPLITS, "credit": {"reward": "incremental", "value": "predicted_x0"}},
    "tree, tilt": {"rollout": SPLITS, "objective": {"kind": "tilt"}, "train": {"learning_rate": 1.0e-4}},
    "chosen chains": {"rollout": CHAINS | {"tree": {"roots": 8}, "explore": EXPLORE | {"steps": 5}}},
    "chains, stored in bfloat16": {"rollout": CHAINS | {"latents_dtype": "bfloat16"}},
    "nothing recorded": {"rollout": {"dynamics": None, "stochastic": {"kind": "none"}}, "objective": {"kind": "nft"}},
}


RARE = ("chains", "tree", "chains, some prompts at once", "tree, tilt")
"""Of whose parts others have more."""


def tensors_of(record):
    """Every tensor in a record and the records in it."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            yield value
        elif is_dataclass(value):
            yield from tensors_of(value)


@pytest.mark.parametrize("name", daily(CASES, ["chains, window", "tree, splits alone"], RARE))
def test_a_rollout_is_as_large_as_planned(random_sd3, tmp_path, name):
    changes = CASES[name]
    data = settings(random_sd3, tmp_path)
    data["rollout"] |= changes["rollout"]
    trainer = make_trainer(data | {key: value for key, value in changes.items() if key != "rollout"})
    rollout = trainer.iterate().samples.rollout
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(rollout) if t.numel()}
    memory, pictures = make_plan(trainer.config).memory, rollout.images.untyped_storage()
    explore = trainer.config.rollout.explore
    pool = trainer.config.prompts.per_iteration * explore.candidates if explore else 0  # let go of, once chosen from
    assert storages.pop(pictures.data_ptr()) == pictures.nbytes()
    assert memory.host.kept["decoded images"] == pictures.nbytes() + pool * rollout.images[0].numel()
    assert sum(storages.values()) == pytest.approx(memory.kept["samples and steps"], rel=0.02)
