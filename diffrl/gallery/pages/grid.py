"""One held-out sample in every run at every evaluation: runs down, iterations across, the same prompt and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffrl.gallery.columns import MOST, Column, default_reward, last_of_all, lower_rewards, reward_names, thinned
from diffrl.gallery.compare import Row, match
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Key, Sample, State
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site

ACROSS = 8
"""Evaluations that stand beside each other; of more, evenly many are left out."""
EXPORTED = 12
"""Samples that an exported site has such a page of."""


@dataclass(frozen=True)
class Line:
    """A run.

    Args:
        run: which.
        cells: a sample for each iteration; None where it was not drawn.
    """

    run: RunSource
    cells: Sequence[Sample | None]


def grid(site: Site, query: Query) -> Answer:
    """Return the page; `sample` is the place of the sample among those that the runs have in common, from 1."""
    last = last_of_all([run for run in site.runs if _evaluated(run)])
    columns = fitting(last.columns)
    cut = f"These are {MOST} of {len(last.columns)} runs, those with a sample in common first: more do not fit."
    if not columns:
        raise GalleryError("A grid is of held-out evaluations. No run here has one yet. Come back later.", 404)
    rows, briefs_of = _rows(columns)
    if not rows:
        raise GalleryError("A grid is of prompts that runs have in common. These have none. Compare two of them.", 404)
    most = min(EXPORTED, len(rows)) if site.links.exported else len(rows)
    number = query.whole("sample", 1, 1, most)
    row = rows[number - 1]
    wanted = [None if one is None else keys[one] for one, keys in zip(row.ids, briefs_of, strict=True)]
    iterations = across([column.source.states() for column in columns])
    names = reward_names(columns)
    reward = default_reward(columns, names)
    lines = [
        Line(column.source, [sample_at(column.source, iteration, key) for iteration in iterations])
        for column, key in zip(columns, wanted, strict=True)
        if isinstance(column.source, RunSource)
    ]
    return Answer(
        site.render(
            "grid.html",
            notes=[*last.notes, *([cut] if len(columns) < len(last.columns) else [])],
            lines=lines,
            iterations=iterations,
            reward=reward,
            lower=reward in lower_rewards(columns, names),
            prompt=row.prompt,
            number=number,
            most=most,
            turn=lambda n: site.links.page("grid", sample=n if n > 1 else None),
        )
    )


def _evaluated(run: RunSource) -> bool:
    try:
        return any(state.stage == "eval" for state in run.states())
    except GalleryError:  # its own pages say why it cannot be read
        return False


def fitting(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that fit: of more, those with the sample that most have come first; in the gallery's order."""
    if len(columns) <= MOST:
        return list(columns)
    briefs = [column.source.briefs(column.state, None) for column in columns]
    rows = match(briefs, [column.stream for column in columns]).rows
    ids = max((row.ids for row in rows), key=lambda ids: sum(one is not None for one in ids), default=())
    without = [index for index, one in enumerate(ids) if one is None]
    ranked = sorted(range(len(columns)), key=lambda index: index in without)
    return [columns[index] for index in sorted(ranked[:MOST])]


def _rows(columns: Sequence[Column]) -> tuple[list[Row], list[Mapping[int, Key]]]:
    """Return samples that all runs have beside each other, or any if they have none; and the keys of each run's."""
    briefs = [column.source.briefs(column.state, None) for column in columns]
    rows = list(match(briefs, [column.stream for column in columns]).rows)
    common = [row for row in rows if None not in row.ids] or rows
    return common, [{brief.id: brief.key for brief in column} for column in briefs]


def across(states: Sequence[Sequence[State]]) -> list[int]:
    """Return the iterations of any run's evaluations, ascending; of many about `ACROSS`, the ends among them."""
    every = sorted({state.iteration for run in states for state in run if state.stage == "eval"})
    return [state.iteration for state in thinned([State("eval", n) for n in every], most=ACROSS)]


def sample_at(run: RunSource, iteration: int, key: Key | None) -> Sample | None:
    """Return a run's sample at an evaluation, by its prompt and noise."""
    state = State("eval", iteration)
    ids = [brief.id for brief in run.briefs(state, None) if brief.key == key] if key else []
    samples = run.samples(state, ids[:1])
    return samples[0] if samples else None
