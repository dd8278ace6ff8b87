"""The facts of a tree's story against trees that were reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.glossary import glossary
from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.view import tree_view, verdict
from diffrl.trees.record import TreeLeaf, TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, NFT, leaf, named, record, split, told


def test_the_facts_of_the_forest():
    tree = made_trees.forest()
    found = told(tree)
    assert list(found) == ["sampled", "scored", "decision", "credit", "contrast", "update", "idle", "reckoning"]
    assert list(found["sampled"].values()) == ["16", "4", "1.00, 0.50", "2 of 4", "15 of 16"]
    assert list(found["scored"].values()) == ["15 of 16", "4 of 15", "1aa (1.000)", "3ba (0.250)", "0.550"]
    assert found["decision"] == {
        "Largest difference between branches": "0.750",
        "Splits within 5 % of it": "2 of 11",
        "The earliest of them": "2 (noise level 1.00, 2 branches), 1a (noise level 0.50, 2 branches)",
        "Best branch": "2a: value 1.000, advantage +1.12, pushed up",
        "Worst branch": "2b: value 0.250, advantage −1.12, pushed down",
    }
    assert found["credit"] == {
        "Steps pushed up most, to": "2a (+1.12), 1aa (+0.94), 4aa (+0.62)",
        "Steps pushed down most, to": "2b (−1.12), 1ab (−0.94), 4ab (−0.62)",
        "Turning points ◆": "2",
        "Largest turning points": "2a (adds +0.375, credited +0.750), 2b (adds −0.375, credited −0.750)",
    }
    assert found["contrast"]["Moved towards"] == "4 images, furthest 1aa (+0.90)"
    assert found["contrast"]["Moved away from"] == "11 images, furthest 1ab (−0.60)"
    assert list(found["update"].values()) == [
        "7; 7 became more likely",
        "7; 6 became less likely",
        "1ab: −0.00095 per dimension",
        "4; 4 became more likely",
        "11; 9 became less likely",
        "3aa: +0.00015 per dimension, reward 0.500",
    ]
    assert list(found["idle"].values()) == ["1", "1", "9"]
    assert {"reward", "value", "fusion", "normalise"} <= found["reckoning"].keys()


def test_facts_refer_to_the_nodes_that_they_name():
    tree = made_trees.forest()
    assert named(tree, "decision") == {
        "Largest difference between branches": [],
        "Splits within 5 % of it": [],
        "The earliest of them": [7, 1],
        "Best branch": [8],
        "Worst branch": [11],
    }
    ranked = sorted((n for n in tree.nodes if n.trained), key=lambda node: -node.advantage)
    assert named(tree, "credit")["Steps pushed up most, to"] == [node.id for node in ranked[:3]]


def test_a_pool_and_how_well_the_proxy_ordered_it():
    # proxies 0, .2, .4, .6, .8, 1; of the five drawn again the truth is .2, .1, .8, .7, .9: two pairs are swapped
    found = told(made_trees.pool(6, 4, 1))
    assert found["sampled"] == {
        "Candidates explored": "6",
        "Explored in": "NVFP4 (emulated)",
        "Steps of a candidate": "3 of 4",
        "Generated again": "5",
        "Generated again: the best by proxy": "2",
        "Generated again: the worst by proxy": "2",
        "Generated again: at random, only to check the ranking": "1",
        "Images of this prompt": "5",
        "Starting noises": "5",
        "Steps that add no noise, where there is nothing to choose": "4 of 4",
        "Images that train": "4 of 5",
        "Pairs as proxy and true reward order them": "8 alike, 2 the other way round, 0 tied, of 10",
    }
    assert found["scored"]["Passed shapes_strict"] == "0 of 5" and found["scored"]["Mean reward"] == "0.540"
    assert found["contrast"]["Moved towards"] == "2 images, furthest 6 (+0.80)"
    assert list(found["update"].values()) == ["none to measure: no step adds noise"]
    assert list(found["idle"].values()) == ["1", "1"]
    texts = [story(tree_view(tree))[0].text for tree in (made_trees.pool(6, 4, 1), made_trees.forest())]
    assert "contrast" in texts[0] and texts[1] == ""


def test_ties_agree_with_nobody():
    chosen = [(0.1, 0.3), (0.1, 0.5), (0.9, 0.5)]  # tied in the proxy, tied in the truth, and one pair that agrees
    nodes = [
        TreeNode(i, None, i, 0, None, 1.0, leaf=leaf(true, proxy=proxy, chosen="all"))
        for i, (proxy, true) in enumerate(chosen)
    ]
    found = told(record(nodes, branching={}, rule=NFT, explored={"precision": "int8"}))["sampled"]
    assert (found["Explored in"], found["Generated again: all of them"]) == ("INT8", "3")
    assert found["Pairs as proxy and true reward order them"] == "1 alike, 0 the other way round, 2 tied, of 3"


def test_chains_share_the_credit_of_their_pictures():
    found = told(made_trees.chains(roots=3, steps=2))
    assert list(found["sampled"].values()) == ["3", "3", "1.00, 0.67", "1 of 3", "3 of 3"]
    assert "decision" not in found and "contrast" not in found
    assert found["credit"] == {
        "Paths pushed up most, to": "3.2 (+0.10)",
        "Paths pushed down most, to": "1.2 (−0.90), 2.2 (−0.40)",
    }
    assert told(made_trees.chains(2, 6))["sampled"]["Noise levels of new noise"] == "6, from 1.00 to 0.29"


@pytest.mark.parametrize(
    ("first", "second", "rule", "states"),
    [
        ({}, {}, {}, ("+1.00, pushed up", "−1.00, pushed down")),
        ({"trained": False}, {"trained": False}, {}, ("+1.00, does not train", "−1.00, does not train")),
        ({"trained": False}, {}, {}, ("+1.00, does not train", "−1.00, pushed down")),
        ({"advantage": 2.0}, {"advantage": 0.5}, {}, ("+2.00, pushed up", "+0.50, pushed up")),
        ({}, {"advantage": 0.0}, {"objective": "grpo", "kl": 0.1},
         ("+1.00, pushed up", "0, only pulled to the starting model")),
        ({}, {}, {"updates": 2, "skipped": 2}, ("+1.00, left out by a guard", "−1.00, left out by a guard")),
        ({}, {}, {"updates": 2, "skipped": 1}, ("+1.00, pushed up", "−1.00, pushed down")),
    ],
)  # fmt: skip
def test_what_the_update_makes_of_the_decision(first, second, rule, states):
    found = told(split(first, second, rule={**DIFFRL, **rule}))["decision"]
    assert found["Splits within 5 % of it"] == "1 of 1"
    assert found["The earliest of them"] == "1 (noise level 0.50, 2 branches)"
    assert found["Best branch"] == f"1a: value 1.000, advantage {states[0]}"
    assert found["Worst branch"] == f"1b: value 0.250, advantage {states[1]}"


TURNS = "Largest turning points"


def test_turning_points_that_train_come_first():
    tree = made_trees.forest()
    nodes = [replace(n, trained=n.trained and n.id != 8, turning=n.id in (8, 22)) for n in tree.nodes]
    turned = replace(tree, nodes=nodes)
    assert named(turned, "credit")[TURNS] == [22, 8]  # the step to 2a is the larger one
    found = told(turned)["credit"][TURNS]
    assert found == "4a (adds +0.083, credited +0.167), 2a (adds +0.375, credited +0.750, does not train)"
    chain = made_trees.chains(2, 2)
    nodes = [replace(node, value=0.3 * node.id, turning=node.id == 1) for node in chain.nodes]
    chain = replace(chain, nodes=nodes, rule={**DIFFRL, "value": "ode", "samples": False})
    assert told(chain)["credit"][TURNS] == "1.1 (adds +0.300)"


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([{"strict": 1.0}, {"strict": 1.0}], "strict"),
        ([{"shapes": 1.0}, {"shapes": 1.0}], None),
        ([{"shapes": 1.0}, {"shapes": 0.0}], "shapes"),
        ([{"shapes": 0.5, "shapes/strict": 0.0}, {"shapes": 1.0, "shapes/strict": 1.0}], "shapes/strict"),
        ([{"shapes/clean": 0.0}, {"shapes/clean": 1.0}], None),
        ([{"a": 0.0, "b_strict": 1.0}, {"a": 1.0, "b_strict": 1.0}], "b_strict"),
        ([{"a_strict": None}, {"a_strict": 0.0}], "a_strict"),
        ([{"a_strict": 0.5}, {"a_strict": 1.0}], None),
    ],
)
def test_which_reward_is_a_verdict(rewards, expected):
    leaves = [TreeNode(i, None, i, 0, None, 1.0, leaf=TreeLeaf(rewards=given)) for i, given in enumerate(rewards)]
    assert verdict(record(leaves)) == expected


def test_names_tell_the_path():
    names = tree_view(made_trees.forest()).names
    assert names[:8] == ["1", "1a", "1aa", "1ab", "1b", "1ba", "1bb", "2"]
    assert tree_view(made_trees.chains(2, 2)).names == ["1", "1.1", "1.2", "2", "2.1", "2.2"]


def test_families_of_a_pool_are_counted():
    tree = made_trees.pool(6, 4, 1)
    of = (
        "family of node 0: gap 0.4",
        "family below node 0: gap 0.3, worse side",
        "fill: of the family of node 0, best 1",
    )
    nodes, reasons = [], iter(of)
    for node in tree.nodes:
        if node.leaf and node.leaf.chosen and not node.leaf.audit:
            node = replace(node, leaf=replace(node.leaf, chosen=next(reasons, "random")))
        nodes.append(node)
    found = told(replace(tree, nodes=tuple(nodes)))["sampled"]
    assert found["Generated again: whole families of the splits whose branches differ most"] == "2"
    assert found["Generated again: from the best and the worst of the rest"] == "1"
    assert found["Generated again: at random"] == "1"


@pytest.mark.parametrize(("age", "weights"), [(0, "weights of iteration 40"), (3, "weights of iteration 37, 3 before")])
def test_a_copy_that_drew_is_named_with_its_weights(age, weights):
    drawn = {"precision": "fp8", "engine": "emulated", "age": age}
    tree = replace(split({"advantage": 1.0}, {"advantage": -1.0}), iteration=40, sampled_by=drawn)
    assert told(tree)["sampled"]["Drawn in"].startswith(f"FP8 (emulated), with the {weights}")
    assert told(tree)["reckoning"]["drawn: engine"] == "emulated: how it computes with them"
    assert any(name == "FP8 (emulated)" for name, _ in glossary(tree_view(tree)))
    assert "Drawn in" not in told(replace(tree, sampled_by=None))["sampled"]
