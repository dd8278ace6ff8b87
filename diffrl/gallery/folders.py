"""A folder of images as a source: found and captioned as `diffrl score` does it, scored if rewards were named."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.paths import MEDIA, inside
from diffrl.gallery.records import Brief, Key, Sample, State
from diffrl.tracking.index import GENERATED_SOURCES, source_file, source_of
from reward_models.common.suffixes import IMAGE_SUFFIXES, SIDECARS, TABLES, VIDEO_SUFFIXES

if TYPE_CHECKING:
    from diffrl.gallery.scoring import FolderScores
    from reward_models.scoring.items import Item

FRESH = 3.0
"""Seconds for which a look at the folder counts; after them it is looked at again, and read if it has changed."""
SEEN = tuple({*MEDIA, *IMAGE_SUFFIXES, *VIDEO_SUFFIXES, *SIDECARS, *TABLES})
"""What a look at the folder notices: also what browsers do not show, which is counted."""


Mark = tuple[str, int, int, str | None]
"""File, size, time of change in ns and prompt of an image: another where any of them changes."""


@dataclass(frozen=True)
class Entry:
    """An image of the folder."""

    item: Item  # as scoring knows it: path, prompt, metadata
    file: str  # relative to the folder, with slashes
    key: Key  # its prompt and, in place of noise, its relative name without the suffix; see `Brief`
    mark: Mark  # see `Mark`


@dataclass(frozen=True)
class Look:
    """What lies in a folder, seen without opening anything."""

    files: Mapping[str, tuple[int, int]]  # size and time of change of images and captions, by relative name
    outside: frozenset[str] = frozenset()  # links to somewhere else, or to nothing; they are left out
    captions_outside: tuple[str, ...] = ()  # captions among them
    there: bool = True  # whether there is a folder at all

    @property
    def version(self) -> str:
        """A hash of what lies there."""
        text = repr((sorted(self.files.items()), sorted(self.outside), self.captions_outside, self.there))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Contents:
    """What was read of a folder at one of its versions."""

    version: str
    entries: Sequence[Entry] = ()
    notes: Sequence[str] = ()
    error: str | None = field(default=None)


class FolderSource:
    """A folder of images, with captions beside them, in a metadata.jsonl or from `diffrl generate`."""

    kind = "folder"

    def __init__(self, key: str, path: Path, title: str | None = None):
        self.key, self.path, self.title = key, path, title or path.name
        self.scores: FolderScores | None = None
        self._lock = threading.Lock()
        self._contents: Contents | None = None
        self._looked = 0.0
        self._ids: dict[tuple[str, str], int] = {}  # of file and prompt; one that was given is never given to others
        self._entries: dict[int, Entry] = {}

    def states(self) -> list[State]:
        """Return one state, the folder itself; none while it is empty."""
        entries = self.entries()
        return [State("folder", 0, len(entries))] if entries else []

    def reward_names(self, state: State) -> list[str]:
        """Return the rewards named on the command line, and their parts."""
        return self.scores.names() if self.scores is not None else []

    def lower_is_better(self, state: State) -> frozenset[str]:
        """Return those of which less is better, as the rewards say."""
        return self.scores.lower if self.scores is not None else frozenset()

    def briefs(self, state: State, reward: str | None) -> list[Brief]:
        """Return all images, in the order of their names."""
        entries = self._shown()
        marks = [entry.mark for entry in entries.values()]
        values = self.scores.values(marks, reward) if self.scores and reward else [None] * len(marks)
        shown = zip(entries.items(), values, strict=True)
        return [
            Brief(number, entry.key, value, source=source_of(entry.item.metadata)) for (number, entry), value in shown
        ]

    def samples(self, state: State, ids: Sequence[int]) -> list[Sample]:
        """Return images by their ids; what was removed, or has another prompt by now, is not among them."""
        entries = self._shown()
        return [self._sample(number, entries[number], state) for number in ids if number in entries]

    def media(self, file: str) -> str:
        """Return the path of an image that lies in the folder once every link was followed."""
        return str(inside(self.path, file, [self.path]))

    def version(self) -> str:
        """Return a text that changes with what lies in the folder."""
        return self._read().version

    def notes(self) -> list[str]:
        """Return sentences for the page: what was left out, rewards that do not work, how scores are had."""
        notes = list(self._read().notes)
        if self.scores is None:
            notes.append(f"No scores: give a reward at the start, diffrl gallery {self.path} --reward sharpness.")
        else:
            notes += self.scores.problems([entry.mark for entry in self._read().entries])
        return notes

    def readable(self) -> Sequence[Entry]:
        """Return the images, none where the folder or its captions cannot be read, which its pages say."""
        return self._read().entries

    def entries(self) -> Sequence[Entry]:
        """Return the images, in the order of their names.

        Raises:
            GalleryError: the folder is gone, or its captions cannot be read (503).
        """
        contents = self._read()
        if contents.error is not None:
            raise GalleryError(contents.error, 503)
        return contents.entries

    def _shown(self) -> Mapping[int, Entry]:
        """Return the images by their ids, which stay theirs whatever else comes and goes."""
        self.entries()
        return self._entries

    def _read(self) -> Contents:
        with self._lock:
            if self._contents is None or time.monotonic() - self._looked > FRESH:
                seen = look(self.path)
                if self._contents is None or self._contents.version != seen.version:
                    self._contents = read_folder(self.path, seen)
                    self._entries = {
                        self._ids.setdefault((entry.file, entry.key[0]), len(self._ids)): entry
                        for entry in self._contents.entries
                    }
                self._looked = time.monotonic()
            return self._contents

    def _sample(self, number: int, entry: Entry, state: State) -> Sample:
        rewards, error, notes = self.scores.of(entry.mark) if self.scores is not None else ({}, None, {})
        metadata = dict(entry.item.metadata)
        source = source_file(metadata, GENERATED_SOURCES)  # of the image that it is an edit of
        return Sample(
            id=number,
            key=entry.key,
            state=state,
            rewards=rewards,
            error=error,
            notes=notes,
            file=entry.file,
            metadata=metadata,
            source=source if source is not None and (self.path / source).is_file() else None,
        )


def look(root: Path) -> Look:
    """Return what lies in a folder; hidden files, and folders behind links, are passed over as scoring does."""
    files: dict[str, tuple[int, int]] = {}
    outside: set[str] = set()
    real = os.path.realpath(root)
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(os.path.join(root, below)) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError:  # removed meanwhile, or not ours to read
            continue
        for entry in visible:
            file = below + entry.name
            link = entry.is_symlink()
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{file}/")
            elif entry.name.lower().endswith(SEEN):
                try:
                    facts = entry.stat()
                except OSError:  # removed meanwhile, or a link to nothing
                    outside.update([file] if link else [])
                    continue
                if link and not _lies_in(real, entry.path):
                    outside.add(file)
                files[file] = (facts.st_size, facts.st_mtime_ns)
    captions = sorted(file for file in outside if file.lower().endswith(SIDECARS + TABLES))
    return Look(files, frozenset(outside), tuple(captions), root.is_dir())


def read_folder(root: Path, seen: Look) -> Contents:
    """Return the images with their captions, and sentences about what was left out."""
    if not seen.there:
        return Contents(seen.version, error=f"The folder {root} is gone. Put it back, or restart the gallery.")
    if not any(file.lower().endswith(SEEN) and not file.lower().endswith(SIDECARS + TABLES) for file in seen.files):
        return Contents(seen.version, notes=[f"There is no image in {root}."])
    if seen.captions_outside:
        first = seen.captions_outside[0]
        rule = "Captions must lie in the folder that is shown."
        return Contents(seen.version, error=f"{rule} {root / first} is a link to elsewhere. Remove it.")
    from reward_models.common.errors import RewardError
    from reward_models.scoring.sources import Selection, collect

    try:
        items = collect(Selection([str(root)])).items
    except RewardError as error:
        return Contents(seen.version, error=str(error))
    except (OSError, ValueError, RecursionError) as error:
        return Contents(seen.version, error=f"The folder {root} cannot be read: {error}.")
    entries, unknown, links_out = [], 0, 0
    real, folder = os.path.realpath(root), str(root)
    for item in items:
        path = str(item.path)
        file = path[len(folder) :].lstrip("/") if path.startswith(f"{folder}/") else os.path.relpath(path, root)
        if not file.lower().endswith(MEDIA):
            unknown += 1
        elif file in seen.outside or (file not in seen.files and not _lies_in(real, path)):
            links_out += 1
        else:
            key = (item.prompt or "", 0, 0, 0, os.path.splitext(file)[0])
            entries.append(Entry(item, file, key, (file, *seen.files.get(file, (0, 0)), item.prompt)))
    notes = [f"{unknown} left out of {root.name}: browsers do not show their format."] if unknown else []
    notes += [f"{links_out} left out of {root.name}: links out of the folder, or to nothing."] if links_out else []
    problems = [entry.item.problem for entry in entries if entry.item.problem is not None]
    notes += [f"{len(problems)} without a prompt. {problems[0]}"] if problems else []
    return Contents(seen.version, entries, notes)


def _lies_in(real: str, path: str | os.PathLike[str]) -> bool:
    """Return whether a file lies below a folder, whose own path holds no links, once every link was followed."""
    return os.path.realpath(path).startswith(real.rstrip("/") + "/")
