"""Every key that a preset gives changes a number: another value is refused, said to do nothing, or trains otherwise."""

import copy
from pathlib import Path

import pytest
import torch
import yaml

from diffrl.config.idle import unused_keys
from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from tests.tiers import daily
from tests.training.harness import make_trainer, weights_of
from tests.training.test_presets import PRESETS

ROOT = Path(__file__).parents[2]
SECTIONS = ("rollout", "credit", "objective", "train")
OTHERS = {
    "rollout.steps": (6, 7, 9),
    "rollout.grid": ("uniform",),
    "rollout.guidance_scale": (2.0,),
    "rollout.solver": ("ode",),
    "rollout.dynamics.kind": ("cps",),
    "rollout.dynamics.eta": (0.6,),
    "rollout.dynamics.noise_level": (0.3,),
    "rollout.stochastic.kind": ("all", "splits", "none"),
    "rollout.stochastic.start": (3, 1),
    "rollout.stochastic.size": (3, 1),
    "rollout.stochastic.slide_every": (2,),
    "rollout.tree.roots": (3, 2),
    "rollout.tree.branches": (3,),
    "rollout.tree.correlation": (0.5,),
    "rollout.tree.splits": ([0, 1], [1, 2]),
    "rollout.explore.audit": (0,),
    "rollout.explore.candidates": (24,),
    "rollout.explore.engine": ("auto",),
    "rollout.explore.keep": (8,),
    "rollout.explore.precision": ("fp8",),
    "rollout.explore.select": ("random",),
    "rollout.explore.steps": (3,),
    "credit.baseline": ("median",),
    "credit.clamp": (0.5,),
    "credit.normalise": ("batch", "group", "none"),
    "credit.reward": ("incremental", "fused", "outcome"),
    "credit.std": ("batch", "group"),
    "credit.turning_points.balance": (False,),
    "credit.turning_points.constraint": (False,),
    "credit.value": ("leaves", "ode"),
    "objective.beta": (0.3,),
    "objective.clip": (1.0e-5,),
    "objective.edges.weight": (1.0,),
    "objective.kind": ("awm", "grpo", "tilt"),
    "objective.kl": (0.3,),
    "objective.kl_guidance": (5.0,),
    "objective.levels": (2,),
    "objective.noise_range": (0.4,),
    "objective.old_decay_max": (0.5,),
    "objective.step": (0.05,),
    "objective.weighting": ("uniform", "sigma"),
    "train.learning_rate": (1.0e-4,),
    "train.max_grad_norm": (1.0e-3,),
    "train.schedule": ("constant",),
    "train.updates_per_iteration": (1, 2),
    "train.warmup_updates": (0,),
}
"""Other values of each key, of which the first that is no fault is tried."""
WITHOUT = {
    "train.micro_batch": "shares of one sum",
    "rollout.explore.engine": "where the same numbers are computed",
    "rollout.explore.audit": "what is looked at, and not trained",
}
"""Keys that are to change nothing a model learns, and what they are. So is tree.roots where a pool says how many."""
ITERATIONS = 4
OFTEN = ("flow_grpo",)
"""Of the tier that CI runs; the rest is `slow`, half a minute each."""


def preset(name, directory):
    """A preset with few prompts an iteration, past its warm-up, and nothing evaluated."""
    data = yaml.safe_load((ROOT / f"configs/tiny-sd3/{name}.yaml").read_text(encoding="utf-8"))
    data["run"] |= {"dir": str(directory), "iterations": 5, "checkpoint_every": 5, "eval_every": None}
    data["model"]["path"] = str(ROOT / "assets/tiny-sd3")
    data["prompts"]["per_iteration"] = 8 if name == "diffrl_nft" else 2  # few turns are out of balance
    data["train"]["warmup_updates"] = 1
    if "slide_every" in data["rollout"]["stochastic"]:
        data["rollout"]["stochastic"]["slide_every"] = 1  # so that the window takes all of its places
    data["eval"] = {"rewards": [{"name": "shapes"}], "samples": 1, "steps": 1}
    data["track"] = {"trees": None, "pictures_per_iteration": 0}
    return data


def given(section, path):
    """Paths and values of what a section gives."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from given(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def with_value(data, path, value):
    """The same with one key changed."""
    data = copy.deepcopy(data)
    *sections, key = path.split(".")
    inner = data
    for name in sections:
        inner = inner[name]
    inner[key] = value
    return data


def trained(data, directory):
    """Weights after each of some iterations, as they are asked for."""
    trainer = make_trainer(data | {"run": data["run"] | {"dir": str(directory)}})
    for _ in range(ITERATIONS):
        trainer.iterate()
        yield weights_of(trainer)


def valid(data, path, old):
    """The first other value that the rules accept; None where they refuse all."""
    for value in OTHERS[path]:
        if value == old:
            continue
        try:
            return make_config(with_value(data, path, value)) and with_value(data, path, value)
        except ConfigError:
            continue
    return None


@pytest.mark.parametrize("name", daily(PRESETS, (), [name for name in PRESETS if name not in OFTEN]))
def test_every_key_that_a_preset_gives_changes_what_it_trains(name, tmp_path):
    data = preset(name, tmp_path)
    notes, idle = " ".join(unused_keys(make_config(data))), []
    before = list(trained(data, tmp_path / "as-it-is"))
    keys = [pair for section in SECTIONS for pair in given(data.get(section, {}), section)]
    for path, old in keys:
        pooled = path == "rollout.tree.roots" and "explore" in data["rollout"]
        if pooled or path in WITHOUT or path in notes:
            continue
        other = valid(data, path, old)
        if other is None:
            continue
        after = zip(trained(other, tmp_path / path), before, strict=True)
        if all(torch.equal(ours[key], theirs[key]) for ours, theirs in after for key in theirs):
            idle.append(path)
    assert not idle
