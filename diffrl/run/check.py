"""Everything about a configuration that can be known without loading the model, or fetching anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from diffrl.config import Config
from diffrl.config.idle import idle_notes
from diffrl.config.rewards import RewardSettings
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import GIB, available_bytes, check_memory
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError, DiffrlError
from diffrl.models.architecture import describe_pipeline
from diffrl.models.distilled import refuse_distilled
from diffrl.models.loading import DTYPES, check_pipeline_directory, choose_device
from diffrl.models.placement import try_attention
from diffrl.models.targets import names_layer
from diffrl.precision.backends import find_backend
from diffrl.rewards.score import WeightedScorer
from diffrl.run.directory import new_run_dir
from diffrl.run.downloads import Download, downloads, is_away, unloaded, weights_away
from diffrl.run.initial import pin_initial
from diffrl.training.optim import make_optimizer
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs
from diffrl.training.session import check_trackers

NOT_HERE = "not here yet: fetched from the hub at the first start"


def check_config(config: Config, processes: int = 1) -> list[str]:
    """Look at everything that a configuration names, for a run of so many processes.

    Returns:
        Lines that say what was found.

    Raises:
        ConfigError: lists all problems.
    """
    problems: list[str] = []
    found: list[str] = []

    def attempt(label: str, action) -> None:  # type: ignore[no-untyped-def]
        try:
            found.append(f"{label:<12} {action()}")
        except ConfigError as error:
            problems.extend(error.problems)
        except DiffrlError as error:
            problems.append(str(error))

    def model() -> str:
        family = config.model.facts
        check_pipeline_directory(family, config.model.path)
        refuse_distilled(family, config.model.path, config.model.allow_distilled)
        return f"{config.model.path} ({' or '.join(family.pipelines)}), {whereabouts(config.model.path)}"

    def lora() -> str:
        if config.model.lora is None:
            return "none: the whole transformer is trained"
        found = describe_pipeline(config.model.path)
        shapes = found.shapes["transformer"] if found is not None else {}
        layers = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2}
        targets = config.model.lora_targets
        missing = [t for t in targets if not any(names_layer(t, layer) for layer in layers)]
        if layers and missing:
            raise ConfigError(f"model.lora.targets must name linear layers of the transformer. Got {missing}.")
        return f"rank {config.model.lora.rank} on {', '.join(targets)}"

    def begins_with() -> str:
        begun = pin_initial(config).model.init_from
        assert begun is not None
        return f"the weights of {begun.run} after iteration {begun.step}"

    def memory() -> str:
        plan, device = make_plan(config, processes), choose_device(config.model.device)
        if plan.memory is None:
            return "cannot be estimated before the pipeline is here"
        if config.guards.memory == "stop":
            check_memory(plan.memory.peak, device)
        return f"about {plan.memory.peak / GIB:.2f} GiB needed, {available_bytes(device) / GIB:.2f} GiB free"

    def prompts(source: str, use: str) -> str:
        return f"{source} {NOT_HERE}" if is_away(source) else f"{len(load_prompts(source)):,} {use}"

    def scorers_of(settings: Sequence[RewardSettings], where: str) -> list[WeightedScorer]:
        away = [reward for reward in settings if weights_away(reward)]
        return [*unloaded(away, where), *make_scorers([s for s in settings if s not in away], where)]

    def rewards() -> str:
        scorers = scorers_of(config.rewards, "rewards")
        held_out = scorers_of(config.eval.rewards, "eval.rewards")
        require_media(config.model.facts, [*scorers, *held_out])
        if not is_away(config.prompts.train):
            require_metadata(scorers, load_prompts(config.prompts.train), "prompts.train")
        if not is_away(config.prompts.held_out):
            shown = load_prompts(config.prompts.held_out)[: config.eval.samples]
            require_metadata(held_out, shown, "prompts.eval")
            require_pairs(held_out, config.eval.samples, len(shown))
        return f"{_names(config.rewards)}; held out: {_names(config.eval.rewards)}"

    def runs_here() -> str:
        device, e, t = choose_device(config.model.device), config.rollout.explore, config.train
        make_optimizer([torch.nn.Parameter(torch.zeros(1))], t.optimizer, 1.0, t.betas, t.epsilon, t.weight_decay)
        if config.model.attention is not None:
            try_attention(config.model.attention, device, DTYPES[config.model.dtype])
        if e is None or e.precision == "training":
            return str(device)
        return f"{device}, exploring in {e.precision} by {find_backend(e.precision, e.engine, device).name}"

    attempt("prompts", lambda: prompts(config.prompts.train, "to train on"))
    attempt("", lambda: prompts(config.prompts.held_out, "held out"))
    attempt("rewards", rewards)
    attempt("model", model)
    attempt("lora", lora)
    if config.model.init_from is not None:
        attempt("begins with", begins_with)
    attempt("device", runs_here)
    attempt("memory", memory)
    attempt("trackers", lambda: ", ".join(["metrics.jsonl", *check_trackers(config)]))
    attempt("run", lambda: f"{new_run_dir(config)} is free")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    fetched = downloads(config)
    return [
        *found,
        *idle_notes(config),
        *(f"{'' if number else 'to fetch':<12} {_told(one)}" for number, one in enumerate(fetched)),
        "The configuration is fine but for what is not here yet." if fetched else "The configuration is fine.",
    ]


def _names(rewards: Sequence[RewardSettings]) -> str:
    away = {reward.key for reward in rewards if weights_away(reward)}
    return ", ".join(f"{reward.key} (weights not here yet)" if reward.key in away else reward.key for reward in rewards)


def _told(one: Download) -> str:
    place = f"huggingface.co/{'datasets/' if one.kind == 'dataset' else ''}{one.name}"
    return f"{place} for {', '.join(one.uses)}" + (f": {one.note}" if one.note else "")


def whereabouts(path: str) -> str:
    """Where a pipeline is, without asking the network."""
    from huggingface_hub import try_to_load_from_cache

    if Path(path).exists():
        return "here"
    return "in the hub's cache" if isinstance(try_to_load_from_cache(path, "model_index.json"), str) else NOT_HERE
