"""Images that prompts ask to edit: found beside the prompts, looked at before a run, and read when they are needed.

They are files named in a .jsonl list, `{"prompt": "make it blue", "source": "images/cat.png"}`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from diffrl.errors import ConfigError, SourceError
from diffrl.records import Prompt
from reward_models.common.errors import RewardError
from reward_models.common.messages import quote

if TYPE_CHECKING:  # lists of prompts are read without torch
    from torch import Tensor

SOURCE_KEYS = ("source", "image")
"""Keys of a line that may name its image."""

TOLERANCE = 0.02
"""How much the ratio of a source's sides may differ from that of the images to draw, which it is scaled to."""

MOST_READ = 1000
"""Images that a check reads whole; a megapixel takes some 20 ms."""


def require_source(path: str, where: str) -> None:
    """Refuse what is no image; its beginning is read, not its pixels.

    Raises:
        ConfigError: names its place in the list.
    """
    if not os.path.isfile(path):
        raise ConfigError(
            f"An image to edit must be a file, its path relative to the prompts' file. {where} leads to {quote(path)}, "
            "which does not exist. Mend the path."
        )
    try:
        source_size(path)
    except RewardError as error:
        raise ConfigError(f"An image to edit must be a file of one still image. {where}: {error}") from error


def source_size(path: str) -> tuple[int, int]:
    """Height and width of an image in pixels, as it is shown.

    Raises:
        RewardError: it cannot be read, or it moves.
    """
    try:
        known = os.stat(path)
    except OSError as error:
        raise RewardError(f"{quote(path)} cannot be read: {error.strerror or error}.") from error
    return _size(path, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=2**20)
def _size(path: str, changed: int, length: int) -> tuple[int, int]:
    """Return the size of a file as it was changed last."""
    from reward_models.common.image_files import header_of, opened

    with opened(path, quote(path)) as image:
        head = header_of(image)
    if head.moves:
        raise RewardError(f"{quote(path)} holds {head.frames} frames. Save one of them.")
    return head.height, head.width


def read_source(path: str) -> Tensor:
    """Read the pixels of an image to edit: (3, H, W) uint8 RGB, its own size.

    Raises:
        SourceError: the file is not whole, or gone by now.
    """
    from reward_models.media import open_still

    try:
        return open_still(path)
    except RewardError as error:
        raise SourceError(f"An image to edit cannot be read. {error}") from error


def read_sources(prompts: Iterable[Prompt], where: str) -> str:
    """Read images to edit as training will, to see that it can; of more than `MOST_READ`, evenly spaced ones.

    Args:
        prompts: of a list.
        where: its place in the configuration, for the message.

    Returns:
        How many were read, for the user; empty where there are none.

    Raises:
        ConfigError: names the first that cannot be read, and says how many.
    """
    paths = list(dict.fromkeys(prompt.source for prompt in prompts if prompt.source is not None))
    chosen = [paths[i * len(paths) // MOST_READ] for i in range(MOST_READ)] if len(paths) > MOST_READ else paths
    problems = []
    for path in chosen:
        try:
            read_source(path)
        except SourceError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(f"{where} names {len(problems):,} of {len(chosen):,} that cannot be read. {problems[0]}")
    return f"{len(chosen):,} of {len(paths):,} read" if paths else ""


def require_sources(
    prompts: Sequence[Prompt], where: str, family: str, edits: bool, size: tuple[int, int] | None = None
) -> None:
    """Refuse prompts without an image to edit where the family edits, and prompts with one where it does not.

    Args:
        prompts: all of a list.
        where: its place in the configuration, for the message.
        family: its name.
        edits: whether it edits images.
        size: height and width that it draws, None where that is not known yet.

    Raises:
        ConfigError: names the first prompt that does not fit.
    """
    for prompt in prompts:
        if prompt.source is None and edits:
            raise ConfigError(
                f"{where} must name an image to edit with every prompt, for model.family {family}. "
                f'{prompt.text!r} has none. Use a .jsonl file: {{"prompt": ..., "source": "image.png"}}.'
            )
        if prompt.source is not None and not edits:
            raise ConfigError(
                f"{where} must not name images to edit: model.family {family} draws from words alone. "
                f"{prompt.text!r} has {quote(prompt.source)}. Choose a family that edits, or remove the key."
            )
    if size is not None:
        for path in dict.fromkeys(prompt.source for prompt in prompts if prompt.source is not None):
            require_ratio(source_size(path), size, quote(path))


def require_ratio(size: tuple[int, int], wanted: tuple[int, int], name: str) -> None:
    """Refuse an image that would be distorted when it is scaled to the size that is drawn.

    Args:
        size: its height and width.
        wanted: those that are drawn.
        name: of its file.

    Raises:
        ConfigError: the ratios of their sides differ.
    """
    ratio = (size[1] * wanted[0]) / (size[0] * wanted[1])
    if not 1 / (1 + TOLERANCE) <= ratio <= 1 + TOLERANCE:
        raise ConfigError(
            "A given image must have the ratio of sides of model.width x model.height, to which it is scaled, "
            f"{wanted[1]} x {wanted[0]}. {name} has {size[1]} x {size[0]}. Crop it, or change the model's size."
        )
