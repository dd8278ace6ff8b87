"""A run that goes wrong half-way, end to end: what is kept of it, what is said, and what leaves the house."""

import pytest

from diffrl.checkpoint.files import newest_first, step_of
from diffrl.errors import ConfigError
from diffrl.export.diffusers import export_run
from diffrl.run.checkpoints import NEWEST
from diffrl.tracking.health import read_health
from tests.training.harness import BRIGHTNESS, go_on, settings, start

UNLIKE = "guards.reward_hacking.sharpness=1.0000001"
"""Any difference in sharpness from the first samples is an alarm."""
LORA = {"lora": {"rank": 2, "alpha": 2}}


@pytest.fixture
def data(random_sd3, tmp_path):
    run = {"iterations": 2, "eval_every": 1, "checkpoint_every": 1, "keep_checkpoints": 2}
    model = {"family": "sd3", "path": str(random_sd3), "device": "cpu", **LORA}
    guards = {"reward_hacking": {"sharpness": 1e9, "diversity": 0.0, "held_out_drop": 1e9}}
    return settings(random_sd3, tmp_path, run=run, model=model, guards=guards)


def test_a_run_that_went_wrong_ships_its_last_healthy_model(data, tmp_path):
    start(data)
    run = tmp_path / "run"
    shown = go_on(run, "run.iterations=6", UNLIKE)
    assert "This looks like reward hacking" in shown and "Add what falls to rewards" in shown
    assert "The last evaluation is not healthy (hacked): generate, evaluate and export take iteration 2" in shown
    best = read_health(run, BRIGHTNESS).best(range(1, 7))
    assert {2, 5, 6} <= {step_of(path) for path in newest_first(run / "checkpoints")} <= {2, 5, 6, best}
    lines = export_run(run, tmp_path / "sound")
    assert "Taken: iteration 2, the newest healthy one." in lines[0] and "LoRA of iteration 2 written" in lines[1]
    assert "not healthy" not in (tmp_path / "sound/README.md").read_text()
    (line,) = export_run(run, tmp_path / "newest", NEWEST)
    assert "iteration 6" in line
    assert "**Its evaluation is not healthy: hacked**" in (tmp_path / "newest/README.md").read_text()


def test_a_run_that_never_was_well_ships_nothing_unnamed(data, tmp_path):
    data["guards"]["reward_hacking"]["sharpness"] = 1.0000001
    data["run"] |= {"iterations": 3, "checkpoint_every": 2, "eval_every": None}
    data["eval"]["samples"] = 2
    shown = start(data)[1]
    assert "no checkpoint is healthy, so generate, evaluate and export want --best, --step or --newest" in shown
    with pytest.raises(ConfigError, match=r"Compare .*eval-000000/.* with .*eval-000003/"):
        export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_of_unsafe_images_ships_nothing_unnamed(data, tmp_path):
    """Said at each of three evaluations, the one before training among them, and answered like any other alarm."""
    data["guards"]["safety"] = {"reward": BRIGHTNESS, "limit": 1.0}
    shown = " ".join(start(data)[1].split())
    assert shown.count("This looks like unsafe images: ") == 3 and "Compare the run's samples/eval-000000/" in shown
    assert "generate, evaluate and export want --best, --step or --newest" in shown
    with pytest.raises(ConfigError, match="is not healthy: unsafe"):
        export_run(tmp_path / "run", tmp_path / "out")
