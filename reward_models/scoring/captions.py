"""Prompts and metadata that lie beside pictures.

    cat.txt beside cat.png            the caption of one picture
    metadata.jsonl                    {"file_name": "cat.png", "text": "a cat", ...}, as Hugging Face's imagefolder
    metadata.jsonl of one line        without a file name: of all pictures below it, as GenEval's folders
    samples.jsonl                     {"file": "0000-0.png", "prompt": "a cat", ...}, as `diffrl generate` writes it

What `--prompt` and `--prompts` say goes before.

A line's prompt is its "prompt", else its "text", else its "caption". "text" stays in the metadata as well, where it is
what OCR looks for, also where another prompt goes before; unless something in it is in quotes: it is a caption then,
'a sign that says "STOP"', and OCR finds its target there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from reward_models.errors import RewardError
from reward_models.messages import show
from reward_models.scoring.items import Item
from reward_models.scoring.order import natural_key
from reward_models.text.quotes import quoted
from reward_models.text.reading import Unreadable, parse_json, read_text

METADATA_INDEX, SAMPLES_INDEX = "metadata.jsonl", "samples.jsonl"
MOST_BYTES = 256_000_000
"""Of an index."""

FILE_KEYS, PROMPT_KEYS = ("file", "file_name"), ("prompt", "text", "caption")
SAMPLE_KEYS = ("seed", "number")
"""Keys of samples.jsonl that say where a picture comes from, and are no metadata."""


@dataclass(frozen=True)
class Caption:
    """A line of an index: the file it speaks of, if it names one, its prompt and whatever else it says."""

    file: str | None
    prompt: str | None
    metadata: Mapping[str, Any]


def read_captions(path: Path) -> list[Caption]:
    """Read a .jsonl index.

    Raises:
        RewardError: it cannot be read, or a line is no JSON object.
    """
    lines = _read_text(path).split("\n")
    return [_caption(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _caption(line: str, where: str) -> Caption:
    try:
        record: Any = parse_json(line)
    except Unreadable as error:
        raise RewardError(
            f"Each line of a .jsonl file of prompts must be a JSON object. {where}: it {error}."
        ) from error
    if not isinstance(record, dict):
        raise RewardError(f"Each line of a .jsonl file of prompts must be a JSON object. {where} is {show(record)}.")
    file = next((record.pop(key) for key in FILE_KEYS if key in record), None)
    text = record.get("text")
    prompt = next((record.pop(key) for key in PROMPT_KEYS if key in record), None)
    if isinstance(text, str) and quoted(text) is None:
        record["text"] = text
    for what, value in (("file name", file), ("prompt", prompt)):
        if value is not None and not isinstance(value, str):
            raise RewardError(f"A {what} must be text. {where} has {show(value)}.")
    return Caption(file, prompt.strip() if prompt is not None else None, record)


def with_captions(items: Sequence[Item]) -> list[Item]:
    """Give each item the prompt and metadata that lie beside it; what it already has goes before."""
    index = lru_cache(maxsize=1024)(_folder_index)
    return [item if item.prompt is not None else _captioned(item, index) for item in items]


def _captioned(item: Item, index: Callable[[Path], Mapping[Path | None, Caption]]) -> Item:
    """The nearest word on a picture: its own caption file, its folder's index, those of the folders above."""
    prompt = _side_file(item.path)
    for folder in _folders_up(item):
        found = index(folder).get(item.path) or index(folder).get(None)
        if found is not None:
            prompt = prompt if prompt is not None else found.prompt
            return replace(item, prompt=prompt, metadata={**found.metadata, **item.metadata})
    return replace(item, prompt=prompt)


def _side_file(path: Path) -> str | None:
    caption = path.with_suffix(".txt")
    text = _read_text(caption).strip() if caption.is_file() else ""
    return text or None


def _folders_up(item: Item) -> list[Path]:
    parents = list(item.path.parents)
    return parents[: parents.index(item.root) + 1] if item.root in parents else parents[:1]


def _folder_index(folder: Path) -> dict[Path | None, Caption]:
    """What a folder's metadata.jsonl says, by path; None: of every picture below."""
    index = folder / METADATA_INDEX
    if not index.is_file():
        return {}
    captions = read_captions(index)
    if len(captions) == 1 and captions[0].file is None:
        return {None: captions[0]}
    if any(caption.file is None for caption in captions):
        raise RewardError(f'Each line of {index} must name its image as "file_name". At least one does not.')
    return {folder / str(caption.file): caption for caption in captions}


def from_prompts_file(items: Sequence[Item], file: Path, roots: Sequence[Path]) -> list[Item]:
    """Give prompts from `--prompts FILE`; pictures that it does not name have none.

    Args:
        items: all pictures, sorted.
        file: .txt, one prompt a line, one line a picture; or .jsonl of objects with "file" and "prompt", or, as .txt,
            one a picture, without "file".
        roots: folders that "file" may be relative to, beside the file's own and the working directory.

    Raises:
        RewardError: unreadable, as many lines as pictures where that is needed, or no picture that it names.
    """
    if file.suffix.lower() not in (".txt", ".jsonl"):
        raise RewardError(f"--prompts takes a .txt file (a prompt a line) or a .jsonl file. Got {file}.")
    if file.suffix.lower() == ".txt":
        captions = [Caption(None, line.strip(), {}) for line in _read_text(file).split("\n") if line.strip()]
    else:
        captions = read_captions(file)
    named = [caption for caption in captions if caption.file is not None]
    if not named:
        if len(captions) != len(items):
            raise RewardError(
                f"A file of prompts without file names must have one line an image. Got {len(captions)} lines in "
                f'{file} and {len(items)} images. Name each line\'s image in a .jsonl file: {{"file": ..., '
                '"prompt": ...}.'
            )
        _require_own_order(items, file)
        return [_given(item, caption) for item, caption in zip(items, captions, strict=True)]
    if len(named) != len(captions):
        raise RewardError(f'Either every line of {file} names its "file" or none does. Got {len(named)} that do.')
    places = {item.path.resolve(): item for item in items}
    found: dict[Path, Caption] = {}
    for caption in named:
        candidates = (folder / str(caption.file) for folder in (file.parent, *roots, Path()))
        match = next((c.resolve() for c in candidates if c.resolve() in places), None)
        if match is not None:
            found[match] = caption
    if not found:
        raise RewardError(
            f"None of the {len(named)} files that {file} names is among the images. The first is {named[0].file}; "
            f"paths count from {file.parent}, from the folders given and from the working directory."
        )
    empty = Caption(None, None, {})
    return [_given(item, found.get(item.path.resolve(), empty)) for item in items]


def _require_own_order(items: Sequence[Item], file: Path) -> None:
    """Refuse files in the order in which a shell lists them, where lines count: 10.png stands before 2.png there."""
    paths = [item.path for item in items]
    if paths == sorted(paths, key=str) and paths != sorted(paths, key=natural_key):
        first, second = next(pair for pair in pairwise(paths) if natural_key(pair[0]) > natural_key(pair[1]))
        raise RewardError(
            f"A file of prompts without file names goes by the order of the images. {file} has a line an image, and "
            f"{first} before {second}. Give their folder in place of the files, or name each line's image."
        )


def _given(item: Item, caption: Caption) -> Item:
    return replace(item, prompt=caption.prompt, metadata={**item.metadata, **caption.metadata})


def _read_text(path: Path) -> str:
    try:
        return read_text(path, MOST_BYTES, "utf-8-sig")
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
