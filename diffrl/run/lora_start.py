"""A run that goes on training a LoRA that exists already (`model.lora.start`): a file of diffrl or of anybody else.

The model before alignment stays the pipeline without it, as with `model.init_from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from diffrl.config import Config
from diffrl.config.model import LoraStartSettings, ModelSettings
from diffrl.models.architecture import Shapes, describe_pipeline
from diffrl.models.lora import ADAPTER_NAME
from diffrl.models.lora_file import LoraWeights, lora_files, read_lora, require_fitting, sha256_of
from diffrl.run.inputs import require_pinned
from diffrl.training.policy import Policy

DOWN, UP = f".lora_A.{ADAPTER_NAME}.weight", f".lora_B.{ADAPTER_NAME}.weight"


def pin_start(config: Config) -> Config:
    """The configuration with the sha256 of its model.lora.start, so that resuming begins with nothing else.

    Raises:
        ConfigError: there is no such file, or it is not what the sha256 says.
    """
    model, lora = config.model, config.model.lora
    if lora is None or lora.start is None:
        return config
    found = _same_files(lora.start, _networks(model))[1]
    started = lora.model_copy(update={"start": lora.start.model_copy(update={"sha256": found})})
    return config.model_copy(update={"model": model.model_copy(update={"lora": started})})


def check_start(model: ModelSettings) -> str:
    """Look at model.lora.start without loading the model.

    Returns:
        What it is, for the user.

    Raises:
        ConfigError: it is not there, or does not fit model.lora.
    """
    import diffusers

    assert model.lora is not None and model.lora.start is not None
    known = describe_pipeline(model.path)
    files = lora_files(model.lora.start.path, _networks(model))
    if known is None:
        return f"the LoRA {model.lora.start.path}; whether it fits is seen once the pipeline is here"
    pipeline_class = getattr(diffusers, known.options.get("_class_name") or model.facts.pipelines[0])
    for network, file in files.items():
        weights = known.shapes[network].items()
        layers = {key.removesuffix(".weight"): shape for key, shape in weights if len(shape) == 2}
        require_fitting(read_lora(file, pipeline_class), layers, model.lora.rank, model.lora_targets)
    return f"the LoRA {model.lora.start.path}"


def restore_start(policy: Policy, model: ModelSettings) -> str:
    """Put the LoRA of model.lora.start into a policy that nobody has trained yet.

    B is multiplied by the file's alpha over the configuration's, so that the network computes as it does in diffusers.

    Args:
        policy: as the pipeline has it; of a sharded one each rank fills its part.
        model: the section.

    Returns:
        What was done, for the user.

    Raises:
        ConfigError: the file is not there, or does not fit.
    """
    assert model.lora is not None and model.lora.start is not None
    pipeline: Any = policy.adapter.pipeline  # type: ignore[attr-defined]
    prefixes = _prefixes(policy)
    files, _ = _same_files(model.lora.start, tuple(prefixes))
    weights: dict[str, Tensor] = {}
    for network, prefix in prefixes.items():
        found = read_lora(files[network], type(pipeline))
        require_fitting(found, _adapted(policy, prefix), model.lora.rank, model.lora_targets)
        weights |= _named(found, prefix, found.alpha / model.lora.alpha)
    policy.restore(weights)
    scaled = "" if found.alpha == model.lora.alpha else f", its alpha of {found.alpha:g} scaled to {model.lora.alpha:g}"
    return f"Begins with the LoRA {model.lora.start.path}{scaled}."


def _same_files(start: LoraStartSettings, networks: Sequence[str]) -> tuple[dict[str, Path], str]:
    """The files of a LoRA by network, and their sha256, which is the one that is written down if there is one."""
    files = lora_files(start.path, networks)
    found = sha256_of(files)
    require_pinned("model.lora.start.sha256", start.path, start.sha256, found, "LoRA")
    return files, found


def _networks(model: ModelSettings) -> tuple[str, ...]:
    """The names of the networks that a pipeline trains; of one that is not here, one."""
    known = describe_pipeline(model.path)
    return ("transformer",) if known is None else known.networks


def _prefixes(policy: Policy) -> dict[str, str]:
    """What the names of a policy's weights begin with, by network."""
    names = tuple(policy.adapter.trainable_modules())
    return {names[0]: ""} if len(names) == 1 else dict(zip(names, ("high.", "low."), strict=True))


def _adapted(policy: Policy, prefix: str) -> Shapes:
    """(out, in) of a network's layers that have an adapter."""
    shapes = {name: tuple(parameter.shape) for name, parameter in policy.parameters.items() if name.startswith(prefix)}
    layers = [name.removesuffix(DOWN) for name in shapes if name.endswith(DOWN)]
    return {layer.removeprefix(prefix): (shapes[layer + UP][0], shapes[layer + DOWN][1]) for layer in layers}


def _named(found: LoraWeights, prefix: str, scale: float) -> dict[str, Tensor]:
    """A LoRA's weights by the names that they have in a policy."""
    down = {f"{prefix}{layer}{DOWN}": tensor for layer, tensor in found.down.items()}
    return down | {f"{prefix}{layer}{UP}": tensor * scale for layer, tensor in found.up.items()}
