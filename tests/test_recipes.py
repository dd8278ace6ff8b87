"""Every recipe loads, keeps its preset's method and says what it needs; tests/training/test_presets.py runs them."""

import re
import shlex
from pathlib import Path

import pytest

from diffrl.config import load_config
from diffrl.config.idle import idle_notes
from diffrl.data.prompts import load_prompts
from reward_models import load_reward
from reward_models.scoring.choices import factory_of
from tests.training.test_presets import PRESETS

ROOT = Path(__file__).parents[1]
FAMILIES = ("sd3", "flux", "sana", "wan")
SMALL = ("configs/sd3/24gb.yaml", "configs/flux/24gb.yaml")
RECIPES = (*(f"configs/{family}/{preset}.yaml" for family in FAMILIES for preset in PRESETS), *SMALL)


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
    for source in (config.prompts.train, config.prompts.eval):
        assert load_prompts(source)
    for reward in (*config.rewards, *config.eval.rewards):
        assert config.model.facts.media in load_reward(reward.name).spec.media
    size, processes = make_recipes.stated(path)
    assert size == make_recipes.expected(path, processes)
    header = path.read_text().split("\n\n")[0]
    launch = f"scripts/train.py {recipe}" if processes > 1 else f"diffrl train {recipe}"
    assert launch in header and f"--num_processes {processes}" * (processes > 1) in header
    assert re.search(r"^# Hardware: .+\.$", header, re.MULTILINE) and "# Ours: " in header and "# Yours: " in header
    page = re.search(r"docs/methods/\w+\.md", header)
    assert (ROOT / page[0]).is_file()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_headers_example_of_own_rewards_is_valid(recipe):
    """What the header suggests in place of the built-in world loads, and scores the family's medium."""
    header = (ROOT / recipe).read_text().split("\n\n")[0]
    example = header.partition("For example (docs/rewards.md):")[2].replace("#", "")
    overrides = shlex.split(example)
    assert [override.partition("=")[0] for override in overrides] == [
        "prompts.train", "prompts.eval", "rewards", "eval.rewards",
    ]  # fmt: skip
    config = load_config(ROOT / recipe, overrides)
    for reward in (*config.rewards, *config.eval.rewards):
        assert config.model.facts.media in factory_of(reward.name).spec.media


@pytest.mark.parametrize("recipe", SMALL)
def test_small_recipes_fit(recipe, make_recipes):
    size, processes = make_recipes.stated(ROOT / recipe)
    assert processes == 1 and size.endswith("GiB") and float(size.split()[0]) < 24 * 1e9 / 2**30


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_keeps_its_method(family, preset):
    tiny, large = (load_config(ROOT / f"configs/{name}/{preset}.yaml") for name in ("tiny-sd3", family))
    expected, found = method_of(tiny), method_of(large)
    if preset in NOISE:
        assert (expected["dynamics"], found["dynamics"]) == ("flow_sde", NOISE[preset])
        expected["dynamics"] = NOISE[preset]
    if preset == "diffusion_nft":  # the published code divides by the spread of the batch
        assert (expected["credit"].std, found["credit"].std) == ("group", "batch")
        expected["credit"] = expected["credit"].model_copy(update={"std": "batch"})
    assert found == expected
    assert not idle_notes(large) and not idle_notes(tiny)
