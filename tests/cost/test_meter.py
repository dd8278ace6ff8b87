"""Costs are counted where they arise, and the plan knows them before the run."""

import pytest
import torch

from diffrl.config.load import load_config, make_config
from diffrl.cost.meter import PURPOSES, UNGRADED, CostMeter, network_evaluations, training_cost
from diffrl.cost.plan import make_plan
from diffrl.tracking.metrics import read_metrics
from tests.tiers import daily
from tests.training.harness import BRIGHTNESS, EXPLORE, FOREST, FUSED, GREEN, TREES, settings, start, summary_of

FREE = {"stochastic": {"kind": "none"}, "dynamics": None, "tree": {"roots": 3}}
CHAINS = {"stochastic": {"kind": "all"}, "tree": {"roots": 3}}
STEPWISE = {"reward": "turning_point"}
NFT = {"kind": "nft"}
NVFP4 = {"precision": "nvfp4", "engine": "emulated"}
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q"]}
CASES = {  # exact ones
    "forest, window, guidance, kl": {
        "rollout": {"stochastic": {"kind": "window", "size": 2, "slide_every": 1}, "tree": {"roots": 1, "splits": [2]},
                    "guidance_scale": 2.0},
        "objective": {"kl": 0.1},
        "credit": FUSED,
    },
    "ode values of a forest, two rewards": {
        "rollout": FOREST, "credit": STEPWISE | {"value": "ode"}, "rewards": [{"name": BRIGHTNESS}, {"name": GREEN}],
    },
    "predicted_x0": {"rollout": CHAINS, "credit": STEPWISE | {"value": "predicted_x0"}},
    "nft and edges, lora": {
        "rollout": FOREST, "model": {"lora": LORA},
        "objective": NFT | {"levels": 2, "kl": 0.0, "old_decay_max": 0.0, "edges": {}},
    },
    "dgpo, guidance": {"rollout": FREE | {"guidance_scale": 2.0}, "objective": {"kind": "dgpo", "levels": 2}},
    "crd": {"rollout": FREE, "objective": {"kind": "crd", "levels": 3}},
    "crd, own policy": {
        "rollout": FREE, "objective": {"kind": "crd", "levels": 2, "old_decay_max": 0.0, "kl": 0.0},
        "train": {"updates_per_iteration": 1},
    },
    "tilt, kl, guidance": {
        "rollout": {"stochastic": {"kind": "all"}, "tree": {"roots": 1, "splits": [1, 3], "branches": [3, 2]},
                    "guidance_scale": 2.0},
        "objective": {"kind": "tilt", "kl": 0.1}, "train": {"updates_per_iteration": 1},
    },
    "tilt, some nodes, kl": {
        "rollout": {"stochastic": {"kind": "all"}, "tree": {"roots": 2, "splits": [1, 3], "branches": [3, 2]}},
        "objective": {"kind": "tilt", "kl": 0.1, "nodes": {"keep": 3}}, "train": {"updates_per_iteration": 1},
    },
    "art, kl, guidance": {
        "rollout": FREE | {"guidance_scale": 2.0}, "objective": {"kind": "art", "levels": 4, "kl": 0.1},
    },
    "art, chosen": {
        "rollout": FREE | {"explore": EXPLORE | {"steps": None, "candidates": 7, "keep": 3, "audit": 0}},
        "objective": {"kind": "art", "levels": 5},
    },
    "explore chains, audits and kl": {
        "rollout": CHAINS | {"explore": EXPLORE | {"steps": None, "candidates": 7, "keep": 3}},
        "objective": {"kl": 0.1},
    },
    "a copy draws a forest, tilt": {
        "rollout": FOREST | {"draw": NVFP4}, "objective": {"kind": "tilt"}, "train": {"updates_per_iteration": 1},
        "run": {"iterations": 3},
    },
    "a copy draws chains, guidance": {
        "rollout": FREE | {"draw": NVFP4 | {"sync_every": 2}, "guidance_scale": 2.0}, "objective": NFT,
        "run": {"iterations": 3},
    },
}  # fmt: skip
BOUNDED = {
    "explore a forest, tilt, some nodes": {
        "rollout": FOREST | {"explore": EXPLORE},
        "objective": {"kind": "tilt", "nodes": {"keep": 2}},
        "train": {"updates_per_iteration": 1},
    },
    "explore a forest, ode values": {
        "rollout": FOREST | {"explore": EXPLORE | {"select": "sibling_contrast"}},
        "credit": STEPWISE | {"value": "ode"},
    },
}


def run_of(pipeline, directory, case):
    changes = {name: dict(values) if isinstance(values, dict) else values for name, values in case.items()}
    data = settings(pipeline, directory, track=TREES)
    for name, values in changes.items():
        if isinstance(values, list) or (name == "objective" and "kind" in values):
            data[name] = values
        else:
            data[name] = data.get(name, {}) | values
    run_dir, _ = start(data)
    return make_plan(make_config(data)), summary_of(run_dir), read_metrics(run_dir / "metrics.jsonl"), run_dir


DAILY = (
    "forest, window, guidance, kl",
    "tilt, kl, guidance",
    "art, chosen",
    "explore chains, audits and kl",
    "a copy draws a forest, tilt",
)
RARE = ("predicted_x0", "dgpo, guidance", "crd", "crd, own policy", "art, kl, guidance")
"""Objectives whose presets are held to their plan in tests/training/test_presets.py."""


@pytest.mark.parametrize("case", daily(CASES, DAILY, RARE))
def test_a_run_costs_what_was_planned(random_sd3, tmp_path, case):
    plan, summary, rows, run_dir = run_of(random_sd3, tmp_path, CASES[case])
    counts, found = summary["counts"], summary["network_evaluations"]
    # An audited sample is drawn and counted, and trains nothing; a balanced turning point may leave an edge at 0.
    assert plan.exact and found["exact"] and found["counted"] + found["skipped"] == found["planned"]
    for name in ("explore", "rollout", "audit", "values", "gate", "evaluation"):
        assert counts.get(f"evaluations/{name}", 0) == plan.network_evaluations[name], name
    trained = {name: counts.get(f"evaluations/{name}", 0) for name in ("old", "group", "update", "reference")}
    planned = {name: plan.network_evaluations[name] for name in trained}
    assert sum(planned.values()) - sum(trained.values()) == found["skipped"]
    assert (counts["decodes"], counts["reward_calls"]) == (plan.decodes, plan.reward_calls)
    if not found["skipped"]:
        assert trained == planned and summary["cost"]["evaluations"] == plan.training_cost
    by_precision = {name: n for name, n in counts.items() if name.startswith("precision/")}
    assert (
        sum(by_precision.values())
        == found["counted"]
        == network_evaluations(counts | dict.fromkeys(missing(counts), 0))
    )
    low, config = plan.network_evaluations["explore"], load_config(run_dir / "config.yaml")
    if config.rollout.draw is not None:
        nodes = plan.network_evaluations["gate"] // config.prompts.per_iteration
        low = plan.network_evaluations["rollout"] + plan.network_evaluations["gate"] + nodes
    assert counts.get("precision/nvfp4", 0) == low
    log = run_dir / "log.txt"
    assert not log.exists() or "differs from the plan" not in log.read_text()
    check_columns(rows, summary)


def missing(counts):
    return {f"evaluations/{name}" for name in PURPOSES} - counts.keys()


def check_columns(rows, summary):
    """cost/* are cumulative over training alone; the summary's are the last."""
    assert [row["cost/evaluations"] for row in rows[:1]] == [0] and rows[0]["cost/seconds"] == 0
    spent = [row["cost/evaluations"] for row in rows]
    assert spent == sorted(set(spent)) and spent[-1] == summary["cost"]["evaluations"]
    seconds = [row["cost/seconds"] for row in rows]
    assert seconds == sorted(set(seconds))
    each = [
        sum(row.get(f"evaluations/{name}", 0) for name in UNGRADED) + 3 * row.get("evaluations/update", 0)
        for row in rows[1:]
    ]
    assert [after - before for before, after in zip(spent, spent[1:], strict=False)] == each


@pytest.mark.parametrize("case", daily(BOUNDED, [], list(BOUNDED)[1:]))
def test_where_samples_are_chosen_the_plan_is_a_bound(random_sd3, tmp_path, case):
    plan, summary, rows, run_dir = run_of(random_sd3, tmp_path, BOUNDED[case])
    counts, found = summary["counts"], summary["network_evaluations"]
    assert not plan.exact and not found["exact"] and found["counted"] + found["skipped"] <= found["planned"]
    assert counts["evaluations/explore"] == plan.network_evaluations["explore"] == counts["precision/nvfp4"]
    for name in PURPOSES:
        assert counts.get(f"evaluations/{name}", 0) <= plan.network_evaluations[name], name
    assert counts["decodes"] <= plan.decodes and counts["reward_calls"] <= plan.reward_calls
    check_columns(rows, summary)


def test_purposes_nest_and_come_back_after_an_error():
    meter, network = CostMeter(), torch.nn.Linear(3, 3)
    meter.watch([network], "float32")
    with meter.purpose("update"):
        network(torch.zeros(5, 3))
        with pytest.raises(ValueError, match="stop"), meter.purpose("reference"):
            network(torch.zeros(7, 3))
            raise ValueError("stop")
        network(torch.zeros(11, 3))
    network(torch.zeros(2, 3))
    with meter.purpose("trees"):  # which is in no sum
        network(torch.zeros(13, 3))
    counted = {"update": 16, "reference": 7, "rollout": 2, "trees": 13}
    assert meter.evaluations == dict.fromkeys(PURPOSES, 0) | counted
    assert meter.by_precision == {"float32": 25} and network_evaluations(meter.state()) == 25
    assert training_cost(meter.state(), False) == 7 + 2 + 3 * 16
    assert training_cost(meter.state(), True) == 7 + 2 + 4 * 16
