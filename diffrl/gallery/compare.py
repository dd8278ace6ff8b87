"""The same prompt and noise in several columns: matching, filters, order and counts, on values that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from diffrl.gallery.numbers import SAME, finite, improvement
from diffrl.gallery.paths import MEDIA
from diffrl.gallery.records import Brief

SORTS = {
    "order": "images first",
    "gain": "most improved first",
    "loss": "most worsened first",
    "value": "highest value first",
    "prompt": "prompt",
}


SHOWN = {"better": 1, "same": 0, "worse": -1}
"""What of a comparison can be shown alone."""

Pair = tuple[int, int]


def difference(values: Sequence[float | None], pair: Pair) -> float | None:
    """Return one column's value less another's; None with one column, or where either has none."""
    value, other = values[pair[0]], values[pair[1]]
    return None if len(values) < 2 or value is None or other is None else value - other


class Row(NamedTuple):
    """One prompt and noise."""

    order: int  # place in the unsorted list
    prompt: str  # its text, of the first column that has it
    ids: tuple[int | None, ...]  # of the sample in each column; None where a column has no such sample
    values: tuple[float | None, ...]  # of the chosen reward in each column; None where there is none
    pair: Pair = (-1, 0)  # places of the column that is compared, and of the one that it is compared with
    source: str | None = None  # the image that it edits, of the first column that has the row; None of no edit
    name: str = ""  # of its file in a folder, of the first column that has the row; "" of samples of runs

    @property
    def words(self) -> str:
        """What the row is called by: its prompt or, without one, its file."""
        return self.prompt or self.name

    @property
    def asked(self) -> tuple[str, str | None]:
        """What tells prompts apart: the words, and the image that they edit."""
        return self.prompt, self.source

    @property
    def value(self) -> float | None:
        """In the compared column."""
        return self.values[self.pair[0]]

    @property
    def change(self) -> float | None:
        """The compared column less the other; None with one column, or where either has no value."""
        return difference(self.values, self.pair)


class Matched(NamedTuple):
    """What `match` found."""

    rows: list[Row]  # those with all images first; else in the order of the first column, then of the others
    by: str  # what made two samples the same, in words
    unmatched: list[int]  # places of the columns that share nothing with any other


class Summary(NamedTuple):
    """Counts over rows."""

    rows: int
    compared: int  # those with a value in both of the columns that are compared
    mean: float | None  # mean change of the compared; None if there are none
    improved: int  # changes for the better by more than `SAME`
    unchanged: int  # changes of rounding
    worse: int  # changes for the worse by more than `SAME`


FOLDER = "folder"
"""The stream of images whose noise nobody knows; see `columns.stream`."""
NOISE, FILE, PROMPT = "prompt and noise", "file name", "prompt"
Named = Callable[[Sequence[Brief], str], list[Hashable]]


def by_noise(briefs: Sequence[Brief], stream: str) -> list[Hashable]:
    """Return a sample's own key, within its stream of noise."""
    return [(stream, brief.key) for brief in briefs]


def by_file(briefs: Sequence[Brief], stream: str) -> list[Hashable]:
    """Return the file's name without the suffix of an image, in folders; samples of runs have none."""
    return [_stem(brief.key[4]) or None if stream == FOLDER else None for brief in briefs]


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in MEDIA else name


def by_prompt(briefs: Sequence[Brief], stream: str) -> list[Hashable]:
    """Return the n-th sample of a prompt; samples without a prompt have no name."""
    seen: dict[Hashable, int] = {}
    names: list[Hashable] = []
    for brief in briefs:
        asked = brief.asked
        seen[asked] = seen.get(asked, -1) + 1
        names.append((asked, seen[asked]) if brief.key[0] else None)
    return names


LADDER: Sequence[tuple[str, Named]] = ((NOISE, by_noise), (FILE, by_file), (PROMPT, by_prompt))


def match(columns: Sequence[Sequence[Brief]], streams: Sequence[str]) -> Matched:
    """Put samples of the same prompt and noise beside each other.

    Samples of runs match by prompt and noise; where nothing of all columns does, the n-th samples of a prompt stand
    beside each other, and `Matched.by` says so. Images of folders may lack both: where they match nothing so, file
    names are tried, but of images whose prompts differ, then prompts; the first that joins the most columns counts.

    Args:
        columns: samples of each column, in its order.
        streams: for each column, what its noise was drawn for (`columns.stream`): equal keys are the same noise within
            one stream alone; `FOLDER` if it is a folder.

    Returns:
        Rows that at least two columns share; all samples, if there is one column.
    """
    if len(columns) == 1:  # a.png and a.jpg of a folder have one name and are two samples
        alone = [
            Row(n, one.key[0], (one.id,), (finite(one.value),), source=one.source, name=_file(one, streams[0]))
            for n, one in enumerate(columns[0])
        ]
        return Matched(_images_first(alone, columns), NOISE, [])
    best: Matched | None = None
    for by, named in LADDER:
        if best is not None and best.rows and FOLDER not in streams:
            break
        names = [named(briefs, stream) for briefs, stream in zip(columns, streams, strict=True)]
        joined = _join(columns, names, streams, by)
        if best is None or len(joined.unmatched) < len(best.unmatched):
            best = joined
    if best is None:
        raise ValueError("match needs at least one column")
    return best._replace(rows=_images_first(best.rows, columns))


def likeness(matched: Matched, streams: Sequence[str]) -> str:
    """Describe what samples of runs side by side share; "" for one column, folders, and no row."""
    if len(streams) < 2 or FOLDER in streams or not matched.rows:
        return ""
    return "same prompts, same noise" if matched.by == NOISE else "same prompts, other noise"


def _file(brief: Brief, stream: str) -> str:
    """Return the name of a folder's image, without its suffix; "" of a run's."""
    return str(brief.key[4]) if stream == FOLDER else ""


def _join(
    columns: Sequence[Sequence[Brief]], names: Sequence[Sequence[Hashable]], streams: Sequence[str], by: str
) -> Matched:
    tables: list[dict[Hashable, Brief]] = []
    for briefs, keys in zip(columns, names, strict=True):
        backwards = zip(reversed(keys), reversed(briefs), strict=True)  # of equal names the first stays
        tables.append({name: brief for name, brief in backwards if name is not None})
    rows: list[Row] = []
    shared, absent = [0] * len(tables), len(tables) - min(2, len(tables))
    for name in dict.fromkeys(name for keys in names for name in keys):
        briefs_of_row = [table.get(name) for table in tables]
        there = [column for column, brief in enumerate(briefs_of_row) if brief is not None]
        if len(briefs_of_row) - len(there) > absent or not there:
            continue
        shown = [tables[column][name] for column in there]
        edited = {PurePosixPath(one.source).name for one in shown if one.source is not None}
        if len({one.key[0] for one in shown} - {""}) > 1 or len(edited) > 1:  # one file name, and other prompts
            continue
        for column in there:
            shared[column] += 1
        ids = tuple([None if brief is None else brief.id for brief in briefs_of_row])
        values = tuple([None if brief is None else finite(brief.value) for brief in briefs_of_row])
        name = _file(shown[0], streams[there[0]])
        rows.append(Row(len(rows), shown[0].key[0], ids, values, source=shown[0].source, name=name))
    return Matched(rows, by, [column for column, count in enumerate(shared) if not count])


def filter_by_images(
    rows: Sequence[Row], columns: Sequence[Sequence[Brief]], places: Collection[int] | None = None
) -> list[Row]:
    """Return rows whose images were kept in every column."""
    counting = range(len(columns)) if places is None else places
    kept = {column: {brief.id for brief in columns[column] if brief.has_image} for column in counting}
    return [row for row in rows if all(row.ids[column] in ids for column, ids in kept.items())]


def representative_rows(rows: Sequence[Row], columns: Sequence[Sequence[Brief]]) -> list[Row]:
    """Return the rows of `match` of which no image was kept for how much its score changed: these stand for all."""
    chosen = [{brief.id for brief in briefs if brief.representative is False} for briefs in columns]
    return [row for row in rows if not any(one in briefs for one, briefs in zip(row.ids, chosen, strict=True))]


def _images_first(rows: Sequence[Row], columns: Sequence[Sequence[Brief]]) -> list[Row]:
    """Rows whose images were all kept before the others, or a reader would open a page of gaps; numbered anew."""
    kept = {row.order for row in filter_by_images(rows, columns)}
    ordered = sorted(rows, key=lambda row: row.order not in kept)
    return [row._replace(order=order) for order, row in enumerate(ordered)]


def filter_by_scores(rows: Sequence[Row], order: int | None) -> list[Row]:
    """Return rows with the same two scores as one of them; all for None, none where there is no such row."""
    if order is None:
        return list(rows)
    wanted = [scores(row) for row in rows if row.order == order]
    return [row for row in rows if scores(row) in wanted]


def scores(row: Row) -> tuple[float | None, float | None]:
    """Return a row's value in the baseline and in the compared column."""
    return row.values[row.pair[1]], row.value


def filter_by_prompt(rows: Sequence[Row], text: str) -> list[Row]:
    """Return rows whose prompt, or file without one, contains every word of a text, whatever their order and case."""
    wanted = text.casefold().split()
    return [row for row in rows if all(word in row.words.casefold() for word in wanted)] if wanted else list(rows)


def arrange(rows: Sequence[Row], sort: str, lower: bool = False) -> list[Row]:
    """Rows in one of the orders of `SORTS`; equal ones stay in the usual order, those without the number come last.

    Args:
        rows: in any order.
        sort: which.
        lower: whether less is better of the reward, so that a fall is a gain; the highest value stays the highest.
    """
    if sort == "prompt":
        return sorted(rows, key=lambda row: (row.words.casefold(), row.order))
    if sort in ("gain", "loss", "value"):
        ascending = improvement(1 if sort == "loss" else -1, lower and sort != "value")

        def place(row: Row) -> tuple[bool, float, int]:
            number = row.value if sort == "value" else row.change
            return number is None, 0.0 if number is None else ascending * number, row.order

        return sorted(rows, key=place)
    return sorted(rows, key=lambda row: row.order)


def summarise(rows: Sequence[Row], lower: bool = False) -> Summary:
    """Return counts of what is better and worse in the compared column than in the other; the mean keeps its sign."""
    changes = [change for row in rows if (change := row.change) is not None]
    judged = [judgement(change, lower) for change in changes]
    mean = math.fsum(changes) / len(changes) if changes else None
    return Summary(len(rows), len(changes), mean, judged.count(1), judged.count(0), judged.count(-1))


def judgement(change: float, lower: bool = False) -> int:
    """Return 1 for the better, -1 for the worse, 0 for rounding."""
    gain = improvement(change, lower)
    return (gain > SAME) - (gain < -SAME)


def filter_by_judgement(rows: Sequence[Row], shown: str, lower: bool = False) -> list[Row]:
    """Return rows of one of `SHOWN`; all for ""."""
    if not shown:
        return list(rows)
    return [row for row in rows if row.change is not None and judgement(row.change, lower) == SHOWN[shown]]
