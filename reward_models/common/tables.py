"""Tables as people publish them, to rows that know their place: .txt, .csv, .tsv, .json, .jsonl, .parquet.

Cells of .csv and .tsv are texts: "None", "NA" and "007" are words like others. Nothing is guessed to be missing. A row
that cannot be read says so itself: whoever reads the table decides what one of them costs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reward_models.common.messages import cut, quote, show
from reward_models.common.reading import Unreadable, parse_json, read_bytes

MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks of other encodings than UTF-8; the longer ones first."""


class Row(NamedTuple):
    """A row of a table."""

    where: str  # "FILE:LINE", as "prompts.csv:7"
    record: dict[str, Any]  # values by column; empty if it cannot be read at all
    problem: str | None = None  # what is wrong with it, a sentence; None if nothing is


class Table(NamedTuple):
    """Rows, the names of their columns, and what was done to read them."""

    rows: Iterable[Row]
    columns: list[str]
    notes: list[str]


def read_table(path: Path, most: int, longest: int | None = None) -> Table:
    """Read a table; a line of .txt is a row of one column, "prompt", and blank lines are none.

    Args:
        path: of the file; its suffix says what it is.
        most: bytes that it may have, and a .parquet file unpacked.
        longest: characters that a line of .jsonl may have to be parsed.

    Raises:
        FileNotFoundError: there is none.
        Unreadable: it cannot be read as a whole.
    """
    kind, notes = path.suffix.lower(), list[str]()
    if kind == ".parquet":
        rows = _of_parquet(path, most)
    else:
        text, encoding = decode(read_bytes(path, most))
        notes = [] if encoding == "UTF-8" else [f"{path} was read as {encoding}."]
        if kind in (".csv", ".tsv"):
            rows = list(_of_csv(text, path, "\t" if kind == ".tsv" else None))
        elif kind == ".json":
            rows = list(_of_list(text, path))
        else:
            lines = [(f"{path}:{n}", line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
            jsonl = kind == ".jsonl"
            rows = [
                _of_line(line, where, longest) if jsonl else _checked(where, {"prompt": line}) for where, line in lines
            ]
    return Table(rows, list(dict.fromkeys(name for row in rows for name in row.record)), notes)


def decode(data: bytes) -> tuple[str, str]:
    """Return a text and its encoding: that of its byte order mark, else UTF-8, whose wrong bytes are lone surrogates.

    Raises:
        Unreadable: it is not what its mark says.
    """
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "UTF-8")
    try:
        if encoding == "UTF-8":
            return data.decode("utf-8-sig", "surrogateescape"), encoding
        return data.decode(encoding), encoding
    except UnicodeDecodeError as error:
        raise Unreadable(f"begins as {encoding} and cannot be read as that: {error.reason}") from error


def _checked(where: str, record: dict[str, Any]) -> Row:
    """Return a row of texts, with what is wrong with their characters."""
    return Row(where, record, _fault(where, "\n".join(value for value in record.values() if isinstance(value, str))))


def _fault(where: str, text: str) -> str | None:
    """Say which character of a row is none."""
    if "\0" in text:
        return f"{where} holds a zero byte, as UTF-16 without its mark does. Save the file as UTF-8."
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        wrong = cut(text.encode("utf-8", "surrogateescape").decode("latin-1").strip(), 80)
        return (
            f"{where} cannot be read as UTF-8 text: it holds the byte 0x{ord(text[error.start]) & 0xFF:02x}, and is "
            f"{quote(wrong)} if the file is Latin-1. Save it as UTF-8."
        )
    return None


def _of_csv(text: str, path: Path, delimiter: str | None) -> Iterator[Row]:
    """Yield rows of a table with a header, separated by tabs, or by what its header has most of."""
    head = text.lstrip().partition("\n")[0]
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=delimiter or max(",;\t", key=head.count), strict=True
    )
    names = [name.strip() for name in _header(reader) if name.strip()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Unreadable(f"names the column {quote(twice)} twice. Rename one of them")
    while True:
        try:
            record: dict[Any, Any] | None = next(reader, None)
        except csv.Error as error:  # its quotes, or a cell that is too large
            where = f"{path}:{reader.line_num}"
            yield Row(where, {}, f"{where} is no line of a table: {error}. Mend its quotes.")
            continue
        if record is None:
            return
        cells = {name.strip(): cell for name, cell in record.items() if name and cell is not None}
        row = _checked(f"{path}:{reader.line_num}", cells)
        if None in record:
            row = row._replace(
                problem="A line of a table must have no more cells than its header. "
                f"{row.where} has {show(record[None])} beyond. Put a text that holds the separator in double quotes."
            )
        yield row


def _header(reader: csv.DictReader[str]) -> list[str]:
    try:
        return list(reader.fieldnames or ())
    except csv.Error as error:
        raise Unreadable(f"cannot be read as a table: {error}. Mend the quotes of its header") from error


def _of_list(text: str, path: Path) -> Iterator[Row]:
    """Yield rows of a JSON list of texts or of objects."""
    if fault := _fault("it", text):
        raise Unreadable(f"is no JSON: {fault.rstrip('.')}")
    entries = parse_json(text)
    if not isinstance(entries, list):
        raise Unreadable(f"must be a list, as a .json file of prompts is. It is {show(entries)}. Put it into [ ]")
    for number, entry in enumerate(entries, 1):
        where = f"entry {number} of {path}"
        if isinstance(entry, dict | str):
            yield Row(where, {"prompt": entry} if isinstance(entry, str) else entry)
        else:
            yield Row(where, {}, f"A .json list must hold prompts or objects. {where} is {show(entry)}. Mend it.")


def _of_line(line: str, where: str, longest: int | None) -> Row:
    """Return the object that a line of .jsonl holds."""
    if longest is not None and len(line) > longest:  # before it is read: one of many megabytes takes long
        return Row(where, {}, f"A line may have at most {longest:,} characters. {where} has {len(line):,}. Shorten it.")
    rule = "Each line of a .jsonl file of prompts must be a JSON object"
    try:
        record = parse_json(line)
    except Unreadable as error:
        return Row(where, {}, f"{rule}. {where}: it {error}.")
    if not isinstance(record, dict):
        return Row(where, {}, f'{rule} such as {{"prompt": "a red circle"}}. {where} is {show(record)}.')
    return Row(where, record, _fault(where, line))


def _of_parquet(path: Path, most: int) -> list[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise Unreadable("cannot be read without pyarrow. Run: pip install 'diffrl[parquet]'") from error
    read_bytes(path, most)  # no folder, no pipe, nothing larger
    try:
        file = pq.ParquetFile(path)
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
        if size > most:
            raise Unreadable(f"is too large: it unpacks to {size:,} bytes, and at most {most:,} are read")
        plain = [entry.name for entry in file.schema_arrow if "binary" not in str(entry.type)]
        records = file.read(columns=plain).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"cannot be read as a table: {cut(str(error), 200)}") from error
    return [Row(f"row {number} of {path}", record) for number, record in enumerate(records)]
