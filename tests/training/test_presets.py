"""Every preset on every family: one iteration of its own recipe, with the ratio 1 before the first update."""

from pathlib import Path

import pytest
import yaml

from diffrl.models.families import FAMILIES
from tests.training.harness import BRIGHTNESS, make_run, weights_of

ROOT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (ROOT / "configs/tiny-sd3").glob("*.yaml") if path.stem != "lora")
GUIDANCE = {"sd3": 1.0, "flux": 3.5, "sana": 4.5, "wan": 1.0, "qwen_image": 4.0}


def recipe(preset, family, pipeline, directory):
    """The preset's recipe on another pipeline, with a LoRA and a reward that tells random pictures apart."""
    data = yaml.safe_load((ROOT / f"configs/tiny-sd3/{preset}.yaml").read_text())
    data["run"] = {"name": "run", "dir": str(directory), "seed": 3, "iterations": 4, "checkpoint_every": 4}
    data["model"] = {"family": family, "path": str(pipeline), "device": "cpu", "lora": {"rank": 3, "alpha": 6}}
    data["prompts"]["per_iteration"] = 1
    data["rollout"] |= {"guidance_scale": GUIDANCE[family], "micro_batch": 16, "decode_batch": 16}
    if "explore" in data["rollout"]:
        data["rollout"]["explore"] |= {"candidates": 24}
    data["rewards"] = [{"name": BRIGHTNESS, "weight": 1.0}]
    data["train"] |= {"micro_batch": 16, "learning_rate": 1.0e-3, "warmup_updates": 0}
    data["eval"] = {"rewards": [{"name": BRIGHTNESS}], "samples": 2, "steps": 2}
    return data


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_one_iteration(preset, family, random_pipelines, tmp_path):
    trainer, run = make_run(recipe(preset, family, random_pipelines(family), tmp_path))
    before = weights_of(trainer)
    done = trainer.iterate()
    metrics = done.metrics
    run.journal.close()
    if trainer.config.objective.trains_steps or trainer.config.objective.trains_nodes:
        assert trainer.on_policy_error is not None and trainer.on_policy_error < 1e-5
    assert metrics["update/skipped"] == 0 and metrics["update/loss"] == metrics["update/loss"]
    assert metrics["groups/zero_spread"] == 0 and metrics["update/grad_norm"] > 0
    after = weights_of(trainer)
    assert all("lora_" in name for name in after)
    assert sum(not (before[name] == after[name]).all() for name in after) >= 0.4 * len(after)  # LoRA A moves once B has
    media = done.samples.rollout.images
    assert media.shape[-3:] == (3, 32, 32) and media.ndim == (5 if FAMILIES[family].media == "video" else 4)
