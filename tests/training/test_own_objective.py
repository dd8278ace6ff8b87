"""The test of the design: an objective that nothing in the library has heard of trains, is planned and is recorded.

It is a file (below), a settings class and a line in the registry; no other file knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import diffrl.registry as registry
from diffrl.config.load import make_config
from diffrl.config.objective import LossSettings, ObjectiveSettings
from diffrl.objectives.base import States
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from diffrl.rollout.address import Address
from diffrl.rollout.noise import noise_at
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from tests.training.harness import flat, settings, weights_of


class ImitationSettings(ObjectiveSettings):
    """Regression on the better half of the samples."""

    kind: Literal["imitation"] = "imitation"
    sigma: float = 0.5
    kl: float = 0.0

    @property
    def losses(self) -> list[LossSettings]:
        return [LossSettings("imitation", 1.0, {"sigma": self.sigma})]

    @property
    def trains_samples(self) -> bool:
        return True

    @property
    def levels_per_sample(self) -> int:
        return 1


@dataclass(frozen=True)
class Noised(States):
    target: Tensor


@dataclass(frozen=True)
class Imitation:
    seed: int
    sigma: float
    needs_reference = False
    needs_old_velocity = False
    metrics = ("distance",)

    @classmethod
    def build(cls, context, **options):
        return cls(context.seed, **options)

    def examples(self, rollout, credit, kept, old, micro_batch):
        count, shape = len(rollout), tuple(rollout.latents.shape[1:])
        noise = noise_at([Address("own", self.seed, rollout.batch.iteration, 0, i) for i in range(count)], shape)
        latents = (1 - self.sigma) * rollout.latents + self.sigma * noise
        better = credit.outcome > 0
        sigma = torch.full((count,), self.sigma)
        return Noised(latents, sigma, rollout.forest.sample_prompt, better, noise - rollout.latents)

    def loss(self, examples, policy, reference):
        distance = (policy(*examples.start) - examples.target).square().flatten(1).mean(1)
        return distance, {"distance": distance.detach()}

    def on_policy_errors(self, rollout, policy, micro_batch):
        return ()


def test_an_objective_is_a_file_a_settings_class_and_a_line(random_sd3, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.OBJECTIVES, "imitation", f"{__name__}:Imitation")
    data = settings(random_sd3, tmp_path, track={"trees": {"prompts": 1}})
    config = make_config(data)
    config = config.model_copy(update={"objective": ImitationSettings()})
    session = open_session(Preview(config), Path(config.run.dir) / config.run.name)
    trainer = Trainer(session, Messages())
    before = flat(weights_of(trainer))
    done = trainer.iterate()
    assert done.metrics["update/distance"] > 0 and not torch.equal(flat(weights_of(trainer)), before)
    meter, plan = session.meter, session.plan.network_evaluations
    assert meter.evaluations["update"] + meter.skipped == plan["update"] / config.run.iterations == 6
    assert meter.evaluations["update"] == int((done.credit.outcome > 0).sum()) == done.metrics["update/evaluated"]
    (tree,) = done.trees
    assert tree.record.rule["objective"] == "imitation" and tree.record.rule["samples"]
