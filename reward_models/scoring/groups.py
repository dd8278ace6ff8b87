"""Rewards that compare a sample with its group, such as diversity: one whole group at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reward_models.common.errors import RewardError
from reward_models.scoring.cache import Score, ScoreCache, failure
from reward_models.scoring.checks import why_not
from reward_models.scoring.choices import Loaded
from reward_models.scoring.identity import file_digest, sample_key
from reward_models.scoring.items import Item, Peek
from reward_models.scoring.samples import Read, call_scorer, title

LARGEST, LARGEST_BYTES = 1024, 2**31
"""Samples of a group, and their pixels, all of which are in memory at once."""


@dataclass(frozen=True)
class Known:
    """A score, and whether it was known before."""

    score: Score
    cached: bool = False


def score_groups(
    reward: Loaded,
    identity: str,
    items: Sequence[Item],
    peeks: Sequence[Peek],
    cache: ScoreCache,
    advance: Callable[[int], None],
) -> list[Known]:
    """Score all groups with one reward.

    Groups are those of a run; elsewhere images of the same prompt, or those of one folder where there are no prompts.
    An image that cannot be read has a failure, and the others of its group are compared without it. Scores are cached
    under a key of all members, so that one more image makes all of its group new.

    Returns:
        A score an item.

    Raises:
        RewardError: a group that is too large to be held, or that the scorer refuses.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, item in enumerate(items):
        groups.setdefault(item.group_key, []).append(row)
    for rows in groups.values():
        size = sum(peeks[row].size for row in rows)
        if len(rows) > LARGEST or size > LARGEST_BYTES:
            raise RewardError(
                f"The reward {reward.label} compares all files of a group with each other, and takes groups of up to "
                f"{LARGEST} files and {LARGEST_BYTES / 1e9:.1f} GB of pixels. Got one of {len(rows)} files and "
                f"{size / 1e9:.1f} GB, with {items[rows[0]].name}. Give prompts (equal prompts are a group), put "
                "groups into folders, or use --limit."
            )
    results: list[Known] = [Known(failure("not scored"))] * len(items)
    for rows in groups.values():
        members = [(items[row], peeks[row]) for row in rows]
        for row, known in zip(rows, _score_group(reward, identity, members, cache), strict=True):
            results[row] = known
        advance(len(rows))
    return results


def _score_group(reward: Loaded, identity: str, members: Sequence[tuple[Item, Peek]], cache: ScoreCache) -> list[Known]:
    label = reward.label
    samples = [Read(item) for item, _ in members]
    digests: dict[int, str] = {}
    for number, (item, seen) in enumerate(members):
        why = why_not(reward, item, seen)
        try:
            digests |= {} if why is not None else {number: file_digest(item.path)}
        except OSError as error:
            why = f"{item.name} cannot be read: {error.strerror}."
        if why is not None:
            samples[number].fail([label], why)
    everyone = list(digests.values())
    for number, digest in digests.items():
        item = samples[number].item
        samples[number].keys[label] = sample_key(identity, digest, item, reward.scorer.spec.uses_prompt, everyone)
    known = {number: cache.get(samples[number].keys[label]) for number in digests}
    if all(score is not None for score in known.values()):
        scores = {number: Known(score, cached=True) for number, score in known.items() if score is not None}
        return [scores.get(number) or Known(sample.scores[label]) for number, sample in enumerate(samples)]
    for number in digests:
        samples[number].open([reward])
    opened = [sample for sample in samples if label in sample.keys]
    for sample, score in zip(opened, _compare(reward, opened), strict=True):
        sample.scores[label] = score
    cache.put(title(reward), [(sample.keys[label], sample.scores[label]) for sample in opened])
    return [Known(sample.scores[label]) for sample in samples]


def _compare(reward: Loaded, samples: Sequence[Read]) -> list[Score]:
    if not samples:
        return []
    shapes = {sample.shape for sample in samples}
    if len(shapes) == 1 and len({sample.fps for sample in samples}) == 1:
        return call_scorer(reward, samples, grouped=True)
    sizes = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:3])
    return [failure(f"its group holds images of different sizes ({sizes}), which cannot be compared")] * len(samples)
