"""What a run depends on that its configuration only names: prompts, the base, rewards and packages, each as a digest.

Digests are of contents, so a pipeline or a list that was copied elsewhere is the same. Of large files a part is read
(`content_mark`): seconds for 50 GB, once a start.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diffrl import __version__
from diffrl.bundled import pipeline_folder
from diffrl.config.model import ModelSettings
from diffrl.config.rewards import RewardSettings
from diffrl.config.schema import Config
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError
from diffrl.models.architecture import weights_of
from diffrl.models.files import read_object
from diffrl.records import Prompt
from diffrl.training.own_code import code_of, own_components
from reward_models.base import ScorerSpec
from reward_models.registry import factory_of
from reward_models.scoring.identity import BLOCK, content_mark, scorer_facts

PACKAGE = "package "
"""What the names of packages begin with among a run's inputs."""
PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "peft", "numpy", "safetensors")
SETTINGS = (".json", ".txt", ".model")
"""Endings of a component's files besides weights: configurations, vocabularies, tokenisers."""
WHERE = ("url", "urls", "timeout")
"""Options of a reward that say where and how fast it is computed."""

Inputs = dict[str, str]
"""Digest of each input by its name: "prompts.train", "model.path/transformer", "rewards.shapes", "package torch"."""


def versions() -> dict[str, str]:
    """Return the versions of Python, diffrl and what it stands on."""
    known = {"python": platform.python_version(), "diffrl": __version__}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def digest_prompts(prompts: Sequence[Prompt]) -> str:
    """Digest prompts in their order, with their metadata and the contents of the images that they edit, or compare.

    Raises:
        ConfigError: such an image cannot be read.
    """
    named = {path for p in prompts for path in (p.source, *(p.pair.files if p.pair else ())) if path is not None}
    marks = {path: _marked(Path(path)) for path in named}
    listed = []
    for p in prompts:
        pair = [] if p.pair is None else [*(marks[path] for path in p.pair.files), p.pair.weight]
        listed.append([p.text, p.metadata, None if p.source is None else marks[p.source], *pair])
    return f"{len(prompts):,} prompts, {_digest(listed)}"


def digest_base(model: ModelSettings) -> Inputs:
    """Digest each part of a pipeline: weights by `content_mark`, and the files of settings beside them.

    Args:
        model: names the pipeline.

    Returns:
        "model.path/PART" -> digest, and "model.path/PART inside" of its tensors' middles and ends; nothing of a
        pipeline that is not on this machine.

    Raises:
        ConfigError: a file cannot be read.
    """
    folder = _local_folder(model)
    if folder is None or not folder.is_dir():
        return {}
    index = read_object(folder / "model_index.json", missing={})
    parts = sorted(name for name in index if not name.startswith("_") and (folder / name).is_dir())
    files = {part: _part_files(folder / part, model.variant) for part in parts}
    digests = {part: _digest([[file.name, _marked(file)] for file in files[part]]) for part in parts}
    for part in parts:
        large = [one for one in files[part] if one.suffix == ".safetensors" and one.stat().st_size > BLOCK]
        if large:
            digests[f"{part} inside"] = _digest([[file.name, _marked(file, inside=True)] for file in large])
    kept = {key: value for key, value in index.items() if key not in ("_diffusers_version", "_name_or_path")}
    return {f"model.path/{part}": value for part, value in {**digests, "model_index.json": _digest(kept)}.items()}


def digest_rewards(where: str, rewards: Sequence[RewardSettings], specs: Sequence[ScorerSpec] = ()) -> Inputs:
    """Digest each reward as the score cache knows it, but for where it is computed.

    Args:
        where: "rewards" or "eval.rewards".
        rewards: the settings.
        specs: of the scorers that were made from them; empty = as their classes have it, before any is made.

    Raises:
        ConfigError: a file that one names cannot be read.
    """
    facts = [_reward_facts(reward, specs[i] if specs else None) for i, reward in enumerate(rewards)]
    digests = {f"{where}.{reward.key}": _digest(one) for reward, one in zip(rewards, facts, strict=True)}
    scorers = {f"{where}.{reward.key} code": reward.name for reward in rewards if ":" in reward.name}
    return {**digests, **_digest_code(scorers)}


def digest_own(config: Config) -> Inputs:
    """Digest the code of the objective, credit rule, selection and dynamics that are the user's own.

    Raises:
        ConfigError: a file cannot be read.
    """
    return _digest_code(own_components(config))


def digest_sampling(config: Config) -> Inputs:
    """Digest what samples depend on that a configuration only names: pipeline, own code that draws, its libraries.

    Raises:
        ConfigError: a file cannot be read.
    """
    code = {key: name for key, name in own_components(config).items() if key.startswith("rollout.")}
    if ":" in config.model.family:
        code["model.family"] = config.model.family
    libraries = {f"{PACKAGE}{name}": versions()[name] for name in ("diffusers", "transformers")}
    return {**digest_base(config.model), **_digest_code(code), **libraries}


def _digest_code(names: Mapping[str, str]) -> Inputs:
    try:
        return {key: _digest(code) for key, name in names.items() if (code := code_of(name))}
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"Code of {', '.join(names.values())} cannot be read: {error}. Put it back.") from error


def digest_named(config: Config) -> Inputs:
    """Digest the prompts, base and rewards that a configuration names, before anything of it is loaded.

    Raises:
        ConfigError: there is no such list, or a file cannot be read.
    """
    held_out = load_prompts(config.prompts.held_out)[: config.eval.samples]
    return {
        "prompts.train": digest_prompts(load_prompts(config.prompts.train)),
        "prompts.eval": digest_prompts(held_out),
        **digest_base(config.model),
        **digest_own(config),
        **digest_rewards("rewards", config.rewards),
        **digest_rewards("eval.rewards", config.eval.rewards),
    }


def digest_packages() -> Inputs:
    """Return the versions of what diffrl stands on."""
    return {f"{PACKAGE}{name}": value for name, value in versions().items()}


def _reward_facts(reward: RewardSettings, spec: ScorerSpec | None) -> dict[str, Any]:
    options = reward.options if reward.dtype is None else {**reward.options, "dtype": reward.dtype}
    options = {key: value for key, value in options.items() if key not in WHERE}
    try:
        return scorer_facts(reward.name, options, spec or getattr(factory_of(reward.name), "spec", None))
    except OSError as error:
        raise ConfigError(f"What the reward {reward.key} is made of cannot be read: {error}.") from error


def _local_folder(model: ModelSettings) -> Path | None:
    """Return the folder of a pipeline on this machine; None of one on the hub that was not fetched."""
    folder = pipeline_folder(model.path)
    if folder.is_dir() or str(model.path).count("/") != 1:
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        index = try_to_load_from_cache(str(model.path), "model_index.json", revision=model.revision)
    except HFValidationError:  # a path that is no name on the hub
        return None
    return Path(index).parent if isinstance(index, str) else None


def _part_files(folder: Path, variant: str | None) -> list[Path]:
    """Return the files of a component that a pipeline is loaded from; other variants of its weights are copies."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    weights = weights_of(folder, variant) or [f for f in files if f.suffix == ".bin"]
    return weights + [f for f in files if f.suffix in SETTINGS and not f.name.endswith(".index.json")]


def _marked(file: Path, inside: bool = False) -> str:
    try:
        return content_mark(file, inside)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}. Put it back.") from error


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
