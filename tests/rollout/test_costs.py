"""What a rollout asks of the network, against the counts and the plan."""

from types import SimpleNamespace

import pytest

from diffrl.config.rollout import RolloutSettings
from diffrl.cost.plan import prompt_cost
from diffrl.functional.steps import coarse_levels
from diffrl.functional.tree_counts import alive_per_level, ends_per_tree, forwards_per_tree, origins_per_tree
from diffrl.objectives.grpo import GrpoSettings
from diffrl.rollout.complete import complete, inner_nodes
from diffrl.rollout.tree import root_addresses
from tests.rollout.oracle import BATCH, SEED, Case, FakeAdapter

BRANCHINGS = [{}, {2: 1}, {0: 2, 3: 3}, {4: 5, 1: 2}, {0: 3, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}]


@pytest.mark.parametrize("micro_batch", [1, 7, 128])
@pytest.mark.parametrize("branching", BRANCHINGS, ids=str)
def test_forwards_are_what_the_network_sees(branching, micro_batch):
    case, adapter = Case(branching), FakeAdapter()
    drawn = case.draw(adapter, micro_batch=micro_batch)
    trees = 3 * 2
    assert sum(adapter.rows) == trees * forwards_per_tree(range(7), branching)
    alive = [trees * width for width in alive_per_level(range(7), branching)]
    assert adapter.rows == [min(micro_batch, n - i) for n in alive for i in range(0, n, micro_batch)]
    assert len(drawn.edges) == trees * sum(ends_per_tree(branching).values())
    assert len(drawn.edges.step) == trees * sum(origins_per_tree(branching).values())


@pytest.mark.parametrize("steps", [5, 6, 7])
def test_forwards_of_a_coarse_grid(steps):
    branching, adapter = {0: 2, 3: 3}, FakeAdapter()
    levels = coarse_levels(7, branching, steps)
    Case(branching, levels=levels).draw(adapter)
    assert len(adapter.rows) == steps
    assert sum(adapter.rows) == 6 * forwards_per_tree(levels[:-1], branching)


@pytest.mark.parametrize("branching", [{0: 2, 3: 3}, {1: 5, 4: 2}, {0: 2, 1: 2, 2: 3}], ids=str)
def test_completions_cost_what_the_plan_says(branching):
    case, adapter = Case(branching), FakeAdapter()
    edges = case.draw(adapter).edges
    adapter.rows.clear()
    forest = case.forest
    conditioning = adapter.encode_prompts([prompt.text for prompt in BATCH.prompts])
    found = complete(adapter, conditioning, forest, root_addresses(forest, BATCH, SEED), edges, case.sampler(adapter))
    splits = sorted(branching)
    tree = {"roots": 2, "splits": splits, "branches": [branching[step] for step in splits]}
    settings = {"steps": 7, "dynamics": {"kind": "flow_sde"}, "stochastic": {"kind": "splits"}, "tree": tree}
    rollout = RolloutSettings.model_validate(settings)
    grpo, credit = GrpoSettings(kind="grpo"), SimpleNamespace(value="ode")
    config = SimpleNamespace(rollout=rollout, credit=credit, objective=grpo, records_steps=True)
    plan = prompt_cost(config, 0)
    assert sum(adapter.rows) == 3 * plan.values
    assert len(found) == 3 * plan.inner
    by_hand = sum(7 if step < 0 else 7 - 1 - step for step in forest.step[inner_nodes(forest)].tolist())
    assert sum(adapter.rows) == by_hand
