"""What was given on the command line, as sources: runs, folders with runs below them, folders of images."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from diffrl.errors import ConfigError
from diffrl.gallery.paths import MEDIA
from diffrl.gallery.records import Source
from diffrl.gallery.runs import RunSource
from diffrl.tracking.index import INDEX

DEPTH = 3
"""How far below a given folder runs are looked for: runs/<name>, compared/runs/<name>."""

BEGINNINGS = ("config.yaml", "environment.json", "log.txt")
"""Files that a run writes before its index."""
SCAN = 3.0
"""Seconds between two looks for runs that have begun."""


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Return runs in the order in which they began, whatever order they were named in; then folders as given.

    The first of two runs is the baseline of the other, so the pages of some runs say the same however they are named.

    Raises:
        ConfigError: a path holds other things than can be shown; names the path. An empty folder gives no source:
            runs may begin there (`Watched`).
    """
    kinds: list[tuple[Path, str]] = []
    for path in [Path(path) for path in paths] or [Path("runs")]:
        if path.exists() and not path.is_dir():
            raise ConfigError(
                f"The gallery shows directories of runs or of images. {path} is a file. "
                "Give the directory that it is in."
            )
        if not path.is_dir():
            default = " Train one: diffrl train configs/quickstart.yaml." if not paths else ""
            raise ConfigError(f"The gallery shows directories of runs or of images. There is no {path}.{default}")
        runs = runs_below(path)
        if runs:
            kinds += [(run, "run") for run in runs]
        elif holds_media(path):
            kinds.append((path, "folder"))
        elif not is_empty(path):
            raise ConfigError(
                f"The gallery shows directories of runs or of images. {path} holds neither: no {INDEX} down to "
                f"{DEPTH} levels, no image. Give the directory of a run."
            )
    unique = {path.resolve(): (path, kind) for path, kind in kinds}
    runs = sorted((one for one in unique.values() if one[1] == "run"), key=lambda one: (begun(one[0]), str(one[0])))
    return _named([*runs, *(one for one in unique.values() if one[1] == "folder")])


def begun(run: Path) -> float:
    """Return when a run began, seconds since 1970, by the first file that it wrote.

    The time of its directory changes when its store is read: by it, runs would change places whenever they are shown.
    """
    times = [(run / name).stat().st_mtime for name in (*BEGINNINGS, INDEX) if (run / name).is_file()]
    return min(times, default=run.stat().st_mtime)


class Watched:
    """Sources that may become more: runs that begin below the given folders while the gallery is open.

    A source that was found stays what it is, key and all, even if its directory goes; its pages say so.
    """

    def __init__(self, paths: Sequence[Path], sources: Sequence[Source]):
        self._sources = list(sources)
        folders = [path for path in map(Path, paths or ["runs"]) if path.is_dir() and not is_run(path)]
        self._folders = [path for path in folders if path.resolve() not in self._known()]  # not a folder of images
        self._seen, self._lock = time.monotonic(), threading.Lock()

    def __call__(self) -> list[Source]:
        """All sources by now, new ones last; looked for at most every `SCAN` seconds."""
        with self._lock:
            if time.monotonic() - self._seen >= SCAN:
                with contextlib.suppress(OSError):  # a folder that went away in between has nothing new
                    self._look()
                self._seen = time.monotonic()
            return self._sources

    def _look(self) -> None:
        known = self._known()
        runs = [run for folder in self._folders if folder.is_dir() for run in runs_below(folder)]
        new = [(run, "run") for run in runs if run.resolve() not in known]
        if new:
            self._sources = [*self._sources, *_named(new, self._sources)]

    def _known(self) -> set[Path]:
        return {Path(source.path).resolve() for source in self._sources}


def is_run(path: Path) -> bool:
    """Return whether a directory is that of a run."""
    return (path / INDEX).is_file() or ((path / "config.yaml").is_file() and (path / "environment.json").is_file())


def runs_below(path: Path, depth: int = DEPTH) -> list[Path]:
    """Return a folder that is a run, else the runs in it, not those inside of others."""
    if is_run(path):
        return [path]
    return [run for folder in _folders(path) for run in runs_below(folder, depth - 1)] if depth else []


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def left_out(paths: Sequence[Path]) -> list[str]:
    """Return a sentence for each folder below that has a run's configuration and nothing else of a run."""
    folders = [path for path in map(Path, paths or [Path("runs")]) if path.is_dir() and not is_run(path)]
    configured = dict.fromkeys(folder.resolve() for path in folders for folder in _begun(path))
    return [
        f"Left out: {folder} has a config.yaml, but neither {INDEX} nor environment.json: no run began there, or it "
        "was not copied whole."
        for folder in configured
    ]


def _begun(path: Path, depth: int = DEPTH) -> list[Path]:
    """Return folders below, down to some levels, that hold a configuration and no run, and are in none."""
    configured = []
    for folder in _folders(path):
        if is_run(folder):
            continue
        if (folder / "config.yaml").is_file() and not runs_below(folder):
            configured.append(folder)
        elif depth > 1:
            configured += _begun(folder, depth - 1)
    return configured


def is_empty(path: Path) -> bool:
    """Return whether there is nothing in a folder but what a run begins with: folders, and hidden files."""
    files = (entry for entry in path.rglob("*") if entry.is_file() and not entry.name.startswith("."))
    return all(entry.name in BEGINNINGS for entry in files)


def holds_media(path: Path) -> bool:
    """Return whether there is an image or a video in a folder or below it."""
    return any(entry.suffix.lower() in MEDIA for entry in path.rglob("*") if entry.is_file())


def titles_of(paths: Sequence[Path]) -> list[str]:
    """Return each folder's name, and before it as many folders as tell it from the others: "diffrl/seed-0"."""
    parts = [path.resolve().parts for path in paths]
    titles = []
    for path in parts:
        others = [other for other in parts if other != path]
        depth = next((n for n in range(1, len(path)) if all(other[-n:] != path[-n:] for other in others)), len(path))
        titles.append("/".join(path[-depth:]))
    return titles


def _named(kinds: Sequence[tuple[Path, str]], known: Sequence[Source] = ()) -> list[Source]:
    """Return sources with keys of their own, the folder's name and a number where needed; titles tell them apart."""
    from diffrl.gallery.folders import FolderSource

    sources: list[Source] = []
    taken = {source.key for source in known}
    titles = titles_of([*(path for path, _ in kinds), *(Path(source.path) for source in known)])
    for (path, kind), title in zip(kinds, titles, strict=False):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip(".-") or "run"
        key = next(
            key for key in (name, *(f"{name}-{n}" for n in range(2, len(kinds) + len(taken) + 2))) if key not in taken
        )
        taken.add(key)
        sources.append((RunSource if kind == "run" else FolderSource)(key, path, title))
    return sources
