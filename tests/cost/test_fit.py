"""What makes a run fit a smaller GPU: it fits then, nothing of it can be left out, and the line that is shown runs."""

import shlex

import pytest
from typer.testing import CliRunner

from diffrl.bundled import recipes
from diffrl.cli import app
from diffrl.config.load import load_config
from diffrl.cost.fit import find_fit, override_words, steps_down
from diffrl.cost.gpus import GPUS, Gpu
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import offer_of, shortages
from diffrl.cost.scorers import scorer_weights
from diffrl.errors import ConfigError
from reward_models.registry import check_options, factory_of
from tests.tiers import daily

CARD = GPUS["rtx4090"]


def fit_of(recipe, card=CARD, overrides=()):
    path = recipes()[recipe]
    return find_fit(
        load_config(path, overrides), lambda keys: load_config(path, [*overrides, *override_words(keys)]), card, 1
    )


def fits(recipe, keys, card=CARD):
    plan = make_plan(load_config(recipes()[recipe], override_words(keys)), 1)
    return not shortages(plan.memory, offer_of(card), 1)


FITTED = ["sd3/diffrl", "qwen_image/diffrl", "wan/diffrl", "flux/diffrl"]


@pytest.mark.parametrize("recipe", daily(FITTED, [], FITTED[3:]))
def test_what_is_named_suffices_and_is_needed(recipe):
    fit = fit_of(recipe)
    if fit.gpu is not CARD:  # what nothing brings there
        assert fit.gpu.memory > CARD.memory and fits(recipe, fit.overrides, fit.gpu)
        return
    assert fits(recipe, fit.overrides) and not fits(recipe, {})
    rewards = {key for key in fit.overrides if key.startswith(("rewards", "eval.rewards"))}
    batches = {key for key in fit.overrides if key.endswith(("batch", "decode_batch"))}
    offload = {key for key in fit.overrides if key.startswith(("model.offload", "model.vae"))}
    rest = {(key,) for key in fit.overrides.keys() - rewards - batches - offload}
    for step in filter(None, [rewards, batches, offload, *rest]):
        left = {key: value for key, value in fit.overrides.items() if key not in step}
        try:
            assert not fits(recipe, left), f"{step} can be left out"
        except ConfigError:
            assert "rollout.draw" in step  # without it the base would be there twice


@pytest.mark.long
def test_it_is_named_as_it_is_where_it_fits_and_the_smallest_where_nothing_helps():
    small = fit_of("sd3/diffrl", GPUS["h200"])
    assert small.overrides == {} and small.costs == ()
    larger = fit_of("qwen_image/diffrl")
    assert larger.gpu is GPUS["a100-40gb"] and fits("qwen_image/diffrl", larger.overrides, larger.gpu)
    assert not any("int8" in cost for cost in larger.costs), "nf4 stands for both"
    full = ["model.lora=null", "rollout.draw=null"]
    with pytest.raises(ConfigError, match=r"No GPU that --fit knows holds this run\. Got \d+\.\d GiB"):
        fit_of("qwen_image/diffrl", Gpu("tiny", 2**30, (8, 0), ""), full)


def test_the_dtype_of_a_mean_over_frames_is_its_inner_rewards():
    config = load_config(recipes()["wan/diffrl"])
    keys = next(keys for cost, keys in steps_down(config) if "bfloat16" in cost)
    asked = load_config(recipes()["wan/diffrl"], override_words(keys))
    for reward in (*asked.rewards, *asked.eval.rewards):
        check_options(reward.name, factory_of(reward.name), reward.options | ({"dtype": ""} if reward.dtype else {}))
    assert scorer_weights(asked).beside < 0.6 * scorer_weights(config).beside


def test_the_line_that_is_shown_is_a_configuration_that_fits():
    path = str(recipes()["sd3/diffrl"])
    shown = CliRunner().invoke(app, ["plan", path, "run.seed=3", "--fit", "RTX 4090"])
    assert shown.exit_code == 0
    first, command, *costs = shown.stdout.splitlines()
    assert first.startswith("RTX 4090: ") and len(costs) >= 2
    _, train, config, *overrides = shlex.split(command)
    assert (train, config, overrides[0]) == ("train", path, "run.seed=3")
    assert not shortages(make_plan(load_config(path, overrides), 1).memory, offer_of(CARD), 1)


def test_overrides_as_a_command_takes_them():
    keys = {"train.micro_batch": 1, "model.vae_slicing": True, "rollout.draw": None, "model.offload": ["a", "b"]}
    assert override_words(keys | {"train.optimizer": "adamw_8bit"}) == [
        "train.micro_batch=1", "model.vae_slicing=true", "rollout.draw=null", "model.offload=[a,b]",
        "train.optimizer=adamw_8bit",
    ]  # fmt: skip


def test_a_gpu_that_nobody_knows_is_refused():
    path = str(recipes()["sd3/diffrl"])
    refused = CliRunner().invoke(app, ["plan", path, "--fit", "gtx 980"])
    assert isinstance(refused.exception, ConfigError) and "A GPU must be one of" in str(refused.exception)
    both = CliRunner().invoke(app, ["plan", path, "--fit", "h100", "--json"])
    assert isinstance(both.exception, ConfigError) and "--fit must stand without" in str(both.exception)
