"""The one place where a scorer is asked.

Scorers are strangers' code, and several score the same samples. So each gets a batch of its own, gives an output that
is ours alone, and whatever else it does becomes one error that names it.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, Scorer
from reward_models.common.errors import BrokenScorerError, RewardError
from reward_models.common.messages import brief, printable
from reward_models.process_state import settings_kept


def ask(scorer: Scorer, batch: RewardBatch, name: str) -> RewardOutput:
    """Score a batch.

    The scorer sees copies, so whatever it does to them reaches nobody. One that changes them is refused all the same:
    whoever asks it in another way would train on other images than were generated.

    Args:
        scorer: any.
        batch: what to score; left as it is.
        name: of the reward, for the message.

    Returns:
        The scorer's output: copies on the CPU, without gradients, with messages that can be stored.

    Raises:
        RewardError: the scorer's own.
        BrokenScorerError: it raised anything else but what is of memory or a Ctrl-C, changed its batch or what numbers
            elsewhere depend on (`process_state`), or returned what is no score of each sample.
    """
    copied = own_copy(batch)
    try:
        with settings_kept(name):
            returned = scorer(copied)
        output = _own_output(returned, len(batch), name)
    except (RewardError, KeyboardInterrupt, MemoryError, torch.OutOfMemoryError):
        raise
    except BaseException as error:  # also SystemExit, and what libraries in Rust raise in a panic
        raise BrokenScorerError(_failure(error, batch, name)) from error
    changed = changes(copied, batch)
    if changed:
        what = " and ".join(f"batch.{field}" for field in changed)
        raise BrokenScorerError(
            f"The reward {name} works in place on {what}. A scorer must leave its batch as it is. Let it copy first "
            f"(batch.media.clone(), copy.deepcopy(batch.metadata)); then check it with: diffrl rewards check {name}."
        )
    return output


def own_copy(batch: RewardBatch) -> RewardBatch:
    """Return the same samples in memory of their own.

    Raises:
        RewardError: metadata that cannot be copied.
    """
    metadata = list(batch.metadata)
    try:  # once for all samples of a prompt, which share it
        copies = {key: _copied(meta) for key, meta in {id(meta): meta for meta in metadata}.items()}
    except Exception as error:  # nested too deep, or an object that refuses
        raise RewardError(
            f"The metadata of samples must be plain values. Got what cannot be copied: {type(error).__name__}: "
            f"{printable(error)}. Give text, numbers, lists and mappings."
        ) from error
    images = {key: source.clone() for key, source in {id(source): source for source in batch.sources}.items()}
    return replace(
        batch,
        media=batch.media.clone(),
        prompts=list(batch.prompts),
        metadata=[copies[id(meta)] for meta in metadata],
        groups=list(batch.groups),
        sources=[images[id(source)] for source in batch.sources],
    )


def changes(now: RewardBatch, then: RewardBatch) -> list[str]:
    """Return the names of the fields that differ between a batch and its copy."""
    return [
        name
        for name in ("media", "prompts", "metadata", "groups", "sources")
        if not _same(getattr(now, name), getattr(then, name))
    ]


def _copied(value: Any) -> Any:
    """Return a deep copy; JSON's types by hand, many times faster than `copy.deepcopy`."""
    if isinstance(value, (str, int, float, type(None))):
        return value
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(entry) for entry in value] if isinstance(value, list) else tuple(map(_copied, value))
    return copy.deepcopy(value)


def _same(a: Any, b: Any) -> bool:
    """Return whether a value is still what it was copied from; only JSON's types and tensors are compared."""
    if isinstance(b, Tensor):
        alike = isinstance(a, Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        return alike and torch.equal(a, b)
    if isinstance(b, Mapping):
        return isinstance(a, Mapping) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return isinstance(a, (list, tuple)) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(b, (str, int, float, type(None))):
        return a is b or bool(a == b)
    return True


def output_problems(output: Any, count: int) -> list[str]:
    """Return what is wrong with the form of an output for `count` samples, one sentence each.

    Raises:
        Exception: it is so wrong that it cannot be read, such as parts that are no mapping.
    """
    if not isinstance(output, RewardOutput):
        return [f"It must be a RewardOutput. Got {type(output).__name__}."]
    parts = dict(output.parts)
    names = [key for key in parts if not isinstance(key, str) or printable(key, 100) != key]
    problems = [f"Its parts have names of at most 100 characters. Got {_shown(key)}." for key in names]
    columns = {"`raw`": output.raw, "`ok`": output.ok, **{f"The part {key!r}": part for key, part in parts.items()}}
    for name, column in columns.items():
        if not isinstance(column, Tensor):
            problems.append(f"{name} must be a tensor. Got {type(column).__name__}.")
        elif column.layout != torch.strided or column.is_nested or column.is_meta or column.is_complex():
            got = f"{column.layout} {column.dtype} on {column.device}"
            problems.append(f"{name} is no dense tensor of real numbers: {got}.")
        elif column.shape != (count,):
            problems.append(f"{name} must be of shape ({count},). Got {tuple(column.shape)}.")
        elif name == "`ok`" and column.dtype != torch.bool or name == "`raw`" and not column.is_floating_point():
            problems.append(f"`raw` must be of floats and `ok` of bool. Got {name} of {column.dtype}.")
    for name, texts, counts in (("errors", list(output.errors), (count,)), ("notes", list(output.notes), (0, count))):
        if len(texts) not in counts:
            problems.append(f"`{name}` must have {count} entries. Got {len(texts)}.")
        problems += [
            f"`{name}` must be text or None. Got {_shown(text)}." for text in texts if not isinstance(text, str | None)
        ][:1]
    return problems


def _own_output(output: RewardOutput, count: int, name: str) -> RewardOutput:
    """Return an output as ours: a tensor that the scorer keeps and writes to again would change earlier scores.

    Raises:
        BrokenScorerError: it is none: one row too many would give every later sample another's score.
    """
    if problems := output_problems(output, count):
        raise BrokenScorerError(
            f"The reward {name} must return a RewardOutput with one entry a sample, {count} of them. {problems[0]} "
            f"Check it: diffrl rewards check {name}."
        )
    short = [(note and brief(note)) or None for note in output.notes]
    return RewardOutput(
        _plain(output.raw),
        _plain(output.ok),
        [error and printable(error) for error in output.errors],
        {key: _plain(part) for key, part in output.parts.items()},
        short if any(short) else (),
    )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _shown(value: Any) -> str:
    return printable(repr(value), 80)


def _failure(error: BaseException, batch: RewardBatch, name: str) -> str:
    first = f" on {_shown(batch.prompts[0])} and {len(batch) - 1} others" if len(batch) else ""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"The reward {name} failed{first}: {type(error).__name__}: {printable(error)} ({at.filename}:{at.lineno}). "
        f"Mend it; then check it with: diffrl rewards check {name}."
    )
