"""Whatever a reward of the user's does while it is imported and made, it ends in one sentence that names it."""

import inspect
import sys

import pytest

from diffrl.config.rewards import RewardSettings
from diffrl.errors import ConfigError
from diffrl.training.scorers import make_scorers
from reward_models import RewardError, load_reward
from reward_models.neural import find_file

MODULE = """
from reward_models.images.picture_statistics import SharpnessScorer

NUMBER = 7


class Raising:
    def __init__(self, kind="ValueError", told="boom\\nwith a second line"):
        raise {"ValueError": ValueError, "OSError": OSError, "TypeError": TypeError, "exit": SystemExit}[kind](told)


class Strict(SharpnessScorer):
    def __init__(self, path, *, side=3, mode="mean"):
        pass


class Loose(SharpnessScorer):
    def __init__(self, **options):
        Strict(**options)


class Told(Loose):
    __signature__ = __import__("inspect").signature(Strict)


class NoCall:
    spec = SharpnessScorer.spec


class NoTo(NoCall):
    def __call__(self, batch):
        pass


class RaisingSpec(NoTo):
    @property
    def spec(self):
        raise RuntimeError("not yet")


def a_class():
    return SharpnessScorer


def batch_list(batch):
    return [0.5] * len(batch)


class Model:
    def __call__(self, images):
        return images.mean()


def of_files(prompts, side):
    return Strict(prompts)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module of the user's; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(text: str, name: str = "own_rewards") -> str:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('no card\\nin this machine')\n", "RuntimeError: no card."),
        ("import sys; sys.exit(3)\n", "SystemExit: 3."),
        (
            "from reward_models import ScorerSpec\nScorerSpec('caf\\udce9', 'x', (0, 1))\n",
            "RewardError: The spec of the scorer .* name must be text that UTF-8 can store",
        ),
        ("class Panic(BaseException): pass\nraise Panic('caf\\udce9')\n", "Panic: caf\ufffd."),
        ("class Other: pass\n", "AttributeError: module .* has no attribute 'Mine'."),
    ],
)
def test_a_module_that_cannot_be_imported(own, text, told):
    with pytest.raises(RewardError, match=f"The reward 'broken_rewards:Mine' cannot be imported: {told}") as caught:
        load_reward(f"{own(text, 'broken_rewards')}:Mine")
    assert caught.value.__cause__ is not None and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("Raising", {}, "own_rewards:Raising cannot be made: ValueError: boom. Check its options"),
        ("Raising", {"kind": "TypeError", "told": "x"}, "cannot be made with the options kind, told: TypeError: x."),
        ("Raising", {"kind": "exit"}, "cannot be made with the options kind: SystemExit: boom."),
        ("Strict", {}, "needs the option path. Got no options. Add it. It takes: path, side, mode."),
        ("Strict", {"path": "x", "sied": 3}, "does not take these options: sied. It takes: path, side, mode."),
        ("Loose", {"path": "x", "sied": 3}, "Loose does not take these options: sied. .*unexpected keyword argument"),
        ("Told", {"path": "x", "sied": 3}, "Told does not take these options: sied. It takes: path, side, mode."),
        ("NUMBER", {}, "own_rewards:NUMBER is 7"),
        ("NoTo", {}, "gives a NoTo without a method `to\\(device\\)`"),
        ("RaisingSpec", {}, "gives a RaisingSpec without a `spec`"),
        ("a_class", {}, "without an instance: it is a class"),
    ],
)
def test_what_gives_no_scorer(own, name, options, told):
    with pytest.raises(RewardError, match=told) as caught:
        load_reward(f"{own(MODULE)}:{name}", **options)
    assert f"own_rewards:{name}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["batch_list", "Model"])
def test_a_function_that_scores_in_no_known_form_is_told_from_a_scorer(own, name):
    """Nobody can add `images` as an option: whoever wrote it hears which form to give it."""
    with pytest.raises(RewardError) as caught:
        load_reward(f"{own(MODULE)}:{name}")
    words = str(caught.value)
    assert f"own_rewards:{name}" in words and "option" not in words and "\n" not in words
    assert "f(images, prompts, metadata=None)" in words and "docs/rewards.md" in words


def test_an_option_with_the_name_of_what_is_scored_is_an_option(own):
    with pytest.raises(RewardError, match="needs the option side. Got prompts. Add it"):
        load_reward(f"{own(MODULE)}:of_files", prompts="words.txt")
    with pytest.raises(RewardError, match="needs the option prompts and side. Got no options. Add it"):
        load_reward(f"{own(MODULE)}:of_files")


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("raise SystemExit(0)", "cannot be moved to cpu: SystemExit: 0. Try another device."),
        ("return None", "must return the scorer itself. That of own_rewards:Moves returns NoneType"),
    ],
)
def test_what_cannot_be_moved_is_no_scorer_of_a_run(own, to, told):
    text = "class Moves(Strict):\n    def __init__(self): pass\n    def to(self, device):\n        " + to + "\n"
    rewards = (RewardSettings(name=f"{own(MODULE + text)}:Moves"),)
    with pytest.raises(ConfigError, match=f"rewards.0: .*{told}"):
        make_scorers(rewards, "rewards")


def test_a_function_of_a_library_is_no_reward():
    with pytest.raises(RewardError, match="os:getcwd gives a str without a `__call__`"):
        load_reward("os:getcwd")


@pytest.mark.parametrize("name", ["sharpness", "pickscore"])
def test_the_options_are_listed_for_one_that_is_not_among_them(name):
    from reward_models.registry import factory_of

    with pytest.raises(RewardError, match=f"The reward {name} does not take these options: colour. It takes") as told:
        load_reward(name, colour="red")
    listed = str(told.value).partition("It takes")[2].strip(" :.").split(", ")
    assert listed == (list(inspect.signature(factory_of(name)).parameters) or ["none"])


@pytest.mark.parametrize("place", ["models/HPS.pt", "owner/Model.SAFETENSORS"])
def test_a_mistyped_file_is_not_looked_for_on_the_hub(place, tmp_path, monkeypatch):
    def download(*arguments, **options):
        raise AssertionError("the hub was asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(RewardError, match=f"no file or directory {place} for the reward hpsv2. Check the path"):
        find_file(place, "HPS.pt", "hpsv2")
    with pytest.raises(RewardError, match="on the hub, which the reward hpsv2 needs"):
        find_file("owner/bin.model", "HPS.pt", "hpsv2")  # a name of the hub's still is one
