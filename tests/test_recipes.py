"""Every recipe loads, keeps its preset's method, says what it needs, and runs on its family's tiny pipeline."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from diffrl.config import load_config
from diffrl.config.rollout import Window
from diffrl.data.prompts import load_prompts
from reward_models import load_reward
from reward_models.scoring.choices import factory_of
from tests.training.harness import BRIGHTNESS, make_trainer

ROOT = Path(__file__).parents[1]
FAMILIES = ("sd3", "flux", "sana", "wan")
PRESETS = (
    "flow_grpo", "dance_grpo", "mix_grpo", "branch_grpo", "branch_grpo_mix", "tp_grpo", "sol_rl", "diffusion_nft",
    "tree_tilt", "diffrl", "diffrl_nft",
)  # fmt: skip
SMALL = ("configs/sd3/24gb.yaml", "configs/flux/24gb.yaml")
RECIPES = (*(f"configs/{family}/{preset}.yaml" for family in FAMILIES for preset in PRESETS), *SMALL)


@pytest.fixture
def make_recipes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_recipes

    return make_recipes


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
    assert found == expected


def shrunk(path, pipeline, directory):
    """A recipe small enough for a tiny pipeline: its method with six steps, one prompt and the fewest samples."""
    data = yaml.safe_load(path.read_text())
    rollout, tree = data["rollout"], data["rollout"]["tree"]
    data["run"] |= {"dir": str(directory), "iterations": 1, "eval_every": None}
    lora = data["model"]["lora"] and {"rank": 2, "alpha": 4}
    data["model"] = {"family": data["model"]["family"], "path": str(pipeline), "device": "cpu", "lora": lora}
    data["prompts"] |= {"train": "shapes:train", "eval": "shapes:held_out", "per_iteration": 1}
    rollout["steps"] = 6
    if "splits" in tree:
        tree["splits"] = {4: [0, 1, 2, 3], 2: [0, 2]}[len(tree["splits"])]
    else:
        tree["roots"] = 3
    if "explore" in rollout:
        # compiling on a CPU takes a minute; tests/precision/test_compiled.py has it
        rollout["explore"] |= {"engine": "emulated", "compile": False, "steps": 4, "candidates": 5, "keep": 3}
    data["rewards"] = [{"name": BRIGHTNESS}]
    data["eval"] |= {"samples": 1, "steps": 1, "rewards": data["rewards"]}
    data["guards"] = {}  # float32: the ratio before the first update is held to 1e-5
    return data


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_runs_an_iteration_on_its_family(family, preset, random_pipelines, tmp_path):
    """Evaluations are as planned, the first ratio is 1, and the weights move."""
    trainer = make_trainer(shrunk(ROOT / f"configs/{family}/{preset}.yaml", random_pipelines(family), tmp_path))
    before = {name: tensor.clone() for name, tensor in trainer.session.policy.state().items()}
    trainer.iterate()
    config, meter = trainer.config, trainer.session.meter
    if config.objective.trains_steps or config.objective.trains_nodes:
        assert trainer.on_policy_error <= 1e-5
    planned = {n: count for n, count in trainer.session.plan.network_evaluations.items() if n != "evaluation"}
    assert meter.evaluations["rollout"] == planned["rollout"] > 0
    assert sum(meter.evaluations.values()) + meter.skipped == sum(planned.values())
    assert any(not before[name].equal(tensor) for name, tensor in trainer.session.policy.state().items())
    assert isinstance(config.rollout.stochastic, Window) == (preset in ("mix_grpo", "branch_grpo_mix"))
