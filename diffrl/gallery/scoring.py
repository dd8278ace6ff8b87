"""Scores of folders, computed while they are looked at: one thread behind everything else, with `diffrl score`'s cache.

Torch is imported in that thread and nowhere else, so that images are there before it is.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.errors import ConfigError
from diffrl.gallery.answers import note
from diffrl.gallery.folders import Entry, FolderSource
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import Source
from reward_models.errors import RewardError
from reward_models.scoring.cache import Score, ScoreCache, default_path

if TYPE_CHECKING:
    from reward_models.scoring.choices import Choice, Loaded

NICE = 10
"""How far the thread stands back behind training and behind the pages, from where the process stands."""
ANY = "any reward"
"""In the place of a reward's label where none of them can work."""
TOLD = 2.0
"""Seconds between two moments at which pages are told that there is something new."""

Mark = tuple[str, int, int, str | None]


class FolderScores:
    """What is known of one folder's images. Written by the worker's thread, read by those of the pages."""

    def __init__(self, labels: Sequence[str], worker: Worker):
        self.labels, self.changes = list(labels), 0
        self._worker, self._lock = worker, threading.Lock()
        self._known: dict[Mark, dict[str, Score]] = {}
        self._problems: dict[str, str] = {}
        self.lower: frozenset[str] = frozenset()  # labels of which less is better, once they are loaded
        self._asked: str | None = None
        self._told: str | None = None
        self._bumped = 0.0

    def ask(self, entries: Sequence[Entry], version: str) -> None:
        """Have these scored, once for each version of the folder."""
        with self._lock:
            if self._asked == version:
                return
            self._asked, self._told = version, "waiting to be scored"
        self._worker.add(self, entries)

    def names(self) -> list[str]:
        """Labels, each followed by the parts that are known by now: "shapes", "shapes/count"."""
        with self._lock:
            parts: dict[str, set[str]] = {label: set() for label in self.labels}
            for scores in self._known.values():
                for label, score in scores.items():
                    parts[label].update(score.parts)
        return [name for label in self.labels for name in (label, *(f"{label}/{p}" for p in sorted(parts[label])))]

    def values(self, marks: Sequence[Mark], reward: str) -> list[float | None]:
        """A reward, or a part of one, of images; None while it is unknown, and where it failed."""
        label, _, part = (reward, "", "") if reward in self.labels else reward.partition("/")
        with self._lock:
            scores = [self._known.get(mark, {}).get(label) for mark in marks]
        if part:
            return [None if score is None else finite(score.parts.get(part)) for score in scores]
        return [None if score is None else finite(score.raw) for score in scores]

    def of(self, mark: Mark) -> tuple[dict[str, float | None], str | None, dict[str, str]]:
        """All rewards of an image by name, None while unknown; why some failed; and what scorers say of it."""
        with self._lock:
            scores = dict(self._known.get(mark, {}))
        rewards: dict[str, float | None] = {}
        for label in self.labels:
            score = scores.get(label)
            rewards[label] = None if score is None else finite(score.raw)
            for part, value in sorted(score.parts.items()) if score is not None else ():
                rewards[f"{label}/{part}"] = finite(value)
        told = [f"{label}: {scores[label].error}" for label in self.labels if label in scores and not scores[label].ok]
        notes = {label: score.note for label in self.labels if (score := scores.get(label)) and score.note}
        return rewards, "; ".join(told) or None, notes

    def progress(self) -> str | None:
        """See `FolderSource.progress`."""
        return self._told

    def problems(self) -> list[str]:
        """Why rewards could not work at all."""
        with self._lock:
            return [f"No scores of {label}: {problem}" for label, problem in self._problems.items()]

    def why_nothing(self, label: str) -> str | None:
        """Why a reward has a score of no image, once the scoring is over; None where it has one of any."""
        with self._lock:
            scores = [found[label] for found in self._known.values() if label in found]
            problem = next((self._problems[name] for name in (label, ANY) if name in self._problems), None)
        if any(score.ok for score in scores):
            return None
        return problem or next((score.error for score in scores if score.error), None) or "nothing was to be scored."

    def put(self, mark: Mark, label: str, score: Score) -> None:
        """Keep a score."""
        with self._lock:
            self._known.setdefault(mark, {})[label] = score
            if time.monotonic() - self._bumped > TOLD:
                self.changes, self._bumped = self.changes + 1, time.monotonic()

    def keep(self, marks: Sequence[Mark]) -> None:
        """Forget what is gone from the folder."""
        with self._lock:
            self._known = {mark: self._known[mark] for mark in marks if mark in self._known}
            self._problems = {}

    def tell(self, sentence: str | None) -> None:
        """Say what is going on; None: nothing any more."""
        with self._lock:
            self._told = sentence

    def finish(self, label: str, problem: str | None = None) -> None:
        """A reward is through, or cannot work."""
        with self._lock:
            self.changes += 1
            if problem is not None:
                self._problems[label] = problem


class Worker:
    """The one thread that scores, folder after folder; it ends when there is nothing left and starts again.

    Args:
        choices: rewards.
        cache: file of known scores; None: that of `diffrl score`.
    """

    def __init__(self, choices: Sequence[Choice], cache: Path | None = None):
        self.choices, self.cache = list(choices), cache
        self._jobs: list[tuple[FolderScores, Sequence[Entry]]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loaded: dict[str, Loaded] = {}
        self._stopped = threading.Event()

    def add(self, scores: FolderScores, entries: Sequence[Entry]) -> None:
        """Score a folder after those that wait; one that waits already keeps its place, with what it holds now."""
        with self._lock:
            place = next((place for place, (waiting, _) in enumerate(self._jobs) if waiting is scores), len(self._jobs))
            self._jobs[place : place + 1] = [(scores, entries)]
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Until everything that was asked for is scored."""
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join()

    def stop(self) -> None:
        """End after the batch in work; what was scored is in the cache."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join(10)

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority of their own
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + NICE))
        while True:
            with self._lock:
                if not self._jobs or self._stopped.is_set():
                    self._thread = None
                    return
                scores, entries = self._jobs.pop(0)
            try:
                scores.keep([entry.mark for entry in entries])
                with ScoreCache(self.cache or default_path()) as cache:
                    for choice in self.choices:
                        self._score(choice, scores, entries, cache)
            except _StoppedError:
                pass
            except RewardError as error:
                scores.finish(ANY, str(error))
            except Exception as error:  # a mistake of ours: it is told, and other folders are scored all the same
                note(error)
                scores.finish(ANY, f"the gallery made a mistake, {type(error).__name__}: {error}")
            finally:
                scores.tell(None)

    def _score(self, choice: Choice, scores: FolderScores, entries: Sequence[Entry], cache: ScoreCache) -> None:
        label, problem = choice.label, None
        scores.tell(f"loading {label}")
        try:
            self._score_all(choice, scores, entries, cache)
        except _StoppedError:
            raise
        except (Exception, SystemExit) as error:  # a stranger's scorer may raise anything; the others go on
            problem = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
        scores.finish(label, problem)

    def _score_all(self, choice: Choice, scores: FolderScores, entries: Sequence[Entry], cache: ScoreCache) -> None:
        from reward_models.scoring.checks import check_items
        from reward_models.scoring.choices import load
        from reward_models.scoring.items import peek
        from reward_models.scoring.run import score_items

        if choice.label not in self._loaded:
            [self._loaded[choice.label]] = load([choice])
        reward = self._loaded[choice.label]
        if not reward.scorer.spec.higher_is_better:
            scores.lower |= {reward.label}
        items = [entry.item for entry in entries]
        peeks = [peek(item.path) for item in items]
        check_items([reward], items, peeks)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._stopped.is_set():
                raise _StoppedError
            scores.tell(f"scoring {done} of {len(items)} with {reward.label}")

        advance(0)
        rows = score_items([reward], items, peeks, cache, advance)
        for entry, row in zip(entries, rows, strict=True):
            scores.put(entry.mark, reward.label, row.scores[reward.label])


def score_on_demand(sources: Sequence[Source], names: Sequence[str], cache: Path | None = None) -> Worker | None:
    """Give the folders among the sources rewards; nothing is scored before one is shown.

    Args:
        sources: of the gallery.
        names: as `diffrl score --reward` takes them, [LABEL=]NAME; empty: no scores.
        cache: file of known scores; None: that of `diffrl score`.

    Raises:
        RewardError: an unknown reward, or two of one label.
        ConfigError: rewards, but no folder to score.
    """
    if not names:
        return None
    from reward_models.registry import factory_of, resolve_scorer
    from reward_models.scoring.choices import choose

    for name in names:  # before anything heavy is imported
        resolve_scorer(name.partition("=")[2] or name)
    choices = choose(names, ())
    for choice in choices:
        if ":" in choice.name:
            factory_of(choice.name)
    folders = [source for source in sources if isinstance(source, FolderSource)]
    if not folders:
        raise ConfigError(
            f"--reward scores folders of images; runs have their own scores. Got --reward {names[0]} and no folder. "
            "Give a folder too, or leave --reward out."
        )
    worker = Worker(choices, cache)
    for folder in folders:
        folder.scores = FolderScores([choice.label for choice in choices], worker)
    atexit.register(worker.stop)
    return worker


def score_everything(sources: Sequence[Source], worker: Worker) -> None:
    """Score all folders and wait for it, for an export, which has nobody to come back later.

    Raises:
        ConfigError: a reward has a score of no image in any folder.
    """
    folders = [source for source in sources if isinstance(source, FolderSource)]
    for folder in folders:
        folder.start_scoring()
    worker.wait()
    known = [folder.scores for folder in folders if isinstance(folder.scores, FolderScores)]
    for choice in worker.choices:
        reasons = [scores.why_nothing(choice.label) for scores in known]
        if None not in reasons:
            why = str(reasons[0]).rstrip(".")
            raise ConfigError(
                f"--reward {choice.label} scored nothing: {why}. Leave it out, or give a folder it can score."
            )


class _StoppedError(Exception):
    """The gallery ends."""


__all__ = ["FolderScores", "Worker", "score_everything", "score_on_demand"]
