"""Tables of captions, and files beside one image: .jsonl, .csv and .parquet to rows; a wrong row says so itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_models.columns import file_column, prompt_text, text_column
from reward_models.errors import RewardError
from reward_models.image_files import reading
from reward_models.messages import show
from reward_models.text.quotes import quoted
from reward_models.text.reading import Unreadable, parse_json, read_text, require_utf8

MOST_BYTES = 256_000_000
"""Of a table, and of what a .parquet file unpacks to."""


@dataclass(frozen=True)
class Caption:
    """What a row says.

    Args:
        file: the image it speaks of, if it names one; with slashes.
        prompt: None if it has none.
        metadata: whatever else it says.
        problem: why its prompt is none.
        broken: the row could not be read at all.
    """

    file: str | None = None
    prompt: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    broken: bool = False


def read_captions(path: Path) -> list[Caption]:
    """Read a table; a row that cannot be read is a caption with a problem.

    Raises:
        RewardError: the whole of it cannot be read.
    """
    if path.suffix.lower() == ".parquet":
        rows = _parquet_rows(path)
    else:
        text = _text(path, "surrogateescape")
        rows = list(_csv_rows(text, path) if path.suffix.lower() == ".csv" else _json_rows(text, path))
    records = [row for _, row in rows if isinstance(row, dict)]
    column = text_column(dict.fromkeys(key for record in records for key in record), records)
    return [
        _caption(row, where, column) if isinstance(row, dict) else Caption(problem=row, broken=True)
        for where, row in rows
    ]


def read_sidecar(path: Path) -> Caption | None:
    """Read the caption of one image; None where the file says nothing about its prompt."""
    try:
        text = _text(path, "strict").strip()
        if path.suffix.lower() != ".json":
            return Caption(prompt=text) if text else None
        record = parse_json(text)
    except RewardError as error:
        return Caption(problem=str(error))
    except Unreadable as error:
        return Caption(problem=f"{path} {error}.")
    if isinstance(record, dict) and (column := text_column(record, [record])) is not None:
        return _caption(record, str(path), column)
    prompt = prompt_text(record)
    return Caption(prompt=prompt) if prompt is not None else None


def _caption(record: dict[str, Any], where: str, column: str | None) -> Caption:
    """The caption of a row whose prompt stands in a column; of a row without it, in the likeliest of its own."""
    name, text = file_column(record), record.get("text")
    file = record.pop(name) if name is not None else None
    column = column if column in record else text_column(record, [record])
    value = record.pop(column) if column is not None else None
    prompt = prompt_text(value)
    if isinstance(text, str) and quoted(text) is None:
        record["text"] = text
    if file is not None and not isinstance(file, str):
        return Caption(problem=f"A file name must be text. {where} has {show(file)}.", broken=True)
    problem = None
    try:
        require_utf8(f"{prompt}{text}")
    except Unreadable as error:
        prompt, problem = None, f"The prompt of {where} {error}."
    if prompt is None and problem is None and column is not None:
        problem = f"A prompt must be text. {where} has {show(value)}."
    return Caption(file.replace("\\", "/") if file else None, prompt, record, problem)


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Rows by their place, or why one cannot be read."""
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except Unreadable as error:
            yield where, f"Each line of a .jsonl file of prompts must be a JSON object. {where}: it {error}."
            continue
        if isinstance(record, dict):
            yield where, record
        else:
            yield where, f"Each line of a .jsonl file of prompts must be a JSON object. {where} is {show(record)}."


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Rows of a table with a header, separated by commas, semicolons or tabs."""
    head = text.lstrip().partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count), restkey="")
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:  # a cell that is too large, or holds a zero byte
            yield f"{path}:{rows.line_num}", f"{path}:{rows.line_num} is no line of a table: {error}."
            continue
        if row is None:
            return
        yield f"{path}:{rows.line_num}", {key: value for key, value in row.items() if key and value is not None}


def _parquet_rows(path: Path) -> list[tuple[str, dict[str, Any] | str]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise RewardError(f"Reading {path} needs pyarrow. Run: pip install 'diffrl[parquet]'.") from error
    with reading(path, "a table"):
        file = pq.ParquetFile(path)
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        plain = [entry.name for entry in file.schema_arrow if not _holds_bytes(pa, entry.type)]
        size = sum(group.total_byte_size for group in groups)
        if size > MOST_BYTES:
            raise RewardError(
                f"{path} is too large: it unpacks to {size:,} bytes, and at most {MOST_BYTES:,} are read."
            )
        rows = file.read(columns=plain).to_pylist()
    return [(f"row {number} of {path}", row) for number, row in enumerate(rows)]


def _holds_bytes(pa: Any, kind: Any) -> bool:
    """Whether a column holds images or other bytes, which no prompt is."""
    return bool(pa.types.is_nested(kind) and "binary" in str(kind)) or pa.types.is_binary(kind)


def _text(path: Path, errors: str) -> str:
    try:
        return read_text(path, MOST_BYTES, "utf-8-sig", errors)
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
