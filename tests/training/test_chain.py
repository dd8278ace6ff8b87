"""The chain of the papers: a pool of trees, whole families drawn again, turning points on fused values, GRPO."""

import pytest
import torch

from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan, prompt_cost
from diffrl.rollout.tree import plan_forest, sample_paths, subset
from diffrl.studies.compare.selected import _evaluations, average_cost
from tests.training.harness import EXPLORE, FOREST, rows_of, settings, start

POINTS = {"constraint": True, "balance": True}
CREDIT = {"reward": "turning_point", "value": "leaves", "turning_points": POINTS, "normalise": "depth"}


def chain(pipeline, directory, **explore):
    """Four trees of 3 x 3 leaves a prompt in NVFP4, three families of three of them trained."""
    data = settings(pipeline, directory, credit=CREDIT, train={"updates_per_iteration": 1})
    tree = {"roots": 1, "branches": 3, "splits": [0, 2]}
    pool = EXPLORE | {"candidates": 36, "keep": 9, "audit": 0, "select": "family_contrast"} | explore
    data["rollout"] |= FOREST | {"tree": tree, "explore": pool}
    data["run"] |= {"iterations": 3, "checkpoint_every": 1}
    return data


def test_whole_families_train_on_policy_at_what_was_planned(random_sd3, tmp_path):
    data = chain(random_sd3, tmp_path)
    run_dir, _ = start(data)
    rows = rows_of(run_dir)[1:]
    config = make_config(data)
    most, average = prompt_cost(config, 0), average_cost(config, 0)
    for row in rows:
        assert row["update/ratio_error_max"] < 1e-5
        # three families: 3 to 1 roots, 3 nodes below them that go two steps, 9 leaves that go two more
        assert 2 * (1 + 3 * 2 + 9 * 2) <= row["evaluations/rollout"] <= 2 * (3 + 3 * 2 + 9 * 2)
        made = row["evaluations/update"] + row["evaluations_skipped"]
        assert 2 * (1 + 3) <= made <= 2 * (3 + 3)
    assert 25 <= average.rollout <= 27 < most.rollout and 4 <= average.origins <= 6 < most.origins
    planned = make_plan(config, cost_of=average_cost).network_evaluations
    assert planned["rollout"] == 2 * 3 * average.rollout and planned["explore"] == sum(
        row["evaluations/explore"] for row in rows
    )


def test_evaluations_are_those_of_every_prefix_once():
    forest, steps = plan_forest(1, 3, {0: 2, 3: 3, 4: 1}), 7
    generator = torch.Generator().manual_seed(0)
    for keep in (1, 2, 5, 11, 18):
        part = subset(forest, torch.randperm(18, generator=generator)[:keep].sort().values)
        at = [0, 3, 4]  # what a sample has gone through before each step: its root, and a child of each split
        seen = {
            (int(root), path[: sum(split < step for split in at)], step)
            for root, path in zip(part.sample_root, sample_paths(part), strict=True)
            for step in range(steps)
        }
        assert _evaluations(part, steps) == len(seen)


@pytest.mark.parametrize("select", ["best_worst", "random", "sibling_contrast", "family_contrast"])
def test_an_average_is_between_the_fewest_and_the_most(random_sd3, tmp_path, select):
    config = make_config(chain(random_sd3, tmp_path, select=select))
    most, average = prompt_cost(config, 0), average_cost(config, 0)
    assert 25 <= average.rollout < most.rollout and average.explore == most.explore
    every = make_config(chain(random_sd3, tmp_path, select="all", keep=36))
    assert average_cost(every, 0) == prompt_cost(every, 0)
