"""The table of runs: each arm's last held-out evaluation, beside that of a baseline on the same prompts and noise.

Runs whose configurations differ in `run.seed` alone are one arm. Which arm is the baseline stands in the address, else
it is the one that began first, so the table says the same whatever order its runs were named in.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean

from diffrl.gallery.columns import main_states, stream
from diffrl.gallery.compare import match
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.overview import flat, missing, mixed
from diffrl.gallery.progress import Change, Progress, log_messages, progress, recipe, settings, state_now
from diffrl.gallery.records import State, state_key
from diffrl.gallery.runs import RunSource
from diffrl.gallery.score_table import paired_change
from diffrl.gallery.site import Site
from diffrl.statistics import Estimate, mean_estimate

UNLIKE = ("run.seed", "run.name", "run.dir")
"""Settings by which every run differs from every other."""
NO_SAMPLES = "no prompt and noise in common"


@dataclass(frozen=True)
class Entry:
    """A run in the table."""

    run: RunSource
    course: Progress | None = None  # of it; None if its files cannot be read
    state: State | None = None  # its last evaluation that has samples; None without
    settings: Mapping[str, str] = field(default_factory=dict)  # its configuration, one name with dots for each value
    recipe: str | None = None  # its configuration without seed, name and place; None where it cannot be read
    seed: str | None = None  # of its training, as text; None where it cannot be read
    alarms: Sequence[str] = ()  # of its log, the newest first
    notes: Sequence[str] = ()  # sentences on what cannot be read

    def change(self, reward: str) -> Change | None:
        """Return what a held-out reward did from the first evaluation to the last."""
        changes = self.course.headline if self.course else ()
        return next((one for one in changes if one.name == reward), None)

    def best(self, reward: str) -> tuple[int, float] | None:
        """Return iteration and value of the best evaluation by the first held-out reward; None of another reward."""
        first = self.course.headline[:1] if self.course else []
        return self.course.best if self.course and [one.name for one in first] == [reward] else None

    def cost(self, name: str) -> float | None:
        """Return "evaluations" of the network, or "seconds", of training until the last evaluation."""
        return finite(self.course.rows[-1].get(f"cost/{name}")) if self.course and self.course.rows else None

    @property
    def column(self) -> str:
        """Its last evaluation as it stands in the address of a comparison; "" without one."""
        return state_key(self.run, self.state) if self.state else ""

    @property
    def ailment(self) -> str:
        """What is wrong with the weights of the last evaluation; "" if nothing is known to be."""
        health = self.course.health if self.course else None
        return health.ailment(self.course.rows[-1]["iteration"]) if self.course and health else ""


@dataclass(frozen=True)
class Difference:
    """A last evaluation less the baseline's."""

    estimate: Estimate | None  # with its interval; None where nothing is matched
    words: str  # what the interval is over, or why there is none


UNPAIRED = Difference(None, "no training seed in common")
Arm = Sequence[Entry]
"""Runs that differ by their seed alone, the first begun first; the first one's key stands for them in an address."""


@dataclass(frozen=True)
class Row:
    """A run, or an arm of several."""

    entries: Arm
    title: str
    reward: str  # that the numbers are of
    difference: Difference | None  # from the baseline; None of the baseline itself
    seeds: Sequence[Row] = ()  # a row each run of an arm of several

    @property
    def key(self) -> str:
        """Return the key of the run that stands for it in an address."""
        return self.entries[0].run.key

    @cached_property
    def changes(self) -> list[Change]:
        """What the reward did from first to last evaluation, a change each run that has one."""
        return [change for entry in self.entries if (change := entry.change(self.reward))]

    @cached_property
    def mean(self) -> Estimate | None:
        """The held-out mean at the last evaluation, over runs; None without a value."""
        values = [change.after for change in self.changes if change.after is not None]
        return mean_estimate(values) if values else None

    @property
    def change(self) -> float | None:
        """Return the change from the first evaluation to the last, the mean over runs."""
        return mean_of([change.change for change in self.changes])

    @property
    def best(self) -> float | None:
        """Return the mean of the runs' best evaluations, which flatters: each is the highest of several noisy ones."""
        return mean_of([best and best[1] for best in (entry.best(self.reward) for entry in self.entries)])

    @property
    def best_at(self) -> str:
        """After which iterations the best evaluations were."""
        return ", ".join(str(best[0]) for entry in self.entries if (best := entry.best(self.reward)))

    def cost(self, name: str) -> float | None:
        """Return the mean over its runs, see `Entry.cost`."""
        return mean_of([entry.cost(name) for entry in self.entries])

    @property
    def states(self) -> list[tuple[int, str, str]]:
        """How many of the runs are in which state or have which ailment, and the class of its mark."""
        words = Counter((entry.course.ended or entry.course.state, "") for entry in self.entries if entry.course)
        words += Counter((entry.ailment, "loss") for entry in self.entries if entry.ailment)
        words += Counter(("with alarms", "mark") for entry in self.entries if entry.alarms)
        return [(count, word, css) for (word, css), count in words.items()]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def entries_of(site: Site) -> list[Entry]:
    """Return the site's runs; each is read again once it has gone on."""
    entries = []
    for run in site.runs:
        entry = site.entries.get((run.key, run.version()), partial(read_entry, run)) or Entry(run)
        if entry.course is not None:  # a run that is killed changes no file
            state = state_now(run, entry.course.written, entry.course.ended)
            entry = replace(entry, course=replace(entry.course, state=state))
        entries.append(entry)
    return entries


def read_entry(run: RunSource) -> Entry:
    """Return a run; what cannot be read of it is a sentence, and stands in its row alone."""
    notes, states, alarms, course = [], [], [], None
    try:
        states = main_states(run.states())
    except (GalleryError, OSError) as error:
        notes.append(str(error))
    try:
        course = progress(run)
        alarms = [line for line, _ in log_messages(run)[0]]
    except (GalleryError, OSError) as error:
        notes.append(str(error))
    last = states[-1] if states else None
    text, seed = recipe(run) or (None, None)
    return Entry(
        run=run,
        course=course,
        state=last if last and last.stage == "eval" else None,
        settings=dict(flat(settings(run))),
        recipe=text,
        seed=seed,
        alarms=alarms,
        notes=[*notes, *missing(course, last), *mixed(run)],
    )


def arms_of(entries: Sequence[Entry]) -> list[Arm]:
    """Return the arms, the first begun first; a seed that is there twice begins another arm."""
    arms: dict[Hashable, list[Entry]] = {}
    times: Counter[Hashable] = Counter()
    for entry in entries:
        same = (entry.recipe or entry.run.key, entry.seed)
        arms.setdefault((same[0], times[same]), []).append(entry)
        times[same] += 1
    return list(arms.values())


def title_of(arm: Arm) -> str:
    """Return what the titles of its runs have in common, up to the end of a folder's name."""
    titles = [entry.run.title for entry in arm]
    shared = os.path.commonprefix(titles).rpartition("/")[0] if len(titles) > 1 else titles[0]
    return shared or f"{titles[0]} and {len(titles) - 1} more"


def rewards_of(entries: Sequence[Entry]) -> list[str]:
    """Return the held-out rewards: the first one of most runs, then all others."""
    headlines = [[change.name for change in entry.course.headline] for entry in entries if entry.course]
    firsts = Counter(names[0] for names in headlines if names).most_common()
    return list(dict.fromkeys([*(name for name, _ in firsts), *(name for names in headlines for name in names)]))


def differing(entries: Sequence[Entry]) -> list[str]:
    """Return settings in which runs differ, apart from those in which all do."""
    names = dict.fromkeys(name for entry in entries for name in entry.settings if name not in UNLIKE)
    return [name for name in names if len({entry.settings.get(name) for entry in entries if entry.settings}) > 1]


def difference(site: Site, entry: Entry, base: Entry, reward: str) -> Difference:
    """Return one run's last evaluation less another's, its interval over prompts."""
    if entry.state is None or base.state is None:
        return Difference(None, "no samples of an evaluation")
    key = tuple((one.run.key, one.run.version(), one.state) for one in (entry, base))

    def compute() -> Difference:
        sides = [(one.run, one.state) for one in (base, entry) if one.state]
        of_base = site.briefs.get((key[1], reward), partial(base.run.briefs, base.state, reward)) or []
        matched = match([of_base, entry.run.briefs(entry.state, reward)], [stream(*side) for side in sides])
        estimate = paired_change([row._replace(pair=(1, 0)) for row in matched.rows])
        return Difference(estimate, f"over prompts, matched by {matched.by}" if estimate else NO_SAMPLES)

    try:
        return site.differences.get((key, reward), compute) or Difference(None, NO_SAMPLES)
    except GalleryError as error:
        return Difference(None, str(error))


def arm_row(site: Site, arm: Arm, base: Arm, reward: str) -> Row:
    """Return an arm's row; of several seeds in common the interval of its difference is over seeds."""
    if arm is base:
        seeds = [Row([entry], entry.run.title, reward, None) for entry in arm]
        return Row(arm, title_of(arm), reward, None, seeds if len(seeds) > 1 else ())
    each = {entry.run.key: difference(site, entry, other, reward) for entry, other in pairs_of(arm, base)}
    means = [one.estimate.mean for one in each.values() if one.estimate]
    if len(means) > 1:
        of_arm = Difference(mean_estimate(means), f"over {len(means)} seeds")
    else:
        of_arm = next((one for one in each.values() if one.estimate), next(iter(each.values()), UNPAIRED))
    seeds = [Row([entry], entry.run.title, reward, each.get(entry.run.key, UNPAIRED)) for entry in arm]
    return Row(arm, title_of(arm), reward, of_arm, seeds if len(seeds) > 1 else ())


def pairs_of(arm: Arm, base: Arm) -> list[tuple[Entry, Entry]]:
    """Return runs of two arms with one seed; of two runs both, whatever their seeds."""
    if len(arm) == len(base) == 1:
        return [(arm[0], base[0])]
    seeds = {entry.seed: entry for entry in base}
    return [(entry, seeds[entry.seed]) for entry in arm if entry.seed in seeds]
