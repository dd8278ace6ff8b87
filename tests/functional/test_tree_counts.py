"""Nodes and edges of trees, against the closed formulas and against prefixes that are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.functional.tree_counts import (
    alive_per_level,
    ends_per_tree,
    forwards_per_tree,
    origins_per_tree,
    trained_nodes,
)


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


@given(st.integers(1, 500), st.integers(1, 99))
def test_a_share_of_nodes_is_rounded_up(nodes, percent):
    assert trained_nodes(percent / 100, nodes) == -(-percent * nodes // 100) >= 1
    assert trained_nodes(percent, nodes) == min(percent, nodes) and trained_nodes(None, nodes) == nodes
