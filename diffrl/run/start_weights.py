"""A run that begins with another run's weights (`model.init_from`) or a LoRA's file (`model.lora.start`).

Of a run only the weights are taken, averaged ones where it has an EMA: those that it is evaluated and exported with.
Optimiser, prompts and counters begin anew. The model before alignment (the reference of `objective.kl`, `--base`) stays
the pipeline itself, as with LoRA, whose reference is the network without its adapters.

The other run, or the file, is read until this one has a checkpoint of its own; the sha256 sees to it that the weights
are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from diffrl.checkpoint.files import MANIFEST, load_checkpoint
from diffrl.config import Config
from diffrl.config.model import InitSettings, LoraStartSettings, ModelSettings
from diffrl.errors import ConfigError
from diffrl.files import read_own
from diffrl.models.architecture import describe_pipeline
from diffrl.models.lora import ADAPTER_NAME
from diffrl.models.lora_file import check_lora, lora_files, read_lora, require_fitting, sha256_of
from diffrl.models.lora_names import linear_layers
from diffrl.models.lora_tensors import LoraWeights
from diffrl.run.checkpoints import Choice, aligned_weights, choose_checkpoint, place_of
from diffrl.run.directory import open_run_dir
from diffrl.run.inputs import require_inputs
from diffrl.sections import show
from diffrl.training.inputs import digest_base
from diffrl.training.policy import Policy

DOWN, UP = f".lora_A.{ADAPTER_NAME}.weight", f".lora_B.{ADAPTER_NAME}.weight"


def begin_with(config: Config, run: Path, choice: Choice, report: Callable[[str], None]) -> Config:
    """Return a configuration that begins with a run's weights, in place of its model.init_from and model.lora.start.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is of another model.
        CheckpointError: none of its checkpoints can be used.
    """
    run_dir, other = open_run_dir(run)
    require_same_model(config.model, other.model, run_dir)
    step = choose_checkpoint(run_dir, other, choice, report).step
    return _with(config, InitSettings(run=str(run), step=step))


def pin_initial(config: Config) -> Config:
    """Return the configuration with the sha256 of what it begins with, so that resuming begins with nothing else.

    Raises:
        ConfigError: there is no such run, checkpoint or file, it is of another model, or is not what the sha256 says.
    """
    begun = config.model.init_from
    if config.model.lora_start is not None:
        return pin_start(config)
    if begun is None:
        return config
    _, digest = _find(config.model, begun)
    return _with(config, begun.model_copy(update={"sha256": digest}))


def restore_initial(
    policy: Policy, config: Config, inputs: Mapping[str, str] | None = None, accept: bool = False
) -> list[str]:
    """Put the weights of `model.init_from` into a policy that nobody has trained yet.

    The base must be the one that they were trained on. Prompts and rewards may be others, as a new run's are.

    Args:
        policy: as the pipeline has it; of a sharded one each rank fills its part.
        config: of the run.
        inputs: digests of what the run depends on; None = only of its base.
        accept: begin also on another base.

    Returns:
        What was done, for the user; nothing where the run begins with its pipeline's own weights.

    Raises:
        ConfigError: as `pin_initial`, or the base is another one than it was.
        CheckpointError: that checkpoint is damaged, or its weights are not those that this configuration trains.
    """
    begun = config.model.init_from
    if config.model.lora_start is not None:
        return [restore_start(policy, config.model)]
    if begun is None:
        return []
    path, _ = _find(config.model, begun)
    checkpoint = load_checkpoint(path)
    then, now = checkpoint.state.get("inputs"), digest_base(config.model) if inputs is None else inputs
    notes = require_inputs(then, now, accept, f"What {begun.run} has trained", ("model.path",))
    name, weights = aligned_weights(checkpoint)
    policy.restore(weights)
    which = "the moving average" if name == "ema" else "as trained, it has no moving average"
    return [f"Begins with the weights of {begun.run} after its iteration {begun.step} ({which}).", *notes]


def origin(config: Config) -> dict[str, Any]:
    """Return environment.json's entry on where first weights are from; empty where they are the pipeline's own."""
    begun, start = config.model.init_from, config.model.lora_start
    if start is not None:
        return {"lora_start": {**start.model_dump(), "path": str(Path(start.path).resolve())}}
    return {} if begun is None else {"init_from": {**begun.model_dump(), "run": str(Path(begun.run).resolve())}}


def begins_elsewhere(config: Config) -> bool:
    """Return whether a run's first weights are other than its pipeline's own."""
    return config.model.init_from is not None or config.model.lora_start is not None


def require_same_model(model: ModelSettings, other: ModelSettings, run_dir: Path) -> None:
    """Refuse weights that were trained on another model, or that another LoRA reads otherwise.

    Args:
        model: of the new run.
        other: of the run whose weights it begins with.
        run_dir: the latter, for the message.

    Raises:
        ConfigError: names every key that differs.
    """
    pairs: dict[str, tuple[Any, Any]] = {
        key: (getattr(model, key), getattr(other, key)) for key in ("family", "revision", "variant")
    }
    if Path(model.path).resolve() != Path(other.path).resolve():
        pairs["path"] = (model.path, other.path)
    adapters = model.adapters or {}, other.adapters or {}
    if bool(adapters[0]) != bool(adapters[1]):
        pairs["lora"] = (model.lora and adapters[0], other.lora and adapters[1])
    else:
        pairs |= {f"lora.{key}": tuple(one[key] for one in adapters) for key in adapters[0]}  # type: ignore[misc]
    named = [f"model.{key}={_shown(a)} where it has {_shown(b)}" for key, (a, b) in pairs.items() if a != b]
    if named:
        raise ConfigError(
            f"model.init_from takes the weights of a run of the same model and LoRA. Got {'; '.join(named)} "
            f"({run_dir / 'config.yaml'}). Make them agree, or begin with another run."
        )


def _shown(value: Any) -> str:
    return "none" if value is None else show(list(value) if isinstance(value, tuple) else value)


def _find(model: ModelSettings, begun: InitSettings) -> tuple[Path, str]:
    """Return the checkpoint's path and its manifest's sha256, which holds those of all its files."""
    try:
        run_dir, other = open_run_dir(begun.run)
    except ConfigError as error:
        raise ConfigError(f"model.init_from.run: {error} If it was moved, say where it is now.") from error
    require_same_model(model, other.model, run_dir)
    path = place_of(run_dir, begun.step, "model.init_from.step")
    try:
        digest = hashlib.sha256(read_own(path / MANIFEST)).hexdigest()
    except OSError as error:
        raise ConfigError(f"model.init_from: {path / MANIFEST} cannot be read: {error.strerror or error}.") from error
    require_pinned("model.init_from.sha256", path / MANIFEST, begun.sha256, digest, "checkpoint")
    return path, digest


def _with(config: Config, begun: InitSettings) -> Config:
    lora = config.model.lora and config.model.lora.model_copy(update={"start": None})
    return config.model_copy(update={"model": config.model.model_copy(update={"init_from": begun, "lora": lora})})


def pin_start(config: Config) -> Config:
    """Return the configuration with the sha256 of its model.lora.start, so that resuming begins with nothing else.

    Raises:
        ConfigError: there is no such file, or it is not what the sha256 says.
    """
    model, lora = config.model, config.model.lora
    if lora is None or lora.start is None:
        return config
    digest = _same_files(lora.start, _networks(model))[1]
    started = lora.model_copy(update={"start": lora.start.model_copy(update={"sha256": digest})})
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
    for weights, layers in check_lora(model.lora.start.path, model.path, model.facts):
        notes += weights.notes
        if layers is None:
            later = "; whether it fits is seen once the pipeline is here"
        else:
            require_fitting(weights, layers, model.lora.rank, model.lora_targets)
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
        lora_weights = read_lora(files[network], layers, model.facts)
        require_fitting(lora_weights, layers, lora.rank, model.lora_targets)
        weights |= _named(lora_weights, prefix, lora.plain_alpha)
        alphas |= set(lora_weights.alpha.values())
        notes += lora_weights.notes
    policy.restore(weights)
    several = " to ".join(f"{alpha:g}" for alpha in sorted({min(alphas), max(alphas)}))
    scaled = "" if alphas == {lora.plain_alpha} else f", its alpha of {several} scaled to {lora.plain_alpha:g}"
    return " ".join([f"Begins with the LoRA {model.lora.start.path}{scaled}.", *notes])


def _same_files(start: LoraStartSettings, networks: Sequence[str]) -> tuple[dict[str, Path], str]:
    """Return a LoRA's files by network, and their sha256, which is the one that is written down if there is one."""
    files = lora_files(start.path, networks)
    digest = sha256_of(files)
    require_pinned("model.lora.start.sha256", start.path, start.sha256, digest, "LoRA")
    return files, digest


def _networks(model: ModelSettings) -> tuple[str, ...]:
    """Return the names of the networks that a pipeline trains; of one that is not here, one."""
    known = describe_pipeline(model.path)
    return ("transformer",) if known is None else known.networks


def _named(lora: LoraWeights, prefix: str, alpha: float) -> dict[str, Tensor]:
    """Return a LoRA's weights by the names that they have in a policy whose LoRA has this alpha."""
    down = {f"{prefix}{layer}{DOWN}": tensor for layer, tensor in lora.down.items()}
    return down | {f"{prefix}{layer}{UP}": b * (lora.alpha[layer] / alpha) for layer, b in lora.up.items()}


def require_pinned(key: str, source: object, pinned: str | None, is_now: str, thing: str) -> None:
    """Refuse what a configuration names with a sha256 and that has another one now.

    Args:
        key: of the sha256.
        source: the file that was looked at.
        pinned: the sha256 in the configuration; None = none is written down yet.
        is_now: of the file.
        thing: that it is, "LoRA".

    Raises:
        ConfigError: they differ.
    """
    if pinned not in (None, is_now):
        raise ConfigError(
            f"{key} must be that of {source}. Got {pinned}, and it has {is_now}: it is another {thing} now. Put the "
            "former one back, or start a new run from this one."
        )
