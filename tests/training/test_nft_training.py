"""DiffusionNFT in the loop: an old policy draws, is contrasted with, and follows; step losses can be added."""

import pytest
import torch

import diffrl.training.update as update
from diffrl.training.gradient import LossTerm, accumulate_gradient
from tests.tolerances import SQUARED
from tests.training.harness import FOREST, distance, flat, make_trainer, settings, weights_of

NO_NOISE = {"dynamics": None, "stochastic": {"kind": "none"}, "tree": {"roots": 5}}


def nft_trainer(pipeline, directory, rollout=NO_NOISE, credit=None, train=None, **objective):
    data = settings(pipeline, directory, credit=credit or {}, train={"learning_rate": 1e-3} | (train or {}))
    data["objective"] = {"kind": "nft"} | objective
    data["rollout"] |= rollout
    return make_trainer(data)


def test_the_first_update_has_no_gap(random_sd3, tmp_path):
    trainer = nft_trainer(random_sd3, tmp_path, train={"updates_per_iteration": 1}, kl=0.0)
    assert trainer.iterate().metrics["update/velocity_gap"] < SQUARED and trainer.updater.on_policy_error is None
    # old_decay_rate 0.001: hardly anything is forgotten, all is kept
    assert trainer.iterate().metrics["update/velocity_gap"] > 100 * SQUARED


def test_the_old_policy_draws_and_is_contrasted_with_and_follows(random_sd3, tmp_path, monkeypatch):
    slope, limit = 0.08, 0.25
    trainer = nft_trainer(random_sd3, tmp_path, old_decay_rate=slope, old_decay_max=limit)
    objective, regenerate, drew, asked = trainer.session.losses[0].objective, trainer.sampling.regenerate, [], []
    monkeypatch.setattr(
        trainer.sampling, "regenerate", lambda *a: drew.append(flat(weights_of(trainer))) or regenerate(*a)
    )

    class Watched:
        def __getattr__(self, name):
            return getattr(objective, name)

        def examples(self, rollout, credit, kept, old, micro_batch):
            def watched(*start):
                asked.append(flat(weights_of(trainer)))
                return old(*start)

            return objective.examples(rollout, credit, kept, watched, micro_batch)

    trainer.session.losses = [LossTerm(Watched())]
    expected = flat(weights_of(trainer))
    for iteration in range(4):
        trainer.iteration = iteration
        asked.clear()
        trainer.iterate()
        torch.testing.assert_close(drew[-1], expected, rtol=1e-6, atol=1e-9)
        assert asked and all(torch.equal(weights, drew[-1]) for weights in asked)
        live, updates = flat(weights_of(trainer)), 2 * (iteration + 1)
        assert not torch.equal(live, drew[-1])
        decay = min(slope * updates, limit)
        expected = decay * expected + (1 - decay) * live
        torch.testing.assert_close(flat(trainer.updater.old.average), expected, rtol=1e-5, atol=1e-8)
    assert trainer.updater.old.decay == limit


def test_the_gradient_of_both_losses_is_the_sum(random_sd3, tmp_path, monkeypatch):
    weight = 0.7
    trainer = nft_trainer(
        random_sd3, tmp_path, FOREST, {"reward": "fused", "normalise": "depth"}, {"micro_batch": 5},
        kl=0.2, old_decay_max=0.0, edges={"weight": weight},
    )  # fmt: skip
    seen = []

    def recorded(*, policy, shares, **rest):
        def gradient(parts):
            found = accumulate_gradient(policy=policy, shares=parts, **rest)
            return found, flat({n: p.grad.clone() for n, p in policy.parameters.items() if p.grad is not None})

        alone = [gradient([(LossTerm(part.objective), *share)]) for part, *share in shares]
        found, both = gradient(shares)
        seen.append((found, both, alone))
        return found

    monkeypatch.setattr(update, "accumulate_gradient", recorded)
    metrics = trainer.iterate().metrics
    assert trainer.updater.on_policy_error < 1e-5 and len(seen) == 2
    for found, both, ((nft, one), (grpo, other)) in seen:
        assert distance(both, one + weight * other) < 1e-4 and float(other.norm()) > 0
        assert found.loss == pytest.approx(nft.loss + weight * grpo.loss, rel=1e-4)
        assert found.evaluated == nft.evaluated + grpo.evaluated
        assert found.metrics.keys() == nft.metrics.keys() | grpo.metrics.keys()
    assert {"update/velocity_gap", "update/ratio", "update/reference_kl"} <= metrics.keys()
