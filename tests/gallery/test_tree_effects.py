"""What a tree's story tells of the update and of all that did not train, against trees reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.panel import notes, step_facts
from diffrl.gallery.trees.words import sums
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, NFT, OUTCOME, leaf, record
from tests.gallery.test_tree_story import split, told

WHY = (
    "Steps need not go where they are pushed: one network serves all steps and prompts of the iteration, the contrast "
    "of pictures trains it too, and one update is a compromise between all of them."
)


def flat(rule, **more):
    """Two pictures of equal reward, whose advantages are 0 exactly and by rounding; a reference pulls at all steps."""
    same = {"value": 0.5, "advantage": 0.0, "trained": False}
    zeros = ({"advantage": -5.9e-9, "trained": True}, {"advantage": 0.0, "trained": bool(rule.get("kl"))})
    ends = [same | zero | {"leaf": leaf(0.5, **(zero | more))} for zero in zeros]
    return split(*ends, rule=rule)


@pytest.mark.parametrize(
    ("rule", "taught"),
    [
        (OUTCOME, "this prompt's steps teach nothing."),
        (DIFFRL, "this prompt's steps and pictures teach nothing."),
        ({**OUTCOME, "kl": 0.1}, "this prompt's steps are only pulled to the starting model."),
    ],
)
def test_equal_rewards_teach_nothing(rule, taught):
    text = told(flat(rule))
    assert (
        text["scored"] == "0 of 2 passed shapes_strict. All 2 have the same reward, 0.500: none is better than another."
    )
    assert text["idle"] == f"Equal rewards give no credit: all advantages are 0, and {taught}"
    assert "credit" not in text


def test_equal_rewards_of_the_contrast_have_the_same_reason():
    nodes = [TreeNode(i, None, i, 0, None, 1.0, leaf=leaf(0.5, advantage=0.0, trained=True)) for i in range(3)]
    text = told(record(nodes, branching={}, rule=NFT))["idle"]
    assert text == "Equal rewards give no credit: all advantages are 0, and this prompt's pictures teach nothing."
    text = told(record(nodes, branching={}, rule={**NFT, "kl": 1e-4}))["idle"]
    assert text.endswith("and this prompt's pictures are only pulled to the starting model.")


def test_equal_rewards_leave_an_estimators_credit_alone():
    tree = split({"value": 0.5, "leaf": leaf(0.5, advantage=0.0)}, {"value": 0.5, "leaf": leaf(0.5, advantage=0.0)})
    rule = {**DIFFRL, "value": "ode", "samples": False}
    assert "idle" not in told(replace(tree, rule=rule)) and "credit" in told(replace(tree, rule=rule))


def test_steps_that_are_not_pushed_by_why():
    branches = [
        ({"advantage": 0.0, "trained": False}, leaf(0.5, advantage=0.1)),
        ({"advantage": -3e-8, "trained": True}, leaf(0.5, advantage=0.1)),
        ({"advantage": 0.0, "trained": False}, leaf(0.9, audit=True)),
        ({"advantage": 0.7, "trained": False}, leaf(1.0, advantage=0.7)),
        ({"advantage": 0.7, "trained": True}, leaf(1.0, advantage=0.7)),
    ]
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.5)]
    for child, (edge, end) in enumerate(branches):
        nodes.append(TreeNode(child + 1, 0, 0, child, 2, 0.25, value=0.5, leaf=end, **edge))
    tree = record(nodes, branching={2: 5}, rule={**OUTCOME, "prune": True, "kl": 0.0})
    assert told(tree)["idle"] == (
        "1 picture was drawn only to check the ranking. 1 of 5 steps was left out by pruning. 1 step leads only to "
        "audits. 2 steps have advantage 0."
    )
    pulled = replace(tree, rule={**tree.rule, "kl": 0.2})
    assert told(pulled)["idle"].endswith(
        "2 of 5 steps were left out by pruning. 1 step leads only to audits. "
        "1 step with advantage 0 is only pulled to the starting model."
    )
    beside = replace(tree, rule={**tree.rule, "kl": 0.2, "objective": "nft"})  # there, steps have no reference
    assert "pulled" not in told(beside)["idle"]


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ((leaf(1.0), leaf(None)), "1 picture could not be scored, so the whole prompt is left out of this update."),
        ((leaf(1.0), leaf(0.5, audit=True)), "Too few pictures could be compared, so the whole prompt is left out"),
    ],
)
def test_a_prompt_that_is_dropped_is_said_to_be(ends, why):
    zero = {"advantage": 0.0, "trained": False}
    assert why in told(split({"leaf": ends[0]} | zero, {"leaf": ends[1]} | zero))["idle"]
    assert "advantage 0" not in told(split({"leaf": ends[0]} | zero, {"leaf": ends[1]} | zero))["idle"]


def test_audits_that_are_not_trained_say_so():
    end = leaf(0.9, audit=True)
    for kl, trained, words, trains in (
        (0.0, False, "; it trains nothing", "no"),
        (0.2, True, "", "only pulled to the starting model"),
    ):
        rule = {**OUTCOME, "kl": kl}
        given = sums(split({"advantage": 0.0, "trained": trained, "leaf": end}, {}, rule=rule))
        assert f"Drawn only to check the ranking{words}." in notes(given, given.record.nodes[1])
        assert dict(step_facts(given, given.record.nodes[1]))["Trains"] == trains


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((None, None), "How likely the steps were after it was not recorded."),
        (
            (0.002, -0.001),
            "Of the 1 step pushed up 1 became more likely. Of the 1 step pushed down 1 became less likely. Of the "
            "pushed steps, 1a changed most: more likely (log-likelihood +0.0020 per dimension).",
        ),
        (
            (-0.002, 0.00001),
            "Of the 1 step pushed up 0 became more likely. Of the 1 step pushed down 0 became less likely. Of the "
            "pushed steps, 1a changed most: less likely (log-likelihood −0.0020 per dimension), against its push. "
            f"Even the path to the best picture, 1a, became less likely. {WHY}",
        ),
    ],
)
def test_what_the_update_did(ratios, expected):
    assert told(split({"log_ratio": ratios[0]}, {"log_ratio": ratios[1]}))["update"] == expected


@pytest.mark.parametrize(
    ("rule", "ratios", "expected"),
    [
        ({}, (0.0, 0.0), "The update left every measured step as likely as it was."),
        (
            {"updates": 2, "skipped": 2},
            (0.0, 0.0),
            "A guard left out all 2 updates of this iteration. The update left every measured step as likely as it "
            "was.",
        ),
        ({"updates": 1, "skipped": 1}, (0.0, 0.0), "A guard left out the update of this iteration. The update left"),
        (
            {"updates": 4, "skipped": 1},
            (0.1, -0.1),
            "A guard left out 1 of the 4 updates of this iteration. Of the 1 step",
        ),
        (
            {"dtype": "bfloat16"},
            (0.00012, -0.00012),
            "What it changed is too small to tell in bfloat16: no measured step moved by more than rounding.",
        ),
        ({"dtype": "float32"}, (0.00012, -0.00012), "Of the 1 step pushed up 1 became more likely."),
        ({"dtype": "float32"}, (5e-7, -5e-7), "What it changed is too small to tell: no measured step moved"),
        (
            {"dtype": "bfloat16"},
            (0.0004, 0.0001),
            "Of the 1 step pushed up 1 became more likely. Of the 1 step pushed down 0 became less likely. The change "
            "of 1 step is too small to tell in bfloat16. Of the pushed steps, 1a changed most: more likely "
            "(log-likelihood +0.00040 per dimension).",
        ),
        (
            {"dtype": "bfloat16"},
            (0.0, 0.0004),
            "Of the 1 step pushed up 0 became more likely. Of the 1 step pushed down 0 became less likely. The change "
            "of 1 step is too small to tell in bfloat16. Of the pushed steps, 1b changed most",
        ),
    ],
)
def test_what_is_told_of_updates_that_change_little(rule, ratios, expected):
    tree = split({"log_ratio": ratios[0]}, {"log_ratio": ratios[1]}, rule={**OUTCOME, **rule})
    assert told(tree)["update"].startswith(expected)


def test_a_decision_whose_update_was_left_out_pushes_nobody():
    rule = {**OUTCOME, "updates": 2, "skipped": 2}
    assert told(split({}, {}, rule=rule))["decision"].endswith(
        "A guard left the update out: it pushed towards neither."
    )
    assert "pushes towards the first" in told(split({}, {}, rule={**rule, "skipped": 1}))["decision"]


def test_a_nodes_own_words_know_the_rounding_too():
    tree = split({"log_ratio": 0.00012}, {"log_ratio": 0.0003}, rule={**OUTCOME, "dtype": "bfloat16"})
    given = sums(tree)
    said = [
        (notes(given, node)[0], dict(step_facts(given, node))["Change of log-likelihood"]) for node in tree.nodes[1:]
    ]
    assert said == [
        ("What the update did to this step is too small to tell in bfloat16.", "≈ 0 per dimension"),
        ("The update made this step more likely: +0.00030 per dimension, against its push.", "+0.00030 per dimension"),
    ]


def test_steps_that_do_not_train_are_only_measured():
    tree = split({"log_ratio": 0.001, "trained": False}, {"log_ratio": 0.002, "trained": False}, rule=NFT)
    text = told(tree)
    assert text["update"] == (
        "The contrast trains finished pictures here; the steps are only measured, not trained. Of the 1 path to a "
        "picture with positive advantage 1 became more likely; of the 1 with negative 0 became less likely. Even the "
        "path to the worst picture, 1b, became more likely (+0.0020 per dimension). Paths need not follow: one network "
        "serves all pictures and prompts of the iteration, and one update is a compromise between all of them."
    )
    assert "The 2 steps do not train: with this objective only finished pictures train." in text["idle"]
    assert "credit" not in text


def test_splits_left_with_one_branch_have_nothing_to_compare():
    tree = made_trees.wide_forest(4)  # one root of four is drawn again, with one leaf below each of its two branches
    assert "At 2 splits only one branch leads to a picture that counts" in told(tree)["idle"]
    assert "one branch" not in told(replace(tree, rule=OUTCOME))["idle"]
    assert "one branch" not in told(replace(tree, rule={**DIFFRL, "value": "ode", "normalise": "siblings"}))["idle"]
    assert "2 at the two ends of splits whose branches differ most, because contrast" in told(tree)["drawn"]


def test_audits_and_failures_are_no_branch_to_compare_with():
    for end in (leaf(0.25, audit=True), leaf(None)):
        assert "At 1 split only one branch leads" in told(split({}, {"leaf": end}))["idle"]
    assert "branch" not in told(split({}, {}))["idle"]


def test_a_step_that_nobody_pushed_and_that_moved_most_is_told_as_a_side_effect():
    """Shared weights move it; that it moved is not why the policy changed."""
    aside = {"advantage": 0.0, "trained": False, "log_ratio": -0.003}
    text = told(split({"log_ratio": 0.002}, aside, rule={**OUTCOME, "samples": False}))["update"]
    assert "The pushed step, 1a, became more likely (log-likelihood +0.0020 per dimension)." in text
    assert text.endswith(
        " Steps need not go where they are pushed: one network serves all steps and prompts of the iteration, and one "
        "update is a compromise between all of them."
    )
    assert "A step that nobody pushed changed more: 1b, less likely (log-likelihood −0.0030 per dimension)." in text
    both = told(split({"log_ratio": 0.002}, aside, rule={**OUTCOME, "samples": True}))["update"]
    assert both.endswith(WHY)
    assert "nobody" not in told(split({"log_ratio": 0.004}, aside))["update"]


def test_what_the_losing_pictures_lack():
    """Means over the pictures below; parts that two rewards share are named once, sums of parts not at all."""
    whole = {"r": 1.0, "r/strict": 1.0, "r/shape": 1.0, "r/count": 1.0, "r/colour": 0.5, "q/count": 1.0}
    broken = {"r": 0.25, "r/strict": 0.0, "r/shape": 0.25, "r/count": 0.5, "r/colour": 0.5, "q/count": 0.5}
    tree = split({"leaf": leaf(1.0, rewards=whole)}, {"leaf": leaf(0.25, rewards=broken)})
    assert "What the second lacks: count (0.500 against 1.000), shape (0.250 against 1.000)." in told(tree)["decision"]
    same = split({"leaf": leaf(1.0, rewards=whole)}, {"leaf": leaf(0.25, rewards={"r": 0.25})})
    assert "lacks" not in told(same)["decision"]


def two_splits(ratios, totals=(1.0, 0.9, 0.2, 0.1), own=(1.0, 0.8, -0.8, -1.0), pushes=(1.0, -1.0)):
    """1a, 1b, then 1aa, 1ab, 1ba, 1bb: only the first split is pushed; ratios in this order."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.55)]
    for a in range(2):
        nodes.append(
            TreeNode(len(nodes), 0, 0, a, 0, 0.75, value=0.5, advantage=pushes[a], trained=True, log_ratio=ratios[a])
        )
        above = nodes[-1].id
        for b in range(2):
            i = 2 * a + b
            nodes.append(
                TreeNode(len(nodes), above, 0, b, 2, 0.25, value=totals[i], advantage=0.0, log_ratio=ratios[2 + i],
                         leaf=leaf(totals[i], (a, b), advantage=own[i], trained=True))
            )  # fmt: skip
    return record(nodes, rule={**DIFFRL, "prompts": 8, "updates": 1, "dimensions": 100})


def test_what_became_of_the_paths_is_told_beside_the_pushes():
    """Both pushes are followed, yet sums over paths are -0.002, +0.003, +0.004 and -0.003."""
    text = told(two_splits((0.002, -0.001, -0.004, 0.001, 0.005, -0.002)))["update"]
    assert "Of the 1 step pushed up 1 became more likely. Of the 1 step pushed down 1 became less likely." in text
    # 100 * -0.002 = -0.2, e to that 0.82; 100 * 0.004 = 0.4, e to that 1.49
    assert (
        "Of the 2 paths to pictures with positive advantage 1 became more likely; of the 2 with negative 1 became less "
        "likely. Even the path to the best picture, 1aa, became less likely (0.82 times as likely). The worst picture "
        "whose path became more likely is 1ba, of reward 0.200 (1.5 times as likely)." in text
    )
    assert text.endswith(WHY)
    # 100 * 0.005 = 0.5, e to that 1.65: the step's own unit, not the one per dimension
    assert "A step that nobody pushed changed more: 1ba, 1.6 times as likely (log-likelihood +0.50)." in text
    fine = told(two_splits((0.002, -0.002, 0.0, 0.001, 0.001, -0.001)))["update"]
    assert "2 became more likely; of the 2 with negative 2 became less likely." in fine
    assert "picture whose" not in fine and "Even" not in fine and "Steps need" not in fine


def test_paths_are_told_of_only_where_all_of_them_were_measured():
    for ratios in ((None, -0.001, -0.004, 0.001, 0.005, -0.002), (0.002, -0.001, None, 0.001, 0.005, -0.002)):
        assert "paths to pictures" not in told(two_splits(ratios))["update"]
    level = two_splits((0.002, -0.001, -0.004, 0.001, 0.005, -0.002), own=(0.0, None, 0.0, None))
    assert "paths to pictures" not in told(level)["update"]
    small = told(two_splits((0.002, -0.001, -0.002, 0.0, 0.001, 0.0)))["update"]
    assert "advantage 1 became more likely; of the 2 with negative 1 became less" in small, "0 is neither"
    tied = told(two_splits((0.002, -0.001, 0.0, -0.004, 0.0, 0.0), totals=(1.0, 1.0, 0.1, 0.1)))["update"]
    assert "Even the path to one of the best pictures, 1ab, became less likely (0.82 times as likely)." in tied


def test_weak_advantages_are_not_gone_against():
    for advantage, said in ((0.04, False), (0.06, True)):
        tree = split({"log_ratio": -0.002, "advantage": advantage}, {"log_ratio": -0.001})
        assert ("against its push" in notes(sums(tree), tree.nodes[1])[0]) is said
        assert ("against its push" in told(tree)["update"]) is said
