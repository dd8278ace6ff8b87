"""Scores of folders: computed before the pages are shown, as `diffrl score` computes them and with its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.errors import ConfigError
from diffrl.gallery.folders import Entry, FolderSource, Mark
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import Source
from reward_models.common.errors import RewardError
from reward_models.scoring.cache import Score, ScoreCache, default_path

if TYPE_CHECKING:
    from reward_models.scoring.choices import Loaded
    from reward_models.settings import RewardSettings


class FolderScores:
    """The scores of one folder's images."""

    def __init__(self, labels: Sequence[str]):
        self.labels, self.lower = list(labels), frozenset[str]()
        self._known: dict[Mark, dict[str, Score]] = {}
        self._problems: dict[str, str] = {}

    def names(self) -> list[str]:
        """Return labels, each followed by its parts: "shapes", "shapes/count"."""
        parts: dict[str, set[str]] = {label: set() for label in self.labels}
        for scores in self._known.values():
            for label, score in scores.items():
                parts[label].update(score.parts)
        return [name for label in self.labels for name in (label, *(f"{label}/{p}" for p in sorted(parts[label])))]

    def values(self, marks: Sequence[Mark], reward: str) -> list[float | None]:
        """Return a reward, or a part of one, of images; None where it failed or the image came or changed since."""
        return [self.of(mark)[0].get(reward) for mark in marks]

    def of(self, mark: Mark) -> tuple[dict[str, float | None], str | None, dict[str, str]]:
        """Return all rewards of an image by name, None while unknown; why some failed; and what scorers say of it."""
        scores = self._known.get(mark, {})
        rewards: dict[str, float | None] = {}
        for label in self.labels:
            score = scores.get(label)
            rewards[label] = None if score is None else finite(score.raw)
            for part, value in sorted(score.parts.items()) if score is not None else ():
                rewards[f"{label}/{part}"] = finite(value)
        known = [(label, scores[label]) for label in self.labels if label in scores]
        failed = [f"{label}: {score.error}" for label, score in known if not score.ok]
        return rewards, "; ".join(failed) or None, {label: score.note for label, score in known if score.note}

    def problems(self, marks: Sequence[Mark]) -> list[str]:
        """Return why rewards could not work, and how many images came or changed since they were scored."""
        late = sum(mark not in self._known for mark in marks) if self._known else 0
        problems = [f"No scores of {label}: {problem}" for label, problem in self._problems.items()]
        if late:
            problems.append(f"{late} without scores, new or changed: start the gallery again to score them.")
        return problems

    def why_nothing(self, label: str) -> str | None:
        """Return why a reward has a score of no image; None where it has one of any."""
        scores = [known[label] for known in self._known.values() if label in known]
        if any(score.ok for score in scores):
            return None
        failed = next((score.error for score in scores if score.error), None)
        return self._problems.get(label) or failed or "nothing was to be scored."

    def score(self, choice: RewardSettings, loaded: Loaded | str, entries: Sequence[Entry], cache: ScoreCache) -> None:
        """Score images with one reward; `loaded` is the reason where it could not be loaded."""
        from reward_models.scoring.checks import check_items
        from reward_models.scoring.items import peek
        from reward_models.scoring.run import score_items

        if isinstance(loaded, str):
            self._problems[choice.key] = loaded
            return
        if not loaded.scorer.spec.higher_is_better:
            self.lower |= {choice.key}
        items = [entry.item for entry in entries]
        peeks = [peek(item.path) for item in items]
        try:
            check_items([loaded], items, peeks)
            for entry, row in zip(entries, score_items([loaded], items, peeks, cache), strict=True):
                self._known.setdefault(entry.mark, {})[choice.key] = row.scores[choice.key]
        except (Exception, SystemExit) as error:  # a stranger's scorer may raise anything; the others go on
            self._problems[choice.key] = _describe(error)


def score_folders(
    sources: Sequence[Source], names: Sequence[str], say: Callable[[str], None], cache: Path | None = None
) -> None:
    """Score the folders among the sources.

    Args:
        sources: of the gallery.
        names: as `diffrl score --reward` takes them, [LABEL=]NAME; empty: no scores.
        say: told which folder is scored, with what.
        cache: file of known scores; None: that of `diffrl score`.

    Raises:
        RewardError: an unknown reward, two of one label, or a cache that cannot be used.
        ConfigError: rewards, but no folder to score; or a reward has a score of no image in any folder.
    """
    if not names:
        return
    from reward_models.registry import factory_of
    from reward_models.scoring.choices import choose

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
    known = {folder: FolderScores([choice.key for choice in choices]) for folder in folders}
    with ScoreCache(cache or default_path()) as store:
        for choice in choices:
            loaded = _loaded(choice)
            for folder, scores in known.items():
                say(f"Scoring {folder.title} with {choice.key}.")
                scores.score(choice, loaded, folder.readable(), store)
                folder.scores = scores
            reasons = [scores.why_nothing(choice.key) for scores in known.values()]
            if None not in reasons:
                why = f"--reward {choice.key} scored nothing: {str(reasons[0]).rstrip('.')}"
                raise ConfigError(f"{why}. Leave it out, or give a folder it can score.")


def _loaded(choice: RewardSettings) -> Loaded | str:
    from reward_models.scoring.choices import load

    try:
        return load([choice])[0]
    except (Exception, SystemExit) as error:  # a stranger's class may raise anything
        return _describe(error)


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
