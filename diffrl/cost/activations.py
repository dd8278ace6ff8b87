"""What a pipeline's samples hold and compute: a JSON file for each architecture, counted once.

The files lie beside the published architectures, or in the user's cache. A file's name is the digest of the
architecture, so that a changed one is counted anew. Recipes are counted in advance (scripts/make_plans.py); whatever
else is asked for takes some seconds once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from diffrl.bundled import bundled_root, pipeline_folder
from diffrl.config.model import ModelSettings
from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.files import write_json
from diffrl.models.published import FOLDER, Pipeline, find_pipeline
from diffrl.models.shipped import shipped_settings
from reward_models.common.messages import describe

SHIPPED = FOLDER / "plans"
BLOCKS = ("num_layers", "num_single_layers", "n_layers", "n_refiner_layers")
"""How configs of transformers count their blocks of each kind."""


class Bytes(NamedTuple):
    """Bytes that samples hold together: `fixed` whatever their number is, and `each` for every one."""

    fixed: float
    each: float

    def of(self, samples: int) -> int:
        """Return the bytes of so many samples."""
        return int(self.fixed + self.each * samples)


@dataclass(frozen=True)
class Activations:
    """Sizes of a pipeline's samples, weights left out."""

    latents: int  # numbers in one sample's latents
    pixels: int  # of one image, or of all frames of a video
    encoding: int  # numbers in one prompt's encoding, the empty prompt's included where guidance asks for it
    flops: int  # operations of a network call on one sample, forward
    forward: Bytes  # that a call without gradient holds at most
    graph: Bytes  # that are kept of a call for its backward pass
    update: Bytes  # that a call and its backward pass hold at most
    decode: int  # bytes that decoding one sample holds at most
    tile: int  # the same with tiles

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Activations:
        """Read what `to_json` wrote."""
        return cls(**{name: Bytes(*value) if isinstance(value, list) else value for name, value in data.items()})


def user_plans() -> Path:
    """Return ~/.cache/diffrl/plans, or the same below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "diffrl" / "plans"


def activations_of(config: Config) -> tuple[Activations | None, str]:
    """Return what the samples of a run hold, or None and why it cannot be counted.

    Raises:
        ConfigError: a file of the pipeline is torn.
    """
    pipeline = find_pipeline(config.model.path)
    if pipeline is None:
        return None, "its config files are not as expected"
    digest, settings = architecture_digest(pipeline), settings_of(config)
    known = _known(digest, json.dumps(settings))
    if known is not None:
        return known, ""
    try:
        counted = count(config.model, pipeline, settings)
    except ConfigError:
        raise
    except Exception as error:  # what libraries raise for another's pipeline has no common class
        return None, f"its config files are not as expected ({describe(error)})"
    with suppress(OSError):  # it is counted again the next time
        remember(user_plans(), digest, config.model.path, settings, counted)
    _known.cache_clear()
    return counted, ""


def count(model: ModelSettings, pipeline: Pipeline, settings: Mapping[str, Any]) -> Activations:
    """Count what `settings_of` a run ask for; see `counting.count_activations`."""
    from diffrl.cost.counting import count_activations

    options = {name: value for name, value in settings["options"].items() if value is not None}
    return count_activations(model, pipeline, options, settings["checkpointing"])


def settings_of(config: Config) -> dict[str, Any]:
    """Return all that activations depend on beside the architecture."""
    m, shipped = config.model, shipped_settings(pipeline_folder(config.model.path))
    return {
        "family": m.family,
        "options": {name: shipped.get(name) if value is None else value for name, value in m.options.items()},
        "dtype": m.dtype,
        "vae_dtype": m.vae_dtype,
        "lora": None if m.lora is None else {"rank": m.lora.rank, "targets": sorted(m.lora_targets)},
        "checkpointing": config.train.gradient_checkpointing,
    }


def architecture_digest(pipeline: Pipeline) -> str:
    """Return what names the file of an architecture."""
    parts = {name: asdict(component) for name, component in pipeline.components.items()}
    options = {name: value for name, value in pipeline.options.items() if isinstance(value, (bool, int, float))}
    text = json.dumps([pipeline.name, parts, options], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def remember(folder: Path, digest: str, path: str, settings: Mapping[str, Any], counted: Activations) -> None:
    """Add what was counted to the file of an architecture."""
    file = folder / f"{digest}.json"
    plans = [plan for plan in _plans(file) if plan["settings"] != settings]
    plans.append({"settings": dict(settings), "activations": counted.to_json()})
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, {"pipeline": path, "plans": plans})


@cache
def _known(digest: str, settings: str) -> Activations | None:
    for folder in (bundled_root() / SHIPPED, user_plans()):
        for plan in _plans(folder / f"{digest}.json"):
            if plan["settings"] == json.loads(settings):
                return Activations.from_json(plan["activations"])
    return None


def _plans(file: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))["plans"])
    except (OSError, ValueError, LookupError, TypeError):  # none, or a torn one of the cache: counted again
        return []


def count_blocks(network: Mapping[str, Any]) -> dict[str, int]:
    """Return how many blocks of each kind a transformer has; of SD3.5 Medium some have a second attention."""
    counts = {kind: int(network[kind]) for kind in BLOCKS if network.get(kind)}
    if dual := len(network.get("dual_attention_layers") or ()):
        counts |= {"num_layers": counts["num_layers"] - dual, "dual": dual}
    return {kind: count for kind, count in counts.items() if count > 0}


def with_blocks(network: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings that give a transformer so many blocks of each kind."""
    changed = {kind: counts[kind] for kind in BLOCKS if kind in counts}
    if dual := counts.get("dual"):
        changed |= {"num_layers": changed.get("num_layers", 0) + dual, "dual_attention_layers": tuple(range(dual))}
    return changed
