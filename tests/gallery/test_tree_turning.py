"""Turning points as pages show them: what was recorded of them, and nothing that was not."""

from __future__ import annotations

from dataclasses import replace

from diffrl.gallery.trees.panel import step_facts
from diffrl.gallery.trees.turning import rule as turning_rule
from diffrl.gallery.trees.words import sums
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, leaf, record
from tests.gallery.test_tree_story import named, told

NEW = {**DIFFRL, "constraint": True, "balance": True}


def turn(turns, trained=True):
    """A noise worth 0.4 and the step to 1a, worth 0.6, which turns on the way to some of three pictures."""
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.4),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=0.6, advantage=1.0, trained=trained, turning=True, credited=0.35,
                 turns=turns),
    ]  # fmt: skip
    for child, reward in enumerate((0.9, 0.8, 0.1)):
        nodes.append(TreeNode(len(nodes), 1, 0, child, 2, 0.25, value=reward, advantage=0.0, leaf=leaf(reward)))
    return record(nodes, branching={0: 2, 2: 3}, rule=NEW)


def test_a_turn_names_the_paths_that_were_recorded():
    tree = turn({2: True, 3: False})
    found, refs = told(tree)["credit"], named(tree, "credit")
    assert found["◆ 1a"] == "1a: turns up, adds +0.200, credited +0.350, mean of 3 paths"
    assert found["◆ 1a, to the end from where it starts"] == "1aa (+0.500)"
    assert found["◆ 1a, turns that balancing dropped"] == "1ab (+0.400)"
    assert found["Turns that balancing dropped"] == "1"
    assert refs["◆ 1a, to the end from where it starts"] == [2] and refs["◆ 1a, turns that balancing dropped"] == [3]
    gone = replace(turn({3: False}).nodes[1], turning=False)
    assert dict(step_facts(sums(turn({3: False})), gone))["Turning point"] == "no: balancing dropped it"
    facts = dict(step_facts(sums(tree), tree.nodes[1]))
    assert facts["Credited"] == "+0.350, the mean over its 3 paths"
    assert facts["Turning point"] == "yes ◆, on 1 of 3 paths"


def test_older_records_do_not_say_which_paths_turn():
    found = told(turn(None, trained=False))["credit"]
    assert found["◆ 1a"].endswith("mean of 3 paths, does not train") and not any("to the end" in one for one in found)
    assert dict(step_facts(sums(turn(None)), turn(None).nodes[1]))["Turning point"] == "yes ◆"


def test_the_rule_follows_the_options():
    tree = made_trees.forest(rule=NEW)
    whole = turning_rule(sums(tree))
    assert "goes on the same way" in whole and "as many up as down" in whole
    assert "goes on the same" not in turning_rule(sums(replace(tree, rule={**NEW, "constraint": False})))
    assert "as many" not in turning_rule(sums(replace(tree, rule={**NEW, "balance": False})))
