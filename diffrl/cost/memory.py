"""Memory of a run, estimated from sizes of a pipeline's parts, before anything is loaded.

An estimate, within a factor of two at best: it leaves out workspaces of kernels and fragmentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from diffrl.config.schema import Config
from diffrl.cost.activations import Activations, count_blocks
from diffrl.cost.host import HostMemory, file_weights
from diffrl.cost.rollout_size import FLOAT32, RolloutSize
from diffrl.cost.scorers import ScorerWeights, scorer_weights
from diffrl.cost.weight_bytes import BUFFERS, BYTES, count_parameters, lora_parameters, quantised_bytes
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError
from diffrl.models.architecture import Architecture, describe_pipeline
from diffrl.models.family import ENCODINGS_KEPT
from diffrl.precision.facts import BASE_PRECISIONS
from diffrl.precision.formats import PRECISIONS
from diffrl.records import Prompt

ADAM_STATE_BYTES = {"adamw": 8, "adamw_8bit": 2}
LIBRARIES = 2**30
"""What torch, diffusers and transformers hold once imported: 1.0 GiB resident, measured on a CPU with torch 2.15.
A CUDA context takes about as much."""


@dataclass(frozen=True)
class Memory:
    """Estimated bytes of one process."""

    trained_parameters: int  # that the optimiser updates
    frozen_parameters: Mapping[str, int]  # all others, by component of the pipeline
    kept: Mapping[str, int]  # bytes held throughout, by purpose
    passing: Mapping[str, int]  # bytes of activations, by stage; one stage runs at a time
    host: HostMemory  # what the computer's memory holds, whatever the device is
    copy_on_cpu: int = 0  # bytes that the low-precision copy takes on a CPU beyond those in `kept`
    # bytes of rewards on other devices than the model, by name of the device
    scorers: Mapping[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Everything held on the device, and the largest stage."""
        return sum(self.kept.values()) + max(self.passing.values(), default=0)

    def needed(self, device: str) -> int:
        """Return bytes that the device ("cpu", "cuda") must have; a CPU's is the computer's with all it holds."""
        if device != "cpu":
            return self.peak
        passing = max([*self.passing.values(), self.host.passing["checkpoint"]])
        kept = sum(self.kept.values()) + sum(self.host.kept.values()) - self.host.kept["libraries"]
        return kept + self.copy_on_cpu + passing

    def needed_by_host(self, device: str) -> int:
        """Return bytes of the computer's memory that a process takes if the model is on the device ("cpu", "cuda")."""
        return self.needed("cpu") if device == "cpu" else self.host.each


@dataclass(frozen=True)
class ParameterCounts:
    """How many parameters the parts of a pipeline have."""

    network: int  # of the transformer, or of both
    trained: int  # that the optimiser updates
    tables: int  # numbers of fixed tables in the transformer's file
    text: int  # of the text encoders, and of one that sees an image for the network
    vae: int  # of the picture decoder
    others: int  # of further components


def estimate_memory(
    config: Config,
    rollout: RolloutSize,
    nodes: int,
    world_size: int = 1,
    activations: tuple[Activations | None, str] = (None, ""),
) -> tuple[Memory | None, tuple[str, ...]]:
    """Return estimated memory of one process.

    Trained weights, gradients, optimiser state and moving average are float32; everything else has model.dtype, unless
    model.base_precision quantises the frozen transformer. A full fine-tune with kl > 0 keeps a reference copy; with
    LoRA the reference is the network without its adapters. torch.compile is not accounted for.

    Args:
        config: the run.
        rollout: of an iteration on this process.
        nodes: that train in it; with tilt those that split.
        world_size: processes; they share the transformer with train.sharding: fsdp.
        activations: of its samples; or None, and why they are not known.

    Returns:
        The estimate, or None, and notes on what is missing.
    """
    path = config.model.path
    architecture = describe_pipeline(path)
    if architecture is None:
        return None, (
            f"No memory estimate: {path} is neither a folder here with a transformer's safetensors files nor a name on "
            "the hub that diffrl knows.",
        )
    parts = _parts(config, architecture)
    rewards = scorer_weights(config)
    kept = _weights(config, architecture, parts, world_size) | {"scorers": rewards.beside}
    wider = _copy_size(config, architecture, "cpu") - kept.get("low-precision copy", 0)
    offload = _offloaded(config, parts)
    frozen = {
        name: count_parameters(shapes)
        for name, shapes in architecture.shapes.items()
        if name not in architecture.networks
    }
    if config.model.lora is not None:
        frozen = {name: count_parameters(architecture.shapes[name]) for name in architecture.networks} | frozen
    sizes, why = activations
    resting, images, encodings = sum(offload.values()), 0, 0
    passing, notes = offload, (f"Memory without activations: {why}.",)
    if sizes is not None:
        kept |= _records(config, sizes, rollout, nodes, world_size)
        passing, notes = _all_stages(config, architecture, parts, sizes, offload, rewards, world_size), ()
        images = rollout.pictures(sizes.pixels)
        if config.rollout.explore is not None:
            images += _candidates(config, rollout) * 3 * sizes.pixels
        encodings = _kept_encodings(config, sizes, world_size)
    mapped, converted, assumed = file_weights(config.model, architecture, BYTES[config.model.dtype])
    at_once = {"loading": converted, "rewards": rewards.largest, "checkpoint": _saved_at_once(config, kept)}
    held = {"libraries": LIBRARIES, "offloaded parts": resting, "decoded images": images,
            "prompt encodings": encodings, "scorers on cpu": rewards.other_devices.get("cpu", 0)}  # fmt: skip
    host = HostMemory(held, at_once, mapped)
    memory = Memory(parts.trained, frozen, kept, passing, host, wider, rewards.other_devices)
    return memory, (*notes, *rewards.notes, *assumed)


def _saved_at_once(config: Config, kept: Mapping[str, int]) -> int:
    """Return bytes of the largest group of a checkpoint's tensors, which is copied before it is written."""
    return max(kept["optimiser"], kept["gradients"], kept["moving average"])


def _kept_encodings(config: Config, sizes: Activations, world_size: int) -> int:
    """Return bytes of prompts' encodings that stay in the computer's memory, at most `ENCODINGS_KEPT`."""
    met = config.run.iterations * config.prompts.per_iteration // world_size + _held_out(config)
    return min(ENCODINGS_KEPT, met * sizes.encoding * BYTES[config.model.dtype])


def _all_stages(
    config: Config,
    architecture: Architecture,
    parts: ParameterCounts,
    sizes: Activations,
    offload: Mapping[str, int],
    rewards: ScorerWeights,
    world_size: int,
) -> dict[str, int]:
    """Return bytes that pass on the device, by stage: activations, weights of a stage alone, rewards at work."""
    passing = _stages(config, sizes)
    for stage in ("rollout", "update", "evaluation"):
        passing[stage] += _gathered(config, architecture, parts, world_size)
    for stage, size in offload.items():
        passing[stage] = passing.get(stage, 0) + size
    passing["decode"] += rewards.working  # they score what was decoded while the next is
    if config.rollout.prompts_at_once is not None:  # or drawn
        passing["rollout"] += rewards.working
    return passing


def _parts(config: Config, architecture: Architecture) -> ParameterCounts:
    counts = {name: count_parameters(shapes) for name, shapes in architecture.shapes.items()}
    networks = [architecture.shapes[name] for name in architecture.networks]
    network = sum(counts.pop(name) for name in architecture.networks)
    lora = config.model.lora
    text = sum(counts.pop(name) for name in list(counts) if name.startswith(("text_encoder", "image_encoder")))
    return ParameterCounts(
        network,
        network if lora is None else sum(lora_parameters(n, config.model.lora_targets, lora.rank) for n in networks),
        sum(math.prod(shape) for shapes in networks for name, shape in shapes.items() if name in BUFFERS),
        text,
        counts.pop("vae", 0),
        sum(counts.values()),
    )


def _weights(config: Config, architecture: Architecture, parts: ParameterCounts, world_size: int) -> dict[str, int]:
    """Return bytes of everything that is as large as a network."""
    m, o = config.model, config.objective
    dtype, trained = BYTES[m.dtype], parts.trained
    networks = [architecture.shapes[name] for name in architecture.networks]
    base = dtype * parts.network if m.lora is not None else 0
    if m.base_precision is not None:
        plain = [{name: shape for name, shape in n.items() if name not in BUFFERS} for n in networks]
        base = sum(
            quantised_bytes(n, m.facts.exclude, BASE_PRECISIONS[m.base_precision].bytes_per_weight, dtype)
            for n in plain
        )
    share = world_size if config.train.sharding == "fsdp" else 1
    kept = {
        "libraries": LIBRARIES,
        "policy weights": (FLOAT32 * trained + base) // share,
        "gradients": FLOAT32 * trained // share,
        "optimiser": ADAM_STATE_BYTES[config.train.optimizer] * trained // share,
        "moving average": FLOAT32 * trained // share if config.train.ema is not None else 0,
        "reference": dtype * parts.network // share if o.needs_reference and m.lora is None else 0,
        "frozen components": dtype * (parts.others + parts.tables)
        + (0 if "text_encoders" in m.offload else dtype * parts.text)
        + (0 if "vae" in m.offload else _vae_bytes(config) * parts.vae),
    }
    if size := _copy_size(config, architecture, "cpu" if m.device == "cpu" else "cuda"):
        kept["low-precision copy"] = size
    if config.keeps_drawing_weights:
        kept["weights that draw"] = 2 * FLOAT32 * trained // share  # and the live ones while they are put into the copy
    if o.old_policy_is_ema:
        kept["old policy"] = 2 * FLOAT32 * trained // share  # its weights, and the live ones while it draws
    return kept


def _copy_size(config: Config, architecture: Architecture, device: str) -> int:
    """Return bytes of the low-precision copy on a device ("cpu", "cuda"); 0 without one."""
    copy = config.rollout.policy_copy
    if copy is None:
        return 0
    quantised, rest = PRECISIONS[copy.precision].copy_bytes(copy.engine, device)
    networks = [architecture.shapes[name] for name in architecture.networks]
    return sum(quantised_bytes(n, config.copy_exclude, quantised, rest, pointwise=True) for n in networks)


def _vae_bytes(config: Config) -> int:
    return BYTES[config.model.vae_dtype or config.model.facts.vae_dtype or config.model.dtype]


def _offloaded(config: Config, parts: ParameterCounts) -> dict[str, int]:
    """Return bytes that come to the device for a stage; all text encoders come together."""
    m = config.model
    sizes = {}
    if "text_encoders" in m.offload:
        sizes["prompts"] = BYTES[m.dtype] * parts.text
    if "vae" in m.offload:
        sizes["decode"] = _vae_bytes(config) * parts.vae
    return sizes


def _records(config: Config, sizes: Activations, rollout: RolloutSize, nodes: int, world_size: int) -> dict[str, int]:
    """Return bytes of what an iteration draws, and of prompts' encodings."""
    e, o, samples = config.rollout.explore, config.objective, rollout.samples
    kept = {"samples and steps": rollout.size(sizes.latents, BYTES[config.rollout.latents_dtype])}
    if e is not None:
        kept["candidates"] = _candidates(config, rollout) * FLOAT32 * sizes.latents
    if o.trains_samples:
        kept["noised examples"] = samples * o.levels_per_sample * 3 * FLOAT32 * sizes.latents
    if o.trains_nodes:
        kept["covariances"] = (3 * nodes + 2 * samples) * FLOAT32 * sizes.latents
    prompts = config.prompts.per_iteration // world_size + _held_out(config)  # at once on the device
    kept["prompt encodings"] = prompts * sizes.encoding * BYTES[config.model.dtype]
    return kept


def _candidates(config: Config, rollout: RolloutSize) -> int:
    """Return pictures that are drawn to choose a rollout's samples from."""
    assert config.rollout.explore is not None
    return rollout.samples * config.rollout.explore.candidates // config.rollout.redrawn


def _held_out(config: Config) -> int:
    """Return prompts that are held out and looked at."""
    return len(held_out_prompts(config)) or config.eval.samples


def held_out_prompts(config: Config) -> list[Prompt]:
    """Return the prompts that are held out and looked at; empty where they are on the hub, or cannot be read."""
    if config.prompts.held_out.startswith("hub:"):
        return []
    with suppress(ConfigError):  # the run will say so
        return load_prompts(config.prompts.held_out)[: config.eval.samples]
    return []


def _stages(config: Config, sizes: Activations) -> dict[str, int]:
    """Return bytes of activations, by stage."""
    r, t, m = config.rollout, config.train, config.model
    guided, eval_guided, before = (
        m.facts.calls_per_step(scale) for scale in (r.guidance_scale, config.eval.guidance_scale, config.kl_guidance)
    )
    trained = max(m.facts.calls_per_step(config.loss_guidance(loss.guidance)) for loss in config.objective.planned())
    update = sizes.update.of(t.micro_batch * trained)
    if config.objective.needs_reference:  # the reference predicts while the policy's graph is there
        reference = int(sizes.forward.each * t.micro_batch * before)  # its weights are in `dtype`: no copies of them
        update = max(update, sizes.graph.of(t.micro_batch * trained) + reference)
    decoder = sizes.tile if m.vae_tiling else sizes.decode
    return {
        "rollout": sizes.forward.of(config.forward_batch * guided),
        "update": update,
        "evaluation": sizes.forward.of(config.eval.batch * eval_guided),
        "decode": (1 if m.vae_slicing else config.decode_batch) * decoder,
    }


def _gathered(config: Config, architecture: Architecture, parts: ParameterCounts, world_size: int) -> int:
    """Return bytes of the two blocks that are gathered of all ranks while the network runs."""
    if config.train.sharding != "fsdp" or world_size == 1:
        return 0
    number = FLOAT32 if config.model.lora is None else BYTES[config.model.dtype]
    return 2 * number * parts.network // sum(count_blocks(architecture.configs["transformer"]).values())
