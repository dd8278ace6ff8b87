"""Whether a component's files hold the weights that its class is made of: headers against the class without weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffrl.bundled import comes_with_diffrl
from diffrl.errors import ConfigError
from diffrl.models.architecture import WEIGHTS, header_shapes
from diffrl.models.files import read_object
from reward_models.common.messages import describe, quote, show

if TYPE_CHECKING:
    from torch import Tensor

STEMS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
"""Libraries of a pipeline's components, and how each names the file of their weights."""

VARIANT_INDICES = ("{stem}.safetensors.index.{variant}.json", "{stem}.safetensors.{variant}.index.json")
"""How the index of a variant's files is named; the second by older versions of diffusers alone."""

SCALES = re.compile(r"(^|\.)(scaled_fp8|scale_weight|scale_input|weight_scale(_\w+)?|input_scale|comfy_quant)$")
"""Keys beside a quantised layer's weight, by which it is multiplied; no layer of diffusers or transformers has them."""

AGAIN = "Save the pipeline again, or fetch it again."


@dataclass(frozen=True)
class Comparison:
    """Weights of a component's files beside those of its class.

    Args:
        missing: keys that would stay random.
        unexpected: keys that no layer takes.
        mismatched: a key, the shape by config.json, the shape in the file.
        unknown: why the headers say nothing of all this, so that loading tells; None where they do.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    unknown: str | None = None


def require_weights(part: Path, class_name: str, weights: Comparison) -> None:
    """Refuse a component some of whose weights would stay random, or be used without their scale.

    Args:
        part: its folder.
        class_name: of the component.
        weights: of its files beside its class, by their headers or by what loading them said.

    Raises:
        ConfigError: names the file or the first keys.
    """
    if scales := [key for key in weights.unexpected if SCALES.search(key)]:
        raise ConfigError(
            f"{part} must hold weights that are used as they are. Got scaled fp8 (ComfyUI's), whose layers are "
            f"multiplied by {_first(scales)}, which {class_name} does not do. Take the bf16 or fp16 version."
        )
    if weights.missing:
        raise ConfigError(
            f"{part} must hold every weight of {class_name}. {len(weights.missing)} would stay random: "
            f"{_first(weights.missing)}. {AGAIN}"
        )
    if weights.mismatched:
        key, wanted, shape = weights.mismatched[0]
        raise ConfigError(
            f"{quote(key)} of {part} must have shape {wanted} by its config.json. Got {shape}"
            f"{f', and {len(weights.mismatched) - 1} others' if weights.mismatched[1:] else ''}. {AGAIN}"
        )


def weight_notes(folder: Path, variant: str | None = None) -> list[str]:
    """Say which weights of a vetted pipeline's folder no layer takes, and which parts only loading compares."""
    index = read_object(folder / "model_index.json", missing={})
    parts = {name: value for name, value in index.items() if names_part(value) and (folder / name).is_dir()}
    notes = []
    for name, value in parts.items():
        weights = compare_weights(folder / name, *value, variant=variant)
        if weights.unexpected:
            notes.append(f"{name}: not used: {_first(weights.unexpected)}")
        if weights.unknown is not None:
            notes.append(f"{name}: not compared with its files before it is loaded: {weights.unknown}")
    return notes


def compare_weights(part: Path, library: str, class_name: str, *, variant: str | None = None) -> Comparison:
    """Compare the headers of a component's files with its class on the meta device; no weights are read.

    What transformers and diffusers rename, tie or ignore by declaration is left out. So is a component that has no
    weights, or comes with diffrl: loading compares it.

    Raises:
        ConfigError: no weights, a shard that is missing or lacks what the index names, a torn file.
    """
    if comes_with_diffrl(part.parent) or (made := network_class(library, class_name)) is None:
        return Comparison()  # the first without importing the libraries
    files = weight_files(part, made, variant)
    config = part / "config.json"
    if not config.is_file():
        return Comparison(unknown="it has no config.json")
    if quantised := read_object(config).get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        return Comparison(unknown=f"it is quantised ({show(method)})")
    stamp = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in (config, *files))
    return _compare(part, made, stamp)


def weight_files(part: Path, made: Any, variant: str | None = None) -> list[Path]:
    """List the safetensors files that loading a component reads: of a variant, if it has any, else the plain ones.

    Args:
        part: its folder.
        made: its class.
        variant: such as fp16, as in `NAME.fp16.safetensors`.

    Raises:
        ConfigError: there are none, or they are not those that the index names.
    """
    from transformers import PreTrainedModel

    transformers = issubclass(made, PreTrainedModel)
    stem = STEMS["transformers" if transformers else "diffusers"]
    if part_variant(part, variant):
        single = part / f"{stem}.{variant}.safetensors"
        indices = [
            part / name.format(stem=stem, variant=variant) for name in VARIANT_INDICES[: 1 if transformers else 2]
        ]
    else:
        single = part / f"{stem}.safetensors"
        indices = [part / f"{stem}.safetensors.index.json"]
    index = next((file for file in indices if file.is_file()), indices[0])
    if single.is_file() and (transformers or not index.is_file()):
        return [single]
    if index.is_file():
        return _indexed(index)
    others = sorted(file.name for file in part.glob("*.safetensors"))
    if not others:
        raise ConfigError(
            f"{part} must hold the weights that belong to its config.json. Got no .safetensors file. {AGAIN}"
        )
    wanted = f"{part} must hold {single.name}, or {index.name} and its files."
    if (alone := WEIGHTS.fullmatch(others[0])) and alone[1]:
        raise ConfigError(f"{wanted} Got the variant {alone[1]} alone. Set model.variant (--variant) to {alone[1]}.")
    raise ConfigError(f"{wanted} Got {_first(others)}. {AGAIN}")


def part_variant(part: Path, variant: str | None) -> str | None:
    """Return the variant that a component is loaded as: the one asked for, if it has files of it, as diffusers does."""
    names = (WEIGHTS.fullmatch(file.name) for file in part.glob("*.safetensors")) if variant else ()
    return variant if any(name is not None and name[1] == variant for name in names) else None


def _indexed(index: Path) -> list[Path]:
    """Return the files that an index names, each with the tensors that the index says it has."""
    placed = read_object(index).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise ConfigError(f"{index} must have a weight_map from tensors to files. Got {show(placed)}. {AGAIN}")
    names = sorted(set(placed.values()))
    files = [index.with_name(Path(name).name) for name in names]
    if absent := [file.name for file in files if not file.is_file()]:
        raise ConfigError(f"{index} names files that are not there: {_first(absent)}. Fetch the pipeline again.")
    held = {name: header_shapes(file).keys() for name, file in zip(names, files, strict=True)}
    if lacking := [key for key, name in placed.items() if key not in held[name]]:
        raise ConfigError(
            f"{index} names tensors that {placed[lacking[0]]} does not hold: {_first(lacking)}. Fetch both files again."
        )
    return files


def names_part(value: Any) -> bool:
    """Return whether an entry of model_index.json names a part: library and class, both null for one left out."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) for name in value)


def network_class(library: str | None, name: str | None) -> Any:
    """Return the class of a component with weights; None for any other, and for one that is left out.

    Args:
        library: diffusers, transformers, or the name of a diffusers pipeline that has components of its own.
        name: in that library.
    """
    if library is None or name is None:
        return None
    import diffusers
    import transformers

    libraries = {"diffusers": diffusers, "transformers": transformers}
    made = getattr(libraries.get(library) or getattr(diffusers.pipelines, library, None), name, None)
    kinds = (diffusers.ModelMixin, transformers.PreTrainedModel)
    return made if isinstance(made, type) and issubclass(made, kinds) else None


@lru_cache(maxsize=256)
def _compare(part: Path, made: Any, stamp: tuple[tuple[str, int, int], ...]) -> Comparison:
    """Return the comparison of files that are as old and as long as the stamp says, its first being the config."""
    import torch
    from transformers import PreTrainedModel

    shapes: dict[str, tuple[int, ...]] = {}
    for file, _, _ in stamp[1:]:
        shapes.update(header_shapes(Path(file)))
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    compare = _by_transformers if issubclass(made, PreTrainedModel) else _by_diffusers
    try:
        return compare(part, made, state)
    except Exception as error:  # what libraries raise for another's config has no common class
        return Comparison(unknown=f"{made.__name__} cannot be made without its weights: {describe(error)}")


def _by_transformers(part: Path, made: Any, state: Mapping[str, Tensor]) -> Comparison:
    """Return what its own loader says of tensors without values: it renames, merges and ties them by the class."""
    with silent_transformers():
        _, info = made.from_pretrained(
            None,
            config=made.config_class.from_pretrained(str(part)),
            state_dict=dict(state),
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return loading_comparison(info)


@contextmanager
def silent_transformers() -> Iterator[None]:
    """Keep transformers from printing a report of what is compared here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def loading_comparison(info: Mapping[str, Any]) -> Comparison:
    """Return what transformers or diffusers say with `output_loading_info`."""
    mismatched = ((key, tuple(wanted), tuple(shape)) for key, shape, wanted in info["mismatched_keys"])
    return Comparison(
        tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"])), tuple(sorted(mismatched))
    )


def _by_diffusers(part: Path, made: Any, state: Mapping[str, Tensor]) -> Comparison:
    """Compare as diffusers loads: the class's own tensors, old names of attention renamed, with the files'."""
    import torch

    with torch.device("meta"):
        model = made.from_config(dict(read_object(part / "config.json")))
    renamed = model._fix_state_dict_keys_on_load(dict(state))
    expected = model.state_dict()
    ignored = re.compile("|".join(made._keys_to_ignore_on_load_unexpected or ["(?!)"]))
    wrong = [key for key in expected if key in renamed and expected[key].shape != renamed[key].shape]
    return Comparison(
        tuple(sorted(expected.keys() - renamed.keys())),
        tuple(sorted(key for key in renamed.keys() - expected.keys() if not ignored.search(key))),
        tuple((key, tuple(expected[key].shape), tuple(renamed[key].shape)) for key in wrong),
    )


def _first(names: Any) -> str:
    """Return the first three names and how many there are."""
    shown = ", ".join(map(quote, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
