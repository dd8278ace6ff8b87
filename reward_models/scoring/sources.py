"""Paths to samples: files, folders, patterns, folders of `diffrl generate` and directories of runs."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reward_models.common.errors import RewardError
from reward_models.scoring.captions import SAMPLE_KEYS, SAMPLES_INDEX, from_prompts_file, is_caption, with_captions
from reward_models.scoring.items import MEDIA_SUFFIXES, Found, Item, is_media, peek
from reward_models.scoring.order import natural_key
from reward_models.scoring.runs import is_run, samples_of_run
from reward_models.scoring.tables import Caption, read_captions

HIDDEN, OTHER, UNLISTED = "hidden", "neither image nor video", f"not in {SAMPLES_INDEX}"


@dataclass(frozen=True)
class Selection:
    """Which samples, and their prompts."""

    paths: Sequence[str]  # files, folders, patterns ("out/**/*.png") or directories of runs
    stage: str | None = None  # of runs, only this stage
    iterations: Sequence[int] = ()  # of runs, only these; empty: all
    prompt: str | None = None  # of every image
    prompts: Path | None = None  # a file of prompts; see `captions.from_prompts_file`
    media: str | None = None  # "image" or "video": only these; None: all
    limit: int | None = None  # only the first, after sorting


def collect(selection: Selection) -> Found:
    """Find the samples, in the order of the paths given; within a folder by name, 2.png before 10.png.

    Those of runs are in the order of their addresses.

    Raises:
        RewardError: a path that does not exist, no image at all, or prompts that cannot be read.
    """
    if selection.prompt is not None and selection.prompts is not None:
        raise RewardError("--prompt TEXT and --prompts FILE cannot both say the prompts. Give one of them.")
    if selection.media not in (None, "image", "video"):
        raise RewardError(f"--media is image or video. Got {selection.media!r}.")
    skipped: Counter[str] = Counter()
    unique: dict[Path, Item] = {}
    runs = [path for path in selection.paths if is_run(Path(path))]
    if not runs and (selection.stage is not None or selection.iterations):
        raise RewardError("--stage and --iteration choose from the directory of a run. None was given. Remove them.")
    for text in selection.paths:
        if text in runs:
            items = samples_of_run(Path(text), selection.stage, selection.iterations, skipped)
        else:
            items = _of_path(text, skipped)
        for item in items:  # of a file that is given twice the first counts
            unique.setdefault(Path(os.path.abspath(item.path)), item)
    items = list(unique.values())
    if selection.media is not None:
        kept = [item for item in items if peek(item.path).kind in (selection.media, None)]
        skipped[f"not {'an' if selection.media == 'image' else 'a'} {selection.media}"] = len(items) - len(kept)
        items = kept
    if not items:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items() if count)
        wanted = selection.media or "image or video"
        hint = "Remove --media." if selection.media else f"Files must end in {', '.join(MEDIA_SUFFIXES)}."
        raise RewardError(
            f"There is no {wanted} in {', '.join(selection.paths)}{f' ({reasons})' if reasons else ''}. {hint}"
        )
    if selection.prompt is not None:
        items = [
            replace(item, prompt=selection.prompt, problem=None, prompt_from="--prompt")
            for item in with_captions(items)
        ]
    elif selection.prompts is not None:
        items = from_prompts_file(items, selection.prompts, [item.root for item in _one_a_root(items)])
    else:
        items = with_captions(items)
    return Found(items[: selection.limit], +skipped)


def _one_a_root(items: Sequence[Item]) -> list[Item]:
    return list({item.root: item for item in items}.values())


def _of_path(text: str, skipped: Counter[str]) -> list[Item]:
    path = Path(text)
    if path.is_dir():
        return _of_folder(path, skipped)
    if path.is_file():
        if not is_media(path):
            raise RewardError(
                f"{path} is no image or video that can be scored. Files must end in {', '.join(MEDIA_SUFFIXES)}."
            )
        listed = _listed(path.parent, [path], Counter())
        return listed or [Item(path, str(path), path.parent)]
    if not glob.has_magic(text):
        raise RewardError(f"There is no file or folder {text}. Check the path; put patterns in quotes.")
    matches = sorted(map(Path, glob.glob(text, recursive=True)), key=natural_key)
    if not matches:
        raise RewardError(f"No file matches {text!r}. Check the pattern; ** stands for any depth of folders.")
    root = Path(*_before_magic(path.parts))
    items: list[Item] = []
    files: dict[Path, list[Path]] = {}
    for match in matches:
        if match.is_dir():
            continue  # "**/*" lists folders beside the files in them
        if is_media(match):
            files.setdefault(match.parent, []).append(match)
        else:
            skipped[OTHER] += not is_caption(match, MEDIA_SUFFIXES)
    for folder, members in files.items():
        items += [replace(item, root=root) for item in _listed(folder, members, skipped)]
    return sorted(items, key=lambda item: natural_key(item.path))


def _before_magic(parts: Sequence[str]) -> list[str]:
    plain = []
    for part in parts[:-1]:
        if glob.has_magic(part):
            break
        plain.append(part)
    return plain


def _of_folder(root: Path, skipped: Counter[str]) -> list[Item]:
    """List everything below a folder, sorted, without what is hidden."""
    items: list[Item] = []
    for name, folders, files in os.walk(root):
        skipped[HIDDEN] += sum(entry.startswith(".") for entry in [*files, *folders])
        folders[:] = sorted(entry for entry in folders if not entry.startswith("."))
        visible = sorted(entry for entry in files if not entry.startswith("."))
        paths = [Path(name) / entry for entry in visible]
        skipped[OTHER] += sum(not is_media(path) and not is_caption(path, MEDIA_SUFFIXES) for path in paths)
        items += _listed(Path(name), [path for path in paths if is_media(path)], skipped, whole=True)
    return [replace(item, root=root) for item in sorted(items, key=lambda item: natural_key(item.path))]


def _listed(folder: Path, files: Sequence[Path], skipped: Counter[str], whole: bool = False) -> list[Item]:
    """Return items of a folder's files; where `diffrl generate` wrote an index, only what it lists, with its prompts.

    So the grid of all images, which lies beside them, is left out.

    Args:
        folder: where they are.
        files: some of them, or all.
        skipped: gets the count of those left out.
        whole: all are meant, also listed ones that are gone: they will fail.
    """
    index = folder / SAMPLES_INDEX
    try:
        captions = read_captions(index) if index.is_file() else []
    except RewardError as error:
        captions = [Caption(problem=str(error), broken=True)]
    broken = next((caption.problem for caption in captions if caption.broken), None)
    by_path = {_inside(folder, caption, index): caption for caption in captions if caption.file is not None}
    unlisted = [path for path in files if path not in by_path]
    if not by_path or broken is not None:  # somebody else's file of that name, or nobody knows what it was to list
        rest = [Item(path, str(path), folder, problem=broken) for path in unlisted]
    else:
        rest, skipped[UNLISTED] = [], skipped[UNLISTED] + len(unlisted)
    chosen = by_path if whole else [path for path in files if path in by_path]
    return [*rest, *(_generated(path, by_path[path], folder) for path in chosen)]


def _inside(folder: Path, caption: Caption, index: Path) -> Path:
    path = folder / str(caption.file)
    if Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        return path
    raise RewardError(f"{index} names an image outside its folder: {caption.file!r}. Do not trust this folder.")


def _generated(path: Path, caption: Caption, folder: Path) -> Item:
    metadata = {key: value for key, value in caption.metadata.items() if key not in SAMPLE_KEYS}
    sample = {key: caption.metadata[key] for key in SAMPLE_KEYS if key in caption.metadata}
    return Item(
        path, str(path), folder, caption.prompt, metadata, sample, problem=caption.problem, prompt_from=SAMPLES_INDEX
    )
