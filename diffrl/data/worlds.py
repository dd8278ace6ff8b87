"""The embedded worlds and their splits: one table, for prompts and for the configuration.

Three are toys, for the embedded pipelines; `geneval` and `ocr` are for models of real size.

Splits have no combination in common. Training takes `train`; what a setting is chosen by is measured on `tune`, which
evaluations during training use; `report` is left for final numbers and is only ever asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from diffrl.errors import ConfigError

if TYPE_CHECKING:  # the configuration reads this table, and needs no records
    from diffrl.records import Prompt

Split = Literal["train", "tune", "report"]
SPLITS: tuple[Split, ...] = ("train", "tune", "report")

WORLDS = {
    "shapes": "diffrl.data.shapes",
    "moving": "diffrl.data.moving",
    "words": "diffrl.data.words",
    "geneval": "diffrl.data.geneval",
    "ocr": "diffrl.data.ocr",
}
"""Module of each world, imported when it is asked for; it has `prompts(split)`, in a fixed order."""

TOYS = ("shapes", "moving", "words")
"""Worlds that were made for the embedded pipelines; a model of real size has nothing to learn from them."""

SOURCES = tuple(f"{world}:{split}" for world in WORLDS for split in SPLITS)
"""Every prompt source that is built in."""


FILE_SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""Of files of prompts."""


def split_of(source: str) -> tuple[str, str] | None:
    """World and split that a prompt source names; None if it names no embedded world.

    Raises:
        ConfigError: the world has no such split.
    """
    world, _, split = source.partition(":")
    if world not in WORLDS:
        return None
    require_split(world, split)
    return world, split


def part_of(source: str) -> tuple[str, Split | None]:
    """Return a list of prompts and the part of it: ("mine.txt", "tune") for `mine.txt@tune`, None for all.

    Files and datasets have no splits of their own; `data.prompts` divides them.
    """
    whole, _, part = source.rpartition("@")
    part_split = next((split for split in SPLITS if whole and split == part), None)
    return (source, None) if part_split is None else (whole, part_split)


def column_of(whole: str) -> tuple[str, str | None]:
    """Return a list of prompts and the column that is asked for: ("a.csv", "title") for `a.csv#title`, None for any."""
    path, mark, column = whole.rpartition("#")
    named = mark and column and (path.startswith("hub:") or path.lower().endswith(FILE_SUFFIXES))
    return (path, column) if named else (whole, None)


def split_of_combinations(combinations: Iterable[str], held_out: Mapping[str, Split]) -> Split | None:
    """Return the split of what is made of combinations: that of the held-out ones among them, "train" without any.

    Args:
        combinations: that it is made of.
        held_out: owner of each combination that is held out, tune or report.

    Returns:
        None if they belong to two: it belongs to no split then.
    """
    owners = {held_out[combination] for combination in combinations if combination in held_out}
    if len(owners) > 1:
        return None
    return owners.pop() if owners else "train"


def other_split(source: str, split: Split) -> str | None:
    """Return the source of another split of the same prompts; None where they have none."""
    world = source.partition(":")[0]
    if world in WORLDS:
        return f"{world}:{split}"
    whole, part = part_of(source)
    return None if part is None else f"{whole}@{split}"


def require_split(world: str, split: str) -> None:
    """Refuse a split that no world has.

    Raises:
        ConfigError: it is not one of `SPLITS`.
    """
    if split not in SPLITS:
        raise ConfigError(
            f"{world} has the splits train, tune and report. Got {split[:50]!r}. {split_hint(world, split)}"
        )


def split_hint(world: str, split: str) -> str:
    """Return what to write in place of a split that does not exist."""
    if split == "held_out":
        return (
            f"held_out is now two splits: {world}:tune, to choose settings by, and {world}:report, for final numbers. "
            f"Use {world}:tune."
        )
    return f"Use {world}:train to train on, {world}:tune to evaluate on."


def embedded_prompts(world: str, split: str) -> list[Prompt]:
    """All prompts of a world's split, in their fixed order.

    Raises:
        ConfigError: the world has no such split.
    """
    made: list[Prompt] = import_module(WORLDS[world]).prompts(split)
    return made


def noise_stream(source: str) -> str:
    """Return an evaluation's stream of noise (`rollout.address.Address`): "eval", another for other splits.

    So under one eval.seed the pictures of `report` come from other noise than those of `tune`, and every time from the
    same.

    Args:
        source: of the prompts.
    """
    own_split = split_of(source)
    split = part_of(source)[1] if own_split is None else own_split[1]
    return "eval" if split in (None, "tune") else f"eval {split}"
