"""What a tree's page tells of the rule and of the update: whose prompt, what turns, what likelier means, key by key."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diffrl.gallery.trees.rule import rules, which_prompt
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, OUTCOME, leaf, named, record, split, told

NEW = {
    **DIFFRL,
    "constraint": True,
    "balance": True,
    "baseline": "mean",
    "prompts": 8,
    "updates": 1,
    "skipped": 0,
    "learning_rate": 0.0002,
    "dimensions": 256,
}


def split_twice(early, late):
    """A noise whose first split has this gap, and a second split with that one below its better branch."""
    parts = {"r/count": 1.0}, {"r/count": 0.25}
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.5),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=0.5 + early / 2, advantage=1.0, trained=True),
        TreeNode(2, 0, 0, 1, 0, 0.75, value=0.5 - early / 2, advantage=-1.0, trained=True, leaf=leaf(0.1)),
        TreeNode(3, 1, 0, 0, 2, 0.25, value=0.5 + late, advantage=2.0, trained=True, leaf=leaf(0.9, rewards=parts[0])),
        TreeNode(4, 1, 0, 1, 2, 0.25, value=0.5, advantage=-2.0, trained=True, leaf=leaf(0.2, rewards=parts[1])),
    ]
    return told(record(nodes, rule=NEW))["decision"]


def test_of_splits_that_mattered_as_much_the_earlier_one_is_told_first():
    for late in (0.4, 0.41):  # within a twentieth
        found = split_twice(0.4, late)
        assert found["Splits within 5 % of it"] == "2 of 2"
        assert found["The earliest of them"] == "1 (noise level 1.00, 2 branches), 1a (noise level 0.50, 2 branches)"
        assert found["Best branch"].startswith("1a: value 0.7")
    for late, at, value, lacks in ((0.5, "1a", "0.500", "1ab"), (0.3, "1", "0.300", "1b")):
        found = split_twice(0.4, late)
        assert found["Splits within 5 % of it"] == "1 of 2" and found["The earliest of them"].startswith(f"{at} (")
        assert found["Worst branch"].startswith(f"{lacks}: value {value}")
    assert split_twice(0.4, 0.5)["What 1ab lacks"] == "count 0.250 against 1.000"


def test_of_many_that_mattered_as_much_some_are_named():
    nodes = []
    for root in range(5):
        nodes.append(TreeNode(len(nodes), None, root, 0, None, 1.0, value=0.5))
        for child, reward in enumerate((1.0, 0.0)):
            nodes.append(TreeNode(len(nodes), 3 * root, root, child, 2, 0.25, value=reward, leaf=leaf(reward)))
    tree = record(nodes, branching={2: 2}, rule=NEW)
    assert told(tree)["decision"]["Splits within 5 % of it"] == "5 of 5"
    assert named(tree, "decision")["The earliest of them"] == [0, 3, 6]
    assert told(tree)["decision"]["The earliest of them"].endswith(", 2 more")
    assert told(tree)["decision"]["Best branch"].endswith("does not train")


def test_pictures_that_train_are_counted():
    ends = ({"leaf": leaf(1.0, advantage=1.0, trained=True)}, {"leaf": leaf(0.2, advantage=-1.0, trained=True)})
    level = ends[0], {"leaf": leaf(0.2, advantage=0.0, trained=True)}
    for tree, count in (
        (split(*ends, rule=NEW), 2),
        (split(*level, rule=NEW), 1),
        (split(*ends, rule={**NEW, "skipped": 1}), 0),
        (split({}, {}, rule=OUTCOME), 2),  # their steps train
        (split({"trained": False}, {}, rule=OUTCOME), 1),
    ):
        assert told(tree)["sampled"]["Images that train"] == f"{count} of 2"


@pytest.mark.parametrize(
    ("branching", "still"), [({0: 2, 2: 2}, "2 of 4"), ({0: 2, 1: 1, 2: 2}, "1 of 4"), ({0: 2, 1: 1, 2: 2, 3: 1}, None)]
)
def test_steps_without_noise_are_counted(branching, still):
    found = told(split({}, {}, branching=branching))["sampled"]
    assert found.get("Steps that add no noise, where there is nothing to choose") == still
    assert found["Noise levels where paths split into 2"] == "1.00, 0.50"


def test_every_key_of_the_rule_is_glossed_and_unknown_ones_are_shown():
    weights = {"shapes": {"weight": 0.5, "shift": 0.0, "scale": 1.0}}
    tree = made_trees.pool(rule={"new": "thing", **NEW, "kl": 0.0, "clip": 0.001}, weights=weights)
    found = rules(tree_view(tree))
    named = dict(found)
    assert named["reward ="] == "0.5 × shapes" and named["new"] == "thing" and named["seed"] == "0"
    assert named["edges"] == "yes: steps train" and named["balance"] == "yes: as many turns up as down count"
    assert named["kl"] == "0: nothing pulls to the starting model"
    clip = "0.001: a step's push ends once it is 0.1 % less likely, per dimension"
    idle = f"{clip}; with one update an iteration it has no effect"
    assert named["clip"] == f"{idle} unless the policy that samples lags behind (old_decay_max above 0)"
    for rule, text in (({"objective": "grpo"}, idle), ({"updates": 2}, clip), ({"updates": None}, clip)):
        other = tree_view(replace(tree, rule={**tree.rule, **rule}))
        assert dict(rules(other))["clip"] == text
    assert named["learning_rate"].startswith("0.0002: ") and named["explored: candidates"] == "64: candidates explored"
    assert [key for key, _ in found][:2] == ["reward =", "reward"]
    assert all(": " in text for key, text in found if key not in ("reward =", "new", "seed"))
    strange = made_trees.forest(rule={"reward": "other", "edges": None, "fusion": 3, "dtype": 10**18})
    odd = dict(rules(tree_view(strange)))
    assert (odd["reward"], odd["edges"], odd["fusion"]) == ("other", "–", "3")


def test_a_prompt_is_one_of_those_of_its_iteration(client_of, made):
    tree = made_trees.forest(rule=NEW)
    assert which_prompt(tree) == "prompt 4 of 8" and which_prompt(made_trees.forest()) == "group 3"
    assert which_prompt(replace(tree, group=8)) == "group 8"
    made_trees.write(made, tree)
    client = client_of(made)
    page = client.get("/tree?tree=000020-3").text
    assert (
        "iteration 20 (row 21 of the curves), prompt 4 of 8<" in page
        and "Iteration 20, prompt 4 of 8<" in client.get("/trees").text
    )
    assert "All steps, the strongest push first" in page and "<dt>learning_rate</dt><dd>0.0002: " in page
    words = re.search(r'<details class="words-used">(.*?)</details>', page, re.S)[1]
    assert "<dt>group</dt>" not in words and "goes on the same way" in words and "Times 256 it is" in words
