"""Runs of one seed are pairs: the same prompts in the same order, the same noise, the same held-out pictures."""

from __future__ import annotations

import copy

import pytest

from diffrl.config.load import make_config
from diffrl.cost.prices import EQUAL
from diffrl.data.prompts import load_prompts
from diffrl.data.sampler import prompt_batch
from diffrl.rollout.noise import noise_at
from diffrl.rollout.tree import plan_forest, root_addresses
from diffrl.studies.compare.arguments import Budget, parse_candidate
from diffrl.studies.compare.pairing import SHARED, held_out, misused_splits, report_source, unpaired
from diffrl.studies.compare.plan import plain, plan_candidate

METRIC = "shapes_strict"


@pytest.fixture
def arms(run_settings):
    """Two configurations that train very differently: other trees, objective, steps and rates."""
    other = copy.deepcopy(run_settings)
    other["rollout"] |= {"steps": 7, "tree": {"roots": 2, "branches": 2, "splits": [1]}}
    other["objective"] = {"kind": "nft"}
    other["train"] |= {"learning_rate": 3.0e-4, "updates_per_iteration": 1}
    del other["prompts"]["eval"]  # is shapes:tune all the same
    return [make_config(settings) for settings in (run_settings, other)]


def test_runs_of_one_seed_share_prompts_order_and_noise(arms, tmp_path):
    assert unpaired({str(i): plain(config) for i, config in enumerate(arms)}, METRIC) == []
    budget = Budget("evaluations", 40_000)
    planned = [plan_candidate(parse_candidate(f"{i}: a.yaml"), c, budget, 4, EQUAL, None) for i, c in enumerate(arms)]
    first_noise = []
    for number in (0, 1):
        first, second = (one.of_seed(number, tmp_path) for one in planned)
        prompts = [load_prompts(config.prompts.train) for config in (first, second)]
        for iteration in (0, 1, 59):
            batches = [
                prompt_batch(own, config.prompts.per_iteration, config.run.seed, iteration)
                for own, config in zip(prompts, (first, second), strict=True)
            ]
            assert [p.text for p in batches[0].prompts] == [p.text for p in batches[1].prompts]
            roots = [
                root_addresses(plan_forest(2, config.rollout.tree.roots, {}), batch, config.run.seed)
                for config, batch in zip((first, second), batches, strict=True)
            ]
            assert len(roots[0]) == 8 and len(roots[1]) == 4
            assert set(roots[1]) < set(roots[0])
        first_noise.append(noise_at(roots[1], (4, 8, 8)))
        places = [roots[0].index(root) for root in roots[1]]
        assert noise_at(roots[0], (4, 8, 8))[places].equal(first_noise[-1])
    assert not first_noise[0].equal(first_noise[1])  # other seeds are other runs


def test_held_out_noise_is_one_for_all_seeds_unless_each_has_its_own(arms, tmp_path):
    budget, (config, _) = Budget("evaluations", 40_000), arms
    for own in (False, True):
        one = plan_candidate(parse_candidate("0: a.yaml"), config, budget, 4, EQUAL, None, own)
        seeds = [one.of_seed(number, tmp_path) for number in range(3)]
        assert [run.eval.seed - config.eval.seed for run in seeds] == ([0, 1, 2] if own else [0, 0, 0])
        assert [run.run.seed - config.run.seed for run in seeds] == [0, 1, 2]
        assert [one.settings_of(number)["eval"]["seed"] for number in range(3)] == [run.eval.seed for run in seeds]
        assert ("own_noise" in one.model_dump(exclude_unset=True)) == own


OTHERS = {
    "run.seed": 40,
    "prompts.train": "words:train",
    "prompts.per_iteration": 3,
    "model.family": "flux",
    "model.path": "elsewhere",
    "model.revision": "abc",
    "model.variant": "fp16",
    "model.height": 64,
    "model.width": 64,
    "model.frames": 5,
    "eval.samples": 6,
    "eval.steps": 5,
    "eval.solver": "ab2",
    "eval.guidance_scale": 2.0,
    "eval.seed": 1,
    "prompts.eval": "words:tune",
}


@pytest.mark.parametrize("key", OTHERS)
def test_what_makes_no_pairs_is_named(arms, key):
    assert set(OTHERS) == {*SHARED, "prompts.eval"}
    one, other = plain(arms[0]), copy.deepcopy(plain(arms[0]))
    section, _, name = key.partition(".")
    other[section][name] = OTHERS[key]
    (told,) = unpaired({"one": one, "other": other}, METRIC)
    assert told.startswith(f"{key} must be the same") and "'one'" in told and "'other'" in told
    mine = one[section].get(name)
    assert (f'"CONFIG {key}={mine}"' in told) == (mine is not None)  # which, typed so, mends it


def test_the_metric_must_measure_alike(arms):
    one, other = plain(arms[0]), copy.deepcopy(plain(arms[0]))
    other["eval"]["rewards"][0]["weight"] = 3.0  # measures the same
    assert unpaired({"one": one, "other": other}, METRIC) == []
    other["eval"]["rewards"][0]["options"] = {"tolerance": 2}
    (told,) = unpaired({"one": one, "other": other}, METRIC)
    assert "shapes_strict" in told
    assert unpaired({"one": one, "other": other}, "shapes") == []


@pytest.mark.parametrize(
    ("prompts", "held", "report"),
    [
        ({"train": "words:train", "eval": None}, "words:tune", "words:report"),
        ({"train": "mine.txt", "eval": "shapes:tune"}, "shapes:tune", "shapes:report"),
        ({"train": "mine.txt", "eval": "other.txt"}, "other.txt", None),
        ({"train": "shapes:train", "eval": "shapes:held_out"}, "shapes:held_out", "shapes:report"),
    ],
)
def test_splits(prompts, held, report):
    assert (held_out({"prompts": prompts}), report_source({"prompts": prompts})) == (held, report)
    assert misused_splits({"prompts": prompts}) == []
