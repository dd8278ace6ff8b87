"""A pipeline that somebody else made is looked at before any library opens its files: what they say is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffrl.bundled import comes_with_diffrl
from diffrl.errors import ConfigError
from diffrl.models.architecture import component_shapes
from diffrl.models.files import read_object, require_whole
from diffrl.models.weights import compare_weights, names_part, network_class, part_variant, require_weights
from reward_models.common.messages import quote, show
from reward_models.common.reading import Unreadable, require_file

PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl", ".pickle")
"""How files end that may run code when they are opened."""

LOADED = (".safetensors", ".json", ".txt", ".model")
"""How files end that libraries open: weights, settings, vocabularies."""

WITH_WEIGHTS = re.compile(r"transformer(_\d)?|vae|(text|image)_encoder(_\d)?")
"""Names of the parts that are networks, in every family."""

BOUNDS = (
    (re.compile("theta|scale|factor|token|_ids?$"), 10**9),  # nothing is made in their number
    (re.compile("layers|blocks|depth"), 1000),
    (re.compile("timesteps"), 100_000),
    (re.compile("position|window|seq_len|image_seq|distance|max_length"), 2_000_000),
)
"""Keys of config files and the largest number that one may have: so many things are made of it."""

MOST_WIDTH = 32_768
"""Of any other number that no tensor of the weights is as large as."""


def vet_pipeline(folder: Path, variant: str | None = None) -> None:
    """Refuse a pipeline's folder whose files could hold up or take over the process that loads it.

    Args:
        folder: in diffusers format.
        variant: of the files of weights that are loaded, where a part has them.

    Raises:
        ConfigError: settings that cannot be read or ask for more than there is, a part that is missing, a pipe or a
            device among the files, weights that are cut short or that only a pickle holds.
    """
    parts = sorted(path for path in folder.iterdir() if path.is_dir())
    index = read_object(folder / "model_index.json", missing={})
    missing = [name for name, part in index.items() if names_part(part) and not (folder / name).is_dir()]
    if missing:
        raise ConfigError(
            f"{folder} must have a folder for each part that its model_index.json names. Got none for "
            f"{', '.join(map(quote, missing[:5]))}. Save the pipeline again, or fetch it again."
        )
    for part in parts:
        _vet_files(part)
    if variant is not None and not any(part_variant(part, variant) for part in parts):
        raise ConfigError(
            f"model.variant (--variant) must name files of the pipeline, *.{variant}.safetensors. {folder} has none. "
            "Set it to null, or leave --variant out."
        )
    shapes = component_shapes(folder)
    for part in parts:
        sizes = shapes.get(part.name, {})
        largest = max((size for shape in sizes.values() for size in shape), default=0)
        for name in ("config.json", "scheduler_config.json"):
            content = read_object(part / name, missing={})
            vet_numbers(part / name, content, largest)
            positions, table = content.get("pos_embed_max_size"), sizes.get("pos_embed.pos_embed", ())[1:2]
            squared = content.get("_class_name") == "SD3Transformer2DModel"  # makes the table before weights are read
            if squared and type(positions) is int and table and table[0] != positions**2:
                raise ConfigError(
                    f"pos_embed_max_size of {part / name} must be that of the weights' position table, the square root "
                    f"of {table[0]}. Got {show(positions)}. Save the pipeline again, or fetch it again."
                )
    for part in parts:  # last: the numbers that they are made by are within bounds
        if WITH_WEIGHTS.fullmatch(part.name) and names_part(index.get(part.name)):
            _vet_weights(part, *index[part.name], variant)


def _vet_weights(part: Path, library: str, class_name: str, variant: str | None) -> None:
    if not comes_with_diffrl(part.parent) and network_class(library, class_name) is None:
        raise ConfigError(
            f"{part} must be a network of diffusers or transformers as installed here, which say whether its files "
            f"hold all of it. Got {quote(f'{library}.{class_name}')}. Update both packages, or take another pipeline."
        )
    require_weights(part, class_name, compare_weights(part, library, class_name, variant=variant))


def _vet_files(part: Path) -> None:
    files = sorted(path for path in part.iterdir() if not path.is_dir())
    for file in files:
        try:
            require_file(file)
            if file.suffix in LOADED:
                require_whole(file)
        except Unreadable as error:
            raise ConfigError(f"{file} {error}. Remove it.") from error
        except OSError as error:
            target = f" It is a link to {quote(file.readlink())}." if file.is_symlink() else ""
            raise ConfigError(f"{file} cannot be read: {error.strerror}.{target} Fetch it again.") from error
        if file.name.endswith("config.json"):
            read_object(file)
    pickles = [file for file in files if file.suffix.lower() in PICKLES]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise ConfigError(
            f"{part} must hold its weights as safetensors. Got {pickles[0].name}, a pickle, which may run code of its "
            "maker when it is opened. Take a version with safetensors; or, if you trust its maker, load the pipeline "
            "with diffusers and write it anew with save_pretrained(FOLDER)."
        )


def vet_numbers(path: Path, content: Any, largest: int) -> None:
    """Refuse config values that no such network has.

    Args:
        path: of the file, for the message.
        content: of the file.
        largest: dimension of the weights beside it.

    Raises:
        ConfigError: names the key and its bound.
    """
    for key, number in _numbers(content, ""):
        most = next((most for pattern, most in BOUNDS if pattern.search(key)), max(largest, MOST_WIDTH))
        if abs(number) > most:
            raise ConfigError(
                f"{quote(key)} of {path} must be <= {most:,}. Got {show(number)}. Save the pipeline again, or fetch it "
                "again."
            )


def _numbers(value: Any, key: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a JSON value, each with the key that it stands under."""
    if type(value) is int:
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
