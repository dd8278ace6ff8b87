"""The sums behind advantages and rewards, against numbers that were worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.tree_numbers import factor, likelier, share, signed
from diffrl.gallery.tree_panel import notes, sample_facts, step_facts
from diffrl.gallery.tree_sums import reward_sum, sample_sum, step_sum, weights_text
from diffrl.gallery.tree_words import sums
from diffrl.trees.record import TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import DIFFRL, OUTCOME, leaf, record

STEPWISE = {**DIFFRL, "reward": "incremental"}
HALVES = {name: {"weight": 0.5, "shift": 0.0, "scale": 1.0} for name in ("shapes", "shapes_strict")}
LEVEL = "of the 4 steps at this noise level"


def steps(credited, advantages, rule=STEPWISE, above=0.5, **more):
    """One noise worth `above` and the steps to its pictures, each with what it was credited with."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=above)]
    for child, (amount, advantage) in enumerate(zip(credited, advantages, strict=True)):
        nodes.append(
            TreeNode(child + 1, 0, 0, child, 2, 0.25, value=above + (amount or 0), advantage=advantage, trained=True,
                     credited=amount, leaf=leaf(above + (amount or 0), (child,)))
        )  # fmt: skip
    return sums(record(nodes, **{"branching": {2: len(credited)}, "rule": rule, **more}))


def sums_of(given):
    return [step_sum(given, node) for node in given.edges]


def test_a_step_is_compared_with_those_of_its_noise_level():
    # mean 0.8 / 4 = 0.2; squared distances 0.09, 0.09, 0.04, 0.16: root of their mean 0.308221, plus 0.0001
    given = steps([0.5, 0.5, 0.0, -0.2], [0.973, 0.973, -0.6487, -1.2974])
    assert sums_of(given) == [
        f"(+0.500 − 0.200) / 0.308, with the mean and deviation {LEVEL}",
        f"(+0.500 − 0.200) / 0.308, with the mean and deviation {LEVEL}",
        f"(0.000 − 0.200) / 0.308, with the mean and deviation {LEVEL}",
        f"(−0.200 − 0.200) / 0.308, with the mean and deviation {LEVEL}",
    ]
    assert dict(step_facts(given, given.edges[2]))["Advantage"].startswith("−0.65 = (0.000 − 0.200) / 0.308, with")


def test_the_median_is_called_so():
    # median (0.0 + 0.5) / 2 = 0.25; the deviation stays that about the mean
    given = steps([0.5, 0.5, 0.0, -0.2], [0.8108, 0.8108, -0.8108, -1.4596], {**STEPWISE, "baseline": "median"})
    assert sums_of(given)[3] == f"(−0.200 − 0.250) / 0.308, with the median and deviation {LEVEL}"
    assert sums_of(replace(given, record=replace(given.record, rule=STEPWISE))) == [""] * 4


def test_a_sum_that_is_not_the_recorded_number_is_not_shown():
    assert sums_of(steps([0.5, 0.5, 0.0, -0.2], [0.99, 0.973, 0.6487, 0.0])) == [
        "",
        f"(+0.500 − 0.200) / 0.308, with the mean and deviation {LEVEL}",
        "",
        "",
    ]
    assert sums_of(steps([0.25] * 3, [0.0] * 3)) == [""] * 3, "without a deviation there is nothing to divide by"


def test_steps_without_credit_are_not_among_those_compared():
    # 0.5 and -0.1: mean 0.2, deviation 0.3
    given = steps([0.5, None, -0.1, None], [0.9997, 0.0, -0.9997, 0.0])
    among = "of the 2 of 4 steps that have credit at this noise level"
    assert sums_of(given) == [
        f"(+0.500 − 0.200) / 0.300, with the mean and deviation {among}",
        "",
        f"(−0.100 − 0.200) / 0.300, with the mean and deviation {among}",
        "",
    ]


def test_two_noise_levels_are_two_comparisons_or_one():
    """Levels of 2 and 4 steps, credits +-0.2 and +-0.1: deviations 0.2 and 0.1; together root(0.12 / 6) = 0.141421."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.5)]
    for parent, step, sign in ((0, 0, 1), (0, 0, -1), (1, 2, 1), (1, 2, -1), (2, 2, 1), (2, 2, -1)):
        size = 0.2 if step == 0 else 0.1
        nodes.append(
            TreeNode(len(nodes), parent, 0, int(sign < 0), step, 0.75 if step == 0 else 0.25, value=0.5,
                     credited=sign * size, advantage=sign * (0.9995 if step == 0 else 0.999), trained=True)
        )  # fmt: skip
    given = sums(record(nodes, rule=STEPWISE))
    assert (
        sums_of(given)[0] == "(+0.200 − 0.000) / 0.200, with the mean and deviation of the 2 steps at this noise level"
    )
    assert sums_of(given)[5] == f"(−0.100 − 0.000) / 0.100, with the mean and deviation {LEVEL}"
    joint = [replace(node, advantage=node.credited and node.credited / 0.141521) for node in nodes]
    given = sums(record(joint, rule={**STEPWISE, "normalise": "group"}))
    assert sums_of(given)[0] == "(+0.200 − 0.000) / 0.142, with the mean and deviation of this prompt's 6 steps"


def test_siblings_are_compared_with_what_their_node_is_worth():
    # credited 0.9 and 0.3, worth of the node 0.5: deviation 0.3, advantages 0.4 / 0.3001 and -0.2 / 0.3001
    rule = {**DIFFRL, "normalise": "siblings"}
    given = steps([0.9, 0.3], [1.3329, -0.6664], {**rule, "reward": "fused"})
    level = "of the 2 steps at this noise level"
    assert sums_of(given) == [
        f"(+0.900 − 0.500) / 0.300, less the worth of 1, over the deviation {level}",
        f"(+0.300 − 0.500) / 0.300, less the worth of 1, over the deviation {level}",
    ]
    given = steps([0.4, -0.2], [1.3329, -0.6664], {**rule, "reward": "incremental"})
    assert sums_of(given) == [
        f"+0.400 / 0.300, over the deviation {level}",
        f"−0.200 / 0.300, over the deviation {level}",
    ]


def test_small_numbers_have_digits_enough_to_be_checked():
    # mean 0, deviation 0.004206 + 0.0001: with three digits 0.006 / 0.004 = 1.5 would be far from 1.3238
    given = steps([0.0057, -0.0057, 0.0017, -0.0017], [1.3238, -1.3238, 0.3948, -0.3948])
    first = sums_of(given)[0].partition(",")[0]
    value, deviation = (float(part) for part in first.replace("(+", "").replace(" − 0.0000)", "").split(" / "))
    assert first == "(+0.0057 − 0.0000) / 0.0043" and value / deviation == pytest.approx(1.3238, abs=0.005)


def test_what_is_cut_says_so():
    # 30 steps: one of 3, the others 0: mean 0.1, deviation 0.538516; 2.9 / 0.538616 = 5.38
    given = steps([3.0] + [0.0] * 29, [5.0] + [-0.18566] * 29)
    assert step_sum(given, given.edges[0]).startswith("(+3.000 − 0.100) / 0.539 = +5.38, cut to +5.00, with the mean")
    wider = replace(given, record=replace(given.record, rule={**STEPWISE, "clamp": 6.0}))
    assert step_sum(wider, given.edges[0]) == ""


def test_steps_of_an_outcome_share_the_credit_of_their_pictures():
    given = sums(made_trees.chains(roots=3, steps=2))
    assert step_sum(given, given.edges[0]) == "that of its picture"
    assert dict(step_facts(given, given.edges[0]))["Advantage"] == "−0.90, that of its picture"
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0),
        TreeNode(1, 0, 0, 0, 0, 0.75, advantage=0.3),
        TreeNode(2, 1, 0, 0, 2, 0.25, advantage=0.8, leaf=leaf(1.0, advantage=0.8)),
        TreeNode(3, 1, 0, 1, 2, 0.25, advantage=-0.2, leaf=leaf(0.5, advantage=-0.2)),
        TreeNode(4, 1, 0, 2, 2, 0.25, advantage=0.0, leaf=leaf(0.7, audit=True)),
    ]
    given = sums(record(nodes, rule=OUTCOME))
    assert step_sum(given, nodes[1]) == "the mean of its 2 pictures' advantages"
    assert step_sum(given, replace(nodes[1], advantage=0.4)) == "", "weighed otherwise"


def test_a_pictures_own_advantage():
    # rewards 1.0, 0.25, 0.25 (an audit of 0.9 aside): mean 0.5, deviation root(0.375 / 3) = 0.353553
    ends = [leaf(1.0, advantage=1.4138), leaf(0.25, advantage=-0.7069), leaf(0.25, advantage=-0.7069)]
    ends.append(leaf(0.9, audit=True))
    tree = record(
        [TreeNode(i, None, i, 0, None, 1.0, leaf=end) for i, end in enumerate(ends)], branching={}, rule=OUTCOME
    )
    given = sums(tree)
    expected = "with the mean and deviation of this prompt's 3 pictures"
    assert [sample_sum(given, node) for node in tree.nodes] == [
        f"(1.000 − 0.500) / 0.354, {expected}",
        f"(0.250 − 0.500) / 0.354, {expected}",
        f"(0.250 − 0.500) / 0.354, {expected}",
        "",
    ]
    assert dict(sample_facts(given, tree.nodes[0]))["Advantage"] == f"+1.41 = (1.000 − 0.500) / 0.354, {expected}"
    for other in ({"std": "batch"}, {"combine": "gdpo"}):
        given = sums(replace(tree, rule={**OUTCOME, **other}))
        assert sample_sum(given, tree.nodes[0]) == "", "its numbers are not all of this prompt"


def test_how_a_reward_is_made_of_its_scores():
    node = TreeNode(0, None, 0, 0, None, 1.0, leaf=leaf(0.4335, rewards={"shapes": 0.867, "shapes_strict": 0.0}))
    given = sums(record([node], branching={}, weights=HALVES))
    assert reward_sum(given, node) == "0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"
    assert dict(sample_facts(given, node))["Reward"] == "0.433 = 0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"
    assert weights_text(given) == "0.5 × shapes + 0.5 × shapes_strict"
    assert reward_sum(given, replace(node, leaf=replace(node.leaf, total=0.5))) == "", "it comes to another number"
    assert reward_sum(sums(record([node], branching={})), node) == "", "nothing of it was recorded"
    alone = {"shapes": {"weight": 1.0, "shift": 0.0, "scale": 1.0}}
    given = sums(record([node], branching={}, weights=alone))
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
    given = sums(record([node], branching={}, weights=weights))
    assert reward_sum(given, node) == "2 × (1.200 − 0.2) / 4 (a) − (0.300 + 1) (b)"
    failed = replace(node, leaf=replace(end, rewards={"a": None, "b": 0.3}))
    assert reward_sum(given, failed) == ""


def test_old_records_show_what_they_showed():
    given = sums(made_trees.forest())
    facts = dict(step_facts(given, given.record.nodes[3]))
    assert facts["Advantage"] == "−0.94" and facts["Change of log-likelihood"] == "−0.00095 per dimension"
    assert "Credited" not in facts and dict(sample_facts(given, given.record.nodes[3]))["Reward"] == "0.250"


def test_the_panel_says_what_was_credited_where_it_is_something_else():
    given = sums(made_trees.forest())
    assert dict(step_facts(given, given.record.nodes[8]))["Credited"] == "+0.750, the mean over its 2 paths"
    assert (
        "At least one of its 2 paths turns here: on it the step counts as the whole way"
        in notes(given, given.record.nodes[8])[1]
    )
    fused = steps([0.9, 0.3], [1.0, -1.0], {**DIFFRL, "reward": "fused"}, above=0.0)
    node = replace(fused.edges[0], value=0.9)
    assert "Credited" not in dict(step_facts(steps([0.4], [0.0]), steps([0.4], [0.0]).edges[0]))
    tree = replace(fused.record, nodes=[replace(fused.record.nodes[0], value=0.6), node, fused.record.nodes[2]])
    assert dict(step_facts(sums(tree), node))["Credited"] == "0.900, what 1a is worth"


def test_rounding_errors_of_a_number_look_like_it():
    assert [signed(value) for value in (0.0125, -0.0125, 0.01249999, -0.01249999)] == ["+0.013", "−0.013"] * 2
    assert [share(value) for value in (0.125, -0.125, 0.12499999, -0.12500001)] == ["+0.12", "−0.12"] * 2


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


def test_rates_and_weights_have_no_power_of_ten_where_they_need_none():
    assert [factor(value) for value in (0.5, 2.0, 0.001, 0.0000333333, 0.0, 1e-9, 100.0)] == [
        "0.5", "2", "0.001", "0.0000333", "0", "1e-09", "100",
    ]  # fmt: skip
