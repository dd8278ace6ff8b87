"""Comparison: the same prompts and noise across iterations, runs and folders, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from diffrl.gallery.asked import Versus, Wanted, orders, paged, versus, wanted
from diffrl.gallery.columns import MOST, Choice, Column, choose, options
from diffrl.gallery.columns import label as state_label
from diffrl.gallery.compare import (
    NOISE,
    Matched,
    Row,
    arrange,
    filter_by_images,
    filter_by_judgement,
    filter_by_prompt,
    filter_by_scores,
    likeness,
    match,
    summarise,
)
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.folders import FolderSource
from diffrl.gallery.numbers import improvement
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Brief, Source, csv_answer, state_key
from diffrl.gallery.rows import EXPORTED, per_page, views
from diffrl.gallery.runs import RunSource
from diffrl.gallery.scatter import Scatter, scatter
from diffrl.gallery.score_table import best_column, score_table, seeds_of
from diffrl.gallery.site import Site

Joined = tuple[Matched, Sequence[Sequence[Brief]]]
"""Samples beside each other, and those of each column."""


@dataclass(frozen=True)
class Compared:
    """What an address compares."""

    choice: Choice  # the columns, at least one
    asked: Wanted  # filters, order and reward
    joined: Joined  # samples beside each other
    seeds: str  # of how many seeds of how many configurations the sources are; "" if of none
    pair: Versus  # which columns are compared
    every: Sequence[Row]
    rows: Sequence[Row]  # those that were asked for, in their order
    like: int | None  # `Row.order` of the sample whose scores they have; None for all


def compared(query: Query, choice: Choice) -> Compared:
    """Return the samples of the chosen columns beside each other; columns that match nothing or do not fit are cut."""
    asked = wanted(query, choice.columns)
    matched, briefs = joined(choice.columns, asked.reward)
    if not choice.chosen and 0 < len(matched.unmatched) <= len(choice.columns) - 2:
        choice = without(choice, matched.unmatched)
        asked = wanted(query, choice.columns)
        matched, briefs = joined(choice.columns, asked.reward)
    seeds = seeds_of([column.source for column in choice.columns])
    if len(choice.columns) > MOST:
        choice = fitting(choice, matched, asked)
        asked = wanted(query, choice.columns)
        matched, briefs = joined(choice.columns, asked.reward)
    pair = versus(query, [column.key for column in choice.columns])
    every = paired(matched, pair)
    rows = filter_by_prompt(every, asked.prompt)
    like = query.whole("like", 0) if query.text("like") else None
    rows = filter_by_scores(filter_by_judgement(rows, pair.show, asked.falling), like)
    rows = arrange(rows, asked.sort, asked.falling)
    return Compared(choice, asked, (matched, briefs), seeds, pair, every, rows, like)


def compare_csv(site: Site, query: Query) -> Answer:
    """Return the rows of the page, on all of its pages, as CSV: prompt, file, the score in each column, the change.

    Raises:
        GalleryError: no sample has the reward; a file has no place for the page's note that it shows another.
    """
    choice = choose(site, query)
    if not choice.columns:
        return csv_answer([], "compare.csv")
    comparison = compared(query, choice)
    if comparison.asked.note:
        raise GalleryError(f"{comparison.asked.note} Choose one that is there.", 400)
    labels = [f"{comparison.asked.reward}, {column.label}" for column in comparison.choice.columns]
    lines: list[list[object]] = [["prompt", "file", *labels, "change"]]
    lines += [[row.prompt, row.name, *row.values, row.change] for row in comparison.rows]
    return csv_answer(lines if len(labels) > 1 else [line[:-1] for line in lines], "compare.csv")


def compare(site: Site, query: Query) -> Answer:
    """Return the page."""
    choice = choose(site, query)
    run = common_run(choice.columns) or (site.run(query.text("run")) if _is_run(site, query) else None)
    if not choice.columns:
        return Answer(site.render("compare.html", columns=[], scatters=[], views=[], notes=choice.notes, run=run))
    comparison = compared(query, choice)
    choice, asked, pair = comparison.choice, comparison.asked, comparison.pair
    every, rows, like = comparison.every, comparison.rows, comparison.like
    matched, briefs = comparison.joined
    keys = [column.key for column in choice.columns]
    size = per_page(len(keys))
    most = site.options.get("rows", EXPORTED) if site.links.exported else None
    shown, number, pages = paged(query, rows, size, most)
    notes = [*choice.notes, *([asked.note] if asked.note else []), *unmatched(matched, choice.columns)]
    notes += of_folders(choice.columns)
    table = score_table(choice.columns, every, pair.against, asked.falling) if len(keys) > 1 else []
    chosen = any(query.text(name) for name in ("of", "against"))
    offered = [] if site.links.exported else groups(site.sources, choice.columns)
    known = [value for row in every if (value := row.value) is not None]
    drawings = scatters(choice.columns, asked, pair, (matched, briefs), site.links.exported) if len(keys) > 1 else []
    rows_at = partial(site.links.page, columns=keys, **asked.parameters, **pair.parameters, like=like)
    values: dict[str, Any] = {
        "run": run,
        "columns": choice.columns,
        "notes": notes,
        "asked": asked,
        "sorts": orders(len(keys) > 1, asked.reward),
        "matched": matched,
        "likeness": likeness(matched, [column.stream for column in choice.columns]),
        "summary": summarise(rows, asked.falling),
        "score_table": table,
        "best_column": None if chosen else best_column(choice.columns, every, table, asked.falling),
        "scored": len(known),
        "mean": sum(known) / len(known) if known and len(keys) == 1 else None,
        "seeds": comparison.seeds,
        "scatters": drawings,
        "like": like,
        "size": size,
        "here": {row.order for row in shown},
        "versus": pair,
        "address": lambda **more: site.links.page("compare", columns=keys, reward=asked.reward, **more),
        "views": views(choice.columns, shown, asked.names, asked.lower),
        "number": number,
        "pages": pages,
        "before": (number - 1) * size,
        "turn": lambda n: rows_at("compare", page=n if n > 1 else None),
        # An exported page goes back by its script and needs no second file.
        "csv": "" if site.links.exported else rows_at("compare.csv"),
        "file": "" if site.links.exported else rows_at("compare.html"),
        "plain": "#" if site.links.exported else site.links.page("compare", columns=keys),
        "groups": offered,
        "places": min(MOST, len(keys) + 1, max(len(keys), sum(len(states) for _, states in offered))),
    }
    return Answer(site.render("compare.html", **values))


def joined(columns: Sequence[Column], reward: str | None) -> Joined:
    """Return the samples of the columns beside each other, and those of each column, with the values of a reward."""
    briefs = [column.source.briefs(column.state, reward) for column in columns]
    return match(briefs, [column.stream for column in columns]), briefs


def scatters(columns: Sequence[Column], asked: Wanted, pair: Versus, shown: Joined, whole: bool) -> list[Scatter]:
    """Return the drawings of a page; none of a reward that no sample has in both columns."""
    others = [name for name in asked.names if "/" not in name and name != asked.reward] if whole else []
    drawings = []
    for name in [asked.reward, *others]:
        if name is not None:
            matched, briefs = shown if name == asked.reward else joined(columns, name)
            kept = {row.order for row in filter_by_images(matched.rows, briefs, (pair.of, pair.against))}
            drawings.append(scatter(name, paired(matched, pair), kept, name in asked.lower))
    return [drawing for drawing in drawings if drawing is not None]


def paired(matched: Matched, pair: Versus) -> list[Row]:
    """Return the rows with the columns that are compared."""
    return [row._replace(pair=(pair.of, pair.against)) for row in matched.rows]


def without(choice: Choice, places: Sequence[int]) -> Choice:
    """Return columns that nobody asked for and that match nothing make room for the others; a sentence names them."""
    left = [column for number, column in enumerate(choice.columns) if number not in places]
    names = " and ".join(choice.columns[number].label for number in places)
    return Choice(left, [*choice.notes, f"Left out: {names}. No prompt and noise of it stands in another column."])


def fitting(choice: Choice, matched: Matched, asked: Wanted) -> Choice:
    """Cut columns that nobody chose to those of the best means, so that the best of them is best of all."""
    ranks = score_table(choice.columns, matched.rows, 0, asked.falling)
    ranked = sorted((one.mean is None, improvement(-(one.mean or 0.0), asked.falling), one.index) for one in ranks)
    kept = sorted(number for *_, number in ranked[:MOST])
    best = f"These are the {MOST} best of {len(ranks)} sources by {asked.reward}"
    notes = [*choice.notes, f"{best}: more do not fit. Choose others below."]
    return Choice([choice.columns[number] for number in kept], notes)


def common_run(columns: Sequence[Column]) -> RunSource | None:
    """Return the run of all columns, if they have one in common."""
    source = columns[0].source if columns else None
    same = isinstance(source, RunSource) and all(column.source is source for column in columns)
    return source if same and isinstance(source, RunSource) else None


def _is_run(site: Site, query: Query) -> bool:
    """Return whether the address, or the gallery's only source, is a run; a folder has no pages of its own."""
    if query.all("columns") or len(set(query.all("run"))) > 1:
        return False
    only = site.sources[0] if len(site.sources) == 1 else None
    source = site.source(query.text("run")) if query.text("run") else only
    return isinstance(source, RunSource)


def unmatched(matched: Matched, columns: Sequence[Column]) -> list[str]:
    """Return sentences on columns that share nothing with any other, and on a match by less than prompt and noise."""
    if len(columns) < 2:
        return []
    if not matched.rows:
        return [
            "These samples have no prompt in common, so there is nothing to put side by side. Evaluations have the "
            "same prompts and noise when prompts.eval, eval.seed, the model and the images' size are the same. "
            "Choose other columns."
        ]
    notes = [
        f"Nothing of {columns[index].label} matches another column: its prompts, its seed, its noise, its model or the "
        "size of its images are others."
        for index in matched.unmatched
    ]
    if matched.by != NOISE and any(column.folder for column in columns):
        notes.append(f"Matched by {matched.by}: images of a folder do not tell which noise they began with.")
    elif matched.by != NOISE:
        notes.append(
            "Matched by prompt: the first sample of a prompt beside the first, the second beside the second. Their "
            "noise is another, so a single pair tells little. Evaluations have the same noise when eval.seed, the "
            "model and the images' size are the same; training draws new noise at every iteration."
        )
    return notes


def of_folders(columns: Sequence[Column]) -> list[str]:
    """Return what the folders have to say: what was left out, how scores are had."""
    notes: list[str] = []
    for source in dict.fromkeys(column.source for column in columns):
        if isinstance(source, FolderSource):
            notes += source.notes()
    return notes


def groups(sources: Sequence[Source], columns: Sequence[Column]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return columns to choose in titled groups: key and words of a source's states, those of training apart."""
    titled = []
    for source in sources:
        kept = [column.state for column in columns if column.source is source]
        try:
            states = options(source, kept)
        except GalleryError:
            continue  # the start page says what is wrong with it
        several = f"{source.title} · " if len(sources) > 1 else ""
        others = [state for state in states if state.stage != "train"]
        training = [state for state in states if state.stage == "train"]
        titles = (source.title, f"{several}training (other prompts)" if others else source.title)
        for title, of_title in zip(titles, (others, training), strict=True):
            offered = [(state_key(source, state), several + state_label(state)) for state in of_title]
            titled += [(title, offered)] if offered else []
    return titled
