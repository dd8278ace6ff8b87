"""Everything about a configuration that can be known without loading the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.config.idle import idle_notes
from diffrl.cost.gpus import find_gpu, parse_memory
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import GIB, available_bytes, check_memory, require_memory
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError, DiffrlError, NotHereError
from diffrl.models.architecture import describe_pipeline
from diffrl.models.distilled import refuse_distilled
from diffrl.models.loading import DTYPES, check_pipeline_directory, choose_device
from diffrl.models.placement import try_attention
from diffrl.models.targets import names_layer
from diffrl.precision.backends import find_backend
from diffrl.precision.backends.machine import Machine
from diffrl.precision.backends.table import missing_hardware
from diffrl.run.directory import new_run_dir
from diffrl.run.initial import pin_initial
from diffrl.run.trial import try_rewards
from diffrl.training.optim import make_optimizer
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs
from diffrl.training.session import check_trackers

NEWEST_CUDA = (99, 0)
"""Stands for whatever another machine has installed, which is not looked at."""

NOT_HERE = "not here yet: fetched from the hub at the first start"


@dataclass(frozen=True)
class Elsewhere:
    """Another machine that a configuration is judged for.

    Args:
        name: of its GPU, as said to the user.
        memory: bytes of it.
        capability: NVIDIA compute capability; None leaves arithmetic unjudged.
    """

    name: str
    memory: int
    capability: tuple[int, int] | None = None


def other_machine(gpu: str | None, memory: str | None) -> Elsewhere | None:
    """The machine that --gpu and --memory describe; None for this one.

    Raises:
        ConfigError: no such GPU, or no amount of memory.
    """
    if gpu is None and memory is None:
        return None
    size = None if memory is None else parse_memory(memory)
    if gpu is not None:
        known = find_gpu(gpu)
        return Elsewhere(known.title, size or known.memory, known.capability)
    assert size is not None
    return Elsewhere(f"a GPU of {size / GIB:.1f} GiB", size)


def check_config(
    config: Config, processes: int = 1, elsewhere: Elsewhere | None = None, ask_rewards: bool = True
) -> list[str]:
    """Look at everything that a configuration names, for a run of so many processes.

    Args:
        config: the run.
        processes: that will share it.
        elsewhere: a machine that is not this one; memory and arithmetic are judged for it.
        ask_rewards: score a picture of noise with every reward.

    Returns:
        Lines that say what was found. The last ones say what this machine, or that one, cannot run: a configuration
        may be right all the same.

    Raises:
        ConfigError: lists all problems.
    """
    problems: list[str] = []
    found: list[str] = []
    not_here: list[str] = []
    machine = "this machine" if elsewhere is None else elsewhere.name

    def attempt(label: str, action) -> None:  # type: ignore[no-untyped-def]
        try:
            found.append(f"{label:<12} {action()}")
        except NotHereError as error:
            not_here.extend(error.problems)
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
        plan = make_plan(config, processes)
        if plan.memory is None:
            return "cannot be estimated before the pipeline is here"
        needed = plan.memory.peak
        if elsewhere is not None:
            require_memory(needed, elsewhere.memory, "are there")
            return f"about {needed / GIB:.2f} GiB needed of {elsewhere.memory / GIB:.2f} GiB"
        device = choose_device(config.model.device)
        if config.guards.memory == "stop":
            check_memory(needed, device)
        return f"about {needed / GIB:.2f} GiB needed, {available_bytes(device) / GIB:.2f} GiB free"

    def rewards() -> str:
        scorers = make_scorers(config.rewards, "rewards")
        held_out = make_scorers(config.eval.rewards, "eval.rewards")
        require_media(config.model.facts, [*scorers, *held_out])
        require_metadata(scorers, load_prompts(config.prompts.train), "prompts.train")
        shown = load_prompts(config.prompts.held_out)[: config.eval.samples]
        require_metadata(held_out, shown, "prompts.eval")
        require_pairs(held_out, config.eval.samples, len(shown))
        names = f"{', '.join(s.name for s in scorers)}; held out: {', '.join(s.name for s in held_out)}"
        if not ask_rewards:
            return f"{names}; not asked"
        refused = try_rewards(config, [*scorers, *held_out], load_prompts(config.prompts.train)[0])
        return "\n".join([f"{names}; each was asked once", *(f"{'':<12} {line}" for line in refused)])

    def runs_here() -> str:
        e, t = config.rollout.explore, config.train
        if elsewhere is not None:
            return runs_on(elsewhere)
        device = choose_device(config.model.device)
        make_optimizer([torch.nn.Parameter(torch.zeros(1))], t.optimizer, 1.0, t.betas, t.epsilon, t.weight_decay)
        if config.model.attention is not None:
            try_attention(config.model.attention, device, DTYPES[config.model.dtype])
        if e is None or e.precision == "training":
            return str(device)
        return f"{device}, exploring in {e.precision} by {find_backend(e.precision, e.engine, device).name}"

    def held_out_prompts() -> str:
        texts = [prompt.text for prompt in load_prompts(config.prompts.held_out)]
        trained = {prompt.text for prompt in load_prompts(config.prompts.train)}
        shared = sum(text in trained for text in texts)
        also = f"; {shared:,} of them are trained on too, and say nothing of other prompts" if shared else ""
        return f"{len(texts):,} held out{also}"

    def runs_on(other: Elsewhere) -> str:
        e = config.rollout.explore
        if config.model.device == "cpu":
            raise NotHereError(f"model.device is cpu, and {other.name} is a GPU. Set model.device: auto.")
        if e is not None and e.precision != "training" and other.capability is not None:
            gpu = Machine("cuda", other.name, other.capability, cuda=NEWEST_CUDA)
            if reason := missing_hardware(e.precision, e.engine, gpu):
                raise NotHereError(f"rollout.explore.precision {e.precision}: {reason}. Take one that it runs.")
        return f"{other.name}; what must be installed there is not looked at"

    attempt("prompts", lambda: f"{len(load_prompts(config.prompts.train)):,} to train on")
    attempt("", held_out_prompts)
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
        raise ConfigError(list(dict.fromkeys(problems)))  # prompts are asked for twice
    there = whereabouts(config.model.path) != NOT_HERE
    verdict = "The configuration is fine." if there else "The configuration is fine but for what is not here yet."
    if not_here:
        verdict = f"The configuration is valid, and cannot run on {machine}:"
    return [*found, *idle_notes(config), verdict, *(f"  - {reason}" for reason in dict.fromkeys(not_here))]


def whereabouts(path: str) -> str:
    """Where a pipeline is, without asking the network."""
    from huggingface_hub import try_to_load_from_cache

    folder = pipeline_folder(path)
    if folder.exists():
        return "here" if folder == Path(path) else f"which comes with diffrl: {folder}"
    return "in the hub's cache" if isinstance(try_to_load_from_cache(path, "model_index.json"), str) else NOT_HERE
