"""An objective as CONTRIBUTING says: a section beside its loss; run as a script, also the line of the registry."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

import diffrl.registry
from diffrl.objectives.base import LossSettings, Objective, ObjectiveSettings
from diffrl.objectives.examples import States
from diffrl.rollout.address import Address
from diffrl.rollout.noise import noise_at


class ImitationSettings(ObjectiveSettings):
    """Regression on the better half of the samples."""

    kind: Literal["imitation"]
    sigma: float = 0.5

    def losses(self, context):
        return [LossSettings(Imitation(context.seed, self.sigma))]


@dataclass(frozen=True)
class Noised(States):
    target: Tensor


@dataclass(frozen=True)
class Imitation(Objective[Noised]):
    trains: ClassVar = "samples"
    measures: ClassVar = ("distance",)
    levels: ClassVar = 1

    seed: int
    sigma: float

    def examples(self, rollout, credit, grad_mask, old, micro_batch):
        count, shape = len(rollout), tuple(rollout.latents.shape[1:])
        noise = noise_at([Address("own", self.seed, rollout.batch.iteration, 0, i) for i in range(count)], shape)
        latents = (1 - self.sigma) * rollout.latents + self.sigma * noise
        sigma = torch.full((count,), self.sigma)
        return Noised(latents, sigma, rollout.forest.sample_prompt, credit.outcome > 0, noise - rollout.latents)

    def loss(self, examples, policy, reference):
        distance = (policy(*examples.start) - examples.target).square().flatten(1).mean(1)
        return distance, {"distance": distance.detach()}


def train(path):
    """One iteration, which trains as planned and is recorded."""
    from diffrl.config.load import load_config
    from diffrl.preflight.preview import Preview
    from diffrl.preflight.stages import open_session
    from diffrl.training.loop import Trainer
    from diffrl.training.messages import Messages
    from tests.training.harness import flat, weights_of

    config = load_config(path)
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


if __name__ == "__main__":
    diffrl.registry.OBJECTIVES["imitation"] = sys.argv[1]
    from diffrl.cli import main

    main(["plan", sys.argv[2]])
    train(sys.argv[2])
