"""Objectives, credit rules, selections and dynamics of the user's own: they train, or say what is wrong."""

from __future__ import annotations

import json
import math

import pytest
import torch

from diffrl.config.load import load_config, make_config
from diffrl.cost.plan import make_plan
from diffrl.credit.assign import CreditRule, assign_credit
from diffrl.errors import ConfigError, DiffrlError
from diffrl.functional.schedules import sigma_grid
from diffrl.rollout.select import own_selection, select
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest
from diffrl.trees.read import list_trees, read_tree
from tests.training import own
from tests.training.harness import EXPLORE, TREES, flat, make_trainer, rows_of, settings, start, weights_of

OWN = "tests.training.own:"
NO_STEPS = {"rollout": {"steps": 3, "tree": {"roots": 3}, "stochastic": {"kind": "none"}, "dynamics": None}}


def objective(name, **options):
    return {"kind": OWN + name, "options": options}


def rollout_with(**changes):
    return settings("", "")["rollout"] | changes


def trained(pipeline, directory, **changes):
    """A run of two iterations; its directory and its rows of metrics."""
    run_dir, shown = start(settings(pipeline, directory, **({"track": TREES} | changes)))
    assert "bug" not in shown
    summary = json.loads((run_dir / "summary.json").read_text())
    evaluations = summary["network_evaluations"]
    assert evaluations["counted"] + evaluations["skipped"] <= evaluations["planned"]
    assert not evaluations["exact"] or evaluations["counted"] + evaluations["skipped"] == evaluations["planned"]
    assert summary["updates_with_gradient"] > 0
    return run_dir, rows_of(run_dir)


@pytest.mark.parametrize(
    ("given", "changes", "metric"),
    [
        (objective("Weighted", temperature=0.5, levels=2), NO_STEPS, "weight"),
        (objective("Leashed", kl=2.0), NO_STEPS, "reference_kl"),
        (objective("Unclipped"), {}, "ratio"),
    ],
    ids=["samples", "leashed", "steps"],
)
def test_an_own_objective_trains_two_iterations_as_planned(random_sd3, tmp_path, given, changes, metric):
    run_dir, rows = trained(random_sd3, tmp_path, objective=given, **changes)
    assert [row["iteration"] for row in rows] == [0, 1, 2] and all(
        math.isfinite(r[f"update/{metric}"]) for r in rows[1:]
    )
    assert load_config(run_dir / "config.yaml").objective.kind == given["kind"]
    tree = read_tree(run_dir, *list_trees(run_dir)[0])
    assert tree.rule["objective"] == given["kind"]


def test_unclipped_steps_train_as_grpo_does_before_the_clip_acts(random_sd3, tmp_path):
    """At the first update every ratio is 1, where the clipped surrogate has the same gradient."""
    updates = []
    for kind in ({"kind": "grpo"}, objective("Unclipped")):
        trainer = make_trainer(
            settings(random_sd3, tmp_path / kind["kind"][-4:], objective=kind, train={"updates_per_iteration": 1})
        )
        before = flat(weights_of(trainer))
        trainer.iterate()
        updates.append(flat(weights_of(trainer)) - before)
    assert torch.equal(*updates) and updates[0].abs().max() > 0


TREE = {"steps": 5, "stochastic": {"kind": "splits"}, "tree": {"roots": 2, "branches": 2, "splits": [0, 2]}}


@pytest.mark.parametrize(
    ("rollout", "credit"),
    [(TREE, {"normalise": "depth"}), ({}, {"value": "ode"})],
    ids=["depth", "chains"],
)
def test_an_own_credit_rule_trains_as_the_built_in_one_of_the_same_formula(random_sd3, tmp_path, rollout, credit):
    weights, told = [], []
    for name in ("incremental", OWN + "gains"):
        trainer = make_trainer(
            settings(
                random_sd3,
                tmp_path / name[-5:],
                rollout=rollout_with(**rollout),
                credit={"reward": name, **credit},
                track={"trees": {"prompts": 1, "every": 1}},
            )
        )
        before = flat(weights_of(trainer))
        told.append([tree.record for done in trainer.iterations() for tree in done.trees])
        weights.append(flat(weights_of(trainer)) - before)
    assert torch.equal(*weights) and weights[0].abs().max() > 0
    theirs, ours = told
    assert len(ours) == 2 and any(node.advantage for node in ours[0].nodes)
    assert [[(n.credited, n.advantage) for n in tree.nodes] for tree in ours] == [
        [(n.credited, n.advantage) for n in tree.nodes] for tree in theirs
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gains_of_edges", "one number a node, (14,), on the CPU. Got torch.float32 (12,)"),
        ("counts", "Got torch.int64 (14,)"),
        ("boundless", "finite numbers"),
        ("unsaid", "Got NoneType"),
        ("listed", "Got list"),
        ("careless", "raised KeyError: 'missing' (own.py, line "),
        ("huge", "finite numbers"),
        ("away", "on the CPU. Got torch.float32 (14,) on meta"),
    ],
)
def test_a_credit_rule_that_breaks_its_contract_is_told_which(name, said):
    forest = plan_forest(1, 2, {0: 2, 2: 2})
    with pytest.raises(DiffrlError) as raised:
        assign_credit(forest, torch.rand(8), torch.ones(8, dtype=torch.bool), CreditRule(OWN + name))
    assert said in str(raised.value) and OWN + name in str(raised.value)


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        ({"reward": OWN + "absent"}, "cannot be imported"),
        ({"reward": OWN + "middle"}, "called with (scored)"),
        ({"reward": "incrementl"}, "Did you mean 'incremental'?"),
        ({"reward": OWN + "gains", "std": "batch"}, "credit.std must be group or mad"),
    ],
)
def test_a_credit_rule_that_cannot_be_called_is_one_problem_of_the_configuration(tmp_path, credit, said):
    with pytest.raises(ConfigError) as raised:
        make_config(settings("", tmp_path, credit=credit, model={"path": "assets/tiny-sd3"}))
    (problem,) = raised.value.problems
    assert said in problem and problem.startswith("credit.")


def test_an_own_dynamics_is_that_which_it_computes(random_sd3, tmp_path):
    """The same step under its own name draws the same samples, and its densities train the same weights."""
    ours = {"kind": "dance_sde", "eta": 0.4}
    theirs = {"kind": OWN + "dance", "options": {"strength": 0.4}}
    weights = []
    for name, dynamics in (("ours", ours), ("theirs", theirs)):
        trainer = make_trainer(settings(random_sd3, tmp_path / name, rollout=rollout_with(dynamics=dynamics)))
        assert [done.number for done in trainer.iterations()] == [1, 2]
        weights.append(flat(weights_of(trainer)))
    assert torch.equal(*weights)


def test_an_own_selection_chooses_what_trains(random_sd3, tmp_path):
    explore = {"precision": "training", "candidates": 9, "keep": 3, "audit": 1, "select": OWN + "middle"}
    trainer = make_trainer(settings(random_sd3, tmp_path, rollout=rollout_with(explore=explore), track=TREES))
    for done in trainer.iterations():
        samples = done.samples
        drawn = samples.chosen.samples[samples.is_training_sample].tolist()
        proxy = samples.exploration.proxy.total.view(2, 9)
        nearest = (proxy - proxy.mean(1, keepdim=True)).abs().argsort(dim=1)[:, :3] + torch.tensor([[0], [9]])
        assert drawn == sorted(nearest.flatten().tolist())
        assert [why for why in samples.chosen.reason if why != "audit"] == ["middle"] * 6
        assert [tree.record.explored["select"] for tree in done.trees][:1] == [OWN + "middle"]


def test_an_own_selection_sees_its_prompts_tree():
    """Of two prompts with two trees of 2 x 2 leaves: the same tree, numbered from 0, whatever lies beside it."""
    forest = plan_forest(2, 2, {0: 2, 1: 2})
    for rows in (torch.arange(8), torch.arange(8, 16)):
        seen = select(OWN + "first_families", torch.rand(8), 4, rows, forest.parent, forest.leaf[rows])
        assert seen.indices.tolist() == [0, 1, 2, 3] and seen.reason == ("2 of 14",) * 2 + ("3 of 14",) * 2


def test_a_choice_may_come_with_reasons_and_leaves_the_rewards_alone():
    rewards = torch.tensor([3.0, math.nan, 7.0, 5.0, 2.0])
    chains = (torch.full((5,), -1), torch.arange(5))
    found = own_selection(OWN + "best", rewards, 3, *chains)
    assert found.indices.tolist() == [2, 3, 0] and found.reason == ("best 1", "best 2", "best 3")
    assert own_selection(OWN + "in_place", rewards, 2, *chains).indices.tolist() == [0, 1] and rewards[0] == 3.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too_few", "3 different indices from 0 to 4. Got 2"),
        ("twice", "Got 3, 1 of them different"),
        ("beyond", "indices from 0 to 4"),
        ("fractions", "whole numbers. Got Tensor of torch.float32 (3,)"),
        ("nothing", "Got NoneType"),
        ("hasty", "raised KeyError: 'missing' (own.py, line "),
        ("silent", "3 short texts, why each was chosen. Got null"),
        ("terse", '3 short texts, why each was chosen. Got ["one"]'),
    ],
)
def test_a_choice_that_cannot_be_drawn_is_refused(name, said):
    with pytest.raises(DiffrlError) as raised:
        own_selection(OWN + name, torch.rand(5), 3, torch.full((5,), -1), torch.arange(5))
    assert said in str(raised.value) and OWN + name in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", "raised ValueError: no such level"),
        ("still", "std is above 0 and finite"),
        ("flat_std", "std is float32 of shape"),
        ("blown_up", "mean is finite"),
        ("halved", "mean is float32"),
        ("mean_alone", "of two tensors"),
        ("cut_off", "mean follows v with gradient"),
        ("drifting", "and work in place on none of its arguments"),
    ],
)
def test_a_dynamics_that_is_no_distribution_is_refused(name, said):
    with pytest.raises(DiffrlError) as raised:
        make_transition(OWN + name, sigma_grid(5))
    assert said in str(raised.value) and OWN + name in str(raised.value) and "from sigma 1 to" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Reduced", "the loss of each term, (4,), not reduced, on cpu, in real numbers. Got a tensor ()"),
        ("Alone", "a pair, (loss, metrics). Got a Tensor"),
        ("Detached", "with gradient"),
        ("Unrelated", "must depend on the policy with gradient"),
        ("Imaginary", "(4,), not reduced, on cpu, in real numbers. Got a tensor (4,) of torch.complex64"),
        ("Listed", "Got a list"),
        ("Undeclared", "metrics = (). Got ('weight',)"),
        ("Misshapen", "the metric weight of each term, (4,), on cpu, in real numbers. Got a tensor (5,)"),
        ("Fewer", "6 in all. Got 5"),
        ("Elsewhere", "0 to 1. Got [1, 2]"),
        ("Rude", "raised KeyError: 'missing' (own.py, line "),
        ("Empty", "`examples` must return diffrl.objectives.examples.Examples. Got a NoneType"),
        ("Overwriting", "`loss` must leave its examples as they are. It works in place"),
        ("Rewriting", "`examples` must leave the rollout as it is. It works in place"),
        ("Counting", "(4,), on cpu, in real numbers. Got a tensor (4,) on meta"),
    ],
)
def test_an_objective_that_breaks_a_rule_is_told_which(random_sd3, tmp_path, name, said):
    trainer = make_trainer(settings(random_sd3, tmp_path, objective=objective(name), **NO_STEPS))
    with pytest.raises(DiffrlError) as raised:
        trainer.iterate()
    assert said in str(raised.value) and OWN + name in str(raised.value)


def test_an_objective_that_cannot_say_how_far_its_steps_are_is_told_so(random_sd3, tmp_path):
    trainer = make_trainer(settings(random_sd3, tmp_path, objective=objective("Unmeasured")))
    with pytest.raises(DiffrlError, match=OWN + "Unmeasured .*`on_policy_errors` must return pairs .* Got null"):
        trainer.iterate()


def test_a_credit_rule_works_on_copies_alone():
    forest = plan_forest(1, 2, {0: 2, 2: 2})
    before = forest.parent.clone()
    assign_credit(forest, torch.rand(8), torch.ones(8, dtype=torch.bool), CreditRule(OWN + "uprooting"))
    assert torch.equal(forest.parent, before)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (objective("Absent"), "cannot be imported: AttributeError"),
        (objective("Weighted", temprature=2), "can be called with (temprature=...)"),
        (objective("Nothing"), "makes a Nothing. Subclass"),
        (objective("middle"), "can be called with ()"),
        (objective("Endless"), "from 1 to 1000"),
        (objective("Broken"), "RuntimeError: no weights here"),
        (objective("Unnamed"), "`metrics` of the objective"),
        (objective("Spelt"), "`metrics` of the objective"),
        (objective("Loud"), "`noise_range` of the objective"),
        (objective("Former"), "own:Former is called `needs_old_velocity` now. Rename it."),
        ({"kind": "no path:at all"}, "must be module:Object"),
        ({"kind": OWN + "Weighted", "temperature": 2}, "objective.temperature is not a key of kind module:Object"),
    ],
)
def test_an_objective_that_cannot_be_made_is_one_problem_of_the_configuration(tmp_path, given, said):
    with pytest.raises(ConfigError) as raised:
        make_config(settings("", tmp_path, objective=given, model={"path": "assets/tiny-sd3"}))
    (problem,) = raised.value.problems
    assert said in problem


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"dynamics": {"kind": OWN + "dance", "options": {"eta": 1}}}, "(x, v, sigma, sigma_next, eta=...)"),
        ({"dynamics": {"kind": OWN + "absent"}}, "cannot be imported"),
        ({"explore": {**EXPLORE, "select": OWN + "dance"}, "tree": {"roots": 8}}, "called with (rewards, keep)"),
    ],
)
def test_functions_that_take_something_else_are_refused_before_anything_is_loaded(tmp_path, rollout, said):
    data = settings("", tmp_path, rollout=rollout_with(**rollout), model={"path": "assets/tiny-sd3"})
    with pytest.raises(ConfigError) as raised:
        make_config(data)
    (problem,) = raised.value.problems
    assert said in problem


def test_what_an_own_objective_asks_for_is_planned(tmp_path):
    plain, leashed = (
        make_plan(make_config(settings("assets/tiny-sd3", tmp_path, objective=objective(name), **NO_STEPS)))
        for name in ("Weighted", "Leashed")
    )
    asked = {name: leashed.network_evaluations[name] - plain.network_evaluations[name] for name in ("old", "reference")}
    assert asked == {"old": 12, "reference": 12} and isinstance(own.Leashed().kl, float)
