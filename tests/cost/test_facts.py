"""Tables of facts have an entry for each name of the registry that they are keyed by: nothing is planned by default."""

import pytest

from diffrl.config.rewards import RewardSettings
from diffrl.cost import scorers
from diffrl.errors import ConfigError
from reward_models.parameters import ACTIVATIONS, PARAMETERS, WEIGHTLESS
from reward_models.registry import SCORERS


def test_every_reward_has_a_size_or_is_said_to_have_none():
    assert set(PARAMETERS) | WEIGHTLESS == set(SCORERS) and not set(PARAMETERS) & WEIGHTLESS
    assert set(ACTIVATIONS) == set(PARAMETERS)


def test_a_reward_whose_size_was_forgotten_is_an_error(monkeypatch):
    monkeypatch.setattr(scorers, "PARAMETERS", {})
    with pytest.raises(KeyError, match="pickscore"):
        scorers.weights_of(RewardSettings(name="pickscore"))


def test_a_dtype_that_no_scorer_knows_is_refused_when_it_is_planned():
    reward = RewardSettings(name="pickscore", options={"dtype": "float61"})
    with pytest.raises(ConfigError, match="float61"):
        scorers.call_bytes(reward)
