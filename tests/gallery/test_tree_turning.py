"""Turning points as pages explain them, path by path, against numbers that were worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.tree_panel import step_facts
from diffrl.gallery.tree_turning import rule as turning_rule
from diffrl.gallery.tree_words import sums
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, leaf, record
from tests.gallery.test_tree_story import told

NEW = {**DIFFRL, "constraint": True, "balance": True}


def test_a_turn_is_told_with_the_rule_that_was_followed():
    tree = made_trees.forest(rule=NEW)
    text = told(tree)["credit"]
    assert (
        "At 2a ◆ a path turns up: its first step adds +0.375 and at least one of the 2 paths through it goes on up, so "
        "the step is credited with +0.750 instead." in text
    )
    assert text.endswith("the mean over them; as many turns up as down are kept, the largest ones.")
    loose = told(replace(tree, rule={**NEW, "constraint": False, "balance": False}))["credit"]
    assert "through it ends higher than it began" in loose and "as many turns" not in loose
    whole = turning_rule(sums(tree))
    for words in (
        "the first of the path or right after one against it",
        "goes on the same way",
        "as many up as down",
        "only some may",
    ):
        assert words in whole
    assert "goes on the same" not in turning_rule(sums(replace(tree, rule={**NEW, "constraint": False})))
    assert "as many" not in turning_rule(sums(replace(tree, rule={**NEW, "balance": False})))


def turn(rewards, credited, worth=None, start=0.4, **more):
    """A noise worth `start` and the step to 1a, which turns and leads to these pictures; beside it 1b."""
    worth = sum(rewards) / len(rewards) if worth is None else worth
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=start),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=worth, advantage=1.0, trained=True, turning=True, credited=credited),
    ]
    for child, reward in enumerate(rewards):
        nodes.append(TreeNode(len(nodes), 1, 0, child, 2, 0.25, value=reward, advantage=0.0, leaf=leaf(reward)))
    return record(nodes, branching={0: 2, 2: len(rewards)}, rule={**NEW, **more})


@pytest.mark.parametrize(
    ("tree", "said", "sum_"),
    [
        (  # 0.9 - 0.4 = 0.5 turns, 0.3 lies below the noise's 0.4 and keeps 0.6 - 0.4 = 0.2; mean 0.35
            turn((0.9, 0.3), 0.35),
            "1a ◆ turns up: it adds only +0.200 itself, but its path to 1aa goes on up, +0.500 in all; the path to 1ab "
            "does not and keeps +0.200. The mean, +0.350, is the credit of 1a.",
            "+0.350 = (+0.500 + 0.200) / 2, over the paths to 1aa ◆ and 1ab",
        ),
        (  # 0.6 - 0.4 and 0.5 - 0.4 would count without the constraint; worth 0.45 is no mean here
            turn((0.6, 0.5), 0.15, worth=0.45),
            "1a ◆ turns up: it adds only +0.050 itself, but its paths to 1aa and 1ab go on up, +0.200 and +0.100 in "
            "all. The mean, +0.150, is the credit of 1a.",
            "+0.150 = (+0.200 + 0.100) / 2, over the paths to 1aa ◆ and 1ab ◆",
        ),
        (  # balancing left the smaller one out: (0.2 + 0.05) / 2
            turn((0.6, 0.5), 0.125, worth=0.45),
            "its path to 1aa goes on up, +0.200 in all; the path to 1ab does too, but that turn was not kept, so it "
            "counts +0.050. The mean, +0.125, is",
            "+0.125 = (+0.200 + 0.050) / 2, over the paths to 1aa ◆ and 1ab",
        ),
        (  # the same number where nothing is left out is another rule: nothing is told path by path
            turn((0.6, 0.5), 0.125, worth=0.45, balance=False),
            "At 1a ◆ a path turns up: its first step adds +0.050 and at least one of the 2 paths through it",
            "+0.125, the mean over its 2 paths",
        ),
        (  # which of two equal ones was kept cannot be told
            turn((0.6, 0.6), 0.125, worth=0.45),
            "At 1a ◆ a path turns up:",
            "+0.125, the mean over its 2 paths",
        ),
        (turn((0.9, 0.3), 0.35, fusion="path_probability"), "At 1a ◆ a path turns up:", "+0.350, the mean over its"),
        (
            turn((0.9,), 0.5, worth=0.6),
            "1a ◆ turns up: it adds only +0.200 itself, but its path goes on up, +0.500 in all: that is its credit.",
            "+0.500, the way to the end",
        ),
        (  # down: 0.1 - 0.4 = -0.3 turns, 0.5 does not and keeps 0.3 - 0.4 = -0.1
            turn((0.1, 0.5), -0.2),
            "1a ◆ turns down: it adds only −0.100 itself, but its path to 1aa goes on down, −0.300 in all; the path to "
            "1ab does not and keeps −0.100. The mean, −0.200, is",
            "−0.200 = (−0.300 − 0.100) / 2, over the paths to 1aa ◆ and 1ab",
        ),
        (  # five paths are counted: 0.8 - 0.4 and 1.0 - 0.4 on average 0.5, the others keep 0.1
            turn((0.8, 1.0, 0.2, 0.2, 0.3), 0.26, worth=0.5),
            "but 2 of its 5 paths go on up, +0.500 in all on average; the other 3 keep +0.100. The mean, +0.260, is",
            "+0.260, the mean over its 5 paths",
        ),
    ],
)
def test_a_turn_is_explained_path_by_path_where_that_comes_to_its_credit(tree, said, sum_):
    assert said in told(tree)["credit"]
    assert dict(step_facts(sums(tree), tree.nodes[1]))["Credited"].startswith(sum_)


def test_a_later_turn_is_told_with_the_step_before():
    """0.5, 0.3 (down), then up by 0.1 and on to 0.8; it began at 0.5, so the path turns up there: 0.8 - 0.3."""
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.5),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=0.3, advantage=-0.2, trained=True),
        TreeNode(2, 1, 0, 0, 1, 0.5, value=0.4, advantage=1.0, turning=True, credited=0.5, trained=True),
        TreeNode(3, 2, 0, 0, 2, 0.25, value=0.8, advantage=0.1, leaf=leaf(0.8)),
    ]
    text = told(record(nodes, branching={0: 1, 1: 1, 2: 1}, rule={**NEW, "value": "ode"}))["credit"]
    assert "turns up: after a step of −0.200 it adds only +0.100 itself, but its path goes on up, +0.500 in all" in text
