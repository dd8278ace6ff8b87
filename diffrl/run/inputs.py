"""Whether a run goes on with what it was trained with: digests kept in its checkpoints against those of today.

Training prompts, base and rewards that are others are refused, unless --accept-changed-inputs says that they are meant;
what is only measured with, and packages, is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffrl.errors import ConfigError
from diffrl.training.inputs import PACKAGE
from diffrl.training.session import Session

ACCEPT = "--accept-changed-inputs"
"""The option; accept_changed_inputs=True in Python."""

TRAINED_WITH = ("prompts.train", "model.path", "rewards.", "objective.", "credit.", "rollout.")
"""What the names begin with of inputs that weights depend on."""

MEASURED_WITH = ("prompts.eval", "model.path", "eval.rewards.")
"""The same of inputs that held-out rewards and images depend on."""

Changes = dict[str, tuple[str, str]]
"""Digests of then and now, by input."""


def changed_inputs(then: Any, now: Mapping[str, str], kinds: Sequence[str] = ()) -> Changes:
    """Return the inputs that differ, with their digests of then and now.

    Args:
        then: as a checkpoint has them; None, or anything but a mapping, tells of no change.
        now: as they are.
        kinds: only names that begin with one of these; empty = all.
    """
    before = then if isinstance(then, Mapping) else {}
    wanted = {name: digest for name, digest in now.items() if not kinds or name.startswith(tuple(kinds))}
    return {name: (before[name], is_now) for name, is_now in wanted.items() if before.get(name, is_now) != is_now}


def describe_changes(changes: Changes) -> str:
    """Say what differs: "prompts.train was 4 prompts, 1f0c... and is 2 prompts, 77ab..."."""
    return "; ".join(f"{name} was {was} and is {is_now}" for name, (was, is_now) in changes.items())


def require_inputs(then: Any, now: Mapping[str, str], accept: bool, what: str, kinds: Sequence[str]) -> list[str]:
    """Refuse inputs that are others than what weights were trained with, or name them.

    Args:
        then: digests as the checkpoint has them; None of an older diffrl.
        now: digests of today.
        accept: the user says that other ones are meant.
        what: the weights, to begin the message with.
        kinds: names of inputs that are refused begin with one of these; the others are named.

    Returns:
        What the user should know.

    Raises:
        ConfigError: names what differs.
    """
    if not isinstance(then, Mapping):
        return [_unknown(what)]
    changes = changed_inputs(then, now)
    refused = {name: pair for name, pair in changes.items() if name.startswith(tuple(kinds))}
    if refused and not accept:
        raise ConfigError(
            f"{what} goes on with the inputs that it was trained with. Got others under the same names: "
            f"{describe_changes(refused)}. Put the former ones back, or say that these are meant: {ACCEPT}."
        )
    named = {name: pair for name, pair in changes.items() if not name.startswith(PACKAGE)}
    return [f"{what} goes on with other inputs: {describe_changes(named)}."] if named else []


def require_alike_on_ranks(session: Session) -> None:
    """Refuse ranks that would not train on the same.

    Raises:
        ConfigError: names the first that differs, on every rank.
    """
    everyone = session.ranks.gather_objects(session.inputs)
    for rank, inputs in enumerate(everyone):
        kinds = (*TRAINED_WITH, *MEASURED_WITH)
        if changes := changed_inputs(everyone[0], inputs, kinds):
            raise ConfigError(
                f"All ranks train on the same inputs. From rank 0 to rank {rank}, {describe_changes(changes)}. "
                "Copy them from one machine to the others."
            )


def warn_of_inputs(then: Any, now: Mapping[str, str], what: str) -> list[str]:
    """Name inputs, and packages, that are others than what weights were trained with; what is not known is no change.

    Args:
        then: as for `require_inputs`.
        now: digests of what is used, all or some.
        what: the weights.
    """
    if not isinstance(then, Mapping):
        return [_unknown(what)]
    changes = changed_inputs(then, now)
    inputs = {name: pair for name, pair in changes.items() if not name.startswith(PACKAGE)}
    packages = {name: pair for name, pair in changes.items() if name.startswith(PACKAGE)}
    lines = [f"Warning: not what {what} was trained with: {describe_changes(inputs)}."] if inputs else []
    return lines + ([f"{what} was trained with other packages: {describe_changes(packages)}."] if packages else [])


def _unknown(what: str) -> str:
    return f"{what} keeps no digests of prompts, base and rewards: whether they are the same is not known."
