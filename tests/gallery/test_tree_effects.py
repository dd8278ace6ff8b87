"""What a tree's story tells of the update and of all that did not train, against trees reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.facts import sample_facts, step_facts
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, NFT, OUTCOME, leaf, named, record, said, split, told


def flat(rule, **more):
    """Two pictures of equal reward, whose advantages are 0 exactly and by rounding; a reference pulls at all steps."""
    same = {"value": 0.5, "advantage": 0.0, "trained": False}
    zeros = ({"advantage": -5.9e-9, "trained": True}, {"advantage": 0.0, "trained": bool(rule.get("kl"))})
    ends = [same | zero | {"leaf": leaf(0.5, **(zero | more))} for zero in zeros]
    return split(*ends, rule=rule)


PULLED = "only pulled to the starting model"


@pytest.mark.parametrize(
    ("rule", "what", "taught"),
    [
        (OUTCOME, "steps", "no credit"),
        (DIFFRL, "steps, images", "no credit"),
        ({**OUTCOME, "kl": 0.1}, "steps", PULLED),
    ],
)
def test_equal_rewards_teach_nothing(rule, what, taught):
    found = told(flat(rule))
    assert list(found["scored"].values()) == ["2 of 2", "0 of 2", "0.500"] and "Best" not in found["scored"]
    assert found["idle"] == {f"Equal rewards, so advantages are 0: {what}": taught}
    assert "credit" not in found


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
    expected = {
        "Images only to check the ranking": "1",
        "Steps left out by pruning": "1 of 5",
        "Steps that lead only to audits": "1",
        "Steps with advantage 0": "2",
    }
    assert told(tree)["idle"] == expected
    pulled = replace(tree, rule={**tree.rule, "kl": 0.2})
    assert told(pulled)["idle"] == {
        **{label: expected[label] for label in list(expected)[::2]},
        "Steps left out by pruning": "2 of 5",
        f"Steps with advantage 0, {PULLED}": "1",
    }
    beside = replace(tree, rule={**tree.rule, "kl": 0.2, "objective": "nft"})  # there, steps have no reference
    assert not any("pulled" in label for label in told(beside)["idle"])


def test_audits_are_called_so():
    end = leaf(0.9, audit=True)
    for kl, trained, trains in ((0.0, False, "no"), (0.2, True, PULLED)):
        given = tree_view(split({"advantage": 0.0, "trained": trained, "leaf": end}, {}, rule={**OUTCOME, "kl": kl}))
        node = given.record.nodes[1]
        assert "Audit" in said(sample_facts(given, node)) and said(step_facts(given, node))["Trains"] == trains
        assert "Audit" not in said(sample_facts(given, given.record.nodes[2]))


BEHIND = {"updates": 2, "prompts": 8, "learning_rate": 2e-4}


CHANGE, UP, DOWN = "Change of log-likelihood", "Steps pushed up", "Steps pushed down"
MORE, LESS, STILL = "1; 1 became more likely", "1; 1 became less likely", "≈ 0 at all 2 measured steps"


@pytest.mark.parametrize(
    ("rule", "ratios", "expected"),
    [
        ({}, (None, None), {CHANGE: "not recorded"}),
        ({}, (0.0, 0.0), {CHANGE: STILL}),
        ({"updates": 4, "skipped": 1}, (0.0, 0.0), {CHANGE: STILL, "Left out by a guard": "1 of 4 updates"}),
        (BEHIND, (0.0, 0.0), {CHANGE: STILL, "Updates": "2, each from 8 prompts; learning rate 2e-4"}),
        ({"dtype": "bfloat16"}, (0.00012, -0.00012), {CHANGE: STILL}),
        ({"dtype": "float32"}, (5e-7, -5e-7), {CHANGE: STILL}),
        ({"dtype": "float32"}, (0.00012, -0.00012), {UP: MORE, DOWN: LESS}),
        (
            {"dtype": "bfloat16"},
            (0.0004, 0.0001),
            {
                UP: MORE,
                DOWN: "1; 0 became less likely",
                "Of these steps, moved by rounding alone": "1",
                "Moved most": "1a: +0.00040 per dimension",
            },
        ),
        ({}, (-0.002, 0.00001), {"Moved most": "1a: −0.0020 per dimension, against its push"}),
        # 256 * 0.002 = 0.512, e to that 1.67
        (
            {"dimensions": 256},
            (0.002, -0.001),
            {"Moved most": "1a: +0.0020 per dimension × 256 = +0.51, 1.7 times as likely"},
        ),
    ],
)
def test_what_the_update_did(rule, ratios, expected):
    tree = split({"log_ratio": ratios[0]}, {"log_ratio": ratios[1]}, rule={**OUTCOME, **rule})
    found = told(tree)["update"]
    assert expected.items() <= found.items() and (CHANGE in found) == (CHANGE in expected)


def test_steps_that_do_not_train_are_only_measured():
    tree = split({"log_ratio": 0.001, "trained": False}, {"log_ratio": 0.002, "trained": False}, rule=NFT)
    found = told(tree)
    assert found["update"]["What trains"].startswith("the finished images") and UP not in found["update"]
    assert found["update"]["Paths to images with an advantage above 0"] == MORE
    assert found["update"]["Worst image whose path became more likely"].startswith("1b: +0.0020 per dimension")
    assert found["idle"]["Steps: with this objective only finished images train"] == "2"
    assert "credit" not in found


LONE = "Splits with one branch that counts, nothing to compare it with"


def test_splits_left_with_one_branch_have_nothing_to_compare():
    tree = made_trees.wide_forest(4)  # one root of four is drawn again, with one leaf below each of its two branches
    assert told(tree)["idle"][LONE] == "2"
    assert LONE not in told(replace(tree, rule=OUTCOME))["idle"]
    assert LONE not in told(replace(tree, rule={**DIFFRL, "value": "ode", "normalise": "siblings"}))["idle"]
    assert told(tree)["sampled"]["Generated again: the two ends of splits whose branches differ most"] == "2"


ASIDE = "Moved more, though nobody pushed it"


def test_a_step_that_nobody_pushed_and_that_moved_most_is_told_as_a_side_effect():
    """Shared weights move it; that it moved is not why the policy changed."""
    aside = {"advantage": 0.0, "trained": False, "log_ratio": -0.003}
    found = told(split({"log_ratio": 0.002}, aside))["update"]
    assert found["Moved most"] == "1a: +0.0020 per dimension"
    assert found[ASIDE] == "1b: −0.0030 per dimension"
    assert ASIDE not in told(split({"log_ratio": 0.004}, aside))["update"]


ABOVE, BELOW = (f"Paths to images with an advantage {where} 0" for where in ("above", "below"))


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
    tree = two_splits((0.002, -0.001, -0.004, 0.001, 0.005, -0.002))
    found, refs = told(tree)["update"], named(tree, "update")
    assert (found[UP], found[DOWN]) == (MORE, LESS)
    assert (found[ABOVE], found[BELOW]) == ("2; 1 became more likely", "2; 1 became less likely")
    # 100 * -0.002 = -0.2, e to that 0.82; 100 * 0.004 = 0.4, e to that 1.49
    assert found["Best image whose path became less likely"] == (
        "1aa: −0.0020 per dimension × 100 = −0.20, 0.82 times as likely, reward 1.000"
    )
    assert found["Worst image whose path became more likely"] == (
        "1ba: +0.0040 per dimension × 100 = +0.40, 1.5 times as likely, reward 0.200"
    )
    assert refs["Best image whose path became less likely"] == [2] and refs[ASIDE] == [5]
    fine = told(two_splits((0.002, -0.002, 0.0, 0.001, 0.001, -0.001)))["update"]
    assert (fine[ABOVE], fine[BELOW]) == ("2; 2 became more likely", "2; 2 became less likely")
    assert not any("image whose" in label for label in fine)


def test_paths_are_told_of_only_where_all_of_them_were_measured():
    for ratios in ((None, -0.001, -0.004, 0.001, 0.005, -0.002), (0.002, -0.001, None, 0.001, 0.005, -0.002)):
        assert {ABOVE, BELOW}.isdisjoint(told(two_splits(ratios))["update"])
    level = two_splits((0.002, -0.001, -0.004, 0.001, 0.005, -0.002), own=(0.0, None, 0.0, None))
    assert {ABOVE, BELOW}.isdisjoint(told(level)["update"])
    small = told(two_splits((0.002, -0.001, -0.002, 0.0, 0.001, 0.0)))["update"]
    assert (small[ABOVE], small[BELOW]) == ("2; 1 became more likely", "2; 1 became less likely"), "0 is neither"


def test_weak_advantages_are_not_gone_against():
    for advantage, is_against in ((0.04, False), (0.06, True)):
        tree = split({"log_ratio": -0.002, "advantage": advantage}, {"log_ratio": -0.001})
        for text in (said(step_facts(tree_view(tree), tree.nodes[1]))[CHANGE], told(tree)["update"]["Moved most"]):
            assert ("against its push" in text) is is_against


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ((leaf(1.0), leaf(None)), "left out of this update: 1 of 2 images could not be scored"),
        ((leaf(1.0), leaf(0.5, audit=True)), "left out of this update: too few images to compare"),
    ],
)
def test_a_prompt_that_is_dropped_is_said_to_be(ends, why):
    zero = {"advantage": 0.0, "trained": False}
    found = told(split({"leaf": ends[0]} | zero, {"leaf": ends[1]} | zero))["idle"]
    assert found["The whole prompt"] == why and not any("advantage 0" in label for label in found)
