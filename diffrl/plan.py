"""What a run costs, by arithmetic, before anything is loaded.

A network evaluation is one sample through the transformer forward once; with classifier-free guidance it is two.
Backward passes are not counted, nor what guards skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffrl.config.method import Window
from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.footprint import Memory, estimate_memory
from diffrl.rollout.stochastic import stochastic_steps


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
