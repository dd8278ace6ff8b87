"""What is too large, too deep or never ends is refused at once, in a message that stays short."""

import os

import pytest
import yaml

from diffrl.config import load_config
from diffrl.config.load import config_schema
from diffrl.errors import ConfigError
from reward_models import load_reward
from reward_models.common.errors import RewardError
from reward_models.common.messages import show
from reward_models.common.reading import Unreadable
from reward_models.common.yaml12 import load_yaml, read_yaml
from tests.config.conftest import FULL

BOMB = (
    "a: &a ["
    + "x," * 9
    + "x]\n"
    + "".join(
        f"{name}: &{name} [" + f"*{below}," * 9 + f"*{below}]\n"
        for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
)
LONG = "n" * 100_000


def refused(load, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert len(str(caught.value)) < 3000
    str(caught.value).encode("utf-8")
    return str(caught.value)


@pytest.mark.parametrize("text", [BOMB, BOMB + "run: *i\n", "x: &x {a: 1}\ny: {<<: [" + "*x," * 50_000 + "]}\n"])
def test_aliases_that_multiply_are_refused(tmp_path, text):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="at most 50,000 values, aliases written out") as caught:
        load_config(path)
    assert len(str(caught.value)) < 500
    with pytest.raises(RewardError, match="at most 50,000 values"):
        read_yaml(text, "a recipe")


def test_an_alias_repeats_long_text_too():
    with pytest.raises(Unreadable, match="at most 50,000 values"):
        load_yaml(f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 10)}]\n")


def test_what_an_alias_names_is_changed_in_one_place(tmp_path):
    text = yaml.safe_dump(FULL | {"rewards": 0, "eval": 0}).replace("rewards: 0", "rewards: &r [{name: shapes}]")
    path = tmp_path / "alias.yaml"
    path.write_text(text.replace("eval: 0", "").rstrip() + "\neval: {rewards: *r, samples: 11, steps: 3}\n")
    config = load_config(path, ["rewards.0.label=mine"])
    assert (config.rewards[0].key, config.eval.rewards[0].key) == ("mine", "shapes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deep"),
        ("[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        ("- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 200)), "nested more than 50 levels deep"),
        ("a: 1" + "0" * 5000, "a whole number may have 100 digits. Got 5,001"),
        (r'a: "\ud800"', "half of a surrogate pair"),
        (r'a: "\UFFFFFFFF"', "too large"),
        ("x" * 1_000_001, "at most 1,000,000 are read"),
        (f"a: *{LONG}", "undefined alias"),
        (f"a: !{LONG} 1", "could not determine a constructor"),
        (f"{LONG[:900]}: 1\n{LONG[:900]}: 2\n", "occurs twice"),
    ],
)  # fmt: skip
def test_yaml_without_bounds_is_a_sentence(text, message):
    with pytest.raises(Unreadable, match=message) as caught:
        load_yaml(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{LONG}=1", "is not a known key"),
        (f"run.{LONG}=1", "is not a known key"),
        (f"run.name={LONG}", "run.name must be a plain folder name"),
        (f"run.dir={LONG}", "run.dir must have at most 4,096 characters. Got 100,000"),
        (r'run.dir="a\0b"', "with a zero byte"),
        (f"run={LONG}", "run must be a section"),
        (f"{LONG}", "An override must be section.key=value"),
        (f"run.name.{LONG}=1", "run.name has no keys of its own"),
        (f"rewards.{'9' * 5000}.weight=1", "rewards is a list of 2 entries"),
        (f"{'a.' * 60}a=1", "An override must be section.key=value"),
        (f"model.family={LONG}", "model.family must "),
        (f"model.path={LONG}", "model.path must have at most 4,096 characters"),
        (f"rewards.0.name={LONG}", "rewards.0.name "),
        (f"prompts.train={LONG}", "prompts.train must "),
        (f"rollout.dynamics.kind={LONG}", "rollout.dynamics.kind must be one of"),
        (f"rollout.dynamics.{LONG}=1", "is not a key of kind flow_sde"),
        (f"credit.baseline={LONG}", "credit.baseline must be one of mean, median"),
        (f"credit.baseline=[{', '.join(['[1, 2]'] * 9000)}]", "credit.baseline must be one of mean, median"),
    ],
    ids=lambda value: value[:24],
)
def test_no_message_repeats_a_long_name(load, override, message):
    assert message in refused(load, override)


def test_problems_are_told_until_it_is_enough(load):
    assert "There are 980 further problems" in refused(load, f"run={{{', '.join(f'k{i}: 1' for i in range(999))}}}")


def numbers(node, path=""):
    """(path, schema) of every number that a configuration may hold, what is free (options) left out."""
    for name, part in node.get("properties", {}).items():
        yield from numbers(part, f"{path}.{name}")
    for part in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("prefixItems", ())):
        yield from numbers(part, path)
    if isinstance(node.get("items"), dict):
        yield from numbers(node["items"], path)
    if node.get("type") in ("integer", "number"):
        yield path, node


VANISHING = ("EmaSettings.decay", "RewardSettings.timeout")
"""May be 1e-320: what nothing divides by and no step is made of."""


def test_every_number_has_bounds():
    """On both sides, but for thresholds of guards, which are only compared, and splits, which are steps of the grid."""
    found = [one for name, part in config_schema()["$defs"].items() for one in numbers(part, name)]
    assert len(found) > 80
    for path, bounds in found:
        if "Guard" not in path and path != "TreeSettings.splits":
            assert bounds.keys() & {"minimum", "exclusiveMinimum"}, path
            assert bounds.keys() & {"maximum", "exclusiveMaximum"}, path
            assert bounds.get("exclusiveMinimum") != 0 or path in VANISHING, path


@pytest.mark.parametrize(
    ("override", "sign"),
    [
        ("run.iterations=10000001", "must be <="),
        ("run.seed=1" + "0" * 30, "must be <"),
        ("rollout.dynamics.noise_level=1e-320", "must be >="),  # what vanishes beside other numbers
        ("train.epsilon=1e-320", "must be >="),
        ("rollout.tree={roots: 100, splits: [0, 1, 2, 3], branches: 10}", "must be <="),
    ],
)
def test_what_is_beyond_its_bounds_is_refused(load, override, sign):
    message = refused(load, override)
    assert override.partition("=")[0] in message and sign in message


def test_a_configuration_that_never_ends_is_not_opened(tmp_path):
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it must be a plain file, and is a pipe"):
        load_config(path)


def test_no_more_of_a_value_is_written_than_is_shown():
    value = ["x"]
    for _ in range(40):
        value = [value] * 10  # written whole, it is as long as the universe is wide
    assert show(value).endswith("...") and len(show(value)) == 80
    for strange in (10**5000, {(1, 2): 3}, "\ud800", float("nan"), {1, 2}):
        assert len(show(strange).encode("utf-8")) <= 80


def test_a_reward_that_nobody_knows_is_quoted_in_part():
    for name in (LONG, f"{LONG}:Scorer"):
        with pytest.raises(RewardError) as caught:
            load_reward(name)
        assert len(str(caught.value)) <= 4000
