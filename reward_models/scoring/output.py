"""Rows in files: JSON lines, CSV and Parquet.

While scoring goes on, finished rows are appended to `FILE.part` as JSON lines; the files themselves appear whole, at
the end. A run that was interrupted is started again and finds its scores in the cache.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from reward_models.common.errors import RewardError
from reward_models.scoring.choices import Loaded
from reward_models.scoring.items import Item
from reward_models.scoring.run import Row

SUFFIXES = (".jsonl", ".csv", ".parquet")
INDEXES = ("samples.jsonl", "metadata.jsonl")
PARQUET_ROWS = 4096


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse, before anything is scored, files that could not be written at the end.

    Raises:
        RewardError: an unknown suffix, a folder, or Parquet without pyarrow.
    """
    for path in paths:
        if path.suffix.lower() not in SUFFIXES or path.is_dir():
            raise RewardError(f"--out takes a file that ends in {', '.join(SUFFIXES)}. Got {path}.")
        if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise RewardError(f"Writing {path} needs pyarrow. Run: pip install 'diffrl[parquet]', or write .csv.")


def check_targets(
    outs: Sequence[Path], plot: Path | None, items: Sequence[Item], others: Sequence[Path], paths: Sequence[str]
) -> None:
    """Refuse to write over what is read, or figures to where the next run would score them.

    Raises:
        RewardError: names the file.
    """
    read = {path.resolve() for path in (*others, *(item.path for item in items))}
    for path in (*outs, *([plot] if plot is not None else [])):
        if path.resolve() in read or path.name in INDEXES:
            raise RewardError(f"--out and --plot never write over what is read, or an index of images. Got {path}.")
    folders = [Path(path).resolve() for path in paths if Path(path).is_dir() and not _has_index(Path(path))]
    if plot is not None and any(plot.resolve().is_relative_to(folder) for folder in folders):
        raise RewardError(f"--plot must lie outside the folders that are scored, or figures are next. Got {plot}.")


def _has_index(folder: Path) -> bool:
    """Return whether an index says what of a folder is scored, so that other images there are left out."""
    return any((folder / name).exists() for name in ("samples.jsonl", "samples.sqlite"))


def total_of(row: Row, rewards: Sequence[Loaded]) -> float | None:
    """Sum weight * (raw - shift) / scale; NaN where a weighted reward failed, None without weights."""
    weighted = [reward for reward in rewards if reward.settings.weight]
    if not weighted:
        return None
    shares = [
        reward.settings.weight * (row.scores[reward.label].raw - reward.settings.shift) / reward.settings.scale
        for reward in weighted
    ]
    return math.fsum(shares) if all(math.isfinite(share) for share in shares) else math.nan


def record_of(row: Row, rewards: Sequence[Loaded]) -> dict[str, Any]:
    """Return a row as it is written in JSON lines; null where there is no number."""
    record: dict[str, Any] = {"file": row.item.name, "prompt": row.item.prompt}
    if row.item.sample:
        record["sample"] = dict(row.item.sample)
    if row.item.metadata:
        record["metadata"] = dict(row.item.metadata)
    record["rewards"] = {}
    for reward in rewards:
        score = row.scores[reward.label]
        record["rewards"][reward.label] = {
            "raw": _number(score.raw),
            "ok": score.ok,
            "error": score.error,
            "note": score.note,
            "parts": {name: _number(value) for name, value in score.parts.items()},
            "scorer": reward.scorer.spec.name,
            "version": reward.scorer.spec.version,
        }
    total = total_of(row, rewards)
    if total is not None:
        record["total"] = _number(total)
    return record


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Outputs:
    """All files of a run; leaving the context by an exception keeps what was finished in `FILE.part`."""

    def __init__(self, paths: Sequence[Path], rewards: Sequence[Loaded]):
        self._paths, self._rewards = list(paths), rewards
        self._parts: dict[str, dict[str, None]] = {reward.label: {} for reward in rewards}
        self._sample_keys: dict[str, None] = {}
        self._stream: IO[str] | None = None
        if paths:
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._part = paths[0].with_name(f"{paths[0].name}.part")
            self._stream = self._part.open("w", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Add a row."""
        if self._stream is None:
            return
        for label, score in row.scores.items():
            self._parts[label].update(dict.fromkeys(score.parts))
        self._sample_keys.update(dict.fromkeys(row.item.sample))
        self._stream.write(json.dumps(record_of(row, self._rewards), ensure_ascii=False, default=str) + "\n")
        self._stream.flush()

    def __enter__(self) -> Outputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None:
            return
        self._stream.close()
        if kind is None:
            for path in self._paths:
                self._finish(path)
            self._part.unlink()

    def _finish(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        if path.suffix.lower() == ".parquet":
            self._write_parquet(temporary)
        elif path.suffix.lower() == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                table = csv.DictWriter(stream, self._columns())
                table.writeheader()
                table.writerows(self._flat_rows())
        else:
            with self._part.open(encoding="utf-8") as source, temporary.open("w", encoding="utf-8") as stream:
                for line in source:
                    stream.write(line)
        os.replace(temporary, path)

    def _columns(self) -> list[str]:
        columns = ["file", "prompt", *self._sample_keys]
        for label, parts in self._parts.items():
            columns += [label, *(f"{label}/{part}" for part in parts)]
            columns += [f"{label}.{name}" for name in ("note", "error", "version")]
        return [*columns, "total"] if any(reward.settings.weight for reward in self._rewards) else columns

    def _flat_rows(self) -> Iterator[dict[str, Any]]:
        with self._part.open(encoding="utf-8") as source:
            for line in source:
                record = json.loads(line)
                flat = {"file": record["file"], "prompt": record["prompt"], **record.get("sample", {})}
                for label, score in record["rewards"].items():
                    flat[label] = score["raw"]
                    flat |= {f"{label}/{part}": value for part, value in score["parts"].items()}
                    flat |= {f"{label}.{name}": score[name] for name in ("note", "error", "version")}
                yield flat | ({"total": record["total"]} if "total" in record else {})

    def _write_parquet(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        numbers = {label for label in self._parts} | {
            f"{k}/{part}" for k, parts in self._parts.items() for part in parts
        }
        integers = {"iteration", "group", "root", "seed", "number"} & set(self._sample_keys)

        def kind(column: str) -> Any:
            if column in integers:
                return pyarrow.int64()
            if column == "total":
                return pyarrow.float64()
            return pyarrow.float32() if column in numbers else pyarrow.string()

        schema = pyarrow.schema([(column, kind(column)) for column in self._columns()])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            rows: list[dict[str, Any]] = []
            for row in self._flat_rows():
                rows.append(row)
                if len(rows) == PARQUET_ROWS:
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                    rows = []
            if rows:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
