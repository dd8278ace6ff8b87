"""The load test of tests/attacks/load_rewards.py: nothing lost, nothing wrong, no traceback, memory flat."""

import pytest

from tests.attacks.load_rewards import load_test


@pytest.mark.long
def test_nothing_is_lost_under_load(count=150):
    figures = load_test(count, clients=8, seed=count)
    assert figures["problems"] == [] and figures["tracebacks"] == 0
    parts = ("good and right", "refused as they must", "dropped on purpose")
    assert sum(figures[part] for part in parts) == count and figures["good and right"] > 0.4 * count
    assert figures["memory after, MB"] - figures["memory before, MB"] < 30
    assert figures["log lines"] < 0.1 * count + 20  # one for each request that is no HTTP
