"""Datasets of the hub, and folders in a form that `datasets` reads (imagefolder, webdataset, ...), to rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from diffrl.data.tables import Row, Table
from diffrl.errors import ConfigError
from reward_models.columns import text_column
from reward_models.messages import cut, quote

PLAIN = (str, int, float, bool, list, dict, type(None))
"""Values that are kept beside a prompt; images and the like are not."""

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
        from datasets import Value, load_dataset, load_dataset_builder
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
        said = cut(" ".join(str(error).split()), 500).rstrip(".")
        raise ConfigError(f"The dataset {quote(dataset)} cannot be loaded: {said}.{hint}") from error
    rows = rows.remove_columns([key for key, kind in rows.features.items() if type(kind).__name__ in PIXELS])
    return Table(_rows(rows, name), rows.column_names, [])


def _rows(rows: Any, name: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        yield Row(f"row {number} of {name}", {key: value for key, value in row.items() if isinstance(value, PLAIN)})
