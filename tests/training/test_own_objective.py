"""The test of the design: an objective that nothing in the library has heard of trains, is planned and is recorded.

As CONTRIBUTING says, it is a file with a section beside its loss, and a line in the registry.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.training.harness import settings

FILE = '''
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

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
'''

RUN = """
import sys
import diffrl.registry
diffrl.registry.OBJECTIVES["imitation"] = "imitation:ImitationSettings"
from pathlib import Path
import torch
from diffrl.config.load import load_config
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from tests.training.harness import flat, weights_of

config = load_config(sys.argv[1])
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
"""


@pytest.mark.long
def test_an_objective_is_a_file_and_a_line(random_sd3, tmp_path):
    """In a process of its own: the registry is read with the configuration."""
    (tmp_path / "imitation.py").write_text(FILE)
    data = settings(random_sd3, tmp_path, track={"trees": {"prompts": 1}}, objective={"kind": "imitation"})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run.yaml")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
