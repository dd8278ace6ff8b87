"""Preference pairs in lists of prompts: the image that was preferred for a prompt, and the one that was not.

A row of such a list names two files beside its prompt, under one of these pairs of columns:

    winner, loser         chosen, rejected        (TRL)
    jpg_0, jpg_1, label_0: 1 where jpg_0 was preferred, 0 where jpg_1 was, 0.5 a tie         (Pick-a-Pic)

and may have a "weight". `preferences.jsonl` of the gallery's votes is such a list.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffrl.data.sources import require_ratio, source_size
from diffrl.errors import ConfigError
from diffrl.records import Pair, Prompt
from reward_models.common.errors import RewardError
from reward_models.common.image_files import header_of, opened
from reward_models.common.messages import quote, show
from reward_models.common.suffixes import IMAGE_SUFFIXES, VIDEO_SUFFIXES

SIDES = (("winner", "loser"), ("chosen", "rejected"), ("jpg_0", "jpg_1"))
PICKAPIC, LABELS = SIDES[-1], ("label_0", "label_1")
NEITHER = Pair("", "", 0.0)
"""Of a row that names two images and prefers none."""
MOST_WEIGHT = 1.0e6
SIDED, SURE = 0.9, 10
"""Share of a voter's votes for one side, of at least so many, from which on it is said."""


@dataclass
class PairReader:
    """Takes pairs out of the rows of a list, and counts what the user should know of them.

    Args:
        folder: that the paths of files are relative to.
        ties: rows without a preference.
        equal: rows that name one file twice.
    """

    folder: Path
    ties: int = 0
    equal: int = 0
    _known: set[str] = field(default_factory=set)
    _seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _left: Counter[str] = field(default_factory=Counter)
    _voted: Counter[str] = field(default_factory=Counter)

    def take(self, record: dict[str, Any], prompt: str, where: str) -> Pair | None:
        """Return the pair of a row, taken out of it; None of a row without one, `NEITHER` of one without a preference.

        Args:
            record: the row, less its prompt.
            prompt: its text.
            where: the row stands, for the message.

        Raises:
            ConfigError: it names half a pair, a file that is not there, or has no such label or weight.
        """
        names = next((names for names in SIDES if any(_is_media(record.get(name)) for name in names)), None)
        if names is None:
            return None
        winner, loser = (self._path(record, name, where) for name in names)
        weight = _number(record.get("weight", 1.0), "weight", where)
        if not 0 < weight <= MOST_WEIGHT:
            raise ConfigError(
                f"The weight of a pair must be above 0 and at most {MOST_WEIGHT:g}. {where} has {weight:g}. Correct it."
            )
        label = _label(record, where) if PICKAPIC[0] in record else 1.0
        if names == PICKAPIC and label == 0.0:
            winner, loser = loser, winner
        self._count(record, label)
        for name in (*sum(SIDES, ()), *LABELS, "weight", *(("caption",) if PICKAPIC[0] in record else ())):
            record.pop(name, None)
        if label == 0.5 or winner == loser:
            self.ties += label == 0.5
            self.equal += label != 0.5
            return NEITHER
        self._seen[prompt, winner, loser] += 1
        return Pair(winner, loser, weight)

    @property
    def notes(self) -> list[str]:
        """What is odd about the pairs, a sentence each."""
        seen = self._seen
        twice = sum(count - 1 for count in seen.values())
        against = sum(min(count, seen[prompt, b, a]) for (prompt, a, b), count in seen.items() if a < b)
        says = [
            (self.ties, "{} pairs are ties, which prefer nothing. They are left out."),
            (self.equal, "{} pairs name the same file twice. They are left out."),
            (twice, "{} pairs are there once more than before. Each counts."),
            (against, "{} pairs are there both ways round. Both train, against each other."),
        ]
        sided = [
            f"The voter {voter} preferred the {side} image in {max(left, count - left)} of {count} votes: look whether "
            "the images were seen."
            for voter, count in self._voted.items()
            for left, side in ((self._left[voter], "left" if 2 * self._left[voter] > count else "right"),)
            if count >= SURE and max(left, count - left) >= SIDED * count
        ]
        return [text.format(f"{count:,}") for count, text in says if count] + sided

    def _count(self, record: Mapping[str, Any], label: float) -> None:
        """Count on which side the preferred image of a vote of the gallery was shown."""
        if LABELS[0] in record and "voter" in record and label != 0.5:
            voter = str(record["voter"])
            self._voted[voter] += 1
            self._left[voter] += label == 1.0

    def _path(self, record: Mapping[str, Any], name: str, where: str) -> str:
        value = record.get(name)
        if not _is_media(value):
            raise ConfigError(
                f"A pair has two images, or two clips, as files. {where} has {name}={show(value)}. Name the file, or "
                "remove the row."
            )
        path = os.path.abspath(self.folder / str(value))
        if path not in self._known:
            _require_file(path, f"{where} ({name}: {quote(value)})")
            self._known.add(path)
        return path


def require_given_pairs(prompts: Sequence[Prompt], where: str, size: tuple[int, int] | None) -> None:
    """Refuse a list of prompts of which one comes without its pair, or with an image that would be distorted.

    Args:
        prompts: all of a list.
        where: its place in the configuration, for the message.
        size: height and width of the images that are drawn; None where that is not known yet, or they are clips.

    Raises:
        ConfigError: names the first.
    """
    lacking = next((prompt for prompt in prompts if prompt.pair is None), None)
    if lacking is not None:
        raise ConfigError(
            f"{where} must name two images with every prompt, for objective.kind: dpo. {lacking.text!r} has none. Use "
            'votes, such as `diffrl vote` writes: {"prompt": ..., "winner": "a.png", "loser": "b.png"}.'
        )
    files = {path for prompt in prompts if prompt.pair is not None for path in prompt.pair.files}
    for path in sorted(files) if size is not None else ():
        try:
            require_ratio(source_size(path), size, quote(path))
        except RewardError as error:
            raise ConfigError(f"{where} names an image that cannot be used. {error}") from error


def _is_media(value: Any) -> bool:
    return isinstance(value, str) and value.lower().endswith((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))


def _label(record: Mapping[str, Any], where: str) -> float:
    """Return 1 where the first image of Pick-a-Pic's columns was preferred, 0 where the second was, 0.5 of a tie."""
    first, second = (None if record.get(name) is None else _number(record[name], name, where) for name in LABELS)
    known = 1.0 - second if first is None and second is not None else first
    if known not in (0.0, 0.5, 1.0) or second not in (None, 1.0 - known):
        raise ConfigError(
            "label_0 of a pair must be 1, 0 or 0.5, and label_1 what is left of 1. "
            f"{where} has {show([first, second])}. Correct the row."
        )
    return known


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} of a pair must be a number. {where} has {show(value)}. Correct it.")
    return number


def _require_file(path: str, where: str) -> None:
    """Refuse what is no image; of a clip it is looked at alone whether it is there."""
    if not os.path.isfile(path):
        raise ConfigError(
            f"An image of a pair must be a file, its path relative to the list's. {where} leads to {quote(path)}, "
            "which does not exist. Correct the path."
        )
    if path.lower().endswith(VIDEO_SUFFIXES):
        return
    try:
        with opened(path, quote(path)) as image:
            header_of(image)
    except RewardError as error:
        raise ConfigError(f"An image of a pair must be readable. {where}: {error}") from error
