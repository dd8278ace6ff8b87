"""The evaluations of a run's held-out samples, for the slider of the lightbox (static/evaluations.js)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diffrl.gallery.columns import Column, exported_states, label, lower_rewards, reward_names
from diffrl.gallery.compare import NOISE, Row, match
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.paths import is_video
from diffrl.gallery.progress import marked
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Sample, describe_reward
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import BLOCK, Site
from diffrl.gallery.thumbnails import moves


def evaluations_json(site: Site, query: Query) -> Answer:
    """Return a block of prompts as JSON; see `followed`."""
    return Answer(_written(site, query), "application/json")


def evaluations_js(site: Site, query: Query) -> Answer:
    """Return the same as a script, for a page that was opened from disk and cannot fetch.

    Raises:
        GalleryError: the gallery runs (404). Any page of the web may run a script of another address and keep what it
            says; what `fetch` brings it cannot read.
    """
    if not site.links.exported:
        raise GalleryError("Scripts with samples are in exported sites only. Ask for evaluations.json.", 404)
    return Answer(f"gallery.evaluations = {_written(site, query)};\n", "text/javascript")


def _written(site: Site, query: Query) -> str:
    samples = followed(site, site.run(query.text("run")), query.whole("block", 0), query.text("state"))
    return json.dumps(samples, separators=(",", ":"))


def followed(site: Site, run: RunSource, block: int, key: str) -> dict[str, Any]:
    """Return what static/evaluations.js shows of a block of prompts.

    Args:
        site: of the run.
        run: whose samples.
        block: of prompts: those of the groups from `block * BLOCK` on.
        key: of an evaluation that is there in any case, "" for none.

    Returns:
        `labels` and `keys` of the evaluations, how many of them there are `of` all, the `rewards` as (name, words,
        whether less is better), and for every sample its `ids` and what it is `at` each evaluation, None where it was
        not drawn.

    Raises:
        GalleryError: the run's store cannot be read.
    """
    shown, of = exported_states(site, run)
    every = [state for state in run.states() if state.stage == "eval"]
    states = [state for state in every if state in shown or state.key == key]
    columns, words = [Column(run, state, label(state)) for state in states], marked(run)
    names = reward_names(columns)
    lower = lower_rewards(columns, names)
    briefs = [[one for one in run.briefs(state, None) if one.key[2] // BLOCK == block] for state in states]
    matched = match(briefs, [column.stream for column in columns]) if states else None
    rows = matched.rows if matched and matched.by == NOISE else []
    by_state = [
        {one.id: one for one in run.samples(state, [brief.id for brief in of_state])}
        for state, of_state in zip(states, briefs, strict=True)
    ]

    def at(row: Row) -> list[dict[str, Any] | None]:
        sides = zip(row.ids, by_state, strict=True)
        return [None if number is None else seen(site, run, of_state[number], names) for number, of_state in sides]

    return {
        "keys": [state.key for state in states],
        "labels": [", ".join(filter(None, (label(state), words.get(state.iteration)))) for state in states],
        "of": of,
        "rewards": [(name, describe_reward(name, name in lower), name in lower) for name in names],
        "samples": [{"ids": row.ids, "at": at(row)} for row in rows],
    }


def seen(site: Site, run: RunSource, sample: Sample, names: Sequence[str]) -> dict[str, Any]:
    """Return a sample at one evaluation: its image if kept, its scores by `names`, and what scorers say of it."""
    entry: dict[str, Any] = {"values": [finite(sample.value(name)) for name in names]}
    if sample.reason:
        entry["reason"] = sample.reason
    if sample.error:
        entry["error"] = sample.error[:400]
    if sample.file:
        entry["src"] = site.links.media(run.key, sample.file)
        if is_video(sample.file):
            entry["video"] = True
        elif moves(run, sample.file):
            entry["still"] = site.links.media(run.key, sample.file, size=512, still=True)
    return entry
