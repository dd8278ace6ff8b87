"""What a tree's record says of the rule: enough to work out every advantage and every reward again, as pages do."""

import re

import pytest

from diffrl.gallery.trees.numbers import push
from diffrl.gallery.trees.sums import reward_sum, sample_sum, step_sum
from diffrl.gallery.trees.view import tree_view
from tests.tiers import daily
from tests.training.harness import BRIGHTNESS, FOREST, make_run
from tests.trees.test_document import BOTH, CHAINS, WIDE, kept
from tests.trees.test_recorder import forest_run

RULES = {
    "turning points by depth": (FOREST, {"reward": "turning_point", "normalise": "depth"}),
    "turning points of chains": (CHAINS, {"reward": "turning_point", "value": "ode", "normalise": "group"}),
    "increments, median deviations": (
        FOREST,
        {"reward": "incremental", "normalise": "group", "baseline": "median", "std": "mad"},
    ),
    "increments, siblings": (FOREST, {"reward": "incremental", "normalise": "siblings"}),
    "fused, explored": (WIDE, {"reward": "fused", "normalise": "depth"}),
    "cut": (FOREST, {"reward": "incremental", "normalise": "group", "clamp": 1.25}),
}


def worked_out(text):
    """The value of a sum as it is written, before it is cut."""
    found = re.match(r"\(?([+−]?[\d.]+)(?: ([+−]) ([\d.]+)\))? / ([\d.]+)", text)
    value, sign, centre, deviation = found.groups()
    value = float(value.replace("−", "-").replace("+", ""))
    return (value - (float(centre) if sign == "−" else -float(centre or 0))) / float(deviation)


@pytest.mark.parametrize("name", daily(RULES, ["turning points by depth", "increments, siblings", "cut"]))
def test_every_advantage_can_be_worked_out_from_the_record(random_sd3, tmp_path, name):
    """The sum that the page writes comes to the advantage that training used, for every step that was pushed."""
    rollout, credit = RULES[name]
    seen, cuts = 0, 0
    for tree in kept(make_run(forest_run(random_sd3, tmp_path, rollout, credit))[1]):
        view, bound = tree_view(tree), credit.get("clamp", 5.0)
        for edge in (edge for edge in view.edges if view.step_trains(edge) == "yes"):
            text = step_sum(view, edge)
            assert text, view.names[edge.id]
            assert edge.advantage == pytest.approx(max(-bound, min(bound, worked_out(text))), abs=0.011)
            assert ("cut to" in text) == (abs(edge.advantage) == bound)
            seen, cuts = seen + 1, cuts + ("cut to" in text)
        for node in view.samples:
            if push(node.leaf.advantage):
                wanted = max(-bound, min(bound, worked_out(sample_sum(view, node))))
                assert node.leaf.advantage == pytest.approx(wanted, abs=0.011)
    assert seen > 3 and (cuts > 0) == (name == "cut")


def test_steps_share_the_credit_of_their_pictures(random_sd3, tmp_path):
    for tree in kept(make_run(forest_run(random_sd3, tmp_path, FOREST, {"reward": "outcome"}))[1]):
        view = tree_view(tree)
        told = {step_sum(view, edge) for edge in view.edges if view.step_trains(edge) == "yes"}
        assert told == {"that of its image", "the mean of its 2 images' advantages"}


def test_rewards_can_be_worked_out_with_the_weights_of_the_iteration(random_sd3, tmp_path):
    data = forest_run(random_sd3, tmp_path)
    data["rewards"] = [
        {
            "name": BRIGHTNESS,
            "label": "bright",
            "weight": 2.0,
            "shift": 0.25,
            "scale": 4.0,
            "schedule": [[0, 0.0], [4, 1.0]],
        },
        {"name": BRIGHTNESS, "label": "dark", "weight": -0.5},
        {"name": BRIGHTNESS, "label": "watched", "weight": 0.0},
    ]
    trainer, run = make_run(data)
    trainer.iteration = 1
    for tree in kept(run):
        assert tree.weights == {
            "bright": {"weight": 0.5, "shift": 0.25, "scale": 4.0},  # a quarter of the way
            "dark": {"weight": -0.5, "shift": 0.0, "scale": 1.0},
            "watched": {"weight": 0.0, "shift": 0.0, "scale": 1.0},
        }
        view = tree_view(tree)
        for node in view.scored:
            raw = node.leaf.rewards["bright"]
            assert node.leaf.total == pytest.approx(0.5 * (raw - 0.25) / 4 - 0.5 * raw, abs=1e-6)
            assert reward_sum(view, node) == f"0.5 × ({raw:.3f} − 0.25) / 4 (bright) − 0.5 × {raw:.3f} (dark)"


@pytest.mark.parametrize(
    ("objective", "clip"),
    [
        ({"kind": "grpo", "clip": 0.002}, (0.002, 0.002)),
        (BOTH | {"edges": {"clip": 0.004, "clip_high": 0.005}}, (0.004, 0.005)),
    ],
)
@pytest.mark.long
def test_the_rule_tells_what_the_page_needs_of_the_update(random_sd3, tmp_path, objective, clip):
    data = forest_run(random_sd3, tmp_path, FOREST, {"reward": "turning_point"})
    data["objective"] = objective
    data["train"] |= {"schedule": "cosine", "warmup_updates": 3, "updates_per_iteration": 1}
    data["run"]["iterations"] = 9
    trainer, run = make_run(data)
    config = trainer.session.adapter.transformer.config
    done = trainer.iterate()
    metrics = done.metrics
    run.journal.trees(done.trees)
    trainer.iteration = 1
    for tree in kept(run):
        rule = tree.rule
        assert (rule.get("clip"), rule.get("clip_high")) == clip
        assert (rule["prompts"], rule["baseline"], rule["std"], rule["combine"]) == (2, "mean", "group", "sum")
        assert rule["clamp"] == 5.0
        if tree.iteration == 0:
            assert rule["learning_rate"] == pytest.approx(metrics["update/learning_rate"])
            assert rule["learning_rate"] == pytest.approx(1e-4 / 3)
        assert rule["dimensions"] == config["in_channels"] * config["sample_size"] ** 2
        assert ("constraint" in rule) == ("balance" in rule) == (rule["reward"] == "turning_point")
