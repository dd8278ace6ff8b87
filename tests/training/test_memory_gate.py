"""A session looks at memory before it moves anything: what it takes itself is not missing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.distributed.ranks import Ranks
from diffrl.errors import ConfigError
from diffrl.preflight import machine, model, preview, rewards
from diffrl.preflight.stages import open_session
from tests.training.harness import settings

GIB = 2**30
TOTAL = 10 * GIB


class ReachedError(Exception):
    """The model is about to be loaded."""


@pytest.fixture
def open_on_a_card(random_sd3, tmp_path, monkeypatch):
    """Open a session on a GPU of `TOTAL` whose rewards take a fifth of it, for a plan that needs `share` of it."""
    card = SimpleNamespace(moved=0)
    free = lambda device=None: (TOTAL - GIB // 2 - card.moved, TOTAL)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    monkeypatch.setattr(machine, "open_ranks", lambda *given: Ranks(torch.device("cuda")))

    def make_scorers(*given):
        card.moved += TOTAL // 10
        return []

    def open_adapter(*given):
        raise ReachedError

    monkeypatch.setattr(rewards, "make_scorers", make_scorers)
    monkeypatch.setattr(model, "open_adapter", open_adapter)
    config = make_config(settings(random_sd3, tmp_path))
    plan = make_plan(config)

    def opened(share):
        kept = {"libraries": GIB, "scorers": TOTAL // 5, "rest": int(share * TOTAL) - GIB - TOTAL // 5}
        sized = replace(plan, memory=replace(plan.memory, kept=kept, passing={}))
        monkeypatch.setattr(preview, "make_plan", lambda *given: sized)
        open_session(preview.Preview(config), tmp_path)

    return opened


def test_a_run_that_fits_is_let_in(open_on_a_card):
    with pytest.raises(ReachedError):
        open_on_a_card(0.9)


def test_a_run_that_does_not_fit_is_refused(open_on_a_card):
    with pytest.raises(ConfigError, match="Not enough memory"):
        open_on_a_card(1.01)
