"""What the run does about broken rewards, latents, losses and gradients: each is named, and acted on as configured."""

import math
import shutil
from dataclasses import replace

import pytest
import torch

from diffrl.errors import GuardStop
from diffrl.training.guards import Learning
from tests.tiers import daily
from tests.training.harness import (
    flat,
    go_on,
    make_run,
    make_trainer,
    rows_of,
    settings,
    start,
    summary_of,
    weights_of,
)

FLAKY, CONSTANT = "tests.training.scorers:Flaky", "tests.training.scorers:Constant"


def flaky(**options):
    return [{"name": FLAKY, "options": options}]


def prompt_of(batch, sample):
    """Of three samples a prompt."""
    return batch.prompts[sample // 3].text


def state_of(trainer):
    """Weights and the optimiser's moments, as one vector."""
    moments = [
        value.double().flatten()
        for state in trainer.session.optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    return torch.cat([flat(weights_of(trainer)), *moments])


# --- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inf", "report"])
def test_warn_leaves_the_sample_out(random_sd3, tmp_path, how):
    trainer, run = make_run(settings(random_sd3, tmp_path, rewards=flaky(how=how)))
    done = trainer.iterate()
    metrics = done.metrics
    outcome, said = done.credit.outcome, run.shown.getvalue()
    assert outcome[0] == 0 and (outcome[1:] != 0).all() and outcome[1:3].sum().abs() < 1e-5
    forest = done.samples.rollout.forest
    failed = (forest.prompt == 0) & (forest.root == 0)
    assert (done.credit.advantage[failed] == 0).all() and (done.credit.advantage != 0).any()
    reason = "no such picture" if how == "report" else f"returned {how}"
    assert (
        "1 of 6 samples have no usable reward" in said
        and repr(prompt_of(done.samples.rollout.batch, 0)) in said
        and reason in said
    )
    assert metrics["samples/failed"] == 1 and metrics["groups/dropped"] == 0
    rewards = done.samples.table.total[1:]
    assert metrics["reward/mean"] == pytest.approx(float(rewards.mean()), rel=1e-5)
    assert metrics[f"reward/{FLAKY}"] == pytest.approx(float(rewards.mean()), rel=1e-5)
    log = (tmp_path / "run/log.txt").read_text().strip()
    assert log in said and log.splitlines()[0].endswith("They are left out. (guards.nonfinite_reward)")


def test_skip_leaves_the_group_out(random_sd3, tmp_path):
    trainer = make_trainer(settings(random_sd3, tmp_path, rewards=flaky(), guards={"nonfinite_reward": "skip"}))
    done = trainer.iterate()
    metrics = done.metrics
    outcome = done.credit.outcome
    assert (outcome[:3] == 0).all() and (outcome[3:] != 0).all()
    assert metrics["groups/dropped"] == 1 and metrics["samples/failed"] == 1  # the two others were scored
    assert metrics["reward/mean"] == pytest.approx(float(done.samples.table.total[3:].mean()), rel=1e-5)


def test_stop_names_the_prompt(random_sd3, tmp_path):
    trainer = make_trainer(settings(random_sd3, tmp_path, guards={"nonfinite_reward": "stop"}))
    second = prompt_of(trainer.next_batch(), 3)
    other = make_trainer(
        settings(random_sd3, tmp_path / "b", rewards=flaky(word=second), guards={"nonfinite_reward": "stop"})
    )
    with pytest.raises(GuardStop, match=f"first is '{second}': .*returned nan.*guards.nonfinite_reward is stop"):
        other.iterate()


@pytest.mark.parametrize(("failures", "stops"), [(3, False), (4, True)])
def test_too_many_failures_stop(random_sd3, tmp_path, failures, stops):
    trainer = make_trainer(settings(random_sd3, tmp_path, rewards=flaky(failures=failures)))
    if stops:
        with pytest.raises(GuardStop, match=r"4 of 6 samples could not be scored, above 50%"):
            trainer.iterate()
    else:
        assert trainer.iterate().metrics["samples/failed"] == 3


def test_skipped_groups_are_no_failures(random_sd3, tmp_path):
    """One failure in each group leaves both out; still only 2 of 6 samples failed."""
    guards = {"nonfinite_reward": "skip", "failed_samples": {"limit": 0.4}}
    trainer = make_trainer(settings(random_sd3, tmp_path, rewards=[{"name": FLAKY, "batch_size": 3}], guards=guards))
    metrics = trainer.iterate().metrics
    assert metrics["samples/failed"] == 2 and metrics["groups/dropped"] == 2


def test_an_iteration_without_any_reward_goes_by(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, rewards=flaky(failures=6), guards={"failed_samples": {"limit": 1.0}})
    trainer, run = make_run(data)
    before = flat(weights_of(trainer))
    run.run()
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["iteration"] == 2 and rows[-1]["reward/mean"] is None and rows[-1]["samples/failed"] == 6
    assert torch.equal(flat(weights_of(trainer)), before)


# --- spread ----------------------------------------------------------------------------------------------------------


def test_spread_that_comes_back_starts_the_count_anew(random_sd3, tmp_path):
    trainer, run = make_run(settings(random_sd3, tmp_path, guards={"collapsed_spread": {"patience": 3}}))
    for flat_groups in (2, 2, 1, 2, 2):
        trainer.guard.watch_spread(flat_groups, 2)
    assert trainer.guard.flat_iterations == 2 and "equal rewards" not in run.shown.getvalue()
    for _ in range(2):
        trainer.guard.watch_spread(2, 2)
    told = "In 3 iterations in a row at least 90% of the groups had equal rewards"
    assert run.shown.getvalue().count("had equal rewards") == run.shown.getvalue().count(told) == 1


@pytest.mark.parametrize("action", ["warn", "stop"])
@pytest.mark.long
def test_iterations_that_train_nothing_are_told_at_once_and_stop_after_a_while(random_sd3, tmp_path, action):
    guards = {"nothing_trained": {"action": action, "patience": 2}}
    data = settings(random_sd3, tmp_path, rewards=[{"name": CONSTANT}], guards=guards)
    data["run"]["iterations"] = 3
    trainer, run = make_run(data)
    if action == "stop":
        with pytest.raises(GuardStop, match=r"2 iterations in a row trained nothing. \(guards.nothing_trained\)"):
            run.run()
        assert rows_of(tmp_path / "run")[-1]["iteration"] == trainer.iteration == 2  # the row says what was seen
    else:
        run.run()
        assert trainer.iteration == 3 and trainer.guard.learning.idle == 3
    assert run.shown.getvalue().count("This iteration trained nothing: its gradient is exactly 0.") == 1


def test_skipped_updates_train_nothing_and_the_next_one_does(random_sd3, tmp_path):
    trainer, run = make_run(settings(random_sd3, tmp_path, guards={"nonfinite_gradient": "skip"}))
    hook = trainer.session.policy.inner.proj_out.weight.register_hook(lambda gradient: gradient * math.nan)
    trainer.iterate()
    assert trainer.guard.learning == Learning(updates=0, idle=1) and trainer.guard.verdict
    assert "trained nothing: a guard left out 2 of its updates" in run.shown.getvalue()
    hook.remove()
    trainer.iteration = 1
    trainer.iterate()
    assert trainer.guard.learning == Learning(updates=2, idle=0) and trainer.guard.verdict is None


@pytest.mark.parametrize("action", daily(["warn", "stop"], [], ["warn"]))
def test_a_run_that_trained_nothing_does_not_end_well_nor_does_it_when_resumed(random_sd3, tmp_path, action):
    guards = {"nothing_trained": {"action": action, "patience": 3}}
    data = settings(random_sd3, tmp_path, rewards=[{"name": CONSTANT}], guards=guards, run={"checkpoint_every": 1})
    with pytest.raises(GuardStop, match="No update of this run had a gradient") as stopped:
        start(data)
    run = tmp_path / "run"
    assert stopped.value.exit_code == 3 and summary_of(run)["updates_with_gradient"] == 0
    assert "Stopped: No update of this run" in (run / "log.txt").read_text()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    with pytest.raises(GuardStop, match="No update of this run had a gradient"):
        go_on(run)
    assert (run / "log.txt").read_text().count("This iteration trained nothing") == 1  # the first in a row was before


def test_two_equal_prompts_stay_two_groups(random_sd3, tmp_path):
    (tmp_path / "one.txt").write_text("a red circle\n")
    data = settings(random_sd3, tmp_path, prompts={"train": str(tmp_path / "one.txt")})
    trainer = make_trainer(data)
    done = trainer.iterate()
    rollout, total, outcome = done.samples.rollout, done.samples.table.total.double(), done.credit.outcome
    assert [p.text for p in rollout.batch.prompts] == ["a red circle"] * 2 and rollout.batch.groups == (0, 1)
    assert len({tuple(x.flatten().tolist()) for x in rollout.edges.latents}) == len(rollout.edges)  # no noise twice
    for group in (slice(0, 3), slice(3, 6)):
        expected = (total[group] - total[group].mean()) / (total[group].std(correction=0) + 1e-4)
        torch.testing.assert_close(outcome[group], expected.float(), rtol=1e-4, atol=1e-5)
    assert abs(total[:3].mean() - total[3:].mean()) > 1e-4  # as one group the advantages would differ


# --- latents and pictures --------------------------------------------------------------------------------------------


def test_broken_latents_name_their_prompt(random_sd3, tmp_path, monkeypatch):
    trainer = make_trainer(settings(random_sd3, tmp_path))
    trainer.iterate()
    adapter = trainer.session.adapter
    draw = adapter.init_latents

    def broken(noise):
        latents = draw(noise)
        latents[4, 0, 3, 5] = float("nan")
        return latents

    monkeypatch.setattr(adapter, "init_latents", broken)
    batch = trainer.next_batch()
    other = prompt_of(batch, 4)
    assert other != prompt_of(batch, 0)
    with pytest.raises(GuardStop, match=f"1 of 6 samples hold NaN or inf after denoising; the first is '{other}'"):
        trainer.iterate()


def test_a_decoder_that_overflows_names_the_prompt(random_sd3, tmp_path, monkeypatch):
    data = settings(random_sd3, tmp_path)
    data["rollout"]["decode_batch"] = 4
    trainer = make_trainer(data)
    trainer.iterate()
    vae, calls = trainer.session.adapter.pipeline.vae, []
    original = vae.decode

    def overflowing(*args, **kwargs):
        (pictures,) = original(*args, **kwargs)
        calls.append(len(pictures))
        if len(calls) == 2:
            pictures[1] = float("inf")  # row 4 + 1
        return (pictures,)

    monkeypatch.setattr(vae, "decode", overflowing)
    with pytest.raises(GuardStop, match=f"The decoder gave NaN or inf for '{prompt_of(trainer.next_batch(), 5)}'"):
        trainer.iterate()
    assert calls == [4, 2]


# --- losses and gradients --------------------------------------------------------------------------------------------


class BrokenLoss:
    """The objective, but for an infinite loss of one prompt's edges wherever there is something to learn."""

    def __init__(self, objective, prompt):
        self.objective, self.prompt = objective, prompt

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def loss(self, examples, policy, reference):
        loss, metrics = self.objective.loss(examples, policy, reference)
        edges = examples.edges
        broken = (edges.prompt[edges.origin] == self.prompt) & (examples.advantage != 0)
        return loss * torch.where(broken, math.inf, 1.0), metrics


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_a_broken_loss(random_sd3, tmp_path, action):
    data = settings(random_sd3, tmp_path, guards={"nonfinite_loss": action})
    data["train"] |= {"ema": {"decay": 0.5}, "updates_per_iteration": 1}
    trainer, run = make_run(data)
    trainer.iterate()
    trainer.iteration = 1
    before, average, batch = state_of(trainer), flat(trainer.updater.ema.average), trainer.next_batch()
    trainer.session.losses = [replace(part, objective=BrokenLoss(part.objective, 1)) for part in trainer.session.losses]
    if action == "stop":
        with pytest.raises(
            GuardStop, match=r"The loss is (-?inf|nan)\. Prompts: '.*'\. \(guards.nonfinite_loss\)"
        ) as stop:
            trainer.iterate()
        text = str(stop.value)
    else:
        assert trainer.iterate().metrics["update/skipped"] == 1
        text = run.shown.getvalue()
        assert "This update is skipped." in text
        assert repr(prompt_of(batch, 3)) in text and repr(prompt_of(batch, 0)) not in text
    assert torch.equal(state_of(trainer), before) and torch.equal(flat(trainer.updater.ema.average), average)
    assert text.count("Prompts:") >= 1


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_a_broken_gradient(random_sd3, tmp_path, action):
    trainer = make_trainer(settings(random_sd3, tmp_path, guards={"nonfinite_gradient": action}))
    trainer.iterate()
    trainer.iteration = 1
    before = state_of(trainer)
    hook = trainer.session.policy.inner.proj_out.weight.register_hook(lambda gradient: gradient * math.nan)
    if action == "stop":
        with pytest.raises(GuardStop, match="The gradient's norm is nan"):
            trainer.iterate()
        assert torch.equal(state_of(trainer), before)
        return
    assert trainer.iterate().metrics["update/skipped"] == 2
    assert torch.equal(state_of(trainer), before)
    hook.remove()
    trainer.iteration = 2
    assert trainer.iterate().metrics["update/skipped"] == 0 and not torch.equal(state_of(trainer), before)


@pytest.mark.parametrize(("guard", "action"), [("ratio", "warn"), ("ratio", "stop"), ("kl", "skip")])
def test_a_policy_that_runs_away(random_sd3, tmp_path, guard, action):
    """The first update of an iteration is on-policy; the second is not any more."""
    limits = {"ratio": 1e-5, "kl": 1e-10}
    guards = {guard: {"action": action, "limit": limits[guard]}}
    trainer, run = make_run(settings(random_sd3, tmp_path, guards=guards, train={"learning_rate": 1e-3}))
    message = {"ratio": r"max \|ratio - 1\| is ", "kl": "The approximate KL is "}[guard]
    if action == "stop":
        with pytest.raises(GuardStop, match=rf"{message}.*\(guards.{guard}\).*last checkpoint is intact"):
            trainer.iterate()
        return
    metrics = trainer.iterate().metrics
    assert metrics["update/skipped"] == (action == "skip")
    assert f"(guards.{guard})" in run.shown.getvalue()
    assert metrics["update/ratio_error_max"] > 1e-5 and metrics["update/approx_kl"] > 1e-10
    steps = {int(state["step"]) for state in trainer.session.optimizer.state.values()}
    assert steps == {1 if action == "skip" else 2}
