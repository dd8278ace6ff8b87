"""Tables of captions, and files beside one image: .jsonl, .csv and .parquet to rows; a wrong row says so itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_models.common.columns import file_column, prompt_text, text_column
from reward_models.common.errors import RewardError
from reward_models.common.messages import show
from reward_models.common.reading import Unreadable, parse_json, read_text
from reward_models.common.tables import Row, read_table
from reward_models.text.quotes import quoted

MOST_BYTES = 256_000_000
"""Of a table, and of what a .parquet file unpacks to."""


@dataclass(frozen=True)
class Caption:
    """What a row says."""

    file: str | None = None  # the image it speaks of, if it names one; with slashes
    prompt: str | None = None  # None if it has none
    metadata: Mapping[str, Any] = field(default_factory=dict)  # whatever else it says
    problem: str | None = None  # why its prompt is none
    broken: bool = False  # the row could not be read at all


def read_captions(path: Path) -> list[Caption]:
    """Read a table; a row that cannot be read is a caption with a problem.

    Raises:
        RewardError: the whole of it cannot be read.
    """
    try:
        table = read_table(path, MOST_BYTES)
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
    rows = list(table.rows)
    column = text_column(table.columns, (row.record for row in rows))
    return [_caption(row, column) if row.record else Caption(problem=row.problem, broken=True) for row in rows]


def read_sidecar(path: Path) -> Caption | None:
    """Read the caption of one image; None where the file says nothing about its prompt."""
    try:
        text = _text(path).strip()
        if path.suffix.lower() != ".json":
            return Caption(prompt=text) if text else None
        record = parse_json(text)
    except RewardError as error:
        return Caption(problem=str(error))
    except Unreadable as error:
        return Caption(problem=f"{path} {error}.")
    if isinstance(record, dict) and (column := text_column(record, [record])) is not None:
        return _caption(Row(str(path), record), column)
    prompt = prompt_text(record)
    return Caption(prompt=prompt) if prompt is not None else None


def _caption(row: Row, column: str | None) -> Caption:
    """Return the caption of a row whose prompt stands in a column; of a row without it, in the likeliest of its own."""
    record = dict(row.record)
    name, text = file_column(record), record.get("text")
    file = record.pop(name) if name is not None else None
    column = column if column in record else text_column(record, [record])
    value = record.pop(column) if column is not None else None
    prompt, problem = prompt_text(value), row.problem
    if isinstance(text, str) and quoted(text) is None:
        record["text"] = text
    if file is not None and not isinstance(file, str):
        return Caption(problem=f"A file name must be text. {row.where} has {show(file)}.", broken=True)
    if problem is not None:
        prompt, record = None, {}
    elif prompt is None and column is not None:
        problem = f"A prompt must be text. {row.where} has {show(value)}."
    return Caption(file.replace("\\", "/") if file else None, prompt, record, problem)


def _text(path: Path) -> str:
    try:
        return read_text(path, MOST_BYTES, "utf-8-sig")
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
