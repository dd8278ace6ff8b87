"""Where prompts come from: an embedded world, a text file, a JSON-lines file, or a dataset on the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from diffrl.data.sources import SOURCE_KEYS, require_source
from diffrl.data.worlds import SPLITS, WORLDS, Split, embedded_prompts, part_of, split_of
from diffrl.errors import ConfigError
from diffrl.records import Prompt
from reward_models.messages import cut, quote
from reward_models.suffixes import is_image
from reward_models.text.reading import Unreadable, parse_json, read_text

MOST_BYTES = 64_000_000
"""Of a file of prompts."""

MOST_PROMPTS = 1_000_000

LONGEST_PROMPT = 10_000
"""Characters; text encoders read a tenth of it, and tokenising a thousand times as much takes for ever."""

LONGEST_RECORD = 100_000
"""Characters of a prompt and all that scorers need beside it, as JSON."""

HELD_OUT_ONE_OF = 32
"""One distinct prompt of so many is in the part tune of a list, and one in its part report."""


def load_prompts(source: str) -> list[Prompt]:
    """Read prompts in their order.

    Args:
        source: `<world>:<split>` of the embedded worlds (`data.worlds`), such as `shapes:tune`, a path ending in .txt
            (one prompt a line) or .jsonl (objects with "prompt", with "source" or "image" if it asks to edit an image,
            and whatever scorers need beside it), or
            `hub:<dataset>[:<split>]` (column "prompt", "text" or "caption"; the split may be a slice, `train[:50000]`).
            A file or dataset that ends in `@train`, `@tune` or `@report` is that part of it: see `parts`.

    Raises:
        ConfigError: no such source, an unreadable line, no prompt in it, a prompt or list that is too long, or an image
            to edit that is not there.
    """
    embedded = split_of(source)
    whole, part = part_of(source)
    listed: Iterable[Prompt]
    if embedded is not None:
        listed = embedded_prompts(*embedded)
    elif whole.startswith("hub:"):
        listed = _from_hub(whole.removeprefix("hub:"))
    else:
        listed = _from_file(Path(whole))
    chosen = listed if embedded is not None or part is None else parts(listed, part, Path(whole).parent)
    prompts = list(islice(chosen, MOST_PROMPTS + 1))  # no more than it takes to see that they are too many
    if not prompts:
        raise ConfigError(f"A prompt list must hold at least one prompt. Got none in {quote(source)}. {_none(part)}")
    if len(prompts) > MOST_PROMPTS:
        raise ConfigError(
            f"A prompt list must hold at most {MOST_PROMPTS:,} prompts. Got {len(prompts):,} or more in "
            f"{quote(source)}. Take a part, of a dataset such as hub:<dataset>:train[:100000]."
        )
    return prompts


def _none(part: Split | None) -> str:
    """What to do where there is no prompt."""
    if part is None:
        return "Write one a line."
    return f"The part {part} of a short list may be empty: add prompts, or leave @{part} out."


def parts(listed: Iterable[Prompt], part: Split, folder: Path = Path()) -> Iterator[Prompt]:
    """The prompts of one part of a list, in its order, each once: the first of equal ones.

    The text alone decides which part it is in, or the name of the image that it asks to edit, so that the parts have
    no text, or no image, in common whatever is repeated or added.

    Args:
        listed: all of them.
        part: which.
        folder: that the paths of images are seen from: the same list elsewhere has the same parts.
    """
    seen: set[tuple[str, str | None]] = set()
    for prompt in listed:
        name = prompt.text if prompt.source is None else Path(os.path.relpath(prompt.source, folder)).as_posix()
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT_ONE_OF
        if SPLITS[digest + 1 if digest < 2 else 0] == part and prompt.key not in seen:
            seen.add(prompt.key)
            yield prompt


def _from_file(path: Path) -> list[Prompt]:
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(
            f"Prompts come from {', '.join(f'{world}:<split>' for world in WORLDS)}, hub:<dataset> or a .txt or .jsonl "
            f"file. Got {str(path)!r}."
        )
    try:
        lines = read_text(path, MOST_BYTES, "utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise ConfigError(f"The prompt file {str(path)!r} does not exist. Check the path.") from error
    except Unreadable as error:
        raise ConfigError(f"The prompt file {str(path)!r} {error}.") from error
    numbered = [(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix == ".txt":
        return [make_prompt(line, where) for line, where in numbered]
    known: set[str] = set()
    return [_from_json(line, where, path.parent, known) for line, where in numbered]


def make_prompt(text: str, where: str, metadata: Mapping[str, Any] | None = None, source: str | None = None) -> Prompt:
    """A prompt that a text encoder can read and a file can store.

    Args:
        text: of the prompt.
        where: it stands, for the message.
        metadata: what scorers need beside it.
        source: path of the image that it asks to edit.

    Raises:
        ConfigError: it is too long, or holds half of a surrogate pair.
    """
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
    return Prompt(text.strip(), {} if metadata is None else metadata, source)


def _from_json(line: str, where: str, folder: Path, known: set[str]) -> Prompt:
    """The prompt of a line; `known` are the images that were looked at."""
    _require_short(len(line), where)
    try:
        record: Any = parse_json(line)
    except Unreadable as error:
        raise ConfigError(f"Each line of a .jsonl prompt file must be a JSON object. {where}: it {error}.") from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"].strip():
        raise ConfigError(
            f'Each line of a .jsonl prompt file must be an object such as {{"prompt": "a red circle"}}, its text not '
            f"empty. {where} is {cut(json.dumps(record), 100)}."
        )
    return make_prompt(record.pop("prompt"), where, record, _take_source(record, where, folder, known))


def _take_source(record: dict[str, Any], where: str, folder: Path, known: set[str]) -> str | None:
    """The image that a record asks to edit, taken out of it: an absolute path, None if it names none."""
    named = {key: value for key in SOURCE_KEYS if is_image(value := record.get(key))}
    if len(named) > 1:
        found = " and ".join(f"{key}: {quote(value)}" for key, value in named.items())
        raise ConfigError(f"A prompt has one image to edit. {where} names {found}. Remove one of them.")
    for key, value in named.items():
        path = os.path.abspath(folder / record.pop(key))
        if path not in known:
            require_source(path, f"{where} ({key}: {quote(value)})")
            known.add(path)
        return path
    return None


def _require_short(length: int, where: str) -> None:
    if length > LONGEST_RECORD:
        raise ConfigError(
            f"A prompt with all that stands beside it must have at most {LONGEST_RECORD:,} characters. {where} has "
            f"{length:,}. Shorten it."
        )


def _from_hub(name: str) -> Iterator[Prompt]:
    dataset, _, split = name.partition(":")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError("hub: prompts need the datasets package. Run: pip install 'diffrl[datasets]'.") from error
    try:
        rows = load_dataset(dataset, split=split or "train")
    except (OSError, ValueError) as error:
        raise ConfigError(f"The dataset {quote(dataset)} cannot be loaded: {cut(str(error), 500)}.") from error
    column = next((c for c in ("prompt", "text", "caption") if c in rows.column_names), None)
    if column is None:
        raise ConfigError(f"A prompt dataset needs a column prompt, text or caption. Got {rows.column_names}.")
    for number, row in enumerate(rows):
        text = row[column]
        if isinstance(text, str) and text.strip():
            yield _from_row(text, _plain(row, column), f"Row {number} of {name}")


def _from_row(text: str, metadata: dict[str, Any], where: str) -> Prompt:
    _require_short(len(text) + len(json.dumps(metadata, default=str)), where)
    return make_prompt(text, where, metadata)


def _plain(row: dict[str, Any], column: str) -> dict[str, Any]:
    """The other columns of a row, those that are plain values; pictures and the like are left out."""
    plain = (str, int, float, bool, list, dict, type(None))
    return {name: value for name, value in row.items() if name != column and isinstance(value, plain)}
