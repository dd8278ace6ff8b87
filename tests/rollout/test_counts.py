"""Costs of trees against the closed formulas, against forests laid out, and against calls that are counted."""

from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.config.credit import GrpoSettings
from diffrl.config.rollout import RolloutSettings
from diffrl.cost.plan import drawn_per_prompt
from diffrl.rollout.complete import complete, inner_nodes
from diffrl.rollout.counts import (
    alive_per_level,
    coarse_levels,
    ends_per_tree,
    forwards_per_tree,
    least_steps,
    origins_per_tree,
)
from diffrl.rollout.tree import plan_forest, root_addresses
from tests.rollout.oracle import BATCH, SEED, Case, FakeAdapter

TREES = [(t, k, b) for t in (3, 5, 7) for k in (2, 3) for m in (1, 2, 3) for b in combinations(range(t - 1), m)]


@pytest.mark.parametrize(("splits", "forwards", "edges"), [((0, 3, 6, 9), 203, 218), ((9, 12, 15, 18), 68, 83)])
def test_the_published_examples(splits, forwards, edges):
    branching = dict.fromkeys(splits, 2)
    assert forwards_per_tree(range(20), branching) == forwards
    assert forwards - 1 + 2**4 == edges
    every = {step: branching.get(step, 1) for step in range(19)}
    ending = ends_per_tree(every)
    assert sum(ending.values()) + 16 == edges  # the last step, into 16 leaves, is deterministic and no edge of ours
    assert 16 * forwards_per_tree(range(20), dict.fromkeys(range(19), 1)) == 320
    assert sum(ends_per_tree(branching).values()) == 30


@pytest.mark.parametrize(("steps", "k", "splits"), TREES)
def test_forwards_and_edges_by_the_closed_formula(steps, k, splits):
    m = len(splits)
    f = splits[0] + 1 + sum(k ** (j + 1) * (splits[j + 1] - splits[j]) for j in range(m - 1))
    f += k**m * (steps - 1 - splits[-1])
    for branching in (dict.fromkeys(splits, k), {i: k if i in splits else 1 for i in range(steps - 1)}):
        assert forwards_per_tree(range(steps), branching) == f
    every = ends_per_tree(branching)
    assert sum(every.values()) + k**m == f - 1 + k**m
    # an edge leaves every node of every level but the last: the network sees each of them once
    assert sum(origins_per_tree(branching).values()) == f - k**m


@given(st.integers(2, 17), st.data())
def test_any_branching_by_counting_prefixes(steps, data):
    splits = data.draw(st.lists(st.integers(0, steps - 2), unique=True, max_size=4))
    branching = {step: data.draw(st.integers(1, 5)) for step in splits}
    alive, ends = [], {}
    for level in range(steps):
        width = 1
        for step, children in branching.items():
            width *= children if step < level else 1
        alive.append(width)
        if level in branching:
            ends[level] = width * branching[level]
    assert alive_per_level(range(steps), branching) == alive
    assert ends_per_tree(branching) == ends
    assert origins_per_tree(branching) == {step: alive[step] for step in branching}


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


@pytest.mark.parametrize("branching", BRANCHINGS, ids=str)
def test_ends_and_origins_are_those_of_the_forest(branching):
    forest = plan_forest(1, 1, branching)
    for step, ends in ends_per_tree(branching).items():
        nodes = (forest.step == step).nonzero().flatten()
        assert len(nodes) == ends
        assert len(forest.parent[nodes].unique()) == origins_per_tree(branching)[step]
    assert sum(ends_per_tree(branching).values()) == len(forest.parent) - 1
    assert sum(origins_per_tree(branching).values()) == len(inner_nodes(forest))


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
    config = SimpleNamespace(rollout=rollout, credit=SimpleNamespace(value="ode"), objective=GrpoSettings(kind="grpo"))
    plan = drawn_per_prompt(config, 0)
    assert sum(adapter.rows) == 3 * plan.values
    assert len(found) == 3 * plan.inner
    by_hand = sum(7 if step < 0 else 7 - 1 - step for step in forest.step[inner_nodes(forest)].tolist())
    assert sum(adapter.rows) == by_hand


# --- coarse grids -----------------------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.data())
def test_a_coarse_grid_keeps_both_ends_of_every_stochastic_step(full, data):
    stochastic = data.draw(st.sets(st.integers(0, full - 2), max_size=6))
    needed = {0, full} | stochastic | {step + 1 for step in stochastic}
    least = least_steps(stochastic, full)
    assert least == len(needed) - 1
    steps = data.draw(st.integers(least, full))
    levels = coarse_levels(full, stochastic, steps)
    assert len(levels) == steps + 1 and levels[0] == 0 and levels[-1] == full
    assert list(levels) == sorted(set(levels)) and needed <= set(levels)
    for step in stochastic:
        assert levels[levels.index(step) + 1] == step + 1
    gaps = [b - a for a, b in zip(levels, levels[1:], strict=False)]
    split = [b - a for a, b in zip(sorted(needed), sorted(needed)[1:], strict=False)]
    assert max(gaps) <= max(split)
    for steps_less in range(least, steps):  # finer grids only add
        assert set(coarse_levels(full, stochastic, steps_less)) <= set(levels)


@pytest.mark.parametrize(
    ("full", "stochastic", "steps", "levels"),
    [
        (7, (), 1, (0, 7)),
        (7, (), 2, (0, 3, 7)),
        (7, (), 3, (0, 3, 5, 7)),
        (8, (), 3, (0, 2, 4, 8)),
        (20, (0, 3), 5, (0, 1, 3, 4, 12, 20)),
        (20, (0, 3), 6, (0, 1, 3, 4, 8, 12, 20)),
        (20, (0, 3), 7, (0, 1, 3, 4, 8, 12, 16, 20)),
        (11, (6,), 5, (0, 3, 6, 7, 9, 11)),
        (5, (0, 1, 2, 3), 5, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_the_largest_gap_is_halved_and_of_equals_the_first(full, stochastic, steps, levels):
    assert coarse_levels(full, stochastic, steps) == levels


@pytest.mark.parametrize(
    ("full", "stochastic", "steps", "least"), [(7, (2,), 2, 3), (7, (), 8, 1), (7, (), 0, 1), (9, (0, 3, 4), 4, 5)]
)
def test_a_grid_that_cannot_be_is_refused(full, stochastic, steps, least):
    with pytest.raises(ValueError, match=rf"needs {least} to {full} steps. Got {steps}"):
        coarse_levels(full, stochastic, steps)


@pytest.mark.parametrize(
    ("stochastic", "steps", "least"),
    [((), 7, 1), ((0,), 7, 2), ((2,), 7, 3), ((0, 1), 7, 3), ((0, 3), 7, 4), ((5,), 7, 3)],
)
def test_least_steps(stochastic, steps, least):
    assert least_steps(stochastic, steps) == least
