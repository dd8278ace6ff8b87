"""Trees, exploration, credit and objectives: what does not go together is one message that says how to mend it."""

import copy

import pytest

from diffrl.config.load import load_config, make_config
from diffrl.errors import ConfigError
from diffrl.models.families import FAMILIES

FOREST = {"roots": 3, "splits": [0, 2]}
EXPLORE = {"precision": "int8", "candidates": 24, "keep": 12}
NFT, TILT, NO_NOISE = {"kind": "nft"}, {"kind": "tilt"}, {"dynamics": None, "stochastic": {"kind": "none"}}


def data_of(**changes):
    """A forest of 3 trees with 4 leaves each, splits alone stochastic; `changes` are merged in, None removes."""
    data = {
        "run": {"iterations": 7},
        "model": {"family": "sd3", "path": "somewhere"},
        "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 5},
        "rollout": {
            "steps": 7,
            "dynamics": {"kind": "flow_sde"},
            "stochastic": {"kind": "splits"},
            "tree": dict(FOREST),
        },
        "rewards": [{"name": "shapes"}, {"name": "shapes_strict"}],
        "credit": {"reward": "fused", "normalise": "depth"},
        "objective": {"kind": "grpo"},
        "train": {"learning_rate": 1e-4},
        "eval": {"rewards": [{"name": "shapes"}], "samples": 11, "steps": 3},
    }
    for section, values in changes.items():
        if isinstance(values, list) or section == "objective":
            data[section] = values
        elif section in ("rollout", "train", "run"):
            data[section] = {k: v for k, v in (data[section] | values).items() if v is not None}
        else:
            data[section] = values
    return copy.deepcopy(data)


CHAINS = {"tree": {"roots": 5}, "stochastic": {"kind": "all"}}
GOOD = {
    "forest": {},
    "branches for each split": {"rollout": {"tree": FOREST | {"branches": [2, 3]}}},
    "independent siblings": {"rollout": {"tree": FOREST | {"correlation": None}}},
    "one tree": {"rollout": {"tree": {"roots": 1, "splits": [5]}}},
    "window and splits": {"rollout": {"stochastic": {"kind": "window", "size": 2, "slide_every": 1}}},
    "explore": {"rollout": {"explore": EXPLORE | {"steps": 5, "audit": 3}}},
    "explore, all": {"rollout": {"explore": EXPLORE | {"candidates": 12, "select": "all", "audit": 0}}},
    "turning points": {"credit": {"reward": "turning_point"}},
    "tp_grpo": {"rollout": CHAINS, "credit": {"reward": "turning_point", "value": "ode"}},
    "nft": {"rollout": {"tree": {"roots": 5}} | NO_NOISE, "objective": NFT, "credit": {}},
    "nft and edges": {"objective": NFT | {"old_decay_max": 0.0, "edges": {"weight": 0.3}}},
    "awm": {"rollout": {"tree": {"roots": 5}} | NO_NOISE, "objective": {"kind": "awm"}, "credit": {"clamp": 1.0}},
    "dgpo of a forest": {"objective": {"kind": "dgpo", "noise_range": 0.6}, "credit": {}},
    "crd, as many updates as levels": {
        "objective": {"kind": "crd", "levels": 3},
        "credit": {},
        "train": {"updates_per_iteration": 3},
    },
    "tilt": {"objective": TILT, "credit": {}},
    "tilt of all nine nodes": {"objective": TILT | {"nodes": {"keep": 9, "by": "random"}}, "credit": {}},
    "tilt of a share": {"objective": TILT | {"nodes": {"keep": 0.5}}, "credit": {}},
    "tilt of a pool's nodes": {
        "objective": TILT | {"nodes": {"keep": 18}},
        "credit": {},
        "rollout": {"explore": EXPLORE | {"keep": 12}},
    },
    "tilt of pruned trees": {"objective": TILT, "credit": {"prune": {"width": "extremes", "best": 2}}},
    "gdpo": {"credit": {"combine": "gdpo"}},
    "mc-grpo": {"credit": {"baseline": "median", "std": "mad"}},
    "mc-grpo by depth": {"credit": {"reward": "fused", "normalise": "depth", "baseline": "median", "std": "mad"}},
    "pruned to steps of single children, which fused values credit": {
        "rollout": {"stochastic": {"kind": "all"}, "tree": {"roots": 1, "splits": [0, 1]}},
        "credit": {"reward": "fused", "normalise": "depth", "prune": {"depth": {"size": 2}}},
    },
    "pruned": {"credit": {"prune": {"width": "extremes", "best": 2, "depth": {"size": 1}}}},
}


@pytest.mark.parametrize("case", GOOD)
def test_what_goes_together_loads(case):
    make_config(data_of(**GOOD[case]))


BAD = [
    # finished samples
    ({"objective": {"kind": "dgpo", "levels": 2}, "credit": {}, "train": {"updates_per_iteration": 3}},
     "train.updates_per_iteration must be <= objective.levels with objective.kind: dgpo, of which an update trains "
     "whole groups, a noise level at least. Got 3, with levels=2. Lower updates_per_iteration or add levels."),
    ({"objective": {"kind": "awm", "weighting": "huber", "power": 0.5}, "credit": {}},
     "objective.power must be left at 0.25 with objective.weighting: huber, where it has no effect. Got 0.5. Set "
     "weighting: ghuber or remove power."),
    ({"objective": {"kind": "awm", "weighting": "t"}, "credit": {}},
     "objective.weighting must be one of uniform, sigma, sigma_squared, huber, ghuber, normalised. Got \"t\"."),
    ({"objective": {"kind": "crd"}},
     "credit.reward must be outcome, and credit.prune empty, with objective.kind: crd: it trains whole samples, not "
     "steps. Got reward=\"fused\". Set them so, or choose another objective."),
    ({"objective": NFT | {"noise_range": 0}, "credit": {}}, "objective.noise_range must be >= 0.001. Got 0."),
    # a tree
    ({"rollout": {"tree": {"roots": 3, "splits": [2, 0]}}},
     "rollout.tree.splits must be steps in ascending order, each once, from 0. Got [2, 0]. Sort them."),
    ({"rollout": {"tree": {"roots": 3, "splits": [0, 0]}}}, "each once, from 0. Got [0, 0]."),
    ({"rollout": {"tree": {"roots": 3, "splits": [-1]}}}, "from 0. Got [-1]."),
    ({"rollout": {"tree": {"roots": 3, "splits": [6]}}},
     "rollout.tree.splits must lie within steps 0 to rollout.steps - 2, because the last step is always deterministic. "
     "Got splits=[6], steps=7. Move the splits or add steps."),
    ({"rollout": {"tree": FOREST | {"branches": 1}}},
     "rollout.tree.branches must be a whole number >= 2 and <= 1000, or a list of them with one entry a split. Got 1."),
    ({"rollout": {"tree": FOREST | {"branches": [2, True]}}}, "with one entry a split. Got [2, true]."),
    ({"rollout": {"tree": FOREST | {"branches": []}}}, "with one entry a split. Got []."),
    ({"rollout": {"tree": FOREST | {"branches": [2]}}},
     "rollout.tree.branches must have one entry for each of rollout.tree.splits, or be one number. Got branches=[2], "
     "splits=[0, 2]. Add or remove entries."),
    ({"rollout": {"tree": FOREST | {"correlation": -1}}}, "rollout.tree.correlation must be >= 0"),
    ({"rollout": {"tree": {"roots": 1}, "stochastic": {"kind": "all"}}, "credit": {}},
     "rollout.tree.roots must be >= 2 without splits: a group needs samples to compare. Got roots=1."),
    # pruning
    ({"rollout": {"stochastic": {"kind": "all"}, "tree": {"roots": 1, "splits": [0, 1]}},
      "credit": {"reward": "incremental", "normalise": "depth", "prune": {"depth": {"size": 2}}}},
     "credit.prune.depth must leave a split to train: with credit.reward: incremental and value: leaves no other step "
     "is credited. Got start=0, size=2, which leave out all of the splits [0, 1]. Lower size, or set slide_every."),
    # stochastic steps
    ({"rollout": {"tree": {"roots": 5}}, "credit": {}},
     "rollout.stochastic.kind must not be splits without rollout.tree.splits: no step would be stochastic."),
    ({"rollout": NO_NOISE, "objective": NFT, "credit": {}},
     "rollout.tree.splits must be empty with rollout.stochastic.kind: none, because siblings differ by noise. Got "
     "splits=[0, 2]. Remove the splits or choose splits, window or all."),
    ({"rollout": {"tree": {"roots": 5}} | NO_NOISE, "credit": {}},
     "rollout.stochastic.kind must not be none with objective.kind: grpo, which trains stochastic steps."),
    ({"rollout": {"tree": {"roots": 5}} | NO_NOISE, "objective": NFT | {"old_decay_max": 0.0, "edges": {}},
      "credit": {}},
     "objective.edges must be null with rollout.stochastic.kind: none: there are no stochastic steps to train."),
    ({"rollout": {"dynamics": None}}, "rollout.dynamics is missing: it says how the stochastic steps draw"),
    ({"rollout": {"tree": {"roots": 5}, "stochastic": {"kind": "none"}}, "objective": NFT, "credit": {}},
     "rollout.dynamics must be null with rollout.stochastic.kind: none, where no step draws noise."),
    # exploration
    ({"rollout": {"explore": EXPLORE | {"candidates": 26}}},
     "rollout.explore.candidates must be a multiple of the leaves of a tree. Got candidates=26, leaves=4. Round it."),
    ({"rollout": {"explore": EXPLORE | {"candidates": 12}}},
     "rollout.explore.candidates must be >= keep + audit. Got candidates=12, keep=12, audit=1. Lower keep or audit"),
    ({"rollout": {"explore": EXPLORE | {"select": "all"}}},
     "rollout.explore.select: all keeps every candidate. Got candidates=24, keep=12, audit=1."),
    ({"rollout": {"explore": EXPLORE | {"steps": 8}}},
     "rollout.explore.steps must be <= rollout.steps, of whose grid it is a part. Got explore.steps=8, steps=7."),
    ({"rollout": {"explore": EXPLORE | {"steps": 3}}},
     "rollout.explore.steps must leave every stochastic step as it is, or noise would enter at another place. Got "
     "explore.steps=3, at least 4 are needed."),
    ({"rollout": {"explore": EXPLORE | {"precision": "fp4"}}}, "rollout.explore.precision must be one of"),
    ({"rollout": {"explore": EXPLORE | {"fidelity": {"below": 2}}}}, "rollout.explore.fidelity.below must be <= 1"),
    # credit
    ({"credit": {"reward": "outcome", "normalise": "depth"}},
     "credit.normalise must be group with credit.reward: outcome, whose advantages belong to whole samples."),
    ({"credit": {"reward": "fused", "value": "ode"}},
     "credit.value must be leaves unless credit.reward is incremental or turning_point, or a rule of your own, "),
    ({"credit": {"reward": "fused", "std": "batch"}},
     "credit.std must be group or mad unless credit.reward is outcome."),
    ({"credit": {"std": "mad"}},
     "credit.std: mad goes with credit.baseline: median, from which it is measured. Got baseline=\"mean\". Set "
     "baseline: median or std: group."),
    ({"credit": {"reward": "fused", "normalise": "siblings", "std": "mad", "baseline": "median"}},
     "credit.baseline must be mean with credit.normalise: siblings, which compares with the parent. Got median."),
    ({"credit": {"reward": "incremental", "value": "ode", "combine": "gdpo"}},
     "credit.combine: gdpo gives whole samples finished advantages: it goes with credit.reward: outcome, std: group"),
    ({"credit": {"reward": "fused", "normalise": "siblings", "baseline": "median"}},
     "credit.baseline must be mean with credit.normalise: siblings, which compares with the parent. Got median."),
    ({"credit": {"prune": {"best": 2}}},
     "credit.prune.best goes with credit.prune.width: extremes. Got best=2, width=null. Give both or neither."),
    ({"credit": {"prune": {"width": "extremes"}}}, 'Got best=null, width="extremes". Give both or neither.'),
    ({"rollout": CHAINS, "credit": {"reward": "fused"}},
     "credit.reward must not be fused without rollout.tree.splits: a chain has one reward to fuse. Set outcome, or add "
     "splits."),
    ({"rollout": CHAINS, "credit": {"reward": "turning_point"}},
     "credit.value must be ode or predicted_x0 for steps of chains: with leaves every node of a chain is worth the "
     "same and nothing would train."),
    ({"rollout": CHAINS, "credit": {"prune": {"width": "parent_top1"}}},
     "credit.prune.width: parent_top1 needs rollout.tree.splits. Got splits=[]."),
    ({"credit": {"minimum_samples": 13}}, "Got minimum_samples=13, samples=12. Lower minimum_samples or add roots."),
    ({"credit": {"combine": "gdpo"}, "rewards": [{"name": "shapes"}, {"name": "shapes_strict", "weight": 0}]},
     "credit.combine must be sum with a single weighted reward. Got gdpo. Add rewards or set sum."),
    # objectives
    ({"objective": NFT}, 'credit.reward must be outcome, and credit.prune empty, with objective.kind: nft and no '
     'objective.edges: it trains whole samples, not steps. Got reward="fused".'),
    ({"objective": {"clip": 1e-3}}, "objective.kind is missing: it must be one of grpo, nft, awm, dgpo, crd, art, "
     "dpo, tilt, module:Object."),
    ({"objective": {"kind": "ppo"}}, "objective.kind must be one of grpo, nft, awm, dgpo, crd, art, dpo, tilt, "
     "module:Object."),
    ({"objective": NFT | {"clip": 1e-3}}, "objective.clip is not a key of kind nft."),
    ({"objective": NFT | {"old_decay_max": 1.0}}, "objective.old_decay_max must be < 1"),
    ({"train": {"updates_per_iteration": 10}},
     "train.updates_per_iteration must be <= what one prompt has to train on, the nodes that stochastic steps start "
     "from. Got updates_per_iteration=10, with 9 of them."),
    ({"train": {"updates_per_iteration": 25}, "objective": NFT | {"levels": 2}, "credit": {}},
     "a prompt's samples * objective.levels. Got updates_per_iteration=25, with 24 of them."),
    ({"objective": NFT | {"edges": {}}}, "objective.old_decay_max must be 0 with objective.edges: a policy that lags"),
    ({"objective": TILT | {"nodes": {"keep": 10}}, "credit": {}},
     "objective.nodes.keep must be <= the nodes of a prompt that split, those of all its trees at all of "
     "rollout.tree.splits, or a share of them below 1. Got keep=10, with 9 of them. Lower keep, or set "
     "objective.nodes: null"),
    *(({"objective": TILT | {"nodes": {"keep": keep}}, "credit": {}},
       "objective.nodes.keep must be a whole number >= 1, the nodes of a prompt that train, or a share of them > 0 and "
       f"< 1. Got {got}. To train all")
      for keep, got in ((0, "0"), (1.5, "1.5"), (True, "true"), (-3, "-3"), (1.0, "1.0"), (0.0, "0.0"), ("2", '"2"'))),
    ({"objective": TILT | {"nodes": {"keep": 2, "by": "depth"}}, "credit": {}},
     'objective.nodes.by must be one of contrast, direction, random. Got "depth".'),
    ({"objective": TILT | {"nodes": {"by": "random"}}, "credit": {}}, "objective.nodes.keep is missing. Add it"),
    ({"objective": {"kind": "grpo", "nodes": {"keep": 2}}}, "objective.nodes is not a key of kind grpo."),
    ({"objective": TILT | {"nodes": {"keep": 2}}, "credit": {}, "train": {"updates_per_iteration": 3}},
     "train.updates_per_iteration must be <= what one prompt has to train on, the nodes that split and are kept. Got "
     "updates_per_iteration=3, with 2 of them."),
    ({"objective": TILT},
     'credit.reward must be outcome with objective.kind: tilt, which compares finished samples below each split. Got '
     '"fused".'),
    ({"objective": TILT, "credit": {}, "rollout": CHAINS},
     "rollout.tree.splits must not be empty with objective.kind: tilt, which trains the nodes that split."),
    ({"objective": TILT, "credit": {"fusion": "path_probability"}},
     "credit.fusion must be uniform with objective.kind: tilt"),
    ({"objective": TILT, "credit": {"baseline": "median"}}, "credit.baseline must be mean with objective.kind: tilt"),
    ({"objective": TILT, "credit": {}, "rollout": {"tree": FOREST | {"correlation": 0}}},
     "rollout.tree.correlation must be above 0 with objective.kind: tilt: equal siblings leave nothing to compare."),
    ({"objective": TILT, "credit": {"prune": {"width": "parent_top1"}}},
     "credit.prune.width must not be parent_top1 with objective.kind: tilt: it leaves one child at every last split"),
    ({"objective": TILT, "credit": {"prune": {"depth": {"size": 2}}}, "rollout": {"stochastic": {"kind": "all"}}},
     "credit.prune.depth.size must be < the number of rollout.tree.splits with objective.kind: tilt"),
    ({"credit": {"prune": {"depth": {"size": 2}}}}, "credit.prune.depth.start + size must be <= the stochastic steps"),
    ({"credit": {"beta": 2.0}}, "credit.beta must be left at 1.0 with credit.fusion: uniform"),
    ({"train": {"updates_per_iteration": 10}, "objective": NFT | {"levels": 2, "old_decay_max": 0.0, "edges": {}}},
     "the nodes that stochastic steps start from. Got updates_per_iteration=10, with 9 of them."),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), BAD, ids=range(len(BAD)))
def test_what_does_not_is_one_message(changes, expected):
    with pytest.raises(ConfigError) as caught:
        make_config(data_of(**changes))
    (problem,) = caught.value.problems
    assert expected in problem


@pytest.mark.parametrize("kind", ["nft", "awm", "dgpo", "crd"])
def test_guidance_that_is_an_input_of_the_network_is_that_of_the_rollout(kind):
    """FLUX.1 and Kontext are distilled with it: there is no velocity without it, nor another one beside it."""
    embedded = {"flux", "flux_kontext"}
    for family in FAMILIES:
        data = data_of(
            model={"family": family, "path": "somewhere"},
            rollout={"tree": {"roots": 5}, "guidance_scale": 3.5} | NO_NOISE,
            objective={"kind": kind, "guidance": 2.0},
            credit={},
        )
        problems: list[str] = []
        try:
            make_config(data)
        except ConfigError as error:
            problems = error.problems
        said = [one for one in problems if f"objective.guidance must be left at 1 with the family {family}" in one]
        assert bool(said) == (family in embedded), (family, problems)
        assert all("rollout.guidance_scale in the loss too. Got 2" in one and "Remove it" in one for one in said)
        data["objective"]["guidance"] = 1.0
        if family in embedded:
            config = make_config(data)
            assert config.loss_guidance(config.objective.sample_guidance) == config.kl_guidance == 3.5


def test_problems_of_several_sections_come_together():
    data = data_of(
        rollout={"explore": EXPLORE | {"candidates": 26, "steps": 9}}, credit={"minimum_samples": 13, "std": "bach"}
    )
    with pytest.raises(ConfigError) as caught:
        make_config(data)
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    for expected in ("explore.candidates must be", "explore.steps must be <= rollout.steps", "credit.std must be"):
        assert expected in text


def test_an_override_of_another_kind_of_objective_says_what_no_longer_fits(tmp_path):
    import yaml

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data_of(objective={"kind": "grpo", "clip": 1e-4})))
    with pytest.raises(ConfigError, match="objective.clip is not a key of kind nft"):
        load_config(path, ["objective.kind=nft", "credit={}"])
    assert load_config(path, ["objective={kind: nft}", "credit={}"]).objective.kind == "nft"


def test_sol_rls_layers_are_those_of_its_families_and_further_ones_may_stand_beside_them():
    explore = {"rollout": {"explore": EXPLORE | {"exclude": ["sol_rl", "ff"]}}}
    for name, family in FAMILIES.items():
        if name in ("sd3", "flux", "sana"):
            loaded = make_config(data_of(model={"family": name, "path": "somewhere"}, **explore))
            assert loaded.copy_exclude == (*family.sol_rl_exclude, "ff")
            continue
        with pytest.raises(ConfigError, match=rf"whose layers Sol-RL's code lists. Got model.family {name}, .* null"):
            make_config(data_of(model={"family": name, "path": "somewhere"}, **explore))
