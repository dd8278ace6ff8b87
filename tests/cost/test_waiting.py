"""Ranks wait for each other as long as the settings let one of them take."""

import pytest

from diffrl.config.load import make_config
from diffrl.cost.waiting import LONGEST, SAVING, longest_wait
from tests.training.harness import settings

EXPLORE = {"precision": "training", "candidates": 60, "keep": 3}


def wait(directory, processes=1, explore=None, samples=5, held_out=1.0, **reward):
    """Two prompts of three samples; held out `samples`."""
    name = "tests.training.scorers:Brightness"
    data = settings("somewhere", directory, rewards=[{"name": name} | reward])
    data["eval"] = {"rewards": [{"name": name, "timeout": held_out, "batch_size": 10}], "samples": samples, "steps": 3}
    data["rollout"] |= {"explore": explore}
    return longest_wait(make_config(data), processes)


def test_it_is_longer_than_a_rank_may_take_for_its_rewards(tmp_path):
    """Calls of a reward queue one behind the other: six samples one by one take six times the timeout."""
    for size, calls in ((1, 6), (4, 2), (256, 1)):
        assert calls * 20_000 < wait(tmp_path, timeout=20_000.0, batch_size=size) < (calls + 1) * 20_000
    assert 3 * 20_000 < wait(tmp_path, 2, timeout=20_000.0, batch_size=1) < 4 * 20_000
    assert 12 * 20_000 < wait(tmp_path, explore=EXPLORE, timeout=20_000.0, batch_size=10) < 13 * 20_000
    assert 50 * 9_000 < wait(tmp_path, samples=500, held_out=9_000.0, timeout=1.0) < 51 * 9_000


@pytest.mark.parametrize("processes", [1, 2])
def test_short_rewards_leave_time_to_save(tmp_path, processes):
    assert wait(tmp_path, processes, timeout=1.0) > SAVING


def test_without_a_timeout_they_wait_as_long_as_any_timeout_can_be(tmp_path):
    assert wait(tmp_path, timeout=None) == wait(tmp_path, timeout=LONGEST) == LONGEST
