"""A policy can be trained on any sum of the scorers: on all of them at once, those with weights on tiny random ones."""

import json
import math

import pytest

from diffrl.data.geneval import CLASSES
from diffrl.models.families import FAMILIES
from diffrl.training import scorers as scorers_module
from reward_models import SCORERS, load_reward
from reward_models.videos import video_mean
from tests.edits import write_edits
from tests.reward_models import tiny_basic
from tests.reward_models.test_contract import METADATA, TINY
from tests.tiers import daily
from tests.training.harness import make_trainer, settings
from tests.training.test_presets import ROOT, recipe, recipe_of

SPECS = {"prompt": "a red circle", "include": [{"class": "clock", "count": 1}], "text": "red"}
CLIP_PROMPT = {"prompt": "a red circle moving left"}


@pytest.fixture
def tiny_rewards(monkeypatch, tmp_path):
    """Scorers with weights are loaded from tiny random ones in the published layout; all others as always."""
    made = {}

    def load(name, **options):
        if name not in TINY or options.keys() - {"dtype"}:
            return load_reward(name, **options)  # video_mean asks for its inner one below
        if name not in made:
            (folder := tmp_path / "weights" / name).mkdir(parents=True)
            made[name] = TINY[name](folder)
        return made[name]

    monkeypatch.setattr(scorers_module, "load_reward", load)
    monkeypatch.setattr(video_mean, "load_reward", load)
    monkeypatch.setattr(tiny_basic, "CLASSES", CLASSES)
    return load


def takes(spec, kind):
    """Whether a scorer looks at what such a family draws, which is no edit."""
    return kind in spec.media and not spec.uses_source


@pytest.mark.parametrize("family", daily(["sd3", "wan"], [], ["wan"]))
def test_all_scorers_at_once(family, tiny_rewards, random_pipelines, tmp_path):
    kind = "video" if family == "wan" else "image"
    names = [name for name in sorted(SCORERS) if takes(tiny_rewards(name).spec, kind)]
    assert len(names) > (8 if kind == "video" else 15)
    row = {**SPECS, **{k: v for meta in METADATA.values() for k, v in meta.items()}} if kind == "image" else CLIP_PROMPT
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(row | {"number": i}) for i in range(3)))
    model = {"family": family, "path": str(random_pipelines(family)), "device": "cpu"}
    rewards = [{"name": name, "scale": 10.0, "batch_size": 2} for name in names]
    for reward in rewards:
        reward["options"] = {"reward": "contrast"} if reward["name"] == "video_mean" else {}
    data = settings(random_pipelines(family), tmp_path, rewards=rewards, model=model)
    data["prompts"] |= {"train": str(prompts), "eval": str(prompts), "eval_on_train": True, "unscored": "warn"}
    data["guards"] = {"failed_samples": {"limit": 1.0}, "memory": "warn"}  # the plan counts published weights
    trainer = make_trainer(data)
    done = trainer.iterate()
    metrics = done.metrics
    table = done.samples.table
    unscored = {name for name in names if table.raw[name].isnan().all()}
    assert not unscored, {name: table.errors for name in unscored}
    expected = sum(values / 10.0 for values in table.raw.values())
    assert (table.total - expected).abs()[table.ok].max() < 1e-3 * expected[table.ok].abs().max()
    assert metrics["samples/failed"] == 0 and math.isfinite(metrics["update/loss"]) and metrics["update/grad_norm"] > 0


def chosen_of(family, preset):
    """What a recipe trains on, and each of its held-out judges; of video_mean the inner reward too."""
    data = recipe_of(family, preset)
    trained, judges = (
        [(reward["name"], *map(str, reward.get("options", {}).values())) for reward in rewards]
        for rewards in (data["rewards"], data["eval"]["rewards"])
    )
    return tuple(trained), set(judges)


ALL = [
    (family, path.stem)
    for family in FAMILIES
    for path in sorted((ROOT / "configs" / family).glob("*.yaml"))
    if path.stem != "dpo"  # which scores nothing in training
]


def some_of_each():
    """The first recipe of each family, of each sum of rewards and of each judge."""
    found, seen = [], set()
    for family, preset in ALL:
        trained, judges = chosen_of(family, preset)
        if not (own := {family, trained, *judges}) <= seen:
            found.append((family, preset))
            seen |= own
    return found


@pytest.mark.parametrize(("family", "preset"), daily(ALL, [], set(ALL) - set(some_of_each()[::3])))
def test_a_recipe_trains_on_its_own_rewards(family, preset, tiny_rewards, random_pipelines, tmp_path):
    """An iteration and an evaluation of a real-size recipe, small, with its own scorers on tiny random weights."""
    own, data = recipe_of(family, preset), recipe(preset, family, random_pipelines(family), tmp_path)
    data |= {"rewards": own["rewards"], "prompts": own["prompts"] | {"per_iteration": 1}}
    data["eval"] |= {"rewards": own["eval"]["rewards"], "samples": 2}
    data["guards"] = {"memory": "warn"}  # the plan counts published weights
    data["train"]["optimizer"] = "adamw"  # for the 8-bit one of small recipes, which needs CUDA
    if own["prompts"]["train"].startswith("hub:"):  # three prompts in place of the dataset
        (listed := tmp_path / "prompts.txt").write_text("a red circle\na blue square\na green circle\n")
        data["prompts"] |= {"train": str(listed), "eval": str(listed), "eval_on_train": True, "unscored": "warn"}
    if FAMILIES[family].edits:
        captions = {"source_caption": "a red circle", "target_caption": "a blue square"}
        listed = write_edits(tmp_path, **captions)
        data["prompts"] |= {"train": listed, "eval": listed, "eval_on_train": True, "unscored": "warn"}
    trainer = make_trainer(data)
    done, held_out = trainer.iterate(), trainer.evaluate()
    table = done.samples.table
    assert set(table.raw) == {reward.key for reward in trainer.config.rewards}
    assert done.metrics["samples/failed"] == 0 and math.isfinite(done.metrics["update/loss"])
    assert held_out.failed == 0 and {r.key for r in trainer.config.eval.rewards} <= set(held_out.means)
