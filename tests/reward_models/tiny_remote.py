"""A tiny reward server for the contract suite: the shapes scorer behind HTTP, in a thread of this process."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from reward_models import Scorer, load_reward

_SERVERS = contextlib.ExitStack()


@cache
def server() -> str:
    """The address of a server that runs until the process ends."""
    from reward_models.serving.server import background

    return _SERVERS.enter_context(background({"shapes": load_reward("shapes")}))


def _remote(folder: Path) -> Scorer:
    return load_reward("remote", url=server(), reward="shapes")


TINY = {"remote": _remote}
