"""What a run costs, by arithmetic, before anything is loaded.

A network evaluation is one sample through the transformer forward once; with classifier-free guidance it is two.
Backward passes are not counted, nor what guards skip. Memory is an estimate, within a factor of two at best: it leaves
out the framework, the scorers and fragmentation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffrl.config.method import Window
from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.rollout.stochastic import stochastic_steps

BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4
ADAM_STATE_BYTES = {"adamw": 8, "adamw_8bit": 2}
ELEMENTS_PER_TOKEN_AND_LAYER = 21
"""Numbers that a transformer layer keeps for backward, in multiples of its width: what autograd saved in diffusers'
SD3 transformer with fused attention (20.9 at widths 128 and 256)."""
DECODER_MAPS = 6
"""Full-resolution maps of the decoder alive at once, in multiples of its last block's channels; not measured."""

Shapes = Mapping[str, tuple[int, ...]]

WEIGHTS = re.compile(r"(diffusion_pytorch_model|model)(-\d+-of-\d+)?\.safetensors")
"""A component's weights as diffusers and transformers name them; variants such as *.fp16.safetensors are copies."""

BUFFERS = ("pos_embed.pos_embed",)
"""Tensors of a transformer's file that are no parameters: SD3's fixed position table, tens of millions of numbers."""

DEFAULT_CLIP_TOKENS = 77
DEFAULT_T5_TOKENS = 256


@dataclass(frozen=True)
class Memory:
    """Estimated bytes of one process.

    Args:
        trained_parameters: that the optimiser updates.
        frozen_parameters: all others, by component of the pipeline.
        kept: bytes held throughout, by purpose.
        passing: bytes of activations, by stage; one stage runs at a time.
    """

    trained_parameters: int
    frozen_parameters: Mapping[str, int]
    kept: Mapping[str, int]
    passing: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Everything held, and the largest stage."""
        return sum(self.kept.values()) + max(self.passing.values(), default=0)


@dataclass(frozen=True)
class Plan:
    """The size of a run. Counts are over all processes, unless "per process" is said.

    Args:
        iterations: of training.
        world_size: processes.
        groups: prompts of an iteration.
        samples: finished pictures of an iteration.
        stochastic_steps: trained steps of the first iteration; a sliding window changes which, not how many.
        edges: trained steps of an iteration over all samples.
        updates: optimiser updates of the run.
        edges_per_update: of each update of an iteration.
        micro_batches: forward and backward passes of an iteration, per process.
        evaluations: held-out evaluations of the run.
        network_evaluations: of the run, by purpose.
        decodes: pictures decoded in the run.
        reward_calls: pictures scored in the run, once for each reward.
        memory: estimate per process, None if the pipeline's files cannot be read here.
        notes: what the numbers leave out.
    """

    iterations: int
    world_size: int
    groups: int
    samples: int
    stochastic_steps: tuple[int, ...]
    edges: int
    updates: int
    edges_per_update: tuple[int, ...]
    micro_batches: int
    evaluations: int
    network_evaluations: Mapping[str, int]
    decodes: int
    reward_calls: int
    memory: Memory | None
    notes: tuple[str, ...] = field(default=())

    @property
    def total_network_evaluations(self) -> int:
        """Network evaluations of the whole run."""
        return sum(self.network_evaluations.values())


def make_plan(config: Config, world_size: int = 1) -> Plan:
    """Add up a run.

    Args:
        config: the run.
        world_size: processes; each takes the same number of prompts.

    Raises:
        ConfigError: the prompts of an iteration cannot be shared out evenly.
    """
    if world_size < 1 or config.prompts.per_iteration % world_size:
        raise ConfigError(
            "prompts.per_iteration must be a multiple of the number of processes. Got per_iteration="
            f"{config.prompts.per_iteration}, processes={world_size}. Change one of them."
        )
    groups, roots, iterations = config.prompts.per_iteration, config.rollout.tree.roots, config.run.iterations
    steps = steps_of_iteration(config, 0)
    samples, edges = groups * roots, groups * roots * len(steps)
    per_prompt = even_parts(roots * len(steps), config.train.updates_per_iteration)
    passes = sum(-(-groups // world_size * part // config.train.micro_batch) for part in per_prompt)
    evaluations = len(evaluated_iterations(config))
    rollout_cost = 2 if config.rollout.guidance_scale > 1 else 1
    eval_cost = 2 if config.eval.guidance_scale > 1 else 1
    memory, notes = estimate_memory(config, samples // world_size, edges // world_size)
    return Plan(
        iterations=iterations,
        world_size=world_size,
        groups=groups,
        samples=samples,
        stochastic_steps=steps,
        edges=edges,
        updates=iterations * config.train.updates_per_iteration,
        edges_per_update=tuple(groups * part for part in per_prompt),
        micro_batches=passes,
        evaluations=evaluations,
        network_evaluations={
            "rollout": iterations * samples * config.rollout.steps * rollout_cost,
            "update": iterations * edges * rollout_cost,
            "reference": iterations * edges * rollout_cost if config.objective.kl > 0 else 0,
            "on_policy_gate": edges * rollout_cost,
            "evaluation": evaluations * config.eval.samples * config.eval.steps * eval_cost,
        },
        decodes=iterations * samples + evaluations * config.eval.samples,
        reward_calls=iterations * samples * len(config.rewards)
        + evaluations * config.eval.samples * len(config.eval.rewards),
        memory=memory,
        notes=notes,
    )


def steps_of_iteration(config: Config, iteration: int) -> tuple[int, ...]:
    """The stochastic steps of a training iteration, from 0."""
    stochastic, steps = config.rollout.stochastic, config.rollout.steps
    if isinstance(stochastic, Window):
        return stochastic_steps("window", steps, iteration, stochastic.start, stochastic.size, stochastic.slide_every)
    return stochastic_steps("all", steps, iteration)


def evaluated_iterations(config: Config) -> tuple[int, ...]:
    """After how many iterations the held-out evaluation runs: before training (0), every `eval_every`, at the end."""
    every, iterations = config.run.eval_every, config.run.iterations
    between = range(every, iterations, every) if every is not None else ()
    return (0, *between, iterations)


def even_parts(total: int, parts: int) -> tuple[int, ...]:
    """`total` in parts that differ by one at most, the larger ones first."""
    small, larger = divmod(total, parts)
    return (small + 1,) * larger + (small,) * (parts - larger)


def estimate_memory(config: Config, samples: int, edges: int) -> tuple[Memory | None, tuple[str, ...]]:
    """Estimated memory of one process, from the pipeline's file headers alone.

    Trained weights, gradients, optimiser state and moving average are float32; everything else has model.dtype. A full
    fine-tune with kl > 0 keeps a reference copy; with LoRA the reference is the network without its adapters.

    Args:
        config: the run.
        samples: pictures of an iteration on this process.
        edges: trained steps of an iteration on this process.

    Returns:
        The estimate, or None, and notes on what is missing.
    """
    path = Path(config.model.path)
    shapes = component_shapes(path)
    if "transformer" not in shapes:
        return None, (f"No memory estimate: {path} is no folder here with a transformer's safetensors files.",)
    counts = {name: count_parameters(tensors) for name, tensors in shapes.items()}
    tables = sum(math.prod(shape) for name, shape in shapes["transformer"].items() if name in BUFFERS)
    network, lora, dtype = counts.pop("transformer"), config.model.lora, BYTES[config.model.dtype]
    trained = network if lora is None else lora_parameters(shapes["transformer"], lora.targets, lora.rank)
    kept = {
        "policy weights": FLOAT32 * trained + (0 if lora is None else dtype * network),
        "gradients": FLOAT32 * trained,
        "optimiser": ADAM_STATE_BYTES[config.train.optimizer] * trained,
        "moving average": FLOAT32 * trained if config.train.ema is not None else 0,
        "reference": dtype * network if config.objective.kl > 0 and lora is None else 0,
        "frozen components": dtype * (sum(counts.values()) + tables),
    }
    frozen = dict(counts) if lora is None else {"transformer": network, **counts}
    geometry = read_geometry(path, config.model.height, config.model.width, config.model.max_sequence_length)
    if geometry is None:
        return Memory(trained, frozen, kept, {}), (
            "Memory without activations: the pipeline's config files are unread.",
        )
    kept["samples and steps"] = edges * 2 * FLOAT32 * geometry.latent_elements + samples * 3 * geometry.pixels
    layer = geometry.tokens * geometry.width * ELEMENTS_PER_TOKEN_AND_LAYER * dtype
    whole = layer * geometry.layers
    if config.train.gradient_checkpointing:
        whole = layer + geometry.tokens * geometry.width * geometry.layers * dtype
    guided = 2 if config.rollout.guidance_scale > 1 else 1
    eval_guided = 2 if config.eval.guidance_scale > 1 else 1
    passing = {
        "rollout": config.rollout.micro_batch * guided * layer,
        "update": config.train.micro_batch * guided * whole,
        "evaluation": config.eval.batch * eval_guided * layer,
        "decode": config.rollout.decode_batch * geometry.pixels * geometry.decoder_channels * DECODER_MAPS * dtype,
    }
    return Memory(trained, frozen, kept, passing), ()


def render_plan(plan: Plan) -> str:
    """The plan as aligned text."""
    window = ", ".join(map(str, plan.stochastic_steps))
    rows: list[tuple[str, str]] = [
        ("Each iteration", ""),
        ("  prompts (groups)", f"{plan.groups:,}"),
        ("  samples", f"{plan.samples:,}"),
        ("  trained steps of a sample", f"{len(plan.stochastic_steps)}  (at first: {window})"),
        ("  edges", f"{plan.edges:,}"),
        ("  updates", f"{len(plan.edges_per_update)}  of {max(plan.edges_per_update):,} edges"),
        ("  micro-batches, per process", f"{plan.micro_batches:,}"),
        ("The run", f"{plan.iterations:,} iterations on {plan.world_size} process{'es' * (plan.world_size > 1)}"),
        ("  optimiser updates", f"{plan.updates:,}"),
        ("  held-out evaluations", f"{plan.evaluations:,}"),
        ("  pictures decoded", f"{plan.decodes:,}"),
        ("  pictures scored, all rewards", f"{plan.reward_calls:,}"),
        ("Network evaluations", f"{plan.total_network_evaluations:,}"),
        *((f"  {name.replace('_', ' ')}", f"{count:,}") for name, count in plan.network_evaluations.items() if count),
    ]
    if plan.memory is not None:
        memory = plan.memory
        rows += [
            ("Memory, per process (rough)", size_text(memory.peak)),
            ("  trained parameters", f"{memory.trained_parameters:,}"),
            ("  frozen parameters", f"{sum(memory.frozen_parameters.values()):,}"),
            *((f"  {name}", size_text(size)) for name, size in memory.kept.items() if size),
        ]
        if memory.passing:
            largest = max(memory.passing, key=lambda name: memory.passing[name])
            rows.append((f"  activations, most in {largest}", size_text(memory.passing[largest])))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([f"{name:<{width}}{value}".rstrip() for name, value in rows] + list(plan.notes))


def size_text(size: int) -> str:
    """Bytes in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True)
class Geometry:
    """Sizes that activations depend on.

    Args:
        latent_elements: numbers in one sample's latents.
        pixels: of one picture.
        tokens: of picture and text that the transformer attends over.
        width: of the transformer, in numbers a token.
        layers: of the transformer.
        decoder_channels: of the picture decoder at full resolution.
    """

    latent_elements: int
    pixels: int
    tokens: int
    width: int
    layers: int
    decoder_channels: int


def header_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a safetensors file, from its header.

    Raises:
        ConfigError: the file is torn or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= path.stat().st_size - 8:
                raise ValueError(f"the header cannot have {length} bytes")
            header = json.loads(file.read(length))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} must be a safetensors file. Its header is unreadable: {error}. Fetch it again."
        ) from error


def component_shapes(pipeline: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """Tensor shapes of each component of a pipeline's folder; empty if there is no such folder."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for file in sorted(pipeline.glob("*/*.safetensors")):
        if WEIGHTS.fullmatch(file.name):
            found.setdefault(file.parent.name, {}).update(header_shapes(file))
    return found


def count_parameters(shapes: Shapes) -> int:
    """Numbers in all tensors that are parameters."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in BUFFERS)


def lora_parameters(shapes: Shapes, targets: Sequence[str], rank: int) -> int:
    """Parameters of adapters of this rank on the linear layers whose names end in a target, as peft matches them."""
    total = 0
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if layer == name or len(shape) != 2:
            continue
        if any(layer == target or layer.endswith(f".{target}") for target in targets):
            total += rank * sum(shape)
    return total


def read_geometry(pipeline: Path, height: int | None, width: int | None, t5_tokens: int | None) -> Geometry | None:
    """Sizes of an SD3 pipeline, None if its config files are not as expected.

    Args:
        pipeline: its folder.
        height: of pictures in pixels, None = the pipeline's own.
        width: the same.
        t5_tokens: of a prompt, None = the pipeline's own default.
    """
    try:
        network, vae = _read_json(pipeline / "transformer/config.json"), _read_json(pipeline / "vae/config.json")
        channels = vae["block_out_channels"]
        scale, patch = 2 ** (len(channels) - 1), network["patch_size"]
        own = network["sample_size"] * scale
        rows, columns = (height or own) // scale, (width or own) // scale
        text = pipeline / "text_encoder/config.json"
        clip_tokens = _read_json(text)["max_position_embeddings"] if text.exists() else DEFAULT_CLIP_TOKENS
        text_tokens = clip_tokens + (DEFAULT_T5_TOKENS if t5_tokens is None else t5_tokens)
        return Geometry(
            latent_elements=network["in_channels"] * rows * columns,
            pixels=rows * columns * scale**2,
            tokens=(rows // patch) * (columns // patch) + text_tokens,
            width=network["num_attention_heads"] * network["attention_head_dim"],
            layers=network["num_layers"],
            decoder_channels=channels[0],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content
