"""Judges on this machine, for a test."""

import pytest

from tests.reward_models.judges.judge_server import judges


@pytest.fixture
def start():
    with judges() as start:
        yield start
