"""A policy can be trained on any sum of the scorers: on all of them at once, those with weights on tiny random ones."""

import json
import math

import pytest

from diffrl.training import scorers as scorers_module
from reward_models import SCORERS, load_reward
from tests.reward_models.test_contract import METADATA, TINY
from tests.training.harness import make_trainer, settings

SPECS = {"prompt": "a red circle", "include": [{"class": "clock", "count": 1}], "text": "red"}
CLIP_PROMPT = {"prompt": "a red circle moving left"}


@pytest.fixture
def tiny_rewards(monkeypatch, tmp_path):
    """Scorers with weights are loaded from tiny random ones in the published layout; all others as always."""
    made = {}

    def load(name, **options):
        if name not in TINY or options:
            return load_reward(name, **options)
        if name not in made:
            (folder := tmp_path / "weights" / name).mkdir(parents=True)
            made[name] = TINY[name](folder)
        return made[name]

    monkeypatch.setattr(scorers_module, "load_reward", load)
    return load


@pytest.mark.long
@pytest.mark.parametrize("family", ["sd3", "wan"])
def test_all_scorers_at_once(family, tiny_rewards, random_pipelines, tmp_path):
    kind = "video" if family == "wan" else "image"
    names = [name for name in sorted(SCORERS) if kind in tiny_rewards(name).spec.media]
    assert len(names) > (8 if kind == "video" else 15)
    row = {**SPECS, **{k: v for meta in METADATA.values() for k, v in meta.items()}} if kind == "image" else CLIP_PROMPT
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(row | {"number": i}) for i in range(3)))
    model = {"family": family, "path": str(random_pipelines(family)), "device": "cpu"}
    rewards = [{"name": name, "scale": 10.0, "batch_size": 2} for name in names]
    for reward in rewards:
        reward["options"] = {"reward": "contrast"} if reward["name"] == "video_mean" else {}
    data = settings(random_pipelines(family), tmp_path, rewards=rewards, model=model)
    data["prompts"] |= {"train": str(prompts), "eval": str(prompts)}
    data["guards"] = {"failed_samples": {"limit": 1.0}}
    trainer = make_trainer(data)
    done = trainer.iterate()
    metrics = done.metrics
    table = done.samples.table
    unscored = {name for name in names if table.raw[name].isnan().all()}
    assert not unscored, {name: table.errors for name in unscored}
    expected = sum(values / 10.0 for values in table.raw.values())
    assert (table.total - expected).abs()[table.ok].max() < 1e-3 * expected[table.ok].abs().max()
    assert metrics["samples/failed"] == 0 and math.isfinite(metrics["update/loss"]) and metrics["update/grad_norm"] > 0
