"""Where prompts come from: the embedded world, a text file, a JSON-lines file, or a dataset on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError
from diffrl.records import Prompt


def load_prompts(source: str) -> list[Prompt]:
    """Read prompts in their order.

    Args:
        source: `shapes:train`, `shapes:held_out`, the same of `moving:` for clips, a path ending in .txt (one prompt a
            line) or .jsonl (objects with "prompt" and whatever scorers need beside it), or `hub:<dataset>[:<split>]`
            (column "prompt" or "text").

    Raises:
        ConfigError: no such source, an unreadable line, or no prompt in it.
    """
    world, _, split = source.partition(":")
    if world in ("shapes", "moving"):
        prompts = _embedded(world, split)
    elif source.startswith("hub:"):
        prompts = _from_hub(source.removeprefix("hub:"))
    else:
        prompts = _from_file(Path(source))
    if not prompts:
        raise ConfigError(f"A prompt list must hold at least one prompt. Got none in {source!r}.")
    return prompts


def _embedded(world: str, split: str) -> list[Prompt]:
    from diffrl.data import moving, shapes

    if split not in ("train", "held_out"):
        raise ConfigError(f"{world} has the splits train and held_out. Got {split!r}. Use {world}:train.")
    return list((moving if world == "moving" else shapes).prompts(split))


def _from_file(path: Path) -> list[Prompt]:
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(
            "Prompts come from shapes:<split>, moving:<split>, hub:<dataset> or a .txt or .jsonl file. "
            f"Got {str(path)!r}."
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise ConfigError(f"The prompt file {str(path)!r} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompt file {str(path)!r} cannot be read as UTF-8 text: {error}.") from error
    if path.suffix == ".txt":
        return [Prompt(line.strip()) for line in lines if line.strip()]
    return [_from_json(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _from_json(line: str, where: str) -> Prompt:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"Each line of a .jsonl prompt file must be a JSON object. {where}: {error}.") from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"].strip():
        raise ConfigError(f'Each line of a .jsonl prompt file must be an object with "prompt". {where} is not.')
    text = record.pop("prompt").strip()
    return Prompt(text, record)


def _from_hub(name: str) -> list[Prompt]:
    dataset, _, split = name.partition(":")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError("hub: prompts need the datasets package. Run: pip install 'diffrl[datasets]'.") from error
    try:
        rows = load_dataset(dataset, split=split or "train")
    except (OSError, ValueError) as error:
        raise ConfigError(f"The dataset {dataset!r} cannot be loaded: {error}.") from error
    column = next((c for c in ("prompt", "text", "caption") if c in rows.column_names), None)
    if column is None:
        raise ConfigError(f"A prompt dataset needs a column prompt, text or caption. Got {rows.column_names}.")
    texts = ((row, row[column]) for row in rows)
    return [Prompt(t.strip(), _plain(row, column)) for row, t in texts if isinstance(t, str) and t.strip()]


def _plain(row: dict[str, Any], column: str) -> dict[str, Any]:
    """The other columns of a row, those that are plain values; pictures and the like are left out."""
    plain = (str, int, float, bool, list, dict, type(None))
    return {name: value for name, value in row.items() if name != column and isinstance(value, plain)}
