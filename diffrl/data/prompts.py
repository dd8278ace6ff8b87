"""Where prompts come from: an embedded world, a file of lines or of a table, or a dataset on the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from diffrl.data.hub import dataset_parts, read_dataset
from diffrl.data.normal import normalised
from diffrl.data.pairs import NEITHER, PairReader
from diffrl.data.sources import SOURCE_KEYS, require_source
from diffrl.data.worlds import FILE_SUFFIXES, SPLITS, WORLDS, Split, column_of, embedded_prompts, part_of, split_of
from diffrl.errors import ConfigError
from diffrl.records import Prompt
from reward_models.common.columns import LOOKED_AT, PROMPT_COLUMNS, text_column
from reward_models.common.messages import quote, show
from reward_models.common.reading import Unreadable
from reward_models.common.suffixes import is_image
from reward_models.common.tables import Table, read_table

MOST_PROMPTS = 1_000_000

LONGEST_PROMPT = 10_000
"""Characters; text encoders read a tenth of it, and tokenising a thousand times as much takes for ever."""

HELD_OUT_ONE_OF = 32
"""One distinct prompt of so many is in the part tune of a list, and one in its part report."""

MOST_BYTES = 64_000_000
"""Of a file of prompts; of a .parquet file also of what it unpacks to."""

LONGEST_RECORD = 100_000
"""Characters of a prompt and all that scorers need beside it, as JSON."""

MOST_LEFT_OUT = 0.1
"""Share of the rows of a table that may be without a prompt."""


class PromptList(NamedTuple):
    """Prompts in their order, and what the user should know of how they were read."""

    prompts: list[Prompt]
    notes: list[str]


def load_prompts(source: str) -> list[Prompt]:
    """Read prompts in their order; see `read_prompts`."""
    return read_prompts(source).prompts


def read_prompts(source: str) -> PromptList:
    """Read prompts in their order.

    Args:
        source: `<world>:<split>` of the embedded worlds (`data.worlds`), such as `shapes:tune`; a file, .txt (one
            prompt a line; "# ..." is one too) or a table (`reward_models.common.tables`) with a column of prompts, with
            "source" or "image" if they ask to edit an image, two images of each if they are pairs (`data.pairs`), and
            whatever scorers need beside them; or
            `hub:<dataset>[[:<config>]:<split>]` (the split may be a slice, `train[:50000]`). The column is the
            likeliest by its name (`reward_models.common.columns`), or the one named behind a #: `prompts.csv#title`. A
            cell that is a list of texts gives one prompt, of which each epoch takes one of the texts. A source that
            ends in `@train`, `@tune` or `@report` is that part of it: see `parts`.

    Raises:
        ConfigError: no such source, an unreadable line, no prompt in it, more than a tenth of its rows without one, a
            prompt or list that is too long, or an image to edit that is not there.
    """
    embedded = split_of(source)
    whole, part = part_of(source)
    if embedded is not None:
        return PromptList(embedded_prompts(*embedded), [])
    path, column = column_of(whole)
    hub = path.startswith("hub:")
    table = read_dataset(path.removeprefix("hub:"), column) if hub else _read_file(Path(path))
    folder = Path(dataset_parts(path.removeprefix("hub:"))[0]) if hub else Path(path).parent
    made = _Made(table, path, column, folder)
    listed: Iterable[Prompt] = made
    if part is not None:
        listed = parts(made, part, folder, repeats=not hub)
    prompts = list(islice(listed, MOST_PROMPTS + 1))  # no more than it takes to see that they are too many
    made.require_most()
    if not prompts:
        odd = " ".join(made.pairs.notes)
        raise ConfigError(
            f"A prompt list must hold at least one prompt. Got none in {quote(source)}. {odd or _none(part)}"
        )
    if len(prompts) > MOST_PROMPTS:
        raise ConfigError(
            f"A prompt list must hold at most {MOST_PROMPTS:,} prompts. Got {len(prompts):,} or more in "
            f"{quote(source)}. Take a part, of a dataset such as hub:<dataset>:train[:100000]."
        )
    return PromptList(prompts, [*table.notes, *made.notes])


def _read_file(path: Path) -> Table:
    """Read a file of prompts, of which every row can be read.

    Raises:
        ConfigError: names the file or the first row that cannot.
    """
    if path.suffix.lower() not in FILE_SUFFIXES:
        worlds = ", ".join(f"{world}:<split>" for world in WORLDS)
        raise ConfigError(
            f"Prompts come from {worlds}, hub:<dataset> or a file that ends in {', '.join(FILE_SUFFIXES)}. Got "
            f"{str(path)!r}."
        )
    try:
        table = read_table(path, MOST_BYTES, LONGEST_RECORD)
    except FileNotFoundError as error:
        raise ConfigError(f"The prompt file {str(path)!r} does not exist. Check the path.") from error
    except Unreadable as error:
        raise ConfigError(f"The prompt file {str(path)!r} {error}.") from error
    if problem := next((row.problem for row in table.rows if row.problem is not None), None):
        raise ConfigError(problem)
    return table


def _require_short(length: int, where: str) -> None:
    """Refuse a record that is too long to be stored beside every sample.

    Raises:
        ConfigError: it is.
    """
    if length > LONGEST_RECORD:
        raise ConfigError(
            f"A prompt with all that stands beside it must have at most {LONGEST_RECORD:,} characters. {where} has "
            f"{length:,}. Shorten it."
        )


class _Made:
    """The prompts of a table's rows, with a count of the rows that have none."""

    def __init__(self, table: Table, path: str, column: str | None, folder: Path):
        rows = iter(table.rows)
        first = list(islice(rows, LOOKED_AT))
        self._rows, self._path, self._folder = chain(first, rows), path, folder
        self.column = _column(table, [row.record for row in first], path, column)
        self.pairs = PairReader(folder)
        self._read, self._left_out = 0, 0
        self._examples: list[str] = []

    def __iter__(self) -> Iterator[Prompt]:
        known: set[str] = set()  # images that were looked at
        for row in self._rows:
            self._read += 1
            record = dict(row.record)
            texts = _texts(record.pop(self.column, None))
            if record:
                _require_short(len(json.dumps([texts, record], default=str)), row.where)
            if texts:
                pair = self.pairs.take(record, texts[0], row.where)
                source = _take_source(record, row.where, self._folder, known)
                prompt = make_prompt(texts[0], row.where, record, source, texts[1:] and texts)
                if pair is not NEITHER:
                    yield replace(prompt, pair=pair)
                continue
            self._left_out += 1
            if len(self._examples) < 3:
                self._examples.append(f"{row.where} is {show(row.record, 60)}")

    @property
    def notes(self) -> list[str]:
        """What was left out, and which column was read where it has not the usual name."""
        column = [] if self.column == "prompt" else [f"The prompts of {self._path} are its column {self.column}."]
        left_out = [f"{self._words()} They are left out."] if self._left_out else []
        return [*column, *left_out, *self.pairs.notes]

    def require_most(self) -> None:
        """Refuse a table of which too many rows have no prompt.

        Raises:
            ConfigError: it is one.
        """
        if self._left_out > MOST_LEFT_OUT * self._read:
            raise ConfigError(
                f"At least {1 - MOST_LEFT_OUT:.0%} of the rows of a table must have a prompt. {self._words()} Remove "
                f"them, or name another column: {self._path}#COLUMN."
            )

    def _words(self) -> str:
        return (
            f"{self._left_out:,} of the {self._read:,} rows of {self._path} have no text in the column "
            f"{self.column}: {'; '.join(self._examples)}{'; ...' if self._left_out > 3 else '.'}"
        )


def _column(table: Table, rows: list[dict[str, Any]], path: str, named: str | None) -> str:
    """Return the column that holds the prompts.

    Raises:
        ConfigError: there is none of that name, or none that is known.
    """
    if not rows:
        return "prompt"
    if named is not None and named not in table.columns:
        raise ConfigError(f"The column of the prompts must be one of {table.columns}. Got {quote(named)} for {path}.")
    column = named or text_column(table.columns, rows) or ("txt" if "txt" in table.columns else None)
    if column is None:
        raise ConfigError(
            f"A table of prompts needs a column such as {', '.join(PROMPT_COLUMNS[:6])}. {path} has {table.columns}. "
            f"Name the one that holds them: {path}#COLUMN."
        )
    return column


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a cell without blanks around them: one, several of a list, none of what is no text."""
    several = value if isinstance(value, list | tuple) else []
    cells = [value] if isinstance(value, str) else several
    return tuple(dict.fromkeys(cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()))


def _none(part: Split | None) -> str:
    """Return what to do where there is no prompt."""
    if part is None:
        return "Write one a line."
    return f"The part {part} of a short list may be empty: add prompts, or leave @{part} out."


def parts(listed: Iterable[Prompt], part: Split, folder: Path = Path(), repeats: bool = True) -> Iterator[Prompt]:
    """Yield the prompts of one part of a list, in its order, each once: the first of equal ones; pairs all.

    The text alone decides which part it is in, as `normalised` has it, or the name of the image that it asks to edit,
    so that the parts have no text, or no image, in common whatever is repeated, added or spelled otherwise.

    Args:
        listed: all of them.
        part: which.
        folder: that the paths of images are seen from: the same list elsewhere has the same parts.
        repeats: whether a prompt that stands there again with other metadata is another one.
    """
    seen: set[tuple[Any, ...]] = set()
    for prompt in listed:
        name = normalised(prompt.text)
        if prompt.source is not None:
            name = Path(os.path.relpath(prompt.source, folder)).as_posix()
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_OF
        beside = json.dumps(prompt.metadata, sort_keys=True, default=str) if repeats else ""
        known = prompt.pair is None and (*prompt.key, beside) in seen  # each pair is a vote
        if SPLITS[digest + 1 if digest < 2 else 0] == part and not known:
            seen.add((*prompt.key, beside))
            yield prompt


def make_prompt(
    text: str,
    where: str,
    metadata: Mapping[str, Any] | None = None,
    source: str | None = None,
    captions: tuple[str, ...] = (),
) -> Prompt:
    """Make a prompt that a text encoder can read and a file can store.

    Args:
        text: of the prompt.
        where: it stands, for the message.
        metadata: what scorers need beside it.
        source: path of the image that it asks to edit.
        captions: all texts that it may have; see `records.Prompt`.

    Raises:
        ConfigError: it is too long, or holds half of a surrogate pair.
    """
    for one in captions or (text,):
        _require_text(one, where)
    return Prompt(text.strip(), {} if metadata is None else metadata, source, captions)


def _require_text(text: str, where: str) -> None:
    if len(text) > LONGEST_PROMPT:
        raise ConfigError(
            f"A prompt must have at most {LONGEST_PROMPT:,} characters. {where} has {len(text):,}. Shorten it."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"A prompt must be text of UTF-8. {where} holds {ascii(text[error.start])}, half of a surrogate pair. "
            "Remove it."
        ) from error


def _take_source(record: dict[str, Any], where: str, folder: Path, known: set[str]) -> str | None:
    """Return the image that a record asks to edit, taken out of it: an absolute path, None if it names none."""
    named = {key: value for key in SOURCE_KEYS if is_image(value := record.get(key))}
    if len(named) > 1:
        named_twice = " and ".join(f"{key}: {quote(value)}" for key, value in named.items())
        raise ConfigError(f"A prompt has one image to edit. {where} names {named_twice}. Remove one of them.")
    for key, value in named.items():
        path = os.path.abspath(folder / record.pop(key))
        if path not in known:
            require_source(path, f"{where} ({key}: {quote(value)})")
            known.add(path)
        return path
    return None
