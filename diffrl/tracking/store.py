"""The run store: an SQLite index of every sample kept, and WebP pictures, or clips, beside it.

    samples.sqlite                          one row a sample, one row a value of its rewards
    samples/eval-000040/3-1.webp            stage, iteration / group, root
    samples/train-000041/3-1-0.1.webp       the same with a path: child 1 of child 0 of the root

Pictures are exact, but for most of the first evaluation: those are small ones to be looked at (`tracking.pictured`).
The column `exact` tells them apart. Of later evaluations some are kept for how much their score changed;
`representative` is 0 for these. Whoever measures or judges takes what is exact and stands for all (`counts`).

A sample's address says where its noise comes from, so equal addresses are the same prompt and noise: across iterations
of one run (stage "eval": compare group, root and path) and across runs (compare prompt, seed, group, root and path).
The parent of a node has its path without the last index. The index is in WAL mode: readers never block the run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.files import discard, replacing
from diffrl.tracking.index import IMAGES, INDEX, connect, explained, notes_of
from diffrl.tracking.places import place
from diffrl.tracking.reward_rows import ROWS, RewardWriter
from reward_models.common.errors import RewardError
from reward_models.common.files import Closing
from reward_models.common.stores import transaction
from reward_models.media import open_media, save_media

KEY = "stage, iteration, group_id, root, path"
VALUES = "seed, prompt, metadata, total, advantage, error, picture"
KEPT = "exact, representative"
WRITTEN = f"{VALUES}, {KEPT}"
UPSERT = f"""
INSERT INTO samples ({KEY}, {WRITTEN}) VALUES ({", ".join("?" * 14)})
ON CONFLICT ({KEY}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in WRITTEN.split(", "))} RETURNING id
"""


@dataclass(frozen=True)
class StoredSample:
    """One sample with its address, its rewards and its picture."""

    stage: str  # what it was drawn for: "train", "eval", "generate" or another lower-case word
    iteration: int  # the training iteration, from 0
    group: int  # the slot of the iteration's batch that holds the prompt
    root: int  # index of the initial noise within the group
    seed: int  # the seed that the address belongs to
    prompt: str
    path: tuple[int, ...] = ()  # child indices from the root, as in `Address`
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values that came with the prompt
    total: float | None = None  # the weighted reward; None or NaN where a scorer failed
    advantage: float | None = None  # None where it was not trained on
    # raw value by name, parts as "reward/part"; None or NaN where the scorer failed. Read back as None.
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None  # why a scorer failed
    notes: Mapping[str, str] = field(default_factory=dict)  # what scorers say of it, by the name of the reward
    # (3, H, W) or (F, 3, H, W) uint8 to be written; not read back, see `SampleStore.picture`
    picture: Tensor | None = None
    small: bytes | None = None  # bytes of a WebP to be written in place of a picture; not read back
    file: str | None = None  # where the picture lies, relative to the run directory; set by the store
    # whether the picture has the sample's own pixels; written, None is True for `picture` and False for `small`; read,
    # False without a picture
    exact: bool | None = None
    # whether the picture was kept whatever the sample scored; None without a picture
    representative: bool | None = None

    @property
    def pictured(self) -> bool:
        """Return whether there is a picture to be written."""
        return self.picture is not None or self.small is not None

    @property
    def counts(self) -> bool:
        """Return whether its picture may be measured, and stands for all samples as far as is known."""
        return bool(self.exact) and self.representative is not False


class SampleStore(Closing):
    """The samples of one run. Failures of the index or of the disk are DiffrlErrors that name the file."""

    def __init__(self, run_dir: Path, readonly: bool = False, fps: float = 16.0):
        """Open the store of a run, making it if there is none yet and `readonly` is False.

        Videos are played at `fps` frames per second.
        """
        self.run_dir, self.fps = Path(run_dir), fps
        self.index = self.run_dir / INDEX
        self._database = connect(self.run_dir, readonly)

    @classmethod
    def open_readonly(cls, run_dir: Path) -> SampleStore:
        """Open an existing store for reading, also while a run writes to it."""
        return cls(run_dir, readonly=True)

    def write(self, samples: Sequence[StoredSample]) -> None:
        """Add samples, all or none; one with the same stage, iteration and address is replaced.

        Pictures are in place before their rows, so a row never names a file that is not there yet. They are not forced
        onto the disk: a power cut (not a kill) may lose the last ones.
        """
        with explained(self.run_dir):
            files = [self._save_picture(sample) for sample in samples]
            with transaction(self._database):
                writer = RewardWriter(self._database)
                for sample, file in zip(samples, files, strict=True):
                    row = (*_key(sample), sample.seed, sample.prompt, json.dumps(dict(sample.metadata)))
                    numbers = (_finite(sample.total), _finite(sample.advantage), sample.error, file)
                    (number,) = self._database.execute(UPSERT, (*row, *numbers, *_kept(sample))).fetchone()
                    for table in ("rewards", "notes"):
                        self._database.execute(f"DELETE FROM {table} WHERE sample_id = ?", (number,))
                    writer.insert(number, {name: _finite(raw) for name, raw in sample.rewards.items()})
                    notes = ((number, name, note) for name, note in sample.notes.items())
                    self._database.executemany("INSERT INTO notes VALUES (?, ?, ?)", notes)
            for sample, file in zip(samples, files, strict=True):
                if file is None:  # it may replace a sample that had one
                    (self.run_dir / _picture_file(sample)).unlink(missing_ok=True)

    def truncate_after(self, iteration: int, stages: Sequence[str]) -> None:
        """Remove the samples of these stages beyond an iteration, and every picture file of theirs, rows or not."""
        with explained(self.run_dir):
            with transaction(self._database):
                rows = ((stage, iteration) for stage in stages)
                self._database.executemany("DELETE FROM samples WHERE stage = ? AND iteration > ?", rows)
            for folder in (self.run_dir / IMAGES).glob("*-*"):
                stage, _, number = folder.name.rpartition("-")
                if stage in stages and number.isdecimal() and int(number) > iteration:
                    discard(folder)

    def iterations(self, stage: str) -> set[int]:
        """Return the iterations that have samples of a stage."""
        with explained(self.run_dir):
            rows = self._database.execute("SELECT DISTINCT iteration FROM samples WHERE stage = ?", (stage,))
            return {iteration for (iteration,) in rows}

    def require_whole(self) -> None:
        """Read every page of the index, so that one that is damaged is found before it is needed.

        Raises:
            DiffrlError: there is one.
        """
        with explained(self.run_dir):
            (answer,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise DiffrlError(f"The sample index {self.run_dir / INDEX} is damaged: {' '.join(answer.split())}.")

    def lost_pictures(self, before: int) -> list[str]:
        """Return pictures of iterations before this one that the index names and that are not there any more."""
        with explained(self.run_dir):
            query = "SELECT picture FROM samples WHERE typeof(picture) = 'text' AND iteration < ?"
            named = [file for (file,) in self._database.execute(query, (before,))]
            return [file for file in named if not (self.run_dir / file).is_file()]

    def read(self, stage: str | None = None, iteration: int | None = None) -> list[StoredSample]:
        """Return samples, of a stage or an iteration alone, in the order of iteration, group, root and path."""
        conditions = {"stage = ?": stage, "iteration = ?": iteration}
        equal = {condition: value for condition, value in conditions.items() if value is not None}
        where = " AND ".join(["1", *equal])
        chosen = f"FROM samples WHERE {where} ORDER BY iteration, stage, group_id, root, path"
        values = tuple(equal.values())
        with explained(self.run_dir), transaction(self._database, "DEFERRED"):
            rows = self._database.execute(f"SELECT id, {KEY}, {VALUES}, {KEPT} {chosen}", values).fetchall()
            rewards: dict[int, dict[str, float | None]] = {row[0]: {} for row in rows}
            join = f"SELECT sample_id, name, raw FROM {ROWS} JOIN (SELECT id {chosen})"
            for number, name, raw in self._database.execute(f"{join} ON sample_id = id ORDER BY name", values):
                rewards[number][name] = raw
            notes: dict[int, dict[str, str]] = {row[0]: {} for row in rows}
            for number, name, note in notes_of(self._database, f"SELECT id FROM (SELECT id {chosen})", values):
                notes[number][name] = note
            return [_sample(self.run_dir, row, rewards[row[0]], notes[row[0]]) for row in rows]

    def picture(self, sample: StoredSample) -> Tensor:
        """Return the picture (3, H, W) or video (F, 3, H, W) of a sample that was read, uint8."""
        if sample.file is None:
            raise DiffrlError(f"Sample {_key(sample)} of {self.index} was stored without an image.")
        file = self.run_dir / sample.file
        if not file.resolve().is_relative_to(place(self.run_dir, IMAGES).resolve()):
            raise DiffrlError(f"{self.index} names an image outside its run: {sample.file!r}. Do not trust this run.")
        try:
            return open_media(file)[0]
        except RewardError as error:
            raise DiffrlError(str(error)) from error

    def sync(self) -> None:
        """Force the rows written so far onto the disk, without waiting for readers."""
        with explained(self.run_dir):
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Close the index; closing twice does nothing."""
        self._database.close()

    def _save_picture(self, sample: StoredSample) -> str | None:
        file = _picture_file(sample)
        if sample.picture is None and sample.small is None:
            return None
        (self.run_dir / file).parent.mkdir(parents=True, exist_ok=True)
        if sample.picture is None:
            with replacing(self.run_dir / file) as temporary:
                temporary.write_bytes(sample.small or b"")
        else:
            save_media(sample.picture, self.run_dir / file, self.fps)
        return file


def _key(sample: StoredSample) -> tuple[str, int, int, int, str]:
    return sample.stage, sample.iteration, sample.group, sample.root, ".".join(map(str, sample.path))


def _picture_file(sample: StoredSample) -> str:
    stage, iteration, group, root, path = _key(sample)
    if not re.fullmatch(r"[a-z][a-z_]*", stage) or min(iteration, group, root, *sample.path) < 0:
        raise ValueError(f"A stage is a lower-case word and an address has no negative number. Got {_key(sample)}.")
    return f"{IMAGES}/{stage}-{iteration:06d}/{group}-{root}{'-' if path else ''}{path}.webp"


def _kept(sample: StoredSample) -> tuple[bool | None, bool | None]:
    """Return the columns exact and representative of a sample that is written."""
    if not sample.pictured:
        return None, None
    exact = sample.picture is not None if sample.exact is None else sample.exact
    return exact, sample.representative is not False


def _sample(
    run_dir: Path, row: tuple[Any, ...], rewards: Mapping[str, float | None], notes: Mapping[str, str]
) -> StoredSample:
    _, stage, iteration, group, root, path, seed, prompt, metadata, total, advantage, error, file, exact, stands = row
    address = {"stage": stage, "iteration": iteration, "group": group, "root": root, "seed": seed}
    try:
        indices = tuple(int(index) for index in path.split(".") if index)
        known = json.loads(metadata)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        which = (stage, iteration, group, root, path)
        raise DiffrlError(f"{run_dir / INDEX} holds a damaged row, of the sample {which}. Remove it.") from error
    values = {"total": total, "advantage": advantage, "rewards": rewards, "error": error, "notes": notes, "file": file}
    values |= {"exact": file is not None and bool(exact), "representative": None if stands is None else bool(stands)}
    return StoredSample(**address, prompt=prompt, path=indices, metadata=known, **values)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
