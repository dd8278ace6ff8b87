"""Tables of prompts as people publish them, to rows that know their line: .txt, .csv, .tsv, .json, .jsonl, .parquet.

Cells of .csv and .tsv are texts: "None", "NA" and "007" are words like others. Nothing is guessed to be missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diffrl.data.worlds import FILE_SUFFIXES, WORLDS
from diffrl.errors import ConfigError
from reward_models.messages import cut, quote, show
from reward_models.text.reading import Unreadable, parse_json, read_bytes

MOST_BYTES = 64_000_000
"""Of a file of prompts; of a .parquet file also of what it unpacks to."""

LONGEST_RECORD = 100_000
"""Characters of a prompt and all that scorers need beside it, as JSON."""

MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks of other encodings than UTF-8; the longer ones first."""


class Row(NamedTuple):
    """A row of a table, and where it stands: "prompts.csv:7"."""

    where: str
    record: dict[str, Any]


class Table(NamedTuple):
    """Rows, the names of their columns, and what was done to read them."""

    rows: Iterable[Row]
    columns: list[str]
    notes: list[str]


def read_table(path: Path) -> Table:
    """Read a file of prompts; a line of .txt is a row of one column, "prompt", and blank lines are none.

    Raises:
        ConfigError: it cannot be read; names the line.
    """
    kind = path.suffix.lower()
    if kind not in FILE_SUFFIXES:
        worlds = ", ".join(f"{world}:<split>" for world in WORLDS)
        raise ConfigError(
            f"Prompts come from {worlds}, hub:<dataset> or a file that ends in {', '.join(FILE_SUFFIXES)}. Got "
            f"{str(path)!r}."
        )
    try:
        data = read_bytes(path, MOST_BYTES)
        rows, notes = (_of_parquet(path), []) if kind == ".parquet" else _of_text(data, path, kind)
    except FileNotFoundError as error:
        raise ConfigError(f"The prompt file {str(path)!r} does not exist. Check the path.") from error
    except Unreadable as error:
        raise ConfigError(f"The prompt file {str(path)!r} {error}.") from error
    return Table(rows, list(dict.fromkeys(name for row in rows for name in row.record)), notes)


def _of_text(data: bytes, path: Path, kind: str) -> tuple[list[Row], list[str]]:
    text, encoding = decode(data)
    notes = [] if encoding == "UTF-8" else [f"{path} was read as {encoding}."]
    if kind in (".csv", ".tsv"):
        return list(_of_csv(text, path, "\t" if kind == ".tsv" else None)), notes
    if kind == ".json":
        return list(_of_list(text, path)), notes
    numbered = [Row(f"{path}:{n}", {"prompt": line}) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_of_line(row) for row in numbered] if kind == ".jsonl" else numbered, notes


def decode(data: bytes) -> tuple[str, str]:
    """Return a text and its encoding: that of its byte order mark, else UTF-8.

    Raises:
        Unreadable: it is neither; names the first line that is not.
    """
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "UTF-8")
    try:
        text = data.decode("utf-8-sig" if encoding == "UTF-8" else encoding)
    except UnicodeDecodeError as error:
        if encoding != "UTF-8":
            raise Unreadable(f"begins as {encoding} and cannot be read as that: {error.reason}") from error
        line = data[: error.start].count(b"\n") + 1
        wrong = data.split(b"\n")[line - 1].decode("latin-1").strip()
        raise Unreadable(
            f"cannot be read as UTF-8 text: line {line} holds the byte 0x{data[error.start]:02x}, which is "
            f"{quote(cut(wrong, 80))} if the file is Latin-1; save it as UTF-8"
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise Unreadable(f"holds a zero byte in line {line}, as UTF-16 without its mark does; save it as UTF-8")
    return text, encoding


def _of_csv(text: str, path: Path, delimiter: str | None) -> Iterator[Row]:
    """Rows of a table with a header, separated by tabs, or by what its header has most of."""
    head = text.lstrip().partition("\n")[0]
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=delimiter or max(",;\t", key=head.count), strict=True
    )
    while True:
        try:
            record: dict[Any, Any] | None = next(reader, None)
        except csv.Error as error:
            raise ConfigError(f"{path}:{reader.line_num} is no line of a table: {error}. Mend its quotes.") from error
        if record is None:
            return
        if None in record:
            raise ConfigError(
                f"A line of a table must have no more cells than its header. {path}:{reader.line_num} has "
                f"{show(record.pop(None))} beyond. Put a text that holds the separator in double quotes."
            )
        yield Row(f"{path}:{reader.line_num}", {name.strip(): cell for name, cell in record.items()})


def _of_list(text: str, path: Path) -> Iterator[Row]:
    """Rows of a JSON list of texts or of objects."""
    entries = parse_json(text)
    if not isinstance(entries, list):
        raise ConfigError(f"A .json file of prompts must be a list. {path} is {show(entries)}. Put it into [ ].")
    for number, entry in enumerate(entries, 1):
        where = f"entry {number} of {path}"
        if not isinstance(entry, dict | str):
            raise ConfigError(f"A .json list must hold prompts or objects. {where} is {show(entry)}. Mend it.")
        yield Row(where, {"prompt": entry} if isinstance(entry, str) else entry)


def _of_line(row: Row) -> Row:
    """The object that a line of .jsonl holds."""
    line = row.record["prompt"]
    require_short(len(line), row.where)  # before it is read: one of many megabytes takes long
    try:
        record = parse_json(line)
    except Unreadable as error:
        raise ConfigError(
            f"Each line of a .jsonl prompt file must be a JSON object. {row.where}: it {error}."
        ) from error
    if not isinstance(record, dict):
        raise ConfigError(
            f'Each line of a .jsonl prompt file must be an object such as {{"prompt": "a red circle"}}. {row.where} '
            f"is {show(record)}."
        )
    return Row(row.where, record)


def _of_parquet(path: Path) -> list[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Prompts in .parquet need pyarrow. Run: pip install 'diffrl[datasets]'.") from error
    try:
        file = pq.ParquetFile(path)
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        if size > MOST_BYTES:
            raise Unreadable(f"is too large: it unpacks to {size:,} bytes, and at most {MOST_BYTES:,} are read")
        plain = [entry.name for entry in file.schema_arrow if "binary" not in str(entry.type)]
        records = file.read(columns=plain).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"cannot be read as a table: {cut(str(error), 200)}") from error
    return [Row(f"row {number} of {path}", record) for number, record in enumerate(records)]


def require_short(length: int, where: str) -> None:
    """Refuse a record that is too long to be stored beside every sample.

    Raises:
        ConfigError: it is.
    """
    if length > LONGEST_RECORD:
        raise ConfigError(
            f"A prompt with all that stands beside it must have at most {LONGEST_RECORD:,} characters. {where} has "
            f"{length:,}. Shorten it."
        )
