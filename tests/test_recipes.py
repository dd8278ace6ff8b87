"""Recipes are what their tables make of them, keep their preset's method and ask for what can be had.

tests/training/test_presets.py runs them.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from make_recipes import files
from recipe_tables import SOURCES, make_recipe, recipes, tables

from diffrl.bundled import recipes as shipped
from diffrl.config import load_config
from diffrl.config.idle import unused_keys
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import TOYS
from diffrl.preflight.check import check_config
from diffrl.preflight.machine import target_machine
from reward_models.registry import factory_of
from tests.edits import image
from tests.tiers import daily

ROOT = Path(__file__).parents[1]
MADE = recipes()
FAST = next(e["families"] for e in tables()["exceptions"] if "stochastic" in e.get("settings", {}).get("rollout", {}))
RECIPES = [f"configs/{recipe.name}.yaml" for recipe in MADE]
CARDS = {"24gb": ("rtx4090", None), "16gb": (None, "16GB")}
"""What the last part of a small recipe's name promises that it fits."""
SMALL = [recipe for recipe in MADE if recipe.preset.split("_")[-1] in CARDS]
LARGE = [(recipe.family, recipe.preset) for recipe in MADE if recipe not in SMALL]

NOISE = {"tp_grpo": "cps", "branch_grpo": "dance_sde", "branch_grpo_mix": "dance_sde"}
"""Presets whose real sizes have the published noise, where the tiny recipes have Flow-GRPO's."""


def method_of(config):
    """What makes a preset what it is, its sizes left out."""
    r, o = config.rollout, config.objective
    return {
        "dynamics": r.dynamics and r.dynamics.kind,
        "stochastic": r.stochastic.kind,
        "trees": bool(r.tree.splits),
        "forest": bool(r.tree.splits) and r.tree.roots > 1,
        "leaves": r.tree.leaves_per_root,
        "explores": r.explore and (r.explore.precision, r.explore.select),
        "credit": config.credit,
        "objective": o.kind,
        "edges": getattr(o, "edges", None),
    }


@pytest.mark.long
def test_every_file_is_what_the_tables_and_the_planner_say():
    stale = [file.relative_to(ROOT) for file, text in files() if file.read_text(encoding="utf-8") != text]
    assert not stale, f"python scripts/make_recipes.py rewrites {stale}"


def test_these_are_all_recipes():
    """None lies beside them that the tables do not have, and their tables are no recipes."""
    by_hand = {name for name in shipped() if name.startswith("tiny-") or "/" not in name}
    assert {recipe.name for recipe in MADE} == set(shipped()) - by_hand
    assert not any(path.is_relative_to(SOURCES) for path in shipped().values())


@pytest.mark.parametrize("exception", tables()["exceptions"], ids=lambda e: f"{e['families'][0]}/{e['presets'][0]}")
def test_an_exception_says_why_and_changes_each_of_its_recipes(exception, monkeypatch):
    assert exception["because"]
    others = [one for one in tables()["exceptions"] if one is not exception]
    names = [(family, preset) for family in exception["families"] for preset in exception["presets"]]
    before = [make_recipe(*name) for name in names]
    monkeypatch.setitem(tables(), "exceptions", others)
    for recipe, name in zip(before, names, strict=True):
        assert recipe != remade(*name), name


METHOD = ("rollout.dynamics", "rollout.stochastic", "credit", "objective")


def test_the_page_lists_every_key_of_a_method_that_differs_between_families():
    """Files as they load, against the page: of two families that differ in a value one is named in the key's row."""
    cells = [line.strip("| ").split(" | ") for line in (ROOT / "docs/recipes.md").read_text().splitlines()]
    listed = {(row[0].strip("`"), row[1].strip("`")): row[3] for row in cells if len(row) == 4 and "`" in row[1]}
    seen = set()
    for preset in {recipe.preset for recipe in MADE}:
        settings = {r.family: dict(flat(yaml.safe_load(r.path.read_text()))) for r in MADE if r.preset == preset}
        for key in {key for values in settings.values() for key in values if key.startswith(METHOD)}:
            values = {family: settings[family].get(key) for family in settings}
            if len(set(values.values())) > 1:
                named = [family for family in values if re.search(rf"\b{family}\b", listed[preset, key])]
                assert len({value for family, value in values.items() if family not in named}) == 1, (preset, key)
                seen.add((preset, key))
    assert len(seen) > 15


def flat(settings, prefix=""):
    """Yield dotted keys and texts of nested settings."""
    for key, value in settings.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", str(value))]


def remade(family, preset):
    """A recipe, or None where it cannot be made without a fact that its exception has."""
    try:
        return make_recipe(family, preset)
    except KeyError:
        return None


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_whole(recipe):
    """It loads, and names prompts and scorers that exist for its medium; its header names its method's page."""
    path = ROOT / recipe
    config = load_config(path)
    it_asks_for_what_can_be_had(config)
    for source in (config.prompts.train, config.prompts.eval):  # toys teach a model of real size nothing
        assert source.partition(":")[0] not in TOYS
    assert not any("shapes" in reward.name for reward in (*config.rewards, *config.eval.rewards))
    assert config.guards.reward_hacking.action != "off"  # and there is something that it can see
    assert {reward.key for reward in config.eval.rewards} - {reward.key for reward in config.rewards}
    header = path.read_text().split("\n\n")[0]
    assert "# Ours: " in header and "# Prompts and rewards: " in header
    assert (ROOT / re.search(r"docs/methods/\w+\.md", header)[0]).is_file()


def it_asks_for_what_can_be_had(config):
    """Prompts that load or lie on the hub, others to measure on; scorers of the family's medium that can read them."""
    train, held_out = (
        ()
        if source.startswith(
            ("hub:", "mine.txt", "prompts.txt", "edits.jsonl", "images.jsonl", "mine.jsonl", "preferences.jsonl")
        )
        else load_prompts(source)
        for source in (config.prompts.train, config.prompts.held_out)
    )
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in held_out}
    assert config.prompts.train != config.prompts.held_out
    for rewards, prompts in ((config.rewards, train), (config.eval.rewards, held_out)):
        for spec in (factory_of(reward.name).spec for reward in rewards):
            assert config.model.facts.media in spec.media
            assert not (spec.weights or "").startswith("http")  # an address is a file that somebody has to fetch first
            assert all(key in prompt.metadata for prompt in prompts for key in spec.requires)
            assert prompts or config.model.facts.edits or not spec.requires  # of edits each line is one's own
            assert config.model.facts.edits or not spec.uses_source


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_the_header_offers_instead_is_valid(recipe):
    header = (ROOT / recipe).read_text().split("\n\n")[0]
    entries = (
        header.partition("# Others, as overrides (docs/recipes.md):\n")[2].replace("#     ", "").split("#   - ")[1:]
    )
    names, overrides = zip(*(re.split(r":\s", entry, maxsplit=1) for entry in entries), strict=True)
    assert "your own" in names or recipe.endswith("/dpo.yaml")  # which has no others
    assert len(set(names)) == len(names)
    for words in overrides:
        it_asks_for_what_can_be_had(load_config(ROOT / recipe, shlex.split(words)))


@pytest.mark.parametrize("recipe", daily(SMALL, SMALL[::4]), ids=lambda recipe: recipe.name)
def test_a_small_recipe_is_the_same_method_and_fits_its_card(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # what is not here is told, not refused
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    config, own = load_config(recipe.path), []
    *like, size = recipe.preset.split("_")
    if config.model.facts.edits:  # its prompts are a list of one's own
        image(0, config.model.height, config.model.width).save(tmp_path / "one.png")
        for part in ("train", "eval"):
            line = {"prompt": part, "source": "one.png", "source_caption": "a cat", "target_caption": "a dog"}
            (tmp_path / f"{part}.jsonl").write_text(json.dumps(line))
            own.append(f"prompts.{part}={tmp_path / part}.jsonl")
    said = check_config(load_config(recipe.path, own), recipe.processes, target_machine(*CARDS[size]))
    assert recipe.processes == 1 and said[-1].startswith("The configuration is fine")
    assert any(line.startswith("memory ") for line in said)
    if like:
        whole = load_config(ROOT / f"configs/{recipe.family}/{'_'.join(like)}.yaml")
        left, right = (dict(flat(without_places(one.model_dump()))) for one in (config, whole))
        changed = {key for key in left.keys() | right.keys() if left.get(key) != right.get(key)}
        assert all(key.startswith(GIVES_WAY) for key in changed), changed


GIVES_WAY = (
    "run.name", "run.eval_every", "model.base_precision", "model.lora.rank", "model.lora.alpha", "model.offload",
    "model.vae_slicing", "prompts.per_iteration", "rollout.draw", "rollout.micro_batch", "train.optimizer",
    "train.micro_batch", "train.gradient_checkpointing", "eval.samples",
)  # fmt: skip
"""Keys in which a recipe for one small GPU may differ from the method that it is like."""


def without_places(config):
    """A configuration in which rewards do not say on what they are computed."""
    rewards, held_out = (
        [reward | {"dtype": None, "device": None, "options": without_dtype(reward["options"])} for reward in found]
        for found in (config["rewards"], config["eval"]["rewards"])
    )
    return config | {"rewards": rewards, "eval": config["eval"] | {"rewards": held_out}}


def without_dtype(options):
    """A reward's options in which what it averages has no dtype."""
    inner = {key: value for key, value in options.get("reward_options", {}).items() if key != "dtype"}
    return {**options, "reward_options": inner}


@pytest.mark.parametrize(("family", "preset"), LARGE)
def test_a_preset_keeps_its_method(family, preset):
    tiny, large = (load_config(ROOT / f"configs/{name}/{preset}.yaml") for name in ("tiny-sd3", family))
    expected, found = method_of(tiny), method_of(large)
    if preset in NOISE:
        assert (expected["dynamics"], found["dynamics"]) == ("flow_sde", NOISE[preset])
        expected["dynamics"] = NOISE[preset]
    if family in FAST and preset == "flow_grpo":  # the authors' fast variant, which they have for Qwen-Image
        assert (expected["stochastic"], found["stochastic"]) == ("all", "window")
        expected |= {"stochastic": "window", "credit": expected["credit"].model_copy(update={"std": large.credit.std})}
    if preset == "diffusion_nft":  # the published code divides by the spread of the batch
        assert (expected["credit"].std, found["credit"].std) == ("group", "batch")
        expected["credit"] = expected["credit"].model_copy(update={"std": "batch"})
    if preset == "mix_grpo" and len(large.rewards) > 1:  # several rewards are compared one by one, as published
        assert (expected["credit"].combine, found["credit"].combine) == ("sum", "gdpo")
        expected["credit"] = expected["credit"].model_copy(update={"combine": "gdpo"})
    assert found == expected
    assert not unused_keys(large) and not unused_keys(tiny)
