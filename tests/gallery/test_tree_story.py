"""Every sentence of a tree's story against trees that were reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.numbers import push, share, tiny
from diffrl.gallery.trees.sentences import Ref, joined, plain
from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.words import sums, verdict
from diffrl.trees.record import TreeLeaf, TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, NFT, leaf, record


def told(tree):
    """Text of the paragraphs by their keys."""
    return {paragraph.key: paragraph.text for paragraph in story(tree)}


def split(first, second, **more):
    """One noise that splits into two pictures at noise level 0.50; `first` and `second` change the leaves' nodes."""
    rewards = (1.0, 0.25)
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.625)]
    for child, (reward, changes) in enumerate(zip(rewards, (first, second), strict=True)):
        node = TreeNode(
            child + 1, 0, 0, child, 2, 0.25, value=reward, advantage=1.0 - 2 * child, trained=True,
            leaf=leaf(reward, (child,), advantage=1.0 - 2 * child),
        )  # fmt: skip
        nodes.append(replace(node, **changes))
    return record(nodes, **{"branching": {2: 2}, **more})


def test_the_forest_sentence_by_sentence():
    assert told(made_trees.forest()) == {
        "drawn": "Iteration 20 drew 16 pictures of this prompt from 4 starting noises; paths split into 2 at noise "
        "levels 1.00 and 0.50. The other 2 steps add no noise, so there is nothing to choose there.",
        "scored": "4 of 15 passed shapes_strict. Rewards go from 0.250 (3ba) to 1.000 (1aa), 0.550 on average. "
        "1 picture could not be scored and is left out.",
        "decision": "Two splits made the largest difference in reward, 0.750 each: 2a against 2b, and 1aa against 1ab. "
        "The update pushes towards 2a and 1aa, and away from 2b and 1ab. "
        "The starting noises differ too: 4 is worth 0.667 and 3 0.375. They are drawn at random, so no step gets "
        "credit for that.",
        "credit": "Pushed up most: the steps to 2a (+1.12), 1aa (+0.94) and 4aa (+0.62). "
        "Pushed down most: the steps to 2b (−1.12), 1ab (−0.94) and 4ab (−0.62). "
        "At 2a ◆ a path turns up: its first step adds +0.375 and at least one of the 2 paths through it ends higher "
        "than it began, so the step is credited with +0.750 instead. At 2b ◆ a path turns down: its first step adds "
        "−0.375 and at least one of the 2 paths through it ends lower than it began, so the step is credited with "
        "−0.750 instead. Where a path turns, a step counts as its whole way to the end, one that several paths share "
        "as the mean over them.",
        "contrast": "The finished pictures train by DiffusionNFT's contrast (nft): towards the 4 with positive "
        "advantage, away from the 11 with negative. Furthest towards 1aa (+0.90), furthest from 3ba (−0.60).",
        "update": "Of the 7 steps pushed up 7 became more likely. Of the 7 steps pushed down 6 became less likely. Of "
        "the pushed steps, 1ab changed most: less likely (log-likelihood −0.00095 per dimension). Of the 4 paths to "
        "pictures with positive advantage 4 became more likely; of the 11 with negative 9 became less likely. The "
        "worst picture whose path became more likely is 3aa, of reward 0.500 (+0.00015 per dimension). Steps need not "
        "go where they are pushed: one network serves all steps and prompts of the iteration, the contrast of "
        "pictures trains it too, and one update is a compromise between all of them.",
        "idle": "1 step leads to no picture that counts. At 1 split only one branch leads to a picture that counts, "
        "which leaves nothing to compare it with. 9 steps have advantage 0.",
        "reckoning": "A node is worth the mean reward of the pictures that grow from it. A step earns what it adds to "
        "the worth of its node, at a turning point the whole way to the end; it is compared with this prompt's other "
        "steps at the same noise level.",
    }


def test_references_lead_to_the_nodes_that_they_name():
    tree = made_trees.forest()
    names = sums(tree).names
    references = [
        part for paragraph in story(tree) for one in paragraph.sentences for part in one if isinstance(part, Ref)
    ]
    assert len(references) > 12
    assert all(names[reference.node] == reference.text for reference in references)


def test_a_pool_sentence_by_sentence():
    # proxies 0, .2, .4, .6, .8, 1; of the five drawn again the truth is .2, .1, .8, .7, .9: two pairs are swapped
    assert told(made_trees.pool(6, 4, 1)) == {
        "drawn": "6 candidates were explored in NVFP4 (emulated) with 3 of 4 steps and scored by proxy. 5 of them were "
        "chosen to be drawn again: the 2 best, the 2 worst, because contrast between good and bad is what teaches, and "
        "1 at random to check the ranking. Iteration 20 then drew 5 pictures of this prompt from 5 starting noises, "
        "without noise on the way. Of 10 pairs among those drawn again, proxy and true reward order 8 alike, 2 the "
        "other way round.",
        "scored": "0 of 5 passed shapes_strict. Rewards go from 0.100 (2) to 0.900 (6), 0.540 on average.",
        "contrast": "The finished pictures train by DiffusionNFT's contrast (nft): towards the 2 with positive "
        "advantage, away from the 2 with negative. Furthest towards 6 (+0.80), furthest from 2 (−0.80).",
        "update": "No noise was added on the way, so there is no step whose likelihood could be compared before and "
        "after.",
        "idle": "1 candidate was only explored. 1 picture was drawn only to check the ranking.",
    }


def test_ties_agree_with_nobody():
    chosen = [(0.1, 0.3), (0.1, 0.5), (0.9, 0.5)]  # tied in the proxy, tied in the truth, and one pair that agrees
    nodes = [
        TreeNode(i, None, i, 0, None, 1.0, leaf=leaf(true, proxy=proxy, chosen="all"))
        for i, (proxy, true) in enumerate(chosen)
    ]
    text = told(record(nodes, branching={}, rule=NFT, explored={"precision": "int8"}))["drawn"]
    assert text.startswith(
        "3 candidates were explored in INT8 and scored by proxy. 3 of them were chosen to be drawn again: all 3."
    )
    assert text.endswith("order 1 alike, 0 the other way round; 2 are tied in one of the two.")


def test_chains_share_the_credit_of_their_pictures():
    text = told(made_trees.chains(roots=3, steps=2))
    assert text["drawn"] == (
        "Iteration 20 drew 3 pictures of this prompt from 3 starting noises, each on a path of its own that takes new "
        "noise at noise levels 1.00 and 0.67. The other step adds no noise, so there is nothing to choose there. "
        "Nothing was selected: all 3 pictures train."
    )
    assert "decision" not in text
    assert (
        text["credit"]
        == "Pushed up most: the path to 3.2 (+0.10). Pushed down most: the paths to 1.2 (−0.90) and 2.2 (−0.40)."
    )
    assert text["reckoning"].startswith("A step shares the credit of the pictures that it leads to; each picture is")
    assert "contrast" not in text


def test_many_noise_levels_are_counted():
    assert "takes new noise at 6 noise levels from 1.00 to 0.29." in told(made_trees.chains(2, 6))["drawn"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, "The update pushes towards the first and away from the second."),
        ({"trained": False}, {"trained": False}, "Neither of the two steps trains."),
        ({"trained": False}, {}, "Of the two steps only the one to the second trains."),
        ({}, {"trained": False}, "Of the two steps only the one to the first trains."),
        (
            {"advantage": 2.0},
            {"advantage": 0.5},
            "Compared with the prompt's other steps the two have advantages of +2.00 and +0.50; the update "
            "goes by these.",
        ),
    ],
)
def test_what_the_decision_leads_to(first, second, expected):
    assert told(split(first, second))["decision"] == (
        "The split at noise level 0.50: from the starting noise 1, one branch, 1a, ended at 1.000 and the other, "
        f"1b, at 0.250. {expected}"
    )


def test_branches_of_equal_worth_decide_nothing():
    tree = split({"value": 0.25 + 1e-9}, {})
    assert told(tree)["decision"] == "None: wherever a path split, its branches were worth the same."


def alone(forest):
    """A forest in which no second split makes as large a difference as the one from 2."""
    return replace(forest, nodes=[replace(node, value=0.9) if node.id == 2 else node for node in forest.nodes])


def test_a_value_that_is_no_mean_is_not_called_one():
    tree = alone(made_trees.forest(rule={**made_trees.DIFFRL, "value": "ode"}))
    assert "one branch, 2a, stood at 1.000 and the other" in told(tree)["decision"]


def test_weighted_means_are_called_so():
    weighted = {**made_trees.DIFFRL, "fusion": "path_probability"}
    assert told(made_trees.forest(rule=weighted))["reckoning"].endswith(
        "the pictures of likelier paths count for more."
    )


def test_a_path_that_turns_late_is_told_with_the_step_before():
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.5),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=0.7, advantage=0.3, trained=True),
        TreeNode(2, 1, 0, 0, 1, 0.5, value=0.2, advantage=-1.0, trained=True, turning=True, leaf=leaf(0.2)),
    ]
    rule = {**made_trees.DIFFRL, "value": "ode", "objective": "grpo", "samples": False}
    text = told(record(nodes, branching={0: 1, 1: 1}, rule=rule))
    assert (
        "At 1.2 ◆ a path turns down: after a step of +0.200 it adds −0.500 and ends lower than it began. Where a path "
        "turns, a step counts as its whole way to the end." in text["credit"]
    )


def test_a_turn_on_a_chain_is_its_own_path():
    tree = made_trees.chains(2, 2)
    nodes = [replace(node, value=0.3 * node.id, turning=node.id == 1) for node in tree.nodes]
    rule = {**made_trees.DIFFRL, "value": "ode", "samples": False}
    text = told(replace(tree, nodes=nodes, rule=rule))["credit"]
    assert "At 1.1 ◆ a path turns up: its first step adds +0.300 and ends higher than it began." in text


def test_only_several_pictures_have_an_average():
    tree = alone(made_trees.forest())
    lone = [replace(node, leaf=replace(node.leaf, total=None)) if node.id in (9, 12) else node for node in tree.nodes]
    assert "one branch, 2a, ended at 1.000 and" in told(replace(tree, nodes=lone))["decision"]


def test_siblings_are_compared_with_their_node():
    rule = {**DIFFRL, "normalise": "siblings"}
    assert "with the other branches of the same node." in told(split({}, {}, rule=rule))["reckoning"]
    assert told(split({}, {}, rule={**rule, "value": "predicted_x0"}))["reckoning"].endswith(
        "it is compared with the node that it leaves, in units of the spread at that noise level."
    )


def test_chains_whose_last_steps_are_pruned_still_tell_their_paths():
    tree = made_trees.chains(roots=3, steps=2)
    nodes = [replace(node, trained=node.trained and node.leaf is None) for node in tree.nodes]
    assert told(replace(tree, nodes=nodes))["credit"] == told(tree)["credit"]
    nodes = [replace(node, trained=node.trained and node.root == 2) for node in tree.nodes]
    assert told(replace(tree, nodes=nodes))["credit"] == "Pushed up most: the path to 3.2 (+0.10)."


def test_turning_points_that_train_come_first():
    tree = made_trees.forest()
    nodes = [replace(n, trained=n.trained and n.id != 8, turning=n.id in (8, 22)) for n in tree.nodes]
    text = told(replace(tree, nodes=nodes))["credit"]
    assert text.index("At 4a ◆") < text.index("At 2a ◆")  # the step to 2a is the larger one
    assert text.count("but it does not train here.") == 1
    assert text.index("but it does not train here.") > text.index("At 2a ◆")


def test_nothing_scored():
    tree = record([TreeNode(0, None, 0, 0, None, 1.0, leaf=leaf(None))], branching={}, rule=NFT)
    assert told(tree)["scored"] == "No picture has a reward."


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
    names = sums(made_trees.forest()).names
    assert names[:8] == ["1", "1a", "1aa", "1ab", "1b", "1ba", "1bb", "2"]
    assert sums(made_trees.chains(2, 2)).names == ["1", "1.1", "1.2", "2", "2.1", "2.2"]


def test_small_numbers():
    assert [tiny(0.0021), tiny(-0.000034), tiny(0.5), tiny(0.0), tiny(None)] == [
        "+0.0021",
        "−0.000034",
        "+0.50",
        "±0",
        "–",
    ]
    assert [share(1.25), share(-0.004), share(-5.9e-9), share(None)] == ["+1.25", "−0.004", "0", "–"]
    assert [push(0.2), push(-0.2), push(5e-9), push(None), push(float("nan"))] == [1, -1, 0, 0, 0]


def test_lists_in_sentences():
    assert [plain(joined([(x,) for x in items])) for items in ("", "a", "ab", "abc")] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
