"""The sums behind advantages and rewards, against numbers that were worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.facts import sample_facts, step_facts
from diffrl.gallery.trees.numbers import likelier, share
from diffrl.gallery.trees.sums import reward_sum, sample_sum, step_sum, weights_text
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, OUTCOME, leaf, record, said

STEPWISE = {**DIFFRL, "reward": "incremental"}
HALVES = {name: {"weight": 0.5, "shift": 0.0, "scale": 1.0} for name in ("shapes", "shapes_strict")}
LEVEL = "with the mean and deviation of this prompt's steps at this noise level"
MEDIAN = LEVEL.replace("mean", "median")


def steps(credited, advantages, rule=STEPWISE, above=0.5, centre=None, spread=None):
    """One noise value `above` and the steps to its pictures, each with what it was credited with."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=above)]
    for child, (amount, advantage) in enumerate(zip(credited, advantages, strict=True)):
        nodes.append(
            TreeNode(child + 1, 0, 0, child, 2, 0.25, value=above + amount, advantage=advantage, trained=True,
                     credited=amount, leaf=leaf(above + amount, (child,)), centre=centre, spread=spread)
        )  # fmt: skip
    return tree_view(record(nodes, branching={2: len(credited)}, rule=rule))


@pytest.mark.parametrize(
    ("rule", "centre", "spread", "advantage", "expected"),
    [
        ({}, 0.2, 0.308321, -1.2974, f"(−0.200 − 0.200) / 0.308, {LEVEL}"),
        ({"baseline": "median"}, 0.25, 0.308321, -1.4596, f"(−0.200 − 0.250) / 0.308, {MEDIAN}"),
        ({"baseline": "median", "std": "mad"}, 0.25, 0.1501, -2.998,
         f"(−0.200 − 0.250) / 0.150, {MEDIAN.replace('deviation', 'median deviation')}"),
        ({"normalise": "group"}, 0.2, 0.308321, -1.2974,
         "(−0.200 − 0.200) / 0.308, with the mean and deviation of this prompt's steps"),
        ({"normalise": "siblings"}, 0.0, 0.3, -0.6667,
         "(−0.200 − 0.000) / 0.300, over the deviation of this prompt's steps at this noise level"),
        ({"normalise": "siblings", "reward": "fused"}, 0.5, 0.3, -2.3333,
         "(−0.200 − 0.500) / 0.300, less the value of 1, "
         "over the deviation of this prompt's steps at this noise level"),
        ({"clamp": 1.25}, 0.2, 0.308321, -1.25, f"(−0.200 − 0.200) / 0.308, cut to −1.25, {LEVEL}"),
        ({}, None, None, -1.2974, ""),
    ],
)  # fmt: skip
def test_an_advantage_is_shown_with_the_numbers_that_were_recorded(rule, centre, spread, advantage, expected):
    given = steps([-0.2], [advantage], {**STEPWISE, **rule}, centre=centre, spread=spread)
    assert step_sum(given, given.edges[0]) == expected
    shown = said(step_facts(given, given.edges[0]))["Advantage"]
    assert shown == f"{share(advantage)}{' = ' * bool(expected)}{expected}"


def test_steps_of_an_outcome_share_the_credit_of_their_pictures():
    given = tree_view(made_trees.chains(roots=3, steps=2))
    assert step_sum(given, given.edges[0]) == "that of its image"
    assert said(step_facts(given, given.edges[0]))["Advantage"] == "−0.90, that of its image"
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0),
        TreeNode(1, 0, 0, 0, 0, 0.75, advantage=0.3),
        TreeNode(2, 1, 0, 0, 2, 0.25, advantage=0.8, leaf=leaf(1.0, advantage=0.8)),
        TreeNode(3, 1, 0, 1, 2, 0.25, advantage=-0.2, leaf=leaf(0.5, advantage=-0.2)),
        TreeNode(4, 1, 0, 2, 2, 0.25, advantage=0.0, leaf=leaf(0.7, audit=True)),
    ]
    given = tree_view(record(nodes, rule=OUTCOME))
    assert step_sum(given, nodes[1]) == "the mean of its 2 images' advantages"
    weighed = tree_view(record(nodes, rule={**OUTCOME, "fusion": "path_probability"}))
    assert step_sum(weighed, nodes[1]) == "the weighted mean of its 2 images' advantages"


def test_a_pictures_own_advantage():
    ends = [
        leaf(1.0, advantage=1.4138, centre=0.5, spread=0.353653),
        leaf(0.25, advantage=-0.7069),
        leaf(0.9, audit=True),
    ]
    tree = record(
        [TreeNode(i, None, i, 0, None, 1.0, leaf=end) for i, end in enumerate(ends)], branching={}, rule=OUTCOME
    )
    expected = "(1.000 − 0.500) / 0.354, with the mean of this prompt's images and their deviation"
    assert [sample_sum(tree_view(tree), node) for node in tree.nodes] == [expected, "", ""]
    assert said(sample_facts(tree_view(tree), tree.nodes[0]))["Advantage"] == f"+1.41 = {expected}"
    batch = tree_view(replace(tree, rule={**OUTCOME, "std": "batch"}))
    assert sample_sum(batch, tree.nodes[0]).endswith("and all prompts' deviation")


def test_how_a_reward_is_made_of_its_scores():
    node = TreeNode(0, None, 0, 0, None, 1.0, leaf=leaf(0.4335, rewards={"shapes": 0.867, "shapes_strict": 0.0}))
    given = tree_view(record([node], branching={}, weights=HALVES))
    assert reward_sum(given, node) == "0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"
    assert said(sample_facts(given, node))["Reward"] == "0.433 = 0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"
    assert weights_text(given) == "0.5 × shapes + 0.5 × shapes_strict"
    assert reward_sum(given, replace(node, leaf=replace(node.leaf, total=0.5))) == "", "it comes to another number"
    assert reward_sum(tree_view(record([node], branching={})), node) == "", "nothing of it was recorded"
    alone = {"shapes": {"weight": 1.0, "shift": 0.0, "scale": 1.0}}
    given = tree_view(record([node], branching={}, weights=alone))
    assert reward_sum(given, replace(node, leaf=replace(node.leaf, total=0.867))) == "", "it is that score"


def test_shifted_scaled_negative_and_watching_scores():
    weights = {
        "a": {"weight": 2.0, "shift": 0.2, "scale": 4.0},
        "b": {"weight": -1.0, "shift": -1.0, "scale": 1.0},
        "c": {"weight": 0.0, "shift": 0.0, "scale": 1.0},
    }
    # 2 * (1.2 - 0.2) / 4 - (0.3 + 1) = -0.8
    end = leaf(-0.8, rewards={"a": 1.2, "b": 0.3, "c": None})
    node = TreeNode(0, None, 0, 0, None, 1.0, leaf=end)
    given = tree_view(record([node], branching={}, weights=weights))
    assert reward_sum(given, node) == "2 × (1.200 − 0.2) / 4 (a) − (0.300 + 1) (b)"
    failed = replace(node, leaf=replace(end, rewards={"a": None, "b": 0.3}))
    assert reward_sum(given, failed) == ""


def test_the_panel_says_what_was_credited_where_it_is_something_else():
    given = tree_view(made_trees.forest())
    assert said(step_facts(given, given.record.nodes[8]))["Credited"] == "+0.750, the mean over its 2 paths"
    fused = steps([0.9, 0.3], [1.0, -1.0], {**DIFFRL, "reward": "fused"}, above=0.0)
    node = replace(fused.edges[0], value=0.9)
    assert "Credited" not in said(step_facts(steps([0.4], [0.0]), steps([0.4], [0.0]).edges[0]))
    tree = replace(fused.record, nodes=[replace(fused.record.nodes[0], value=0.6), node, fused.record.nodes[2]])
    assert said(step_facts(tree_view(tree), node))["Credited"] == "0.900, the value of 1a"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (0.49, "1.6 times as likely"),
        (-0.49, "0.61 times as likely"),
        (2.5, "12 times as likely"),
        (0.03, "3.0 % more likely"),
        (-0.03, "3.0 % less likely"),
        (0.004, "0.40 % more likely"),
        (0.00005, "hardly more likely"),
        (-0.00005, "hardly less likely"),
        (12.2, "e^12 times as likely"),
        (-1e6, "e^−1000000 times as likely"),
    ],
)
def test_what_a_change_of_a_log_likelihood_means(change, words):
    assert likelier(change) == words
