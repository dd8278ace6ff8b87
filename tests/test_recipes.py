"""Every recipe loads, keeps its preset's method and says what it needs; tests/training/test_presets.py runs them."""

import re
import shlex
from pathlib import Path

import pytest

from diffrl.config import load_config
from diffrl.config.idle import unused_keys
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import TOYS
from reward_models.scoring.choices import factory_of
from tests.training.test_presets import PRESETS

ROOT = Path(__file__).parents[1]
NEWER = ("qwen_image", "z_image", "flux2_klein")
FAMILIES = ("sd3", "flux", "sana", "wan", "hunyuan_video", *NEWER)
EDITING = ("flux_kontext", "qwen_image_edit", "wan_i2v")
LARGE = [*((family, preset) for family in FAMILIES for preset in PRESETS), *((family, "diffrl") for family in EDITING)]
SMALL = ("configs/sd3/24gb.yaml", "configs/flux/24gb.yaml")
RECIPES = (*(f"configs/{family}/{preset}.yaml" for family, preset in LARGE), *SMALL)


@pytest.fixture
def make_recipes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_recipes

    return make_recipes


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


def test_these_are_all_recipes(make_recipes):
    assert sorted(path.relative_to(ROOT).as_posix() for path in make_recipes.recipes()) == sorted(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_whole(recipe, make_recipes):
    """It loads, names prompts and scorers that exist for its medium, and its header holds what `diffrl plan` says."""
    path = ROOT / recipe
    config = load_config(path)
    assert config.model.family == path.parent.name
    assert config.run.name == f"{path.parent.name}-{path.stem.replace('_', '-')}"
    it_asks_for_what_can_be_had(config)
    for source in (config.prompts.train, config.prompts.eval):  # toys teach a model of real size nothing
        assert source.partition(":")[0] not in TOYS
    assert not any("shapes" in reward.name for reward in (*config.rewards, *config.eval.rewards))
    assert config.guards.reward_hacking.action != "off"  # and there is something that it can see
    assert {reward.key for reward in config.eval.rewards} - {reward.key for reward in config.rewards}
    size, processes = make_recipes.stated(path)
    assert size == make_recipes.expected(path, processes)
    header = path.read_text().split("\n\n")[0]
    launch = f"scripts/train.py {recipe}" if processes > 1 else f"diffrl train {recipe}"
    assert launch in header and f"--num_processes {processes}" * (processes > 1) in header
    assert re.search(r"^# Hardware: .+\.$", header, re.MULTILINE) and "# Ours: " in header
    assert "# Prompts and rewards: " in header
    page = re.search(r"docs/methods/\w+\.md", header)
    assert (ROOT / page[0]).is_file()


def it_asks_for_what_can_be_had(config):
    """Prompts that load or lie on the hub, others to measure on; scorers of the family's medium that can read them."""
    train, held_out = (
        ()
        if source.startswith(("hub:", "mine.txt", "prompts.txt", "edits.jsonl", "images.jsonl", "mine.jsonl"))
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
    names, overrides = zip(*(entry.split(": ", 1) for entry in entries), strict=True)
    assert "your own" in names and len(set(names)) == len(names)
    for words in overrides:
        it_asks_for_what_can_be_had(load_config(ROOT / recipe, shlex.split(words)))


@pytest.mark.parametrize("recipe", SMALL)
def test_small_recipes_fit(recipe, make_recipes):
    size, processes = make_recipes.stated(ROOT / recipe)
    assert processes == 1 and size.endswith("GiB") and float(size.split()[0]) < 24 * 1e9 / 2**30


@pytest.mark.parametrize(("family", "preset"), LARGE)
def test_a_preset_keeps_its_method(family, preset):
    tiny, large = (load_config(ROOT / f"configs/{name}/{preset}.yaml") for name in ("tiny-sd3", family))
    expected, found = method_of(tiny), method_of(large)
    if preset in NOISE:
        assert (expected["dynamics"], found["dynamics"]) == ("flow_sde", NOISE[preset])
        expected["dynamics"] = NOISE[preset]
    if family in NEWER and preset == "flow_grpo":  # the authors' fast variant, which they have for Qwen-Image
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
