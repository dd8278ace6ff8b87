"""What the overview of a run, the start page and the report have in common: pairs before and after, and JSON files."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from diffrl.gallery.columns import Column, default_reward, first_and_last, lower_rewards, reward_names
from diffrl.gallery.compare import Row, filter_by_images, filter_by_judgement, likeness, match, representative_rows
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import sign, three
from diffrl.gallery.progress import Change, Progress, setting
from diffrl.gallery.records import Source, State, describe_reward
from diffrl.gallery.rows import View, views
from diffrl.gallery.runs import RunSource
from diffrl.gallery.score_table import paired_change
from diffrl.gallery.series import input_changes
from diffrl.statistics import Estimate
from diffrl.tracking.endings import other_inputs
from diffrl.tracking.index import IMAGES
from diffrl.trees.record import TREES

DEEP = 20
"""Levels of a JSON object that have names of their own."""


class Pairs(NamedTuple):
    """The first samples of the first and of the last evaluation."""

    columns: Sequence[Column] = ()  # the two; one if there is only one; none without samples
    views: Sequence[View] = ()  # the pairs, in the order of the prompts
    reward: str | None = None  # that they show; None without any
    notes: Sequence[str] = ()  # sentences on what is not there
    likeness: str = ""  # what the two of a pair share, in words; see `compare.likeness`
    # of each prompt the pair that lost most, the greatest loss first; of equal ones those with both images
    worst: Sequence[View] = ()
    worse: int = 0  # how many lost at all
    unselected: bool = True  # whether no score had a part in which samples are shown


def before_and_after(source: Source, count: int, worst: int = 0) -> Pairs:
    """Return the first pairs of the first and the last evaluation; what cannot be read is one of its sentences."""
    try:
        choice = first_and_last(source)
        columns = choice.columns
        if not columns:
            return Pairs(notes=choice.notes)
        names = reward_names(columns)
        reward = default_reward(columns, names)
        streams = [column.stream for column in columns]
        briefs = [column.source.briefs(column.state, reward) for column in columns]
        matched = match(briefs, streams)
        notes = list(choice.notes)
        if columns[-1].state.stage not in ("eval", "folder"):
            notes.append("This run has no held-out evaluation: what is shown comes from elsewhere.")
        if not matched.rows:
            notes.append(f"{columns[0].label} and {columns[-1].label} have no prompt in common.")
        kept = filter_by_images(matched.rows, briefs)
        spread_out = representative_rows(kept, briefs) if len(kept) < len(matched.rows) else kept
        lower = lower_rewards(columns, names)
        shown = views(columns, (spread_out or kept or matched.rows)[:count], names, lower)
        seen = {row.order for row in kept}
        lost = filter_by_judgement(matched.rows, "worse", reward in lower)
        lost.sort(key=lambda row: (-abs(row.change or 0), row.order not in seen, row.order))
        each: dict[Hashable, Row] = {}
        for row in lost:
            each.setdefault(row.asked, row)
        below = views(columns, list(each.values())[:worst], names, lower) if worst else ()
        unselected = bool(spread_out or not kept)
        return Pairs(columns, shown, reward, notes, likeness(matched, streams), below, len(lost), unselected)
    except GalleryError as error:
        return Pairs(notes=[str(error)])


def intervals(source: RunSource, pairs: Pairs, course: Progress | None) -> dict[str, Estimate]:
    """By held-out reward, the paired difference of the last evaluation from the first, with its interval over prompts.

    Only where every sample of an evaluation is kept, so that it belongs to the means of the metrics.
    """
    columns, samples = pairs.columns, setting(source, "samples", "eval")
    whole = [column for column in columns if column.state.stage == "eval" and column.state.samples == samples]
    if course is None or len(whole) < 2:
        return {}
    estimates, streams = {}, [column.stream for column in columns]
    for one in course.headline:
        rows = match([source.briefs(column.state, one.name) for column in columns], streams).rows
        change = paired_change(rows)
        if change is not None and change.low is not None:
            estimates[one.name] = change
    return estimates


def lead(changes: Sequence[Change], course: Progress | None, known: Mapping[str, Estimate] | None = None) -> str:
    """Return what became of the first held-out reward, in a sentence."""
    if not changes or course is None:
        return "There is no held-out evaluation yet."
    first, iterations = changes[0], [iteration for iteration, _ in course.evaluations]
    if len(iterations) == 1:
        was = f"Held-out {first.name} was {three(first.before)}"
        return f"{was} at iteration {iterations[0]}, the only evaluation so far."
    if first.change is None:
        return f"The change of the held-out {first.name} is not known: its scorer failed."
    before, after = three(first.before), three(first.after)
    word = {"gain": "rose", "loss": "fell"}.get(sign(first.change), "") if before != after else ""
    between = f"from {before} to {after}" if word else f"at {after}"
    words = f"Held-out {describe_reward(first.name, first.lower)} {word or 'stayed'} {between}"
    told_apart = judged(first, (known or {}).get(first.name))
    return f"{words} between iterations {iterations[0]} and {iterations[-1]}.{told_apart}"


def judged(change: Change, interval: Estimate | None) -> str:
    """Return whether a change is told from none, in a sentence after another; "" without an interval."""
    if interval is None:
        return ""
    word = {"gain": "better", "loss": "worse"}.get(sign(interval.mean, change.lower)) if interval.resolved else None
    return f" That is {word}: its 95 % interval excludes 0." if word else " Its 95 % interval includes 0."


def missing(course: Progress | None, last: State | None) -> list[str]:
    """Return sentences on files of a run that were lost, or did not come along with a copy of it."""
    if course is None:
        return []
    notes = []
    if last is not None and last.stage == "eval" and last.iteration > course.done and course.state != "running":
        rows = f"ends at iteration {course.done:,}" if course.evaluations or course.training else "has no rows"
        notes.append(f"metrics.jsonl {rows}, but images go to evaluation {last.iteration:,}: rows are missing.")
    if course.state == "unknown":
        notes.append("config.yaml and summary.json are not there: nothing tells whether this run has ended.")
    return notes


def mixed(run: RunSource) -> list[str]:
    """Return sentences on where a run went on with other inputs."""
    return [other_inputs(at, names) for at, names in input_changes(run)]


def led_out(run: RunSource) -> list[str]:
    """Return sentences on folders of images that are links out of the run: nothing is shown of them."""
    notes = []
    for folder in (IMAGES, TREES):
        try:
            run.place(folder)
        except GalleryError as error:
            notes.append(str(error))
    return notes


def read_json(run: RunSource, name: str, problems: list[str]) -> dict[str, Any]:
    """Return a JSON file of a run; {} if it is not there, or cannot be read, which `problems` then tells."""
    try:
        return run.read_json(name)
    except GalleryError as error:
        problems.append(str(error))
        return {}


def flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a JSON object as names and texts, names joined by dots; what is null is left out."""
    entries: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping) and prefix.count(".") < DEEP:
            entries += flat(value, f"{prefix}{name}.")
        elif value is not None:
            entries.append((f"{prefix}{name}", text(value)))
    return entries


def resumptions(environment: Mapping[str, Any]) -> list[str]:
    """Return a sentence a resumption: what differs from the run's start."""
    entries = environment.get("resumed")
    began = dict(flat({name: value for name, value in environment.items() if name not in ("resumed", "run_id")}))
    sentences = []
    for n, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        entry = entry if isinstance(entry, dict) else {}
        now = dict(flat({k: v for k, v in entry.items() if k not in ("run_id", "changed")}))
        other = [f"{name} {value} (began with {began.get(name, 'none')})" for name, value in now.items()
                 if began.get(name) != value]  # fmt: skip
        changed = entry["changed"] if isinstance(entry.get("changed"), dict) else {}
        other += [f"{key} {text(values.get('is'))} (was {text(values.get('was'))})" for key, values in changed.items()
                  if isinstance(values, dict)]  # fmt: skip
        sentences.append(f"Resumption {n}: {', '.join(other) if other else 'on the same machine and versions'}.")
    return sentences


def text(value: object) -> str:
    """Return a JSON value in short; three dots for what is nested too deep to be written out."""
    try:
        return str(value)
    except (RecursionError, ValueError):  # ValueError: a whole number of more digits than Python writes
        return "…"
