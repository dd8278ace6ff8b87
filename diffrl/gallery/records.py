"""What pages show, whatever it was read from: a run's store or a folder of images."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from diffrl.gallery.leaves import Leaf
from diffrl.gallery.numbers import csv_text
from reward_models.common.messages import LONGEST_NOTE, brief, cut


@dataclass(frozen=True)
class State:
    """A set of samples that can be compared with another: one stage of a run at one iteration, or a whole folder."""

    stage: str  # "eval", "train", "generate", ...; "folder" of a folder
    iteration: int  # of the run; 0 of a folder
    samples: int = 0  # how many there are

    @property
    def key(self) -> str:
        """As it stands in an address: "eval-80"."""
        return f"{self.stage}-{self.iteration}"


Key = tuple[str, int, int, int, str]
"""What makes two samples the same prompt and noise: prompt, seed, group, root, path."""


class Brief(NamedTuple):
    """As much of a sample as sorting and matching need; a tuple, because a page may read 50,000 of them."""

    id: int  # of the sample in its source
    key: Key  # prompt, seed, group, root and path; samples of a folder have (prompt, 0, 0, 0, relative name)
    value: float | None  # of the reward that was asked for; None where there is none
    has_image: bool = True  # whether its image was kept
    source: str | None = None  # the image that it is an edit of, as its prompt named it; None of no edit
    exact: bool = True  # whether that image has the sample's own pixels
    representative: bool | None = True  # False where it was kept for how much its score changed; None without one

    @property
    def asked(self) -> tuple[str, str | None]:
        """What tells prompts apart: the words, and the image that they edit."""
        return self.key[0], self.source


@dataclass(frozen=True)
class Sample:
    """A sample as it is shown."""

    id: int  # in its source
    key: Key  # see `Brief`
    state: State  # what it belongs to
    total: float | None = None  # weighted reward
    advantage: float | None = None  # None where it was not trained on
    # raw value by name, parts as "reward/part"; None where a scorer failed
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None  # why a scorer failed
    # what scorers say of it, by the name of the reward; a stranger's text
    notes: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None  # image or video, relative to the source; None if it was not kept
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values that came with the prompt
    leaf: Leaf | None = None  # of the kept tree that it grew in; None without
    # a small copy of the image that it is an edit of, relative to the source of samples; None without
    source: str | None = None
    exact: bool = True  # whether the file has the sample's own pixels

    @property
    def prompt(self) -> str:
        """The text that it was drawn for."""
        return self.key[0]

    @property
    def reason(self) -> str | None:
        """What scorers say of it, in one line."""
        return reason(self.notes)

    def value(self, reward: str) -> float | None:
        """Return a reward by name; "total" is the weighted sum."""
        return self.total if reward == "total" else self.rewards.get(reward)


def reason(notes: Mapping[str, str]) -> str | None:
    """Return what scorers say of a sample (by reward) in one line, each thing once; None if they say nothing."""
    notes_once = dict.fromkeys(short for note in notes.values() if (short := brief(note)))
    return cut(" · ".join(notes_once), LONGEST_NOTE) or None


class Source(Protocol):
    """Something with samples: `runs.RunSource` or `folders.FolderSource`."""

    key: str
    """In addresses: letters, digits, dots, dashes and underscores, different for every source."""
    title: str
    kind: str
    """"run" or "folder"."""
    path: Path

    def states(self) -> list[State]:
        """Return what can be compared, by stage and iteration."""

    def reward_names(self, state: State) -> list[str]:
        """Return names of the rewards that the samples have; "total" first, where there is one."""

    def lower_is_better(self, state: State) -> frozenset[str]:
        """Return labels of the state's rewards of which less is better, as far as it is known; see `falls`."""

    def briefs(self, state: State, reward: str | None) -> list[Brief]:
        """Return all samples of a state, as they were drawn.

        Args:
            state: which.
            reward: whose values are wanted; "total" is the weighted sum, None none.
        """

    def samples(self, state: State, ids: Sequence[int]) -> list[Sample]:
        """Return samples by their ids, in the order of the ids."""

    def media(self, file: str) -> str:
        """Return the absolute path of an image.

        Raises:
            GalleryError: it is none of this source's, or missing (404).
        """

    def version(self) -> str:
        """Return a text that changes whenever anything of the source does."""


def falls(name: str, lower: Collection[str]) -> bool:
    """Return whether less is better of a reward; a part goes the way of its reward, and of the total more is better.

    Args:
        name: "shapes", "shapes/colour" or "total".
        lower: labels of rewards of which less is better.
    """
    return name != "total" and name.partition("/")[0] in lower


def describe_reward(name: str, lower: bool) -> str:
    """Return a reward's name where it is chosen or heads something."""
    return f"{name} (lower is better)" if lower else name


@dataclass(frozen=True)
class Answer:
    """What a page function gives."""

    body: str | bytes
    type: str = "text/html; charset=utf-8"  # media type
    status: int = 200
    filename: str | None = None  # offered when it is downloaded; None shows it in the browser


def csv_answer(lines: Iterable[Sequence[object]], filename: str) -> Answer:
    """Return lines as a CSV file (`numbers.csv_text`)."""
    return Answer(csv_text(lines), "text/csv; charset=utf-8", filename=filename)


def state_key(source: Source, state: State) -> str:
    """Return a state of a source as it stands in an address: "demo@eval-80"."""
    return f"{source.key}@{state.key}"
