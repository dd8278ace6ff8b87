"""A run that goes on training a LoRA that exists already (`model.lora.start`): a file of diffrl or of anybody else.

The model before alignment stays the pipeline without it, as with `model.init_from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from diffrl.config import Config
from diffrl.config.model import LoraStartSettings, ModelSettings
from diffrl.models.architecture import describe_pipeline
from diffrl.models.lora import ADAPTER_NAME
from diffrl.models.lora_file import check_lora, lora_files, read_lora, require_fitting, sha256_of
from diffrl.models.lora_names import linear_layers
from diffrl.models.lora_tensors import LoraWeights
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
    assert model.lora is not None and model.lora.start is not None
    notes, later = list[str](), ""
    for found, layers in check_lora(model.lora.start.path, model.path, model.facts):
        notes += found.notes
        if layers is None:
            later = "; whether it fits is seen once the pipeline is here"
        else:
            require_fitting(found, layers, model.lora.rank, model.lora_targets)
    return " ".join([f"the LoRA {model.lora.start.path}{later}{'.' if notes else ''}", *notes])


def restore_start(policy: Policy, model: ModelSettings) -> str:
    """Put the LoRA of model.lora.start into a policy that nobody has trained yet.

    B is multiplied by the layer's alpha over the configuration's, so that the network computes as the file means it.

    Args:
        policy: as the pipeline has it; of a sharded one each rank fills its part.
        model: the section.

    Returns:
        What was done, for the user.

    Raises:
        ConfigError: the file is not there, or does not fit.
    """
    assert model.lora is not None and model.lora.start is not None
    networks, lora, every = policy.adapter.trainable_modules(), model.lora, linear_layers(policy.inner)
    prefixes = dict(zip(networks, ("",) if len(networks) == 1 else ("high.", "low."), strict=True))
    files, _ = _same_files(model.lora.start, tuple(prefixes))
    weights: dict[str, Tensor] = {}
    alphas: set[float] = set()
    notes: list[str] = []
    for network, prefix in prefixes.items():
        layers = {name.removeprefix(prefix): shape for name, shape in every.items() if name.startswith(prefix)}
        found = read_lora(files[network], layers, model.facts)
        require_fitting(found, layers, lora.rank, model.lora_targets)
        weights |= _named(found, prefix, lora.alpha)
        alphas |= set(found.alpha.values())
        notes += found.notes
    policy.restore(weights)
    several = " to ".join(f"{alpha:g}" for alpha in sorted({min(alphas), max(alphas)}))
    scaled = "" if alphas == {lora.alpha} else f", its alpha of {several} scaled to {lora.alpha:g}"
    return " ".join([f"Begins with the LoRA {model.lora.start.path}{scaled}.", *notes])


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


def _named(found: LoraWeights, prefix: str, alpha: float) -> dict[str, Tensor]:
    """A LoRA's weights by the names that they have in a policy whose LoRA has this alpha."""
    down = {f"{prefix}{layer}{DOWN}": tensor for layer, tensor in found.down.items()}
    return down | {f"{prefix}{layer}{UP}": b * (found.alpha[layer] / alpha) for layer, b in found.up.items()}
