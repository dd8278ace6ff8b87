"""A configuration with every optional section, loaded with overrides."""

import pytest
import yaml

from diffrl.config import load_config

FULL = {
    "run": {"name": "r", "iterations": 7},
    "model": {"family": "sd3", "path": "somewhere", "lora": {"rank": 3}},
    "prompts": {"train": "shapes:train", "eval": "list.txt", "per_iteration": 5},
    "rollout": {
        "steps": 7,
        "dynamics": {"kind": "flow_sde"},
        "stochastic": {"kind": "window", "size": 3},
        "tree": {"roots": 5},
    },
    "rewards": [{"name": "shapes"}, {"name": "shapes_strict"}],
    "train": {"learning_rate": 1e-4, "ema": {"decay": 0.9}},
    "eval": {"rewards": [{"name": "shapes"}], "samples": 11, "steps": 3},
    "track": {"wandb": {"project": "p"}},
}


@pytest.fixture
def load(tmp_path):
    """Loads FULL with overrides."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(FULL))
    return lambda *overrides: load_config(path, overrides)
