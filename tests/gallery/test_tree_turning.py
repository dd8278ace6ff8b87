"""Turning points as pages show them: what was recorded of them, and nothing that was not."""

from __future__ import annotations

from dataclasses import replace

from diffrl.gallery.trees.facts import step_facts
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import TreeNode
from tests.gallery.made_trees import DIFFRL, leaf, record, said, told

NEW = {**DIFFRL, "constraint": True, "balance": True}


def turn(turns, trained=True):
    """A noise value 0.4 and the step to 1a, value 0.6, which turns on the way to some of three pictures."""
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
    assert told(tree)["credit"]["Turns that balancing dropped"] == "1"
    assert told(tree)["credit"]["Largest turning points"] == "1a (adds +0.200, credited +0.350)"
    facts = said(step_facts(tree_view(tree), tree.nodes[1]))
    assert facts["Credited"] == "+0.350, the mean over its 3 paths"
    # from the noise's 0.4 to 0.9 and to 0.8
    assert facts["Turning point"] == "yes ◆, on 1 of 3 paths: 1aa +0.500; balancing dropped 1ab +0.400"
    gone = replace(turn({3: False}).nodes[1], turning=False)
    assert said(step_facts(tree_view(turn({3: False})), gone))["Turning point"] == "no; balancing dropped 1ab +0.400"


def test_older_records_do_not_say_which_paths_turn():
    tree = turn(None, trained=False)
    assert told(tree)["credit"]["Largest turning points"].endswith("credited +0.350, does not train)")
    assert said(step_facts(tree_view(tree), tree.nodes[1]))["Turning point"] == "yes ◆"
