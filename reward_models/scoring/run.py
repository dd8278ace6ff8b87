"""The work itself: a window of images at a time is read, scored by every reward and handed on in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from reward_models.scoring.cache import Score, ScoreCache
from reward_models.scoring.checks import why_not
from reward_models.scoring.choices import Loaded
from reward_models.scoring.groups import Known, score_groups
from reward_models.scoring.identity import can_be_cached, file_digest, sample_key, scorer_identity
from reward_models.scoring.items import Item, Peek
from reward_models.scoring.samples import Read, call_scorer, title

WINDOW_BATCHES = 4
"""Batches of the largest size that a window holds, so that images of one size find each other."""
WINDOW_BYTES = 256 * 2**20
"""Pixels of a window; two windows are in memory: one is scored while the next is read."""


@dataclass(frozen=True)
class Row:
    """A sample with all its scores, by label; `cached` are those that were known before."""

    item: Item
    scores: Mapping[str, Score]
    cached: frozenset[str]


def score_items(
    rewards: Sequence[Loaded],
    items: Sequence[Item],
    peeks: Sequence[Peek],
    cache: ScoreCache,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[Row]:
    """Score every sample with every reward.

    Args:
        rewards: ready to score.
        items: in the order in which rows are wanted.
        peeks: what their headers said.
        cache: known scores; new ones are added after every batch, those of `can_be_cached` rewards.
        advance: told how many scores were just made or found.

    Yields:
        A row an item, in order. An image that cannot be read, or scored, has a failure and stops nothing.

    Raises:
        RewardError: a reward cannot work at all; what was scored before is in the cache.
    """
    identities = {reward.label: scorer_identity(reward) for reward in rewards}
    caches = {reward.label: cache if can_be_cached(reward) else ScoreCache(None) for reward in rewards}
    grouped = [reward for reward in rewards if reward.scorer.spec.scope == "group"]
    single = [reward for reward in rewards if reward.scorer.spec.scope == "sample"]
    of_groups: dict[str, Sequence[Known]] = {
        reward.label: score_groups(reward, identities[reward.label], items, peeks, caches[reward.label], advance)
        for reward in grouped
    }
    largest = max((reward.batch_size for reward in single), default=1)
    rows = range(len(items))

    def read(row: int) -> Read:
        sample = _read(items[row], peeks[row], single, identities, caches)
        known = {label: scores[row] for label, scores in of_groups.items()}
        sample.scores |= {label: one.score for label, one in known.items()}
        sample.cached |= {label for label, one in known.items() if one.cached}
        return sample

    for window in _read_ahead(_windows(rows, peeks, WINDOW_BATCHES * largest), read):
        for reward in single:
            _score_window(reward, window, caches[reward.label], advance)
        for sample in window:
            yield Row(sample.item, sample.scores, sample.cached)


def _windows(rows: Sequence[int], peeks: Sequence[Peek], count: int) -> Iterator[list[int]]:
    """Yield rows in windows of at most `count` and, unless one alone is larger, of at most `WINDOW_BYTES`."""
    window: list[int] = []
    size = 0
    for row in rows:
        if window and (len(window) == count or size + peeks[row].size > WINDOW_BYTES):
            yield window
            window, size = [], 0
        window.append(row)
        size += peeks[row].size
    if window:
        yield window


def _read_ahead(windows: Iterator[list[int]], read: Callable[[int], Read]) -> Iterator[list[Read]]:
    """Yield windows of samples; while one is scored, threads read the next."""
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="read")
    try:
        ahead: list[Future[Read]] = []
        for window in windows:
            following = [pool.submit(read, row) for row in window]
            if ahead:
                yield [future.result() for future in ahead]
            ahead = following
        if ahead:
            yield [future.result() for future in ahead]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(
    item: Item, seen: Peek, rewards: Sequence[Loaded], identities: Mapping[str, str], caches: Mapping[str, ScoreCache]
) -> Read:
    """Look a sample up; open its file only if something is left to score."""
    sample = Read(item)
    for reward in rewards:
        why = why_not(reward, item, seen)
        if why is not None:
            sample.fail([reward.label], why)
    able = [reward for reward in rewards if reward.label not in sample.scores]
    if not able:
        return sample
    try:
        digest = file_digest(item.path)
    except OSError as error:
        sample.fail([reward.label for reward in able], f"{item.name} cannot be read: {error.strerror}.")
        return sample
    cached = set()
    for reward in able:
        key = sample_key(identities[reward.label], digest, item, reward.scorer.spec.uses_prompt)
        known = caches[reward.label].get(key)
        if known is None:
            sample.keys[reward.label] = key
        else:
            sample.scores[reward.label] = known
            cached.add(reward.label)
    sample.cached = frozenset(cached)
    if sample.keys:
        sample.open(able)
    return sample


def _score_window(reward: Loaded, window: Sequence[Read], cache: ScoreCache, advance: Callable[[int], None]) -> None:
    """Score what is left of a window, those of one size in batches; equal samples once."""
    label = reward.label
    advance(sum(label in sample.scores for sample in window))
    waiting: dict[str, list[Read]] = {}
    for sample in window:
        if label in sample.keys:
            waiting.setdefault(sample.keys[label], []).append(sample)
    alike: dict[object, list[str]] = {}
    for key, samples in waiting.items():
        known = cache.get(key)  # of an equal sample in the window before, which was not scored yet when this was read
        if known is not None:
            _give(label, samples, known, advance)
            continue
        alike.setdefault((samples[0].shape, samples[0].fps), []).append(key)
    for keys in alike.values():
        for start in range(0, len(keys), reward.batch_size):
            piece = keys[start : start + reward.batch_size]
            scores = call_scorer(reward, [waiting[key][0] for key in piece])
            cache.put(title(reward), list(zip(piece, scores, strict=True)))
            for key, score in zip(piece, scores, strict=True):
                _give(label, waiting[key], score, advance)


def _give(label: str, samples: Sequence[Read], score: Score, advance: Callable[[int], None]) -> None:
    for sample in samples:
        sample.scores[label] = score
    advance(len(samples))
