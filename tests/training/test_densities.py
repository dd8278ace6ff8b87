"""Below float32, rounding of batches of other sizes is in no ratio that trains."""

import pytest

import diffrl.training.update as update
from diffrl.config.load import make_config
from diffrl.cost.meter import network_evaluations
from diffrl.training.guards import clip_note
from tests.training.harness import make_trainer, settings


def rounding(pipeline, directory, dtype="bfloat16", **objective):
    """Rollout and update in batches of other sizes; one of four prompts has no credit. The clip is below rounding."""
    (directory / "prompts.txt").write_text("a red circle\na blue square\na green circle\na yellow square\n")
    data = settings(
        pipeline,
        directory,
        model={"family": "sd3", "path": str(pipeline), "device": "cpu", "dtype": dtype},
        prompts={"train": str(directory / "prompts.txt"), "eval": "shapes:tune", "per_iteration": 4},
        rewards=[{"name": "tests.training.scorers:FlatFor", "options": {"word": "red"}}],
        objective={"clip": 1e-6, **objective},
        train={"learning_rate": 1e-4, "updates_per_iteration": 3, "micro_batch": 2},
        guards={"on_policy_tolerance": 1e-2},
    )
    data["rollout"] |= {"micro_batch": 7}
    return data


def of_samples(pipeline, directory):
    """The same with a loss that knows no ratio."""
    return rounding(pipeline, directory, "float32") | {"objective": {"kind": "nft"}}


def round_by_size(adapter, monkeypatch):
    """Velocities that depend on the size of their batch, as other kernels round on any processor; exact otherwise."""
    velocity = type(adapter).velocity

    def rounded(self, latents, *rest):
        return velocity(self, latents, *rest) * (1 + len(latents) * 2.0**-12)

    monkeypatch.setattr(type(adapter), "velocity", rounded)


def updates_of(trainer, monkeypatch):
    """An iteration in which no update is made, so that every ratio is 1 but for rounding."""
    round_by_size(trainer.session.adapter, monkeypatch)
    seen, accumulate = [], update.accumulate_gradient

    def recorded(**arguments):
        seen.append(accumulate(**arguments))
        return seen[-1]

    monkeypatch.setattr(update, "accumulate_gradient", recorded)
    monkeypatch.setattr(trainer.guard, "allows", lambda *_: False)
    trainer.iterate()
    return seen


def test_before_anything_has_changed_no_ratio_is_off_and_nothing_is_clipped(random_sd3, tmp_path, monkeypatch):
    trainer = make_trainer(rounding(random_sd3, tmp_path))
    first, *later = updates_of(trainer, monkeypatch)
    assert trainer.updater.on_policy_error > 1e-6  # batches of seven and of two differ by more than the clip
    assert first.largest_ratio_error > 1e-6  # what the rollout gave is still compared
    assert [gradient.largest_ratio_error for gradient in later] == [0.0, 0.0]
    assert all(gradient.metrics["clipped"] == 0.0 and gradient.norm > 0 for gradient in (first, *later))
    assert all(gradient.metrics["ratio"] == 1.0 for gradient in (first, *later))


def test_nor_is_one_of_a_users_own_objective(random_sd3, tmp_path, monkeypatch):
    data = rounding(random_sd3, tmp_path) | {"objective": {"kind": "tests.training.own:Unclipped"}}
    trainer = make_trainer(data)
    assert {gradient.metrics["ratio"] for gradient in updates_of(trainer, monkeypatch)} == {1.0}
    assert trainer.session.plan.network_evaluations["old"] == 6 * 4 * 2
    assert trainer.session.meter.evaluations["old"] == 6 * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_it_costs_is_planned_and_counted(random_sd3, tmp_path, dtype):
    """Each origin of the second and third update once more, but for those without credit, which are skipped."""
    trainer = make_trainer(rounding(random_sd3, tmp_path, dtype))
    trainer.iterate()
    plan, meter = trainer.session.plan, trainer.session.meter
    retaken = 4 * 4 if dtype == "bfloat16" else 0  # of 6 origins of each of 4 prompts, an update has two
    assert plan.network_evaluations["old"] == retaken * plan.iterations
    assert meter.evaluations["old"] == retaken * 3 // 4
    counts = trainer.counts()
    evaluation = plan.network_evaluations["evaluation"]
    twice = plan.total_network_evaluations - evaluation - plan.network_evaluations["gate"]
    made = network_evaluations(counts) + counts["evaluations_skipped"] - counts["evaluations/gate"]
    assert made * plan.iterations == twice
    assert ("old" in trainer.clock.seconds) == (dtype == "bfloat16")


def test_the_gates_error_is_put_beside_the_clip(random_sd3, tmp_path):
    alone = make_config(rounding(random_sd3, tmp_path, "float32", clip=1e-4, clip_high=1e-3))
    low = make_config(rounding(random_sd3, tmp_path, clip=1e-4))
    nft = make_config(of_samples(random_sd3, tmp_path))
    assert not clip_note(1.9e-5, alone).startswith("Warning")
    assert clip_note(2.1e-5, alone).startswith("Warning") and "21% of the clip" in clip_note(2.1e-5, alone)
    assert not clip_note(9e-5, low).startswith("Warning") and "left out" in clip_note(9e-5, low)
    assert clip_note(1.0, nft) is None
