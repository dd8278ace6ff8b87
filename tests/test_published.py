"""Every page of a published method says what was published, what its recipe has, and why where they differ.

PUBLISHED was read from the sources named beside each preset: the authors' code wherever it could be had, because papers
leave settings open. A value that could not be found there is no row.
"""

import re
from pathlib import Path

import pytest

from diffrl.config import load_config
from diffrl.models.architecture import describe_pipeline
from diffrl.models.targets import names_layer
from tests.training.test_presets import PRESETS

ROOT = Path(__file__).parents[1]
PICK_A_PIC, HPD = {"prompts.train": "dataset/pickscore"}, {"prompts.train": "HPDv2"}
"""Prompts by the names that their authors' code or README has."""
OWN = {"chain", "tree_tilt", "diffrl", "diffrl_nft"}
"""Presets that have no paper."""

LORA = {"model.lora.rank": 32, "model.lora.alpha": 64}
FLOW_GRPO = {"model.height": 512, "rollout.steps": 10, "eval.steps": 40, "train.learning_rate": 3e-4,
             "train.weight_decay": 1e-4}  # fmt: skip
FULL_FLUX = {"model.height": 720, "model.lora": None, "train.learning_rate": 1e-5, "train.weight_decay": 1e-4}
BRANCHES = {
    "prompts.per_iteration": 16, "rollout.steps": 20, "rollout.dynamics": {"kind": "dance_sde", "eta": 0.3},
    "rollout.tree.roots": 1, "rollout.tree.branches": 2, "rollout.tree.splits": [0, 3, 6, 9],
    "rollout.tree.correlation": 4.0, "credit.fusion": "uniform", "credit.normalise": "depth", "objective.clip": 1e-3,
    "objective.kl": 0.0, "run.iterations": 300, "rewards": ["hpsv2"],
}  # fmt: skip

PUBLISHED = {
    # github.com/yifan123/flow_grpo: config/base.py, config/grpo.py (general_ocr_sd3, geneval_sd3), scripts/train_sd3.py
    "flow_grpo": FLOW_GRPO | LORA | {
        "prompts.train": "dataset/geneval", "rewards": ["geneval"],
        "prompts.per_iteration": 48, "rollout.guidance_scale": 4.5, "rollout.tree.roots": 24,
        "rollout.dynamics": {"kind": "flow_sde", "noise_level": 0.7}, "credit.std": "batch", "credit.clamp": 5.0,
        "objective.clip": 1e-4, "objective.kl": 0.04, "train.updates_per_iteration": 2,
    },
    # github.com/XueZeyue/DanceGRPO: scripts/finetune/finetune_flux_grpo.sh, fastvideo/train_grpo_flux.py, README.md.
    # 12 samples with gradients accumulated over 4 are three updates.
    "dance_grpo": FULL_FLUX | HPD | {
        "rewards": ["hpsv2"],
        "prompts.per_iteration": 16, "rollout.steps": 16, "rollout.guidance_scale": 3.5, "rollout.tree.roots": 12,
        "rollout.dynamics": {"kind": "dance_sde", "eta": 0.3}, "credit.std": "group", "credit.clamp": 5.0,
        "objective.clip": 1e-4, "objective.kl": 0.0, "train.updates_per_iteration": 3, "run.iterations": 300,
    },
    # github.com/Tencent-Hunyuan/MixGRPO: scripts/finetune/finetune_flux_grpo_MixGRPO.sh, fastvideo/train_grpo_flux.py.
    # 12 samples with gradients accumulated over 3 are four updates; 32 processes have a prompt each. README.md:
    # prompts, and the rewards of the released checkpoint.
    "mix_grpo": FULL_FLUX | HPD | {
        "rewards": ["hpsv2", "pickscore", "image_reward"],
        "prompts.per_iteration": 32, "rollout.steps": 25, "rollout.tree.roots": 12,
        "rollout.dynamics": {"kind": "flow_sde", "noise_level": 0.7}, "rollout.stochastic.size": 4,
        "rollout.stochastic.slide_every": 25, "credit.std": "group", "credit.clamp": 5.0, "objective.clip": 1e-4,
        "objective.kl": 0.0, "train.updates_per_iteration": 4,
    },
    # github.com/Fredreic1849/BranchGRPO: scripts/finetune/finetune_flux_branchgrpo_8gpus.sh
    "branch_grpo": FULL_FLUX | BRANCHES,
    "branch_grpo_mix": FULL_FLUX | BRANCHES | {"rollout.stochastic.size": 4},
    # github.com/YunzeTong/TurningPoint-GRPO: config/base.py, config/my_grpo.py (all *_sd3_fast_op3)
    "tp_grpo": FLOW_GRPO | {
        "prompts.train": "dataset/pickscore_sfw", "rewards": ["pickscore"],
        "prompts.per_iteration": 48, "rollout.guidance_scale": 4.5, "rollout.tree.roots": 24,
        "rollout.dynamics": {"kind": "cps", "noise_level": 0.7}, "credit.std": "group", "credit.clamp": 5.0,
        "objective.clip": 1e-5, "objective.kl": 0.0, "train.updates_per_iteration": 2,
    },
    # github.com/NVlabs/Sana: configs/sol_rl/base.py, configs/sol_rl/sd3.py (sd3_sol_rl_*); 6 levels are .6 of 10 steps
    "sol_rl": LORA | PICK_A_PIC | {
        "rewards": ["pickscore"],
        "model.height": 1024, "prompts.per_iteration": 48, "rollout.steps": 10, "rollout.guidance_scale": 1.0,
        "rollout.solver": "dpm2", "rollout.explore.precision": "nvfp4", "rollout.explore.steps": 6,
        "rollout.explore.candidates": 96, "rollout.explore.keep": 24, "rollout.explore.select": "best_worst",
        "credit.std": "batch", "objective.levels": 6, "objective.beta": 1.0, "objective.kl": 1e-4,
        "train.learning_rate": 3e-4, "train.weight_decay": 1e-4, "train.updates_per_iteration": 1,
        "train.max_grad_norm": 0.002, "eval.steps": 40,
    },
    # github.com/NVlabs/DiffusionNFT: config/base.py, config/nft.py (sd3_geneval), scripts/train_nft_sd3.py;
    # 9 levels are int(.99 * 10 steps)
    "diffusion_nft": FLOW_GRPO | LORA | {
        "prompts.train": "dataset/geneval", "rewards": ["geneval"],
        "prompts.per_iteration": 48, "rollout.guidance_scale": 1.0, "rollout.solver": "dpm2", "rollout.tree.roots": 24,
        "credit.std": "batch", "objective.levels": 9, "objective.beta": 1.0, "objective.kl": 1e-4,
        "objective.old_decay_rate": 0.001, "objective.old_decay_max": 0.5, "train.updates_per_iteration": 1,
        "train.ema.decay": 0.9,
    },
    # github.com/X-GenGroup/Flow-Factory: examples/{awm,dgpo,crd}/lora/sd3_5/default.yaml
    "awm": FLOW_GRPO | LORA | PICK_A_PIC | {
        "rewards": ["pickscore"],
        "prompts.per_iteration": 48, "rollout.steps": 14, "rollout.guidance_scale": 1.0, "rollout.tree.roots": 16,
        "credit.std": "batch", "credit.clamp": 1.0, "objective.levels": 6, "objective.noise_range": 0.9,
        "objective.weighting": "ghuber", "objective.power": 0.25, "objective.clip": 1.0, "objective.kl": 1e-4,
        "train.updates_per_iteration": 1,
    },
    "dgpo": FLOW_GRPO | PICK_A_PIC | {
        "rewards": ["pickscore"],
        "model.lora.rank": 64, "model.lora.alpha": 128, "prompts.per_iteration": 24, "rollout.guidance_scale": 4.5,
        "objective.guidance": 1.0,
        "rollout.tree.roots": 24, "credit.std": "batch", "credit.clamp": 5.0, "objective.levels": 4,
        "objective.noise_range": 0.6, "objective.beta": 10.0, "objective.clip": 0.05, "objective.kl": 1e-3,
        "objective.old_decay_rate": 0.001, "objective.old_decay_max": 0.3,
        "train.updates_per_iteration": 1, "eval.steps": 14,
    },
    "crd": FLOW_GRPO | LORA | {
        "prompts.train": "dataset/ocr", "rewards": ["ocr"],
        "prompts.per_iteration": 48, "rollout.guidance_scale": 1.0, "rollout.tree.roots": 24, "credit.std": "batch",
        "credit.clamp": 5.0, "objective.levels": 20, "objective.noise_range": 0.99, "objective.beta": 1.0,
        "objective.kl": 0.1, "objective.kl_guidance": 4.5, "objective.old_decay_rate": 0.005,
        "objective.old_decay_max": 0.999, "train.updates_per_iteration": 2,
    },
    # github.com/SalesforceAIResearch/DiffusionDPO: README.md, with 1e-8 times the batch of 2,048 (--scale_lr)
    "dpo": {
        "objective.beta": 5000.0, "objective.levels": 1, "prompts.per_iteration": 2048, "prompts.train": "pickapic_v2",
        "train.learning_rate": 2.048e-5,
    },
    # github.com/vanzll/DiffusionART: README.md, docs/README.md, docs/faq.md, of which the first lines were at hand
    "art": {"rollout.stochastic": {"kind": "none"}, "rollout.tree.roots": 8, "train.updates_per_iteration": 2},
}  # fmt: skip

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
JOINT = tuple(f"attn.{layer}" for layer in ATTENTION)
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")
LORAS = {
    # github.com/yifan123/flow_grpo: scripts/train_sd3.py, train_flux.py, train_wan2_1.py
    "sd3": (32, 64, JOINT),
    "flux": (64, 128, (*JOINT, *FEED_FORWARD)),
    "wan": (32, 64, ATTENTION),
}
"""Rank, alpha and layers of Flow-GRPO's LoRA, by family; of a name that a network lacks nothing is trained."""

HEAD = re.compile(r"^\| key \| published \| `(configs/(\w+)/(\w+)\.yaml)` \| why it differs \|$", re.MULTILINE)


def text(value):
    """A value as the pages write it."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text(one) for one in value) + "]"
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def value_at(config, key):
    """What a configuration has at a dotted key, sections as mappings and rewards as their names."""
    if key == "rewards":
        return [reward.name for reward in config.rewards]
    value = config
    for part in key.split("."):
        value = getattr(value, part)
    return value.model_dump() if hasattr(value, "model_dump") else value


def settings_of(preset):
    """A page's table: the recipe in its head, and key -> (published, recipe, reason)."""
    page = (ROOT / f"docs/methods/{preset}.md").read_text(encoding="utf-8")
    (head,) = HEAD.finditer(page)
    rows = page[head.end() :].strip().split("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    keys = [key.strip("`") for key, *_ in cells]
    assert len(set(keys)) == len(keys), f"{preset}: a key has two rows"
    return head[1], head[3], {key: tuple(rest) for key, (_, *rest) in zip(keys, cells, strict=True)}


@pytest.mark.parametrize("family", LORAS)
def test_the_lora_is_on_the_layers_that_flow_grpo_trains(family):
    rank, alpha, targets = LORAS[family]
    model = load_config(ROOT / f"configs/{family}/flow_grpo.yaml").model
    shapes = describe_pipeline(model.path).shapes["transformer"]
    layers = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
    published = {layer for layer in layers if re.search(rf"\.({'|'.join(map(re.escape, targets))})$", layer)}
    trained = {layer for layer in layers if any(names_layer(target, layer) for target in model.lora_targets)}
    assert trained == published and len(trained) > 100
    assert (model.lora.rank, model.lora.alpha) == (rank, alpha)


def test_every_published_preset_is_here():
    assert set(PUBLISHED) == {*PRESETS, "dpo"} - OWN


@pytest.mark.parametrize("preset", PUBLISHED)
def test_page_recipe_and_published_settings_agree(preset):
    path, name, rows = settings_of(preset)
    assert name == preset and (ROOT / path).is_file(), f"{preset}: the table's head names {path}"
    assert set(rows) == set(PUBLISHED[preset]), f"{preset}: rows of the page and published keys differ"
    config = load_config(ROOT / path)
    for key, published in PUBLISHED[preset].items():
        said, stated, reason = rows[key]
        has = text(value_at(config, key))
        assert said == text(published), f"{preset}, {key}: published is {text(published)}, the page says {said}"
        assert stated == has, f"{preset}, {key}: {path} has {has}, the page says {stated}"
        differs = has != text(published)
        assert bool(reason) == differs, (
            f"{preset}, {key}: published {said}, recipe {stated}: a reason is {'missing' if differs else 'too much'}"
        )
