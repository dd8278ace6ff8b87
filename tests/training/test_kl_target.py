"""The pull's weight follows its target: as if objective.kl had been that from the start of each iteration."""

import copy

import pytest
import torch

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.training.update import adapted
from tests.training.harness import (
    FOREST,
    flat,
    go_on,
    last_checkpoint,
    make_trainer,
    rows_of,
    settings,
    start,
    weights_of,
)

TILT = {"kind": "tilt", "kl": 0.5, "kl_guidance": 3.0}


def tilted(pipeline, directory, name="run", **objective):
    data = settings(pipeline, directory, rollout=FOREST, objective=TILT | objective)
    data["train"]["updates_per_iteration"] = 1
    data["run"] |= {"iterations": 4, "name": name, "checkpoint_every": 1}
    return data


def test_the_rule():
    """Twice as much beyond 1.5 times the target, half as much within a 1.5th of it, and bounded."""
    for distance, factor in ((3.01, 2.0), (3.0, 1.0), (2.0, 1.0), (4 / 3, 1.0), (1.33, 0.5), (0.0, 0.5)):
        assert adapted(1.0, distance, 2.0) == factor
    assert adapted(1024.0, 9.0, 1.0) == 1024.0 and adapted(1 / 1024, 0.0, 1.0) == 1 / 1024


@pytest.mark.parametrize(("kind", "target", "factor"), [("tilt", 1e-6, 2.0), ("grpo", 1e6, 0.5)])
def test_an_iteration_is_as_with_that_weight_from_the_start(random_sd3, tmp_path, kind, target, factor):
    """Weights after two iterations are those of a run at a constant weight that begins where the first one ended."""
    objective = {"kind": kind, "kl": 0.5, "kl_guidance": 3.0}
    data = tilted(random_sd3, tmp_path / "one", **objective, kl_target=target)
    one = make_trainer(data)
    constant = copy.deepcopy(data)
    constant["run"]["dir"], constant["objective"] = str(tmp_path / "other"), objective | {"kl": 0.5 * factor}
    other = make_trainer(constant)
    first = one.iterate().metrics
    assert first["update/kl_weight"] == 0.5 and first["update/reference_kl"] > 1e-5
    other.session.policy.restore(weights_of(one))
    other.session.optimizer.load_state_dict(copy.deepcopy(one.session.optimizer.state_dict()))
    other.iteration, other.updater.updates = one.iteration, one.updater.updates
    before = flat(weights_of(one))
    assert one.iterate().metrics["update/kl_weight"] == 0.5 * factor
    assert "update/kl_weight" not in other.iterate().metrics
    assert torch.equal(flat(weights_of(one)), flat(weights_of(other)))
    assert not torch.equal(before, flat(weights_of(one)))


def test_it_is_resumed_bit_for_bit(random_sd3, tmp_path):
    whole, _ = start(tilted(random_sd3, tmp_path / "whole", kl_target=1e-6))
    data = tilted(random_sd3, tmp_path / "parts", kl_target=1e-6)
    data["run"]["iterations"] = 2
    parts, _ = start(data)
    go_on(parts, "run.iterations=4")
    for run in (whole, parts):
        assert [row["update/kl_weight"] for row in rows_of(run)[1:]] == [0.5, 1.0, 2.0, 4.0]
    assert last_checkpoint(whole)[1] == last_checkpoint(parts)[1]


def test_a_target_without_a_pull_is_refused(random_sd3, tmp_path):
    with pytest.raises(ConfigError, match=r"objective\.kl_target must be left at null while objective\.kl is 0"):
        make_config(tilted(random_sd3, tmp_path, kl=0.0, kl_guidance=None, kl_target=0.5))
