"""Every mistake is named with its path, the rule, what was given and a way out; all of them at once."""

import copy
from pathlib import Path

import pytest
import yaml

from diffrl.config import dump_config, load_config
from diffrl.config.explain import RENAMED
from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from tests.config.conftest import FULL


def problems_of(load, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return caught.value.problems


def keys_of(value, path=()):
    """(path of the mapping, key) of every key of a configuration."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield path, key
            if key != "options":
                yield from keys_of(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from keys_of(inner, (*path, index))


def test_a_misspelt_key_is_refused_at_every_level_with_the_right_one():
    complete = yaml.safe_load(dump_config(make_config(FULL)))
    checked = 0
    for path, key in keys_of(complete):
        if key == "kind" and path[-1] in ("dynamics", "stochastic", "objective"):
            continue  # without its kind such a section has a problem of its own
        wrong = copy.deepcopy(complete)
        place = wrong
        for part in path:
            place = place[part]
        place[key + "x"] = place.pop(key)
        with pytest.raises(ConfigError) as caught:
            make_config(wrong)
        name = ".".join(map(str, (*path, key)))
        assert f"{name}x is not a known key. Did you mean {key!r}?" in caught.value.problems, name
        checked += 1
    assert checked > 90


def test_a_key_of_another_section_is_pointed_to(load):
    assert problems_of(load, "rollout.learning_rate=1") == [
        "rollout.learning_rate is not a known key. Did you mean train.learning_rate?"
    ]


@pytest.mark.parametrize(("was", "name"), RENAMED.items())
def test_a_renamed_key_is_refused_with_its_new_name(load, was, name):
    section, _, key = was.partition(".")
    kind = "objective={kind: awm, " if section == "objective" else f"{section}={{"
    assert problems_of(load, f"{kind}{key}: 0.1}}") == [f"{was} is not a known key any more: it is {name}. Write that."]
    assert f"| `{was}` | `{name}` |" in Path("docs/configuration.md").read_text(encoding="utf-8")


def test_all_problems_are_reported_at_once(load):
    found = problems_of(
        load,
        "prompts.per_iteration=true",
        "credit.baseline=medain",
        "rewards.9.weight=1",
        "trian.learning_rate=1",
        "rollout.stochastic.size=7",
        "train.warmup_updates=7",
    )
    assert len(found) == 6
    text = "\n".join(found)
    for expected in (
        "prompts.per_iteration must be a whole number. Got true.",
        "credit.baseline must be one of mean, median. Got \"medain\". Did you mean 'median'?",
        "rewards is a list of 2 entries, numbered from 0. Got the override 'rewards.9.weight=1'.",
        "trian is not a known key. Did you mean 'train'?",
        "rollout.stochastic.start + size must be <= rollout.steps - 1",
        "train.warmup_updates must be < the run's updates",
    ):
        assert expected in text


def test_rules_between_good_sections_are_checked_beside_a_bad_one(load):
    found = problems_of(load, "run.iterations=0", "train.updates_per_iteration=16")
    assert found[0] == "run.iterations must be >= 1. Got 0."
    assert (
        found[1].startswith("train.updates_per_iteration must be <= what one prompt has to train on")
        and len(found) == 2
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.dynamics.kind=ode", "A deterministic step has no density, so grpo cannot train it."),
        ("model.frames=9", "model.frames must be null for model.family: sd3, which generates images"),
        ("model={family: flux, path: x, negative_prompt: a}", "null for model.family: flux, whose adapter reads none"),
        ("model={family: flux_kontext, path: x, negative_prompt: a}", "where model.true_cfg_scale is null. Got \"a\"."),
        ("model.fps=24", "model.fps must be null for model.family: sd3"),
        ("model={family: sd3, path: x, base_precision: nf4}", "model.base_precision must be null without model.lora"),
        ("objective={kind: grpo, kl_form: mean}", "objective.kl_form must be left at velocity while objective.kl is 0"),
        ("objective={kind: grpo, kl_guidance: 3}", "objective.kl_guidance must be left at null while objective.kl"),
        ("train.final_learning_rate=0.2", "train.final_learning_rate must be left at 0.1"),
    ],
)  # fmt: skip
def test_a_value_without_effect_is_refused(load, override, expected):
    (problem,) = problems_of(load, override)
    assert expected in problem


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.name=a/b", "run.name must be a plain folder name"),
        ("run.iterations=3.0", "run.iterations must be a whole number. Got 3.0."),
        ("run.seed='1'", 'run.seed must be a whole number. Got "1". Remove the quotes'),
        ("run.name=17", "run.name must be text. Got 17. Put it in quotes."),
        ("model.lora.targets=[]", "model.lora.targets must have at least 1 entry"),
        ("prompts.train=mine.txt@held_out", "hub:<dataset>, either with @train, @tune, @report behind it"),
        ("prompts.train=shapes:train@tune", "Did you mean 'shapes:train'?"),
        ("prompts.train=shapes:tran", "shapes, moving, words, geneval, ocr with :train, :tune, :report"),
        ("prompts.eval=shapes:held_out", "held_out is now two splits: shapes:tune, to choose settings by, and shapes:"),
        ("prompts={train: mine.txt, per_iteration: 2}", "prompts.eval must be given unless prompts.train is the train"),
        ("prompts.train=prompts.md", ".csv, .tsv, .parquet) or hub:<dataset>"),
        ("prompts.train='hub:'", "must name a dataset of the hub"),
        ("rollout.dynamics={kind: cps}", "rollout.dynamics.noise_level is missing. Add it: Share of fresh noise"),
        ("rollout.dynamics={}", "rollout.dynamics.kind is missing: it must be one of flow_sde, dance_sde, cps"),
        ("rollout.dynamics=cps", "rollout.dynamics must be a section"),
        ("rollout.stochastic.start=4", "start + size must be <= rollout.steps - 1"),
        ("rollout.stochastic={kind: window, size: 6, slide_every: 2}", "slide_every must be null if the window covers"),
        ("rewards=[]", "rewards must have at least 1 entry. Got []. Add one."),
        ("rewards=[{name: shapes}, {name: shapes}]", 'rewards must name each reward once. Got ["shapes"]'),
        ("rewards=[{name: shapes, weight: 0}]", "rewards must have a weight other than 0"),
        ("eval.rewards.0.scale=0", "eval.rewards.0.scale must not be 0"),
        ("rewards.0.scale=1e-320", "rewards.0.scale must be at least 1e-06 in size"),
        ("rewards.0.weight=-1e-9", "rewards.0.weight must be 0 or at least 1e-06 in size"),
        ("eval.rewards={}", "eval.rewards must be a list"),
        ("credit.minimum_samples=6", "credit.minimum_samples must be <= the samples of a prompt"),
        ("train.updates_per_iteration=16", "Got updates_per_iteration=16, with 15 of them."),
        ("train.learning_rate=.nan", "train.learning_rate must be a finite number"),
        ("train.betas=[0.9]", "train.betas.1 is missing"),
        ("track.wandb={}", "track.wandb.project is missing. Add it: Project"),
        ("rollout=null", "rollout must be a section"),
        ("rewards=shapes", 'Got "shapes". Write [{name: shapes}].'),
        ("rewards=[shapes]", 'Got "shapes". Write {name: shapes}.'),
        ("model.lora=16", "Got 16. Write {rank: 16}."),
        ("track.wandb=true", "Got true. Write {project: ...}."),
        ("rollout.tree.splits=0,2", 'Got "0,2". Write [0,2].'),
        ("rollout.stochastic=all", 'Got "all". Write {kind: all}.'),
        ("objective=nft", 'Got "nft". Write {kind: nft}.'),
        ("train.lr=1e-4", "train.lr is not a known key. Did you mean train.learning_rate?"),
        ("iterations=5", "iterations is not a known key. Did you mean run.iterations?"),
        ("num_generations=8", "Did you mean rollout.tree.roots?"),
        ("prompts.train=me/my-prompts", "or name a dataset: hub:me/my-prompts."),
    ],
)
def test_a_value_out_of_bounds_is_named(load, override, expected):
    (problem,) = problems_of(load, override)
    assert expected in problem


def test_an_unknown_reward_names_the_near_one(load):
    (problem,) = problems_of(load, "rewards=[{name: shpes}]")
    assert "Did you mean 'shapes'? Known names: aesthetic, " in problem


def test_a_scorer_of_the_users_own_is_accepted_by_path(load):
    assert load("rewards=[{name: 'mine.py_module:Scorer'}]").rewards[0].name == "mine.py_module:Scorer"


def test_missing_sections_and_keys_are_listed():
    with pytest.raises(ConfigError) as caught:
        make_config({"train": {}})
    text = str(caught.value)
    assert "run is missing. Add the section; it needs iterations." in text
    assert "train.learning_rate is missing. Add it: Peak learning rate." in text


def test_a_changed_kind_says_which_keys_no_longer_fit(load):
    assert problems_of(load, "rollout.dynamics.noise_level=0.5", "rollout.dynamics.kind=dance_sde") == [
        "rollout.dynamics.noise_level is not a key of kind dance_sde. Its keys: kind, eta. Remove noise_level, or give "
        "the section as a whole: rollout.dynamics={kind: dance_sde, ...}."
    ]
    whole = load("rollout.dynamics={kind: dance_sde, eta: 0.5}").rollout.dynamics
    assert whole.model_dump() == {"kind": "dance_sde", "eta": 0.5}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.seed", "An override must be section.key=value."),
        ("=3", "An override must be section.key=value."),
        ("run..seed=3", "An override must be section.key=value."),
        ("run.seed=", "must have a value. Write run.seed=null"),
        ("run.name.first=x", "run.name has no keys of its own."),
        ("rewards.2.weight=1", "rewards is a list of 2 entries, numbered from 0."),
        ("rewards.first.weight=1", "rewards is a list of 2 entries, numbered from 0."),
        ("run.seed=[1", "expected"),
        ("run.sed=3", "run.sed is not a known key. Did you mean 'seed'?"),
        ("ruun.seed=3", "ruun is not a known key. Did you mean 'run'?"),
    ],
)
def test_a_bad_override_is_named(load, override, expected):
    (problem,) = problems_of(load, override)
    assert expected in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "run: {seed: 1}\nmodel: {path: a}\nrun: {seed: 2}\n",
            "line 3, column 1: the key 'run' occurs twice, first on",
        ),
        ("run: {seed: 1, seed: 2}\n", "the key 'seed' occurs twice"),
        ("run:\n  seed: 1\n bad\n", "line 3, column"),
        ("", "Got an empty file."),
        ("- run\n", "Got a list."),
        ("just text", "Got a line of text."),
        ("run: {1: 2}\n", "run.1 is not a known key: keys are text"),
        ("run: !!python/object:os.system {}\n", "could not determine a constructor"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, expected):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert expected in str(caught.value) and "bad.yaml" in str(caught.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="absent.yaml, which is not there"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run: \xe9")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "latin.yaml")


def test_a_value_that_contains_itself_is_refused(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text("run: &a [*a]\n")
    with pytest.raises(ConfigError, match="line 1, column 10: the alias 'a' stands within what it names"):
        load_config(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.sharding=fsdp", "model.compile=true"), "train.sharding must be none with model.compile"),
        (
            ("train.sharding=fsdp", "model.lora={rank: 4}", "model.base_precision=int8"),
            "train.sharding must be none with model.base_precision",
        ),
        (
            (
                "model.lora={rank: 4}",
                "model.base_precision=nf4",
                "rollout.explore={precision: int8, candidates: 20, keep: 5}",
            ),
            "rollout.explore.precision must be training with model.base_precision",
        ),
    ],
)
def test_parts_that_do_not_go_together(load, overrides, message):
    assert any(message in problem for problem in problems_of(load, *overrides))
