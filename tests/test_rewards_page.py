"""docs/rewards.md: its tables are those of the classes, its scorer runs, its commands and configuration are valid."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from diffrl.config.method import GuardSettings
from diffrl.config.rewards import RewardSettings
from reward_models import SCORERS, RewardBatch, check_scorer, load_reward

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")


def script():
    spec = importlib.util.spec_from_file_location("make_rewards_page", ROOT / "scripts/make_rewards_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_tables_are_those_of_the_classes():
    assert script().page(PAGE) == PAGE, "run: python scripts/make_rewards_page.py"
    assert all(f"| `{name}` |" in PAGE for name in SCORERS)


def test_every_spec_says_what_a_user_needs():
    for name, spec in script().specs().items():
        assert spec.name == name and spec.code_license and spec.description.endswith(".")
        if spec.weights:
            assert spec.memory and spec.weights_license, name


def test_the_scorer_of_ten_lines_keeps_the_contract(tmp_path, monkeypatch):
    (code,) = [block for block in blocks("python") if "class Brightness" in block]
    (tmp_path / "my_module_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_module_of_the_page")
    assert check_scorer(module.Brightness()) == []
    sys.modules.pop("my_module_of_the_page")


def test_the_function_of_the_page_is_a_reward(monkeypatch):
    (code,) = [block for block in blocks("python") if "def redness" in block]
    module = ModuleType("my_function_of_the_page")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    media = torch.tensor([0, 51, 255], dtype=torch.uint8).repeat_interleave(3 * 5 * 7).reshape(3, 3, 5, 7)
    scorer = load_reward(f"{module.__name__}:redness", gain=2.0)
    assert scorer(RewardBatch(media, ["a", "b", "c"])).raw.tolist() == pytest.approx([0.0, 0.4, 2.0])
    assert check_scorer(scorer) == []


def test_the_configurations_are_valid():
    found, guarded = map(yaml.safe_load, blocks("yaml"))
    rewards, penalised = (
        [RewardSettings.model_validate(row) for row in [*one["rewards"], *one["eval"]["rewards"]]]
        for one in (found, guarded)
    )
    safety = GuardSettings.model_validate(guarded["guards"]).safety
    assert safety.reward in [reward.key for reward in penalised] and load_reward(safety.reward).spec.range[1] == 1.0
    assert rewards[1].factor(50) == 0.5 and rewards[2].key == "judge"
