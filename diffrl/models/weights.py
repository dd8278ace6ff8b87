"""Whether a component's files hold the weights that its class is made of: headers against the class without weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffrl.bundled import comes_with_diffrl
from diffrl.errors import ConfigError
from diffrl.models.architecture import header_shapes
from diffrl.models.files import read_object
from reward_models.messages import quote, show

if TYPE_CHECKING:
    from torch import Tensor

STEMS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
"""Libraries of a pipeline's components, and how each names the file of their weights."""

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
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()


def require_weights(part: Path, library: str, class_name: str) -> None:
    """Refuse a component some of whose weights would stay random, or be used without their scale.

    Args:
        part: its folder.
        library: diffusers or transformers.
        class_name: in that library.

    Raises:
        ConfigError: names the file or the first keys.
    """
    found = compare_weights(part, library, class_name)
    if scales := [key for key in found.unexpected if SCALES.search(key)]:
        raise ConfigError(
            f"{part} must hold weights that are used as they are. Got scaled fp8 (ComfyUI's), whose layers are "
            f"multiplied by {_first(scales)}, which {class_name} does not do. Take the bf16 or fp16 version."
        )
    if found.missing:
        raise ConfigError(
            f"{part} must hold every weight of {class_name}. {len(found.missing)} would stay random: "
            f"{_first(found.missing)}. {AGAIN}"
        )
    if found.mismatched:
        key, wanted, shape = found.mismatched[0]
        raise ConfigError(
            f"{quote(key)} of {part} must have shape {wanted} by its config.json. Got {shape}"
            f"{f', and {len(found.mismatched) - 1} others' if found.mismatched[1:] else ''}. {AGAIN}"
        )


def unused_weights(folder: Path) -> list[str]:
    """Say which weights of a pipeline's folder no layer takes; a vetted pipeline works without them."""
    index = read_object(folder / "model_index.json", missing={})
    parts = {name: value for name, value in index.items() if isinstance(value, list) and (folder / name).is_dir()}
    compared = {name: compare_weights(folder / name, *value) for name, value in parts.items() if value[0] in STEMS}
    return [f"{name}: not used: {_first(found.unexpected)}" for name, found in compared.items() if found.unexpected]


def compare_weights(part: Path, library: str, class_name: str) -> Comparison:
    """Compare the headers of a component's files with its class on the meta device; no weights are read.

    What transformers and diffusers rename, tie or ignore by declaration is left out. So is a component that has no
    weights, is quantised, comes with diffrl, or whose class cannot be made by its config: loading says why.

    Raises:
        ConfigError: no weights, a shard that is missing or lacks what the index names, a torn file.
    """
    if comes_with_diffrl(part.parent) or (made := _class_of(library, class_name)) is None:
        return Comparison()  # the first without importing the libraries
    files = weight_files(part, library)
    config = part / "config.json"
    if not config.is_file() or read_object(config).get("quantization_config"):
        return Comparison()
    stamp = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in (config, *files))
    return _compare(part, made, stamp)


def weight_files(part: Path, library: str) -> list[Path]:
    """List the safetensors files that loading a component reads.

    Raises:
        ConfigError: there are none, or they are not those that the index names.
    """
    single = part / f"{STEMS[library]}.safetensors"
    index = single.with_name(f"{single.name}.index.json")
    if single.is_file() and (library == "transformers" or not index.is_file()):
        return [single]
    if index.is_file():
        return _indexed(index)
    others = sorted(file.name for file in part.glob("*.safetensors"))
    if not others:
        raise ConfigError(
            f"{part} must hold the weights that belong to its config.json. Got no .safetensors file. {AGAIN}"
        )
    if variant := re.match(rf"{STEMS[library]}\.(\w+)(-\d+-of-\d+)?\.safetensors$", others[0]):
        name = variant[1]
        raise ConfigError(
            f"{part} must hold {single.name}, or {index.name} and its files. Got the variant {name} alone. Load the "
            f"pipeline with diffusers, variant={name!r}, and write it anew with save_pretrained(FOLDER)."
        )
    raise ConfigError(f"{part} must hold {single.name}, or {index.name} and its files. Got {_first(others)}. {AGAIN}")


def nonfinite_weights(pipeline: Any) -> str | None:
    """Name the first tensor with NaN or inf in the files that a pipeline was loaded from; None if there is none.

    Every weight is read: ask once something has broken.

    Args:
        pipeline: of diffusers, or None.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    folder = Path(getattr(pipeline, "name_or_path", None) or "")
    index = read_object(folder / "model_index.json", missing={})
    parts = {name: value[0] for name, value in index.items() if isinstance(value, list) and _class_of(*value)}
    try:
        for file in (file for name, library in parts.items() for file in weight_files(folder / name, library)):
            with safe_open(file, framework="pt") as tensors:
                for key in sorted(tensors.keys()):
                    if not bool(torch.isfinite(tensors.get_tensor(key).float()).all()):
                        return f"{quote(key)} of {file} holds NaN or inf. Fetch the file again."
    except (ConfigError, OSError, SafetensorError):  # files that were there at the start: nothing can be said of them
        return None
    return None


def _indexed(index: Path) -> list[Path]:
    """The files that an index names, each with the tensors that the index says it has."""
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


def _class_of(library: str, name: str) -> Any:
    """The class of a component with weights; None for any other, and for what these libraries do not have."""
    if library not in STEMS:
        return None
    import diffusers
    import transformers

    made = getattr({"diffusers": diffusers, "transformers": transformers}[library], name, None)
    kinds = (diffusers.ModelMixin, transformers.PreTrainedModel)
    return made if isinstance(made, type) and issubclass(made, kinds) else None


@lru_cache(maxsize=256)
def _compare(part: Path, made: Any, stamp: tuple[tuple[str, int, int], ...]) -> Comparison:
    """The comparison of files that are as old and as long as the stamp says, its first being the config."""
    import torch
    from transformers import PreTrainedModel

    shapes: dict[str, tuple[int, ...]] = {}
    for file, _, _ in stamp[1:]:
        shapes.update(header_shapes(Path(file)))
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    compare = _by_transformers if issubclass(made, PreTrainedModel) else _by_diffusers
    try:
        return compare(part, made, state)
    except Exception:  # what libraries raise for another's config has no common class; loading tells
        return Comparison()


def _by_transformers(part: Path, made: Any, state: Mapping[str, Tensor]) -> Comparison:
    """What its own loader says of tensors without values: it renames, merges and ties them by the class."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)  # it would print a report, and loading prints it again
    logging.disable_progress_bar()
    try:
        _, info = made.from_pretrained(
            None,
            config=made.config_class.from_pretrained(str(part)),
            state_dict=dict(state),
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
    mismatched = ((key, tuple(wanted), tuple(shape)) for key, shape, wanted in info["mismatched_keys"])
    return Comparison(
        tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"])), tuple(sorted(mismatched))
    )


def _by_diffusers(part: Path, made: Any, state: Mapping[str, Tensor]) -> Comparison:
    """As its loader compares: what the class is made of, old names of attention renamed, beside the files'."""
    import torch

    with torch.device("meta"):
        model = made.from_config(dict(read_object(part / "config.json")))
    given = model._fix_state_dict_keys_on_load(dict(state))
    own = model.state_dict()
    ignored = re.compile("|".join(made._keys_to_ignore_on_load_unexpected or ["(?!)"]))
    wrong = [key for key in own if key in given and own[key].shape != given[key].shape]
    return Comparison(
        tuple(sorted(own.keys() - given.keys())),
        tuple(sorted(key for key in given.keys() - own.keys() if not ignored.search(key))),
        tuple((key, tuple(own[key].shape), tuple(given[key].shape)) for key in wrong),
    )


def _first(names: Any) -> str:
    """The first three names and how many there are."""
    shown = ", ".join(map(quote, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
