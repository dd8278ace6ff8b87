"""Every preset on every family, once: the recipe is opened, one iteration is trained, and all that it promises is held.

CI sees each preset once, half of them every day, each family with one of them at least, and one family of each kind
with the preset diffrl as well, which asks most of it (trees, a pool, a copy in low precision): a family is an adapter,
a preset a choice of sections, and no section looks at the family but by its medium, its guidance and whether it edits.
`make test-all` sees all pairs.
"""

import math
from pathlib import Path

import pytest
import yaml
from PIL import Image
from recipe_tables import tables

from diffrl.config.rollout import Window
from diffrl.cost.meter import network_evaluations
from diffrl.models.families import FAMILIES
from diffrl.trees.read import list_trees, read_tree
from diffrl.trees.record import EFFECT_IMAGES
from reward_models.media import read_media
from tests.edits import prompts_of
from tests.tiers import daily
from tests.training.harness import BRIGHTNESS, GREEN, make_run, weights_of

ROOT = Path(__file__).parents[2]
PRESETS = tuple(
    name
    for name, method in tables()["methods"].items()
    if "only" not in method and "rollout" not in method.get("without", ())
)
"""Of every family; dpo, which draws nothing, is in tests/training/test_pairs.py."""
FAST = next(e["families"] for e in tables()["exceptions"] if "stochastic" in e.get("settings", {}).get("rollout", {}))
"""Families whose recipe flow_grpo trains a few steps alone."""
SUMS = {
    "image": ("shapes", "jpeg_compressibility", "sharpness", "colourfulness", "contrast", "diversity"),
    "video": (BRIGHTNESS, GREEN),
}
"""Rewards that are added up, of which one at least tells any two random pictures apart."""
PAIRS = [(preset, family) for preset in PRESETS for family in FAMILIES]
EACH = [(preset, list(FAMILIES)[i % len(FAMILIES)]) for i, preset in enumerate(PRESETS)]
OF_KINDS = ("sana", "flux", "wan_i2v", "qwen_image_edit")
"""Families of CI for the preset diffrl: images and clips, packed or not, guided or not, and edits."""
RARE = {(preset, family) for preset, family in PAIRS if preset != "diffrl" or family not in OF_KINDS} - set(EACH)


def recipe(preset, family, pipeline, directory):
    """The family's recipe, small enough for a tiny pipeline: its method with six steps, one prompt, the fewest samples.

    A family without recipes of its own takes those of the embedded pipeline.
    """
    data = recipe_of(family if (ROOT / f"configs/{family}/{preset}.yaml").exists() else "tiny-sd3", preset)
    rollout, tree, rewards = data["rollout"], data["rollout"]["tree"], _sums(family)
    data["run"] |= {"name": "run", "dir": str(directory), "seed": 3, "iterations": 1, "eval_every": None}
    data["model"] = {"family": family, "path": str(pipeline), "device": "cpu", "lora": {"rank": 3, "alpha": 6}}
    data["prompts"] |= {**prompts_of(family, directory), "per_iteration": 1}
    rollout |= {"steps": 6, "guidance_scale": guidance(family), "micro_batch": 16, "decode_batch": 16}
    if "splits" in tree:
        tree["splits"] = {4: [0, 1, 2, 3], 2: [0, 2]}[len(tree["splits"])]
    else:
        tree["roots"] = 3
    if "explore" in rollout:
        # compiling on a CPU takes a minute; tests/precision/test_compiled.py has it
        rollout["explore"] |= {"engine": "emulated", "compile": False, "steps": 4, "candidates": 5, "keep": 3}
        if "splits" in tree:
            tree["branches"] = 2
            rollout["explore"] |= {"candidates": 8, "keep": 5}
    if "draw" in rollout:
        rollout["draw"] |= {"engine": "emulated", "compile": False}
    if data["objective"]["kind"] == "art":
        data["objective"]["levels"] = 4
    data["rewards"] = [{"name": name, "scale": 100.0, "batch_size": 5} for name in rewards]
    data["train"] |= {"micro_batch": 16, "learning_rate": 1.0e-3, "warmup_updates": 0}
    data["eval"] = {"rewards": [{"name": BRIGHTNESS}], "samples": 1, "steps": 1}
    data["guards"] = {}  # float32: the ratio before the first update is held to 1e-5
    return data


def guidance(family):
    """The scale of its recipes; the oldest two are trained without, at half the price."""
    if family in ("sd3", "wan") or family not in tables()["models"]:
        return 1.0
    return float(tables()["models"][family]["facts"]["guidance"])


def _sums(family):
    """Rewards for a family: those that read what prompts ask for where they come with such words."""
    own = SUMS[FAMILIES[family].media]
    return tuple(name for name in own if name != "shapes") if FAMILIES[family].edits else own


def recipe_of(family, preset):
    """A recipe as its file has it."""
    return yaml.safe_load((ROOT / f"configs/{family}/{preset}.yaml").read_text(encoding="utf-8"))


def test_these_are_all_presets():
    assert set(PRESETS) == {path.stem for path in (ROOT / "configs/tiny-sd3").glob("*.yaml")} - {"lora", "dpo"}
    assert {family for _, family in EACH} == set(FAMILIES)


@pytest.mark.parametrize(("preset", "family"), daily(PAIRS, EACH[::2], RARE))
def test_a_preset_trains(preset, family, random_pipelines, tmp_path):
    trainer, run = make_run(recipe(preset, family, random_pipelines(family), tmp_path))
    before = weights_of(trainer)
    done = trainer.iterate()
    run.journal.trees(done.trees)
    metrics = done.metrics
    it_learns(trainer, metrics, before)
    it_costs_what_was_planned(trainer)
    config, images = trainer.config, done.samples.rollout.images
    assert images.shape[-3:] == (3, 32, 32) and images.ndim == (5 if FAMILIES[family].media == "video" else 4)
    if not (preset == "flow_grpo" and family in FAST):
        assert isinstance(config.rollout.stochastic, Window) == (preset in ("mix_grpo", "branch_grpo_mix"))
    assert {f"reward/{reward.key}" for reward in config.rewards} <= metrics.keys()
    assert metrics["samples/failed"] == 0 and metrics["groups/zero_spread"] == 0
    it_leaves_a_readable_tree(run.journal.run_dir, config, images)


def it_learns(trainer, metrics, before):
    """On policy before the first update, and then the LoRA moves by a finite gradient."""
    if trainer.config.objective.trains_steps or trainer.config.objective.trains_nodes:
        assert trainer.updater.on_policy_error is not None and trainer.updater.on_policy_error < 1e-5
    assert metrics["update/skipped"] == 0 and math.isfinite(metrics["update/loss"])
    assert 0 < metrics["update/grad_norm"] < math.inf
    after = weights_of(trainer)
    assert all("lora_" in name for name in after)
    assert sum(not (before[name] == after[name]).all() for name in after) >= 0.4 * len(after)  # LoRA A moves once B has


def it_costs_what_was_planned(trainer):
    meter, plan = trainer.session.meter, trainer.session.plan
    planned = {name: count for name, count in plan.network_evaluations.items() if name != "evaluation"}
    counted = network_evaluations(meter.state()) + meter.skipped
    if plan.exact:
        assert meter.evaluations["rollout"] == planned["rollout"] > 0
        assert counted == sum(planned.values())
    else:  # how many prefixes the chosen share depends on their rewards
        assert 0 < meter.evaluations["rollout"] <= planned["rollout"]
        assert counted <= sum(planned.values())


def it_leaves_a_readable_tree(run, config, images):
    """Every file is named by a node, every drawn node has its picture, and what trained is what the loss was of."""
    (name,) = list_trees(run)
    tree = read_tree(run, *name)
    files = {path.name for path in (run / "trees" / tree.name).iterdir()} - {"tree.json"}
    ends, splits = (
        [node for node in tree.nodes if node.leaf],
        [node.update_effect for node in tree.nodes if node.update_effect],
    )
    named = [node.picture for node in tree.nodes] + [node.leaf.proxy_picture for node in ends]
    named += [getattr(own, which) for own in splits for which in EFFECT_IMAGES]
    assert files == {name for name in named if name}
    drawn = [node for node in ends if node.sampled]
    assert len(drawn) == len(images)
    for node in drawn:
        with Image.open(run / "trees" / tree.name / node.picture) as image:
            assert read_media(image).shape == images.shape[1:]
    assert (tree.explored is None) == (config.rollout.explore is None)
    assert all(node.leaf.proxy is not None for node in ends) == (tree.explored is not None)
    edges = [node for node in tree.nodes if node.parent is not None and node.sampled]
    assert all(node.log_ratio is not None for node in edges) and bool(edges) == bool(tree.branching)
    assert any(node.trained for node in edges) == tree.rule["edges"]
    assert any(node.leaf.trained for node in drawn) == tree.rule["samples"]
    assert any(own.trained for own in splits) == any(own.aim for own in splits) == tree.rule["nodes"]
    for value, one in [(n.credited, n) for n in edges] + [(n.leaf.total, n.leaf) for n in drawn]:
        if one.spread is not None:
            whole, clamp = (value - one.centre) / one.spread, tree.rule["clamp"]
            assert one.advantage == pytest.approx(max(-clamp, min(clamp, whole)), rel=1e-3, abs=1e-4)
    assert any(n.spread for n in edges) >= (tree.rule["reward"] != "outcome" and any(n.advantage for n in edges))
    assert all((n.turns is not None) == (tree.rule["reward"] == "turning_point") for n in edges)
    assert all(n.turning == any((n.turns or {}).values()) for n in edges)
    assert not any(n.pruned and n.trained for n in edges) and (tree.rule["prune"] or not any(n.pruned for n in edges))
