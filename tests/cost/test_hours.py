"""Hours of a run against arithmetic by hand."""

from __future__ import annotations

import re

import pytest

from diffrl.config.load import make_config
from diffrl.cost import plan as plan_module
from diffrl.cost.gpus import find_gpu, parse_memory
from diffrl.cost.hours import hours_of, hours_rows
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError


def config_of(family, path, **model):
    reward = {"name": "shapes"}
    return make_config(
        {
            "run": {"iterations": 7, "eval_every": None},
            "model": {"family": family, "path": str(path), **model},
            "prompts": {"train": "shapes:train", "per_iteration": 6},
            "rollout": {
                "steps": 7,
                "dynamics": {"kind": "flow_sde"},
                "stochastic": {"kind": "window", "start": 1, "size": 3},
                "tree": {"roots": 5},
            },
            "rewards": [reward],
            "objective": {"kind": "grpo"},
            "train": {"learning_rate": 1e-4},
            "eval": {"rewards": [reward], "samples": 13, "steps": 11},
        }
    )


def test_hours_added_up_by_hand(made_up_sizes, monkeypatch):
    """SD3.5 Medium at 512 px without guidance; counts as in test_plan."""
    config = config_of("sd3", "stabilityai/stable-diffusion-3.5-medium", height=512, width=512)
    plan = make_plan(config, world_size=3)
    rollout, trained, evaluated = 7 * 30 * 7, 7 * 90, 2 * 13 * 11
    network = rollout + 3 * trained + 90 + evaluated  # a backward pass is two forward ones; 90 for the gate
    assert plan.run_flops == 97 * network
    shown = 2 * 2 * 2 * 15  # two of the prompts, before and after the update, in the first and the last iteration
    expected = plan.flops * (network / 3 + shown) / (0.5 * 989.4e12) / 3600
    assert hours_of(plan, find_gpu("NVIDIA H100"), 0.5) == pytest.approx(expected)
    assert hours_rows_of(plan, price=2.5) == f"costs {3 * expected * 2.5:,.2f} at 2.5 a GPU hour"
    monkeypatch.setattr(plan_module, "activations_of", lambda config: (None, "it is not here"))
    unknown = make_plan(config_of("sd3", "some/name"))
    assert unknown.run_flops is None and hours_of(unknown, find_gpu("h100"), 0.5) is None


@pytest.mark.parametrize("overlap", [False, True])
def test_hours_of_explorers_added_up_by_hand(made_up_sizes, overlap):
    """Two draw while the run waits, or while it does the rest; each has a GPU."""
    config = config_of("sd3", "stabilityai/stable-diffusion-3.5-medium", height=512, width=512)
    explorers = {"servers": ["http://127.0.0.1:1", "http://127.0.0.1:2"], "overlap": overlap}
    data = config.model_dump(mode="json", exclude_unset=True)
    tilt = data | {
        "objective": {"kind": "tilt"},
        "rollout": data["rollout"] | {"explorers": explorers, "tree": {"roots": 2, "splits": [1]}},
    }
    plan = make_plan(make_config(tilt), world_size=3)
    counts = plan.network_evaluations
    rest = 3 * counts["update"] + counts["gate"] + counts["evaluation"]
    there, here = counts["rollout"] / 2, rest / 3 + plan.tree_evaluations
    expected = plan.flops * (max(there, here) if overlap else there + here) / (0.5 * 989.4e12) / 3600
    assert counts["rollout"] > 0 and hours_of(plan, find_gpu("NVIDIA H100"), 0.5) == pytest.approx(expected)
    assert hours_rows_of(plan, price=2.5) == f"costs {5 * expected * 2.5:,.2f} at 2.5 a GPU hour"


def hours_rows_of(plan, price):
    """What a row says of money."""
    *_, (_, row) = hours_rows(plan, (find_gpu("h100"),), 0.5, price)
    (words,) = re.findall(r"costs [\d.,]+ at [\d.]+ a GPU hour", row)
    return words


@pytest.mark.parametrize(("text", "size"), [("80GB", 80 * 10**9), ("24 GiB", 24 * 2**30), ("0.5", 5 * 10**8)])
def test_memory_as_people_write_it(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0GB", "-1GB", "80TB", "GB", "1e99", "nan"])
def test_what_is_no_memory_is_refused(text):
    with pytest.raises(ConfigError, match="80GB"):
        parse_memory(text)
