"""Explore, choose, draw again: what is audited never trains, the copy follows the policy, its ranking is watched."""

from dataclasses import asdict, replace

import pytest
import torch

import diffrl.training.pool as pool
import diffrl.training.sampling as sampling
from diffrl.training.drawing import FidelityWatch
from diffrl.training.pool import fidelity_metrics, single_child_splits
from tests.training.harness import EXPLORE, FOREST, FUSED, flat, make_run, settings, weights_of

CHAINS = {"tree": {"roots": 4}}
CHAIN_EXPLORE = EXPLORE | {"candidates": 11, "keep": 4, "audit": 3}
NO_COPY = {"precision": "training", "engine": "auto"}
"""The policy itself explores: for tests of what is done with a pool, however it was drawn."""
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q"]}


def explorer(pipeline, directory, explore=None, tree=CHAINS, credit=None, **changes):
    data = settings(pipeline, directory, credit=credit or {}, **changes)
    data["rollout"] |= tree | {"explore": CHAIN_EXPLORE | (explore or {})}
    return make_run(data)


@pytest.fixture(scope="module")
def explored(random_sd3, tmp_path_factory):
    """A trainer of chains after its first iteration, and what that did; to be read only."""
    trainer, _ = explorer(random_sd3, tmp_path_factory.mktemp("explored"))
    return trainer, trainer.iterate()


@pytest.fixture(scope="module")
def explored_forest(random_sd3, tmp_path_factory):
    """The same of forests."""
    trainer, _ = explorer(random_sd3, tmp_path_factory.mktemp("forest"), tree=FOREST, explore=EXPLORE, credit=FUSED)
    return trainer, trainer.iterate()


# --- audited samples -------------------------------------------------------------------------------------------------


def test_audited_samples_enter_no_statistic_and_train_nothing(explored):
    trainer, done = explored
    metrics = done.metrics
    drawn, credit = done.samples, done.credit
    table = drawn.table
    forest, audit = drawn.rollout.forest, drawn.chosen.audit
    assert len(drawn.rollout) == 2 * (4 + 3) and int(audit.sum()) == 2 * 3
    assert [reason == "audit" for reason in drawn.chosen.reason] == audit.tolist()
    assert (credit.outcome[audit] == 0).all() and not credit.used[audit].any() and credit.used[~audit].all()
    for prompt in (0, 1):
        own = (forest.sample_prompt == prompt) & ~audit
        rewards = table.total[own].double()
        expected = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
        torch.testing.assert_close(credit.outcome[own].double(), expected, rtol=1e-4, atol=1e-5)
    for sample in torch.nonzero(audit).flatten().tolist():
        node = int(forest.leaf[sample])
        while node >= 0:
            assert credit.advantage[node] == 0
            node = int(forest.parent[node])
    assert metrics["reward/selected_mean"] == pytest.approx(float(table.total[~audit].mean()), rel=1e-5)
    assert metrics["update/evaluated"] == 2 * 4 * 2 and trainer.session.meter.skipped == 2 * 3 * 2


def test_the_reward_of_an_exploring_run_is_of_what_nobody_chose(explored):
    """Of all candidates, also for the sentinel; the chosen extremes have a name of their own."""
    trainer, done = explored
    proxy = done.samples.exploration.proxy
    assert done.metrics["reward/mean"] == pytest.approx(float(proxy.total.mean()), rel=1e-5)
    assert done.metrics["reward/std"] == pytest.approx(float(proxy.total.std(correction=0)), rel=1e-4)
    for name, raw in proxy.raw.items():
        assert done.metrics[f"reward/{name}"] == pytest.approx(float(raw.mean()), rel=1e-5)
        assert trainer.hacking.state.sums[f"reward/{name}"] == pytest.approx(float(raw.mean()), rel=1e-5)


def test_nft_leaves_audited_samples_alone(random_sd3, tmp_path):
    trainer, _ = explorer(random_sd3, tmp_path, explore=NO_COPY, objective={"kind": "nft", "kl": 0.1})
    done = trainer.iterate()
    audit = done.samples.chosen.audit
    with torch.no_grad():
        kept = torch.ones(len(done.credit.advantage), dtype=torch.bool)
        objective = trainer.session.losses[0].objective
        examples = objective.examples(done.samples.rollout, done.credit, kept, lambda x, s, p: x, 8)
    assert torch.equal(examples.active, ~audit)


# --- the ranking -----------------------------------------------------------------------------------------------------


def test_exploring_with_the_policy_itself_ranks_without_error(random_sd3, tmp_path):
    trainer, _ = explorer(random_sd3, tmp_path, explore=NO_COPY | {"steps": None})
    done = trainer.iterate()
    metrics = done.metrics
    drawn = done.samples
    proxy = drawn.exploration.proxy.total[drawn.chosen.samples]
    torch.testing.assert_close(proxy, drawn.table.total, rtol=1e-5, atol=1e-6)
    assert trainer.session.copy is None
    for name in ("tau", "rho", "top_match", "bottom_match", "audit_tau"):
        assert metrics[f"fidelity/{name}"] == 1.0, name
    # pairs with an audited member: 3 * 4 + 3 of each prompt
    assert metrics["fidelity/audit_pairs"] == 2 * (3 * 4 + 3)
    for row in (0, 1):  # the choice was by these rewards: best and worst of 11
        own = drawn.exploration.forest.sample_prompt == row
        ranked = drawn.exploration.proxy.total[own].sort().indices + 11 * row
        chosen = drawn.chosen.samples[(drawn.rollout.forest.sample_prompt == row) & ~drawn.chosen.audit]
        assert set(chosen.tolist()) == set(ranked[[0, 1, -2, -1]].tolist())


def test_fidelity_by_hand(explored):
    trainer, done = explored
    drawn, table = done.samples, done.samples.table
    true, proxy = torch.arange(14.0), torch.zeros(22)
    proxy[drawn.chosen.samples] = torch.cat([-torch.arange(7.0), torch.arange(7.0)])  # one prompt reversed
    exploration = replace(drawn.exploration, proxy=replace(drawn.exploration.proxy, total=proxy))
    found = fidelity_metrics(trainer.ranks, replace(drawn, exploration=exploration, table=replace(table, total=true)))
    assert found["fidelity/tau"] == found["fidelity/rho"] == 0.0
    assert found["fidelity/top_match"] == found["fidelity/bottom_match"] == 0.5
    assert found["fidelity/audit_tau"] == 0.0 and found["fidelity/audit_pairs"] == 30
    same = replace(table, total=torch.ones(14))
    assert fidelity_metrics(trainer.ranks, replace(drawn, table=same))["fidelity/tau"] != 0  # NaN: nothing differs


def test_splits_with_one_child_left_are_counted(explored_forest):
    _, done = explored_forest
    metrics = done.metrics
    forest, single = done.samples.rollout.forest, 0
    for node in range(len(forest.parent)):
        children = forest.parent.tolist().count(node)
        single += children == 1
    assert metrics["explore/one_child_splits"] == single == single_child_splits(forest) > 0


# --- what is done about it -------------------------------------------------------------------------------------------


def feed(trainer, monkeypatch, taus):
    """Iterations in which the ranking is as good as told."""
    monkeypatch.setattr(
        sampling,
        "fidelity_metrics",
        lambda *args: {"fidelity/tau": taus[trainer.iteration] if trainer.iteration < len(taus) else 0.9},
    )
    for _ in taus:
        trainer.iterate()


@pytest.mark.parametrize(("taus", "told"), [([0.1, 0.1, 0.5, 0.1, 0.1], 0), ([0.1] * 7, 2)])
@pytest.mark.long
def test_a_warning_needs_patience(random_sd3, tmp_path, monkeypatch, taus, told):
    watched = {"fidelity": {"below": 0.3, "action": "warn", "patience": 3}}
    trainer, run = explorer(random_sd3, tmp_path, explore=NO_COPY | watched)
    feed(trainer, monkeypatch, taus)
    said = run.shown.getvalue()
    assert said.count("(rollout.explore.fidelity)") == told
    assert trainer.sampling.watch.keep == 0 and not trainer.sampling.watch.fallen_back
    if told:
        assert "below 0.3 for 3 iterations" in said


@pytest.mark.long
def test_widening_keeps_half_as_many_more_up_to_all_but_the_audit(random_sd3, tmp_path, monkeypatch):
    trainer, run = explorer(random_sd3, tmp_path, explore=NO_COPY | {"fidelity": {"action": "widen", "patience": 1}})
    sizes = []
    for tau in (0.1, 0.9, 0.1, 0.1):
        monkeypatch.setattr(sampling, "fidelity_metrics", lambda *args, tau=tau: {"fidelity/tau": tau})
        done = trainer.iterate()
        sizes.append((int((~done.samples.chosen.audit).sum()) // 2, int(done.samples.chosen.audit.sum()) // 2))
    assert sizes == [(4, 3), (6, 3), (6, 3), (8, 3)] and trainer.sampling.watch.keep == 8  # 9 would leave 2 to audit
    assert "6 samples of a prompt are generated again instead of 4" in run.shown.getvalue()


@pytest.mark.long
def test_falling_back_explores_in_the_training_precision_with_all_steps(random_sd3, tmp_path, monkeypatch):
    trainer, _ = explorer(random_sd3, tmp_path, explore={"fidelity": {"action": "fall_back", "patience": 1}})
    meter = trainer.session.meter
    feed(trainer, monkeypatch, [0.1])
    assert meter.by_precision["nvfp4"] == meter.evaluations["explore"] == 2 * 11 * 4  # 4 of 5 steps
    assert trainer.sampling.watch == FidelityWatch(0, 0, True)
    done = trainer.iterate()
    assert meter.by_precision["nvfp4"] == 2 * 11 * 4 and meter.evaluations["explore"] == 2 * 11 * (4 + 5)
    drawn = done.samples
    torch.testing.assert_close(
        drawn.exploration.proxy.total[drawn.chosen.samples], drawn.table.total, rtol=1e-5, atol=1e-6
    )


def test_the_watch_is_in_the_checkpoint(random_sd3, tmp_path):
    trainer, run = explorer(random_sd3, tmp_path, explore=NO_COPY)
    trainer.sampling.drawing.watch = FidelityWatch(2, 6, False)
    kept = {}
    run.journal.checkpoint = lambda iteration, session, averages, state: kept.update(state)
    run.save()
    other, _ = explorer(random_sd3, tmp_path / "other", explore=NO_COPY)
    other.restore(kept)
    assert other.sampling.watch == FidelityWatch(2, 6, False) and kept["fidelity"] == asdict(other.sampling.watch)


# --- the low-precision copy ------------------------------------------------------------------------------------------


def test_the_copy_follows_the_policy(random_sd3, tmp_path, monkeypatch):
    trainer, _ = explorer(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": LORA},
        train={"learning_rate": 1e-2},
    )
    copy, network = trainer.session.copy, trainer.session.policy.inner
    push, pushed, outputs, true = copy.sync_weights, [], [], []
    trainer.iterate()
    before = {key: tensor.data_ptr() for key, tensor in copy.module.state_dict().items() if torch.is_tensor(tensor)}
    inputs = []
    handle = network.register_forward_pre_hook(lambda m, args, kwargs: inputs.append(kwargs), with_kwargs=True)

    def recorded(source):
        outputs.append(copy.module(**inputs[0])[0] if inputs else None)
        push(source)
        pushed.append(flat(weights_of(trainer)))

    monkeypatch.setattr(copy, "sync_weights", recorded)
    for _ in range(2):
        trainer.iterate()
    handle.remove()
    assert len(pushed) == 2 and not torch.equal(pushed[0], pushed[1])
    push(network)
    with torch.no_grad():
        true.append(network(**inputs[0])[0])
    now = copy.module(**inputs[0])[0]
    stale, fresh = (outputs[1] - true[0]).norm(), (now - true[0]).norm()
    assert not torch.equal(outputs[1], now) and fresh < 0.2 * true[0].norm() and stale > 0
    assert {k: t.data_ptr() for k, t in copy.module.state_dict().items() if torch.is_tensor(t)} == before
    assert all(not p.requires_grad for p in copy.module.parameters())


def test_the_policy_is_back_in_its_place_after_an_error(random_sd3, tmp_path, monkeypatch):
    trainer, _ = explorer(random_sd3, tmp_path)
    live = trainer.session.adapter.transformer
    seen = []

    def failing(adapter, *args, **kwargs):
        seen.append(adapter.transformer)
        raise RuntimeError("out of paint")

    monkeypatch.setattr(pool, "explore", failing)
    with pytest.raises(RuntimeError, match="out of paint"):
        trainer.iterate()
    assert seen == [trainer.session.copy.module] and trainer.session.adapter.transformer is live
    assert trainer.session.meter._purpose == "rollout"
