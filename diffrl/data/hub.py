"""Datasets of the hub, and folders in a form that `datasets` reads (imagefolder, webdataset, ...), to rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from diffrl.data.sources import SOURCE_KEYS
from diffrl.errors import ConfigError
from reward_models.common.columns import LOOKED_AT, text_column
from reward_models.common.messages import cut, quote
from reward_models.common.suffixes import is_image
from reward_models.common.tables import Row, Table

PLAIN = (str, int, float, bool, list, dict, type(None))
"""Values that are kept beside a prompt; images and the like are not."""

OF_WEBDATASET = ("__key__", "__url__")
"""Columns that `datasets` adds to the samples of a .tar: their names, and its path."""

PIXELS = ("Audio", "Image", "Pdf", "Video")
"""Features that `datasets` would decode for every row."""


def dataset_parts(name: str) -> tuple[str, str | None, str]:
    """Return the dataset, its config and its split of NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; a split may be a slice."""
    dataset, *rest = re.split(r":(?![^\[]*\])", name, maxsplit=2)
    split = rest[-1] if rest and rest[-1] else "train"
    return dataset, rest[0] if len(rest) == 2 else None, split


def read_dataset(name: str, column: str | None) -> Table:
    """Read a dataset with the datasets package, row by row.

    Args:
        name: as in `dataset_parts`.
        column: that holds the prompts, if it was named.

    Raises:
        ConfigError: the package is missing, or it cannot load the dataset.
    """
    try:
        from datasets import Image, Value, load_dataset, load_dataset_builder
    except ImportError as error:
        raise ConfigError("hub: prompts need the datasets package. Run: pip install 'diffrl[datasets]'.") from error
    dataset, config, split = dataset_parts(name)
    options: dict[str, Any] = {}
    try:
        known = load_dataset_builder(dataset, config).BUILDER_CONFIG_CLASS
        if known is not None and hasattr(known, "keep_default_na"):  # a .csv, where pandas takes "None" for nothing
            options = {"keep_default_na": False}
        rows = load_dataset(dataset, config, split=split, **options)
        column = column or text_column(rows.column_names, rows) if options else None
        if column in rows.column_names and rows.features[column].dtype != "string":  # 007 is no 7
            features = rows.features.copy()
            features[column] = Value("string")
            rows = load_dataset(dataset, config, split=split, features=features, **options)
    except (OSError, ValueError) as error:
        hint = " Name one: hub:NAME:CONFIG:SPLIT." if "Config name is missing" in str(error) else ""
        reason = cut(" ".join(str(error).split()), 500).rstrip(".")
        raise ConfigError(f"The dataset {quote(dataset)} cannot be loaded: {reason}.{hint}") from error
    if isinstance(rows.features.get("source"), Image):  # of a folder of images, "source_file_name"
        rows = rows.cast_column("source", Image(decode=False))
    rows = rows.remove_columns(
        [key for key, kind in rows.features.items() if key != "source" and _is_left_out(key, kind)]
    )
    if not rows.column_names:
        raise ConfigError(
            f"A dataset of prompts must have texts. {quote(dataset)} has images alone. In a folder of images their "
            "texts are rows of a metadata.jsonl that lies in the images' own folder, such as train/."
        )
    table = _Rows(rows, name, Path(dataset), split.partition("[")[0])
    columns = dict.fromkeys(key for row in islice(table, LOOKED_AT) for key in row.record)
    return Table(table, list(columns), [])


def _is_left_out(key: str, kind: Any) -> bool:
    """Return whether a column is no text: what would be decoded, and where a sample of a webdataset stands."""
    return type(kind).__name__ in PIXELS or key in OF_WEBDATASET


@dataclass(frozen=True)
class _Rows:
    """The rows of a dataset, as prompts are made of them."""

    rows: Any
    name: str
    folder: Path
    split: str

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(self.rows):
            record = {key: value for key, value in row.items() if isinstance(value, PLAIN)}
            if isinstance(beside := record.get("json"), dict):  # a webdataset's CAT.json beside CAT.png
                del record["json"]
                record = {**beside, **record}
            if isinstance(source := record.get("source"), dict):
                record["source"] = source.get("path")
            record.update({key: self._image(record[key]) for key in SOURCE_KEYS if is_image(record.get(key))})
            yield Row(f"row {number} of {self.name}", record)

    def _image(self, name: str) -> str:
        """Return the path of an image to edit that a row names, relative to the dataset's or the split's folder."""
        if not self.folder.is_dir():
            raise ConfigError(
                f"Images to edit must be files here. The dataset {quote(self.folder)} names {quote(name)} on the hub. "
                f"Run: hf download {self.folder} --repo-type dataset --local-dir FOLDER; then give hub:FOLDER."
            )
        paths = [self.folder / name, self.folder / self.split / name]
        return os.path.abspath(next((path for path in paths if path.is_file()), paths[0]))
