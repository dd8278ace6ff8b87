"""Tables of facts have an entry for each name of the registry that they are keyed by: nothing is planned by default."""

import pytest

from diffrl.bundled import recipes
from diffrl.config import load_config
from diffrl.config.rewards import RewardSettings
from diffrl.cost import scorers
from diffrl.errors import ConfigError
from diffrl.models.published import hub_facts, published_pipelines, reward_facts
from reward_models.registry import SCORERS, factory_of

PIPELINE = {"source", "licence", "gated", "pipeline", "options", "components", "scheduler"}
WEIGHTS, OTHER = ({"source", "licence", "gated"} | more for more in ({"parameters", "dtype"}, {"bytes"}))


def test_each_reward_and_its_weights_have_a_file_with_all_facts():
    loaded = {name for name in SCORERS if factory_of(name).spec.weights is not None}
    assert loaded <= set(reward_facts()) <= set(SCORERS)
    for name, facts in reward_facts().items():
        assert set(facts) == ({"weights", "configs", "call_bytes"} if facts["weights"] else {"weights"}), name
        assert all(set(hub_facts(repository)) == WEIGHTS for repository in facts["weights"]), name
        assert all(set(hub_facts(repository)) == OTHER for repository in facts.get("configs", ())), name


def test_each_recipe_has_a_pipeline_with_all_facts():
    paths = {load_config(file).model.path for file in recipes().values()}
    for path in {path for path in paths if not path.startswith("assets/")} | set(published_pipelines()):
        facts = hub_facts(path)
        assert set(facts) == PIPELINE, path
        for part in facts["components"].values():
            assert set(part) == {"package", "class", "config", "parameters", "dtype"}, path


def test_a_reward_whose_size_was_forgotten_is_an_error(monkeypatch):
    monkeypatch.setattr(scorers, "reward_facts", dict)
    with pytest.raises(KeyError, match="pickscore"):
        scorers.weights_of(RewardSettings(name="pickscore"))


def test_a_dtype_that_no_scorer_knows_is_refused_when_it_is_planned():
    reward = RewardSettings(name="pickscore", options={"dtype": "float61"})
    with pytest.raises(ConfigError, match="float61"):
        scorers.call_bytes(reward)
