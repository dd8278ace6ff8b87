"""Prompts and metadata that come with images, looked for in this order; the first that is there counts.

    --prompt, --prompts               what the command says
    samples.jsonl                     {"file": "0000-0.png", "prompt": "a cat", ...}, as `diffrl generate` writes it
    cat.txt, cat.caption, cat.json    beside cat.png: its words, or a JSON object with a prompt and metadata
    metadata.jsonl, .csv, .parquet    {"file_name": "cat.png", "text": "a cat", ...}, as Hugging Face's imagefolder
    metadata.jsonl of one line        without a file name: of all images below it, as GenEval's folders
    the image file itself             what A1111 and ComfyUI write into it (`embedded`)

Columns go by their names (`reward_models.common.columns`). "text" stays in the metadata as well, where it is what OCR
looks for, also where another prompt goes before; unless something in it is in quotes: it is a caption then, 'a sign
that says "STOP"', and OCR finds its target there. What cannot be read is a problem of its own image alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

from reward_models.common.errors import RewardError
from reward_models.common.reading import Unreadable, read_text
from reward_models.common.suffixes import SIDECARS, TABLES
from reward_models.scoring.embedded import embedded_prompt
from reward_models.scoring.items import Item
from reward_models.scoring.order import natural_key
from reward_models.scoring.tables import MOST_BYTES, Caption, read_captions, read_sidecar

INDICES, SAMPLES_INDEX = tuple(f"metadata{suffix}" for suffix in TABLES), "samples.jsonl"
ORDER = (
    f"--prompt or --prompts; {SAMPLES_INDEX}; a file beside the image ({', '.join(SIDECARS)}); {', '.join(INDICES)}; "
    "the image file itself (A1111, ComfyUI)"
)
SAMPLE_KEYS = ("seed", "number")
"""Keys of samples.jsonl that say where an image comes from, and are no metadata."""


@dataclass(frozen=True)
class Index:
    """What the table of a folder says."""

    name: str  # of its file
    # by image, its path relative to the folder, with slashes; and again in small letters
    captions: Mapping[str, Caption] = field(default_factory=dict)
    everyone: Caption | None = None  # of all images below
    broken: str | None = None  # why a row of it cannot be read

    def of(self, folder: Path, image: Path) -> Caption | None:
        """Return what it says of an image below its folder; names may begin with its own, or be whole paths."""
        name, whole = image.relative_to(folder).as_posix(), folder.absolute().as_posix()
        ways = [name, f"{folder.absolute().name}/{name}", f"{whole}/{name}"]
        ways += [way.casefold() for way in ways]
        return next((self.captions[way] for way in ways if way in self.captions), self.everyone)


def with_captions(items: Sequence[Item]) -> list[Item]:
    """Give each item the prompt and metadata that come with it; what it already has goes before."""
    tables = lru_cache(maxsize=1024)(_folder_tables)
    return [item if item.prompt is not None else _captioned(item, tables) for item in items]


def _captioned(item: Item, tables: Callable[[Path], Sequence[Index]]) -> Item:
    """Return the nearest word on an image: the file beside it, the tables of its folder and of those above, its own."""
    caption, source = _beside(item.path)
    metadata: Mapping[str, object] = caption.metadata if caption is not None else {}
    broken = item.problem
    listed = [(index, folder) for folder in _folders_up(item) for index in tables(folder)]
    for index, folder in listed:
        entry = index.of(folder, item.path)
        broken = broken or index.broken
        if entry is not None:
            caption, source = (caption, source) if caption is not None else (entry, index.name)
            metadata = {**entry.metadata, **metadata}
            break
    metadata = {**metadata, **item.metadata}
    if caption is not None and (caption.prompt is not None or caption.problem is not None):
        return replace(item, prompt=caption.prompt, metadata=metadata, problem=caption.problem, prompt_from=source)
    prompt, source, problem = embedded_prompt(item.path)
    return replace(item, prompt=prompt, metadata=metadata, problem=problem or broken, prompt_from=source)


def _beside(path: Path) -> tuple[Caption | None, str | None]:
    """Return what the file beside an image says, cat.txt or cat.png.txt, and the kind of that file."""
    for suffix in SIDECARS:
        for file in (path.with_suffix(suffix), path.with_name(f"{path.name}{suffix}")):
            caption = read_sidecar(file) if file.is_file() else None
            if caption is not None:
                return caption, suffix
    return None, None


def is_caption(path: Path, beside: Sequence[str]) -> bool:
    """Return whether a file holds captions: a table, or it lies beside an image that ends in one of `beside`."""
    if path.name in (*INDICES, SAMPLES_INDEX):
        return True
    stem = path.with_suffix("")
    names = [stem, *(path.with_suffix(suffix) for suffix in beside)]
    return path.suffix in SIDECARS and any(name.is_file() for name in names)


def _folders_up(item: Item) -> list[Path]:
    parents = list(item.path.parents)
    return parents[: parents.index(item.root) + 1] if item.root in parents else parents[:1]


def _folder_tables(folder: Path) -> list[Index]:
    """Return what a folder's tables say."""
    return [_index(folder / name) for name in INDICES if (folder / name).is_file()]


def _index(path: Path) -> Index:
    try:
        rows = read_captions(path)
    except RewardError as error:
        return Index(path.name, broken=str(error))
    broken = next((row.problem for row in rows if row.broken), None)
    whole = [row for row in rows if not row.broken]
    if len(rows) == 1 and whole and whole[0].file is None:
        return Index(path.name, everyone=whole[0])
    captions: dict[str, Caption] = {}
    for row in whole:
        if row.file is None:
            broken = broken or f'Each row of {path} must name its image as "file_name". At least one does not.'
            continue
        name = str(PurePosixPath(row.file))
        known = captions.get(name)
        if known is not None and known.prompt != row.prompt:
            row = replace(row, prompt=None, problem=f"{path} says two prompts of {name}. Remove one of them.")
        captions[name] = row
    folded = {name.casefold(): row for name, row in captions.items()}
    return Index(path.name, {**folded, **captions}, broken=broken)


def from_prompts_file(items: Sequence[Item], file: Path, roots: Sequence[Path]) -> list[Item]:
    """Give prompts from `--prompts FILE`; images that it does not name have none.

    Args:
        items: all images, sorted.
        file: .txt, one prompt a line, one line an image; or a table of rows with "file" and "prompt", or, as .txt, one
            an image, without "file".
        roots: folders that "file" may be relative to, beside the file's own and the working directory.

    Raises:
        RewardError: unreadable, as many rows as images where that is needed, or no image that it names.
    """
    kind = file.suffix.lower()
    if kind not in (".txt", *TABLES):
        raise RewardError(
            f"--prompts takes a .txt file (a prompt a line) or a table ({', '.join(TABLES)}). Got {file}."
        )
    captions = _lines(file) if kind == ".txt" else read_captions(file)
    broken = next((caption.problem for caption in captions if caption.broken), None)
    if broken is not None:
        raise RewardError(broken)
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
    by_file: dict[Path, Caption] = {}
    for caption in named:
        candidates = (folder / str(caption.file) for folder in (file.parent, *roots, Path()))
        match = next((c.resolve() for c in candidates if c.resolve() in places), None)
        if match is not None:
            by_file[match] = caption
    if not by_file:
        raise RewardError(
            f"None of the {len(named)} files that {file} names is among the images. The first is {named[0].file}; "
            f"paths count from {file.parent}, from the folders given and from the working directory."
        )
    unlisted = Caption(problem=f"{file} does not name it.")
    return [_given(item, by_file.get(item.path.resolve(), unlisted)) for item in items]


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
    metadata = {**item.metadata, **caption.metadata}
    return replace(item, prompt=caption.prompt, metadata=metadata, problem=caption.problem, prompt_from="--prompts")


def _lines(file: Path) -> list[Caption]:
    """Return a prompt a line."""
    try:
        text = read_text(file, MOST_BYTES, "utf-8-sig")
    except FileNotFoundError:
        raise RewardError(f"There is no file {file}. Check the path.") from None
    except Unreadable as error:
        raise RewardError(f"{file} {error}.") from error
    return [Caption(prompt=line.strip()) for line in text.split("\n") if line.strip()]
