"""What a tree's page tells of the rule and of the update: whose prompt, what turns, what likelier means, key by key."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diffrl.gallery.trees.glossary import glossary
from diffrl.gallery.trees.layout import lay_out
from diffrl.gallery.trees.panel import notes, step_facts
from diffrl.gallery.trees.rule import place, rules
from diffrl.gallery.trees.words import sums
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, NFT, OUTCOME, leaf, record
from tests.gallery.test_tree_story import split, told

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


def test_the_update_says_of_how_many_prompts_it_was_made():
    def first(**more):
        return told(split({"log_ratio": 0.1}, {"log_ratio": -0.1}, rule={**NEW, **more}))["update"]

    assert first().startswith("This prompt is one of the 8 behind a single update (learning rate 2e-4). Of the")
    assert first(updates=2).startswith(
        "This prompt is one of the 8 behind each of the 2 updates (learning rate 2e-4). Of the"
    )
    assert first(prompts=1).startswith("A single update from this prompt alone (learning rate 2e-4). Of the")
    assert first(learning_rate=None).startswith("This prompt is one of the 8 behind a single update. Of the")
    assert first(skipped=1).startswith("A guard left out the update of this iteration.")
    assert first(prompts=None).startswith("Of the 1 step pushed up")


def test_a_change_is_told_for_the_whole_step_too():
    # 256 * 0.002 = 0.512, e to that 1.67; 256 * -0.0005 = -0.128, e to that 0.88
    tree = split({"log_ratio": 0.002}, {"log_ratio": -0.0005}, rule=NEW)
    assert told(tree)["update"].endswith(
        "Of the pushed steps, 1a changed most: 1.7 times as likely (log-likelihood +0.51)."
    )
    given = sums(tree)
    assert [notes(given, node)[0] for node in tree.nodes[1:]] == [
        "The update made this step 1.7 times as likely.",
        "The update made this step 0.88 times as likely.",
    ]
    assert dict(step_facts(given, tree.nodes[1]))["Change of log-likelihood"] == "+0.0020 per dimension × 256 = +0.51"
    astray = sums(split({"log_ratio": -0.002}, {}, rule=NEW))
    assert notes(astray, astray.record.nodes[1]) == [
        "The update made this step 0.60 times as likely, against its push.",
    ]
    level = sums(split({"log_ratio": 1e-7}, {}, rule=NEW))
    assert dict(step_facts(level, level.record.nodes[1]))["Change of log-likelihood"] == "≈ 0 per dimension"


@pytest.mark.parametrize(
    ("ratios", "explained"),
    [
        ((0.1, 0.1, 0.1, 0.1, 0.1), False),
        ((0.1, 0.1, 0.1, 0.1, -0.05), False),  # 4 of 5 are as many as it takes
        ((0.1, 0.1, 0.1, -0.05, -0.05), True),
        ((0.1, 0.1, 0.1, 0.1, -0.2), True),  # one alone, but that moved most
        ((0.1, 0.1, 0.1, 0.1, 1e-8), False),
        ((0.1, 0.1, 0.1, 1e-8, 1e-8), True),
        ((-0.05, 0.1, 0.1, 0.1, 0.1), True),  # the best picture's
    ],
)
def test_why_steps_do_not_follow_is_told_where_they_do_not(ratios, explained):
    """Five pictures, the best first, whose steps are all pushed up."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.5)]
    for child, ratio in enumerate(ratios):
        end = leaf(1.0 - child / 10, advantage=0.5 - child / 10)
        nodes.append(
            TreeNode(child + 1, 0, 0, child, 2, 0.25, value=0.5, advantage=1.0, trained=True, log_ratio=ratio, leaf=end)
        )
    text = told(record(nodes, branching={2: 5}, rule=NEW))["update"]
    assert ("Steps need not go where they are pushed" in text) is explained
    assert ("against its push" in text) is (ratios[4] == -0.2)
    # 256 * -0.05 = -12.8
    winner = "Even the path to the best picture, 1a, became less likely (e^−13 times as likely)."
    assert (winner in text) is (ratios[0] < 0)
    tied = [replace(node, leaf=node.leaf and replace(node.leaf, total=1.0)) for node in nodes]
    text = told(record(tied, branching={2: 5}, rule=NEW))["update"]
    assert ("Even the path to one of the best pictures, 1a, became" in text) is (ratios[0] < 0)
    alone = told(record(nodes, branching={2: 5}, rule={**NEW, "prompts": 1, "samples": False}))["update"]
    assert ("one network serves all steps, and one update" in alone) is explained


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
        text = split_twice(0.4, late)
        sizes = "difference in reward, 0.400 each" if late == 0.4 else "differences in reward, 0.400 and 0.410"
        assert text.startswith(f"Two splits made the largest {sizes}: 1a against 1b, and 1aa against 1ab.")
        assert "What 1ab lacks: count (0.250 against 1.000). The update pushes towards 1a and 1aa, and away" in text
    assert split_twice(0.4, 0.5).startswith("The split at noise level 0.50: from the half-finished picture 1a")
    assert "wo splits" not in split_twice(0.4, 0.5) and "wo splits" not in split_twice(0.4, 0.3)
    assert "1ab, at 0.500. No other split made as large a difference in reward. What" in split_twice(0.4, 0.5)


def test_of_several_that_mattered_as_much_one_is_named():
    nodes = []
    for root in range(3):
        nodes.append(TreeNode(len(nodes), None, root, 0, None, 1.0, value=0.5))
        for child, reward in enumerate((1.0, 0.0)):
            top = 3 * root
            nodes.append(TreeNode(len(nodes), top, root, child, 2, 0.25, value=reward, leaf=leaf(reward)))
    text = told(record(nodes, branching={2: 2}, rule=NEW))["decision"]
    assert text.startswith(
        "Three splits made the largest difference in reward, 1.000 each: 1a against 1b, 2a against 2b, and 1 more. "
        "Neither of the steps to 1a and 1b trains. Neither of the steps to 2a and 2b trains."
    )


def test_that_nothing_was_selected_is_told_only_where_it_is_so():
    ends = ({"leaf": leaf(1.0, advantage=1.0, trained=True)}, {"leaf": leaf(0.2, advantage=-1.0, trained=True)})
    nothing = "Nothing was selected: all 2 pictures train."
    assert nothing in told(split(*ends, rule=NEW))["drawn"]
    level = ends[0], {"leaf": leaf(0.2, advantage=0.0, trained=True)}
    for tree in (
        split(*level, rule=NEW),
        split(*ends, rule={**NEW, "skipped": 1}),
        split(*ends, rule={**NEW, "prune": True}),
        split(*ends, rule=NEW, explored={"precision": "int8"}),
    ):
        assert "Nothing" not in told(tree)["drawn"]
    assert nothing in told(split({}, {}, rule=OUTCOME))["drawn"], "their steps train"
    assert "Nothing" not in told(split({"trained": False}, {}, rule=OUTCOME))["drawn"]


@pytest.mark.parametrize(
    ("branching", "words"),
    [
        ({0: 2, 2: 2}, "The other 2 steps add no noise, so there is nothing to choose there."),
        ({0: 2, 1: 1, 2: 2}, "The other step adds no noise"),
        ({0: 2, 1: 1, 2: 2, 3: 1}, None),
    ],
)
def test_steps_without_noise_are_told_once(branching, words):
    text = told(split({}, {}, branching=branching))["drawn"]
    assert (words in text) if words else "no noise" not in text
    assert "no noise" not in told(made_trees.pool(6, 4, 1))["drawn"]


def test_every_key_of_the_rule_is_glossed_and_unknown_ones_are_shown():
    weights = {"shapes": {"weight": 0.5, "shift": 0.0, "scale": 1.0}}
    tree = made_trees.pool(rule={"new": "thing", **NEW, "kl": 0.0, "clip": 0.001}, weights=weights)
    found = rules(sums(tree))
    named = dict(found)
    assert named["reward ="] == "0.5 × shapes" and named["new"] == "thing" and named["seed"] == "0"
    assert named["edges"] == "yes: steps train" and named["balance"] == "yes: as many turns up as down count"
    assert named["kl"] == "0: nothing pulls to the starting model"
    clip = "0.001: a step's push ends once it is 0.1 % less likely, per dimension"
    idle = f"{clip}; with one update an iteration it has no effect"
    assert named["clip"] == f"{idle} unless the policy that draws lags behind (old_limit above 0)"
    for rule, said in (({"objective": "grpo"}, idle), ({"updates": 2}, clip), ({"updates": None}, clip)):
        other = sums(replace(tree, rule={**tree.rule, **rule}))
        assert dict(rules(other))["clip"] == said
    assert named["learning_rate"].startswith("0.0002: ") and named["explored: candidates"] == "64: candidates explored"
    assert [key for key, _ in found][:2] == ["reward =", "reward"]
    assert all(": " in text for key, text in found if key not in ("reward =", "new", "seed"))
    odd = dict(rules(sums(made_trees.forest(rule={"reward": "other", "edges": None, "fusion": 3, "dtype": 10**18}))))
    assert (odd["reward"], odd["edges"], odd["fusion"]) == ("other", "–", "3")


def test_a_prompt_is_one_of_those_of_its_iteration(client_of, made):
    tree = made_trees.forest(rule=NEW)
    assert place(tree) == "prompt 4 of 8" and place(made_trees.forest()) == "group 3"
    assert place(replace(tree, group=8)) == "group 8"
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


def test_words_say_what_passes_and_what_a_deviation_is():
    ends = [leaf(1.0, advantage=0.9997), leaf(0.4, advantage=-0.9997)]
    tree = record([TreeNode(i, None, i, 0, None, 1.0, leaf=one) for i, one in enumerate(ends)], branching={}, rule=NFT)
    found = dict(glossary(sums(tree)))
    assert found["passed"] == "A picture passes if its score shapes_strict is 1, and does not if it is 0."
    assert "root of the mean squared distance" in found["mean, deviation"] and "worth" not in found
    median = dict(glossary(sums(replace(tree, rule={**NFT, "baseline": "median"}))))
    assert median["median, deviation"].startswith("The median is the middle one of the numbers.")


def test_pictures_above_noise_are_called_predictions():
    assert lay_out(made_trees.forest()).captions[0].note == "what is predicted from starting noise"
    many = lay_out(made_trees.chains(2, 8)).captions  # too near to each other for long words
    assert [(one.title, one.note) for one in many[:2]] == [("noise 1.00", "starting noise"), ("noise 0.89", "")]
    assert [caption.last for caption in lay_out(made_trees.forest()).captions] == [False, False, True]
