"""What a run costs, by arithmetic, before anything is loaded.

A network evaluation is one sample through the transformer forward once; with classifier-free guidance a step takes two.
Backward passes are not counted. Units whose credit turns out to be zero are not evaluated: a run counts what it skips,
and its count and the skipped together make the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from diffrl.config.explore import DrawSettings
from diffrl.config.idle import unused_keys
from diffrl.config.phases import Cycle, phases
from diffrl.config.schema import Config
from diffrl.cost.activations import activations_of
from diffrl.cost.host_limits import processes_here
from diffrl.cost.memory import Memory, estimate_memory, held_out_prompts
from diffrl.cost.meter import training_cost
from diffrl.cost.rollout_size import RolloutSize
from diffrl.errors import ConfigError
from diffrl.functional.steps import coarse_levels
from diffrl.functional.tree_counts import alive_per_level, ends_per_tree, forwards_per_tree, trained_nodes


@dataclass(frozen=True)
class Plan:
    """The size of a run. Counts are over all processes, unless "per process" is said."""

    iterations: int  # of training
    world_size: int  # processes
    groups: int  # prompts of an iteration
    candidates: int  # pictures of an iteration that are drawn to choose from; 0 without an exploring stage
    samples: int  # finished pictures of an iteration that train
    stochastic_steps: tuple[int, ...]  # of the first iteration; a sliding window changes which
    edges: int  # stochastic steps of the first iteration over all samples, shared ones once
    examples: int  # network evaluations with gradient of the first iteration; siblings share one
    updates: int  # optimiser updates of the run
    examples_per_update: tuple[int, ...]  # of each update of the first iteration
    micro_batches: int  # forward and backward passes of the first iteration, per process
    evaluations: int  # held-out evaluations of the run
    network_evaluations: Mapping[str, int]  # of the run, by purpose
    velocities: Mapping[str, int]  # of the run, by purpose: the same where guidance does not double them
    decodes: int  # pictures decoded in the run
    reward_calls: int  # pictures scored in the run, once for each reward
    exact: bool  # whether every sample is known before the run; else counts of chosen samples are upper bounds
    checkpointing: bool  # whether the update computes activations again
    memory: Memory | None  # estimate per process, None if the pipeline's files cannot be read here
    flops: int | None = None  # of a network evaluation, forward; None likewise
    tree_evaluations: int = 0  # at most so many, of the first process alone, show how rollouts went; they are in no sum
    explorers: int = 0  # other processes that draw the rollout
    overlap: bool = False  # whether they draw an iteration while the one before it trains
    notes: tuple[str, ...] = field(default=())  # what the numbers leave out, and keys without effect

    @property
    def total_network_evaluations(self) -> int:
        """Network evaluations of the whole run."""
        return sum(self.network_evaluations.values())

    @property
    def training_cost(self) -> int:
        """Cost of the whole run, see `diffrl.cost.meter.training_cost`."""
        counts = {f"evaluations/{name}": count for name, count in self.network_evaluations.items()}
        return int(training_cost(counts, self.checkpointing))

    @property
    def trained_times(self) -> str:
        """How often an evaluation with gradient counts in the cost, in words."""
        return "four times" if self.checkpointing else "three times"

    @property
    def iteration_cost(self) -> float:
        """Training cost of one iteration, on average."""
        return self.training_cost / self.iterations

    @property
    def run_flops(self) -> int | None:
        """Operations of the network in the whole run, held-out evaluations and the on-policy gate among them."""
        beside = self.network_evaluations["gate"] + self.network_evaluations["evaluation"]
        return None if self.flops is None else self.flops * (self.training_cost + beside)


@dataclass(frozen=True)
class PromptCost:
    """What one prompt costs in one iteration, guidance left out; upper bounds where samples are chosen."""

    explore: int  # evaluations of the exploring stage
    rollout: int  # evaluations in the training precision
    values: int  # evaluations of completions
    audit: int  # evaluations where it is drawn again by the policy, to judge the copy that draws
    starts: int  # nodes that stochastic steps start from
    inner: int  # nodes whose picture is decoded and scored for their value
    # nodes that may train: where stochastic steps start, or only where they split, as the objective has it
    origins: int
    trained: int  # those of them that do
    edges: int  # stochastic steps
    rollout_size: RolloutSize  # what of the rollout is kept


def prompt_cost(config: Config, iteration: int) -> PromptCost:
    """Return what one prompt costs in a training iteration."""
    r, value = config.rollout, config.credit.value
    branching = r.branching_at(iteration)
    full = range(r.steps)
    explore = 0
    if r.explore is not None:
        steps = r.steps if r.explore.steps is None else r.explore.steps
        levels = coarse_levels(r.steps, list(branching), steps)[:-1]
        explore = r.trees * forwards_per_tree(levels, branching)
    alive = [min(r.redrawn, r.trees * count) for count in alive_per_level(full, branching)]
    starts = r.starts_at(iteration)
    o = config.objective
    asked = [step for step, children in branching.items() if o.trains_steps or (o.trains_nodes and children > 1)]
    ends = {step: min(r.redrawn, r.trees * count) for step, count in ends_per_tree(branching).items()}
    ordered = sorted(branching)
    inner, origins = sum(starts.values()), sum(starts[step] for step in asked)
    completions = starts[ordered[0]] * r.steps if ordered else 0
    completions += sum(ends[step] * (r.steps - 1 - step) for step in ordered[:-1])
    fresh = sum(count for step, count in starts.items() if step - 1 not in branching)  # others are ends of that step
    recorded = (inner, sum(ends.values()), sum(ends.values()) + fresh) if config.records_steps else (0, 0, 0)
    nodes = alive[0] + sum(ends.values())
    return PromptCost(
        explore=explore,
        rollout=0 if o.trains_pairs else sum(alive),
        values=completions if value == "ode" else 0,
        audit=sum(alive) + 2 * sum(alive[step] for step in asked if o.trains_nodes),
        starts=inner,
        inner=0 if value == "leaves" else inner,
        origins=origins,
        trained=trained_nodes(o.nodes_kept, origins),
        edges=sum(ends.values()),
        rollout_size=RolloutSize(r.redrawn, nodes, *recorded, nodes if value == "predicted_x0" else 0),
    )


def audits_before(draw: DrawSettings | None, iteration: int) -> int:
    """Return audits of the copy that draws in the iterations before one."""
    every = None if draw is None else draw.fidelity.every
    return 0 if every is None else -(-iteration // every)


def make_plan(config: Config, world_size: int = 1, cost_of: Callable[[Config, int], PromptCost] = prompt_cost) -> Plan:
    """Add up what a run will cost.

    Args:
        config: the run.
        world_size: processes; each takes the same number of prompts.
        cost_of: says what one prompt costs in an iteration: the most that it can, or an average.

    Raises:
        ConfigError: the prompts of an iteration cannot be shared out evenly.
    """
    if world_size < 1 or config.prompts.per_iteration % world_size:
        raise ConfigError(
            "prompts.per_iteration must be a multiple of the number of processes. Got per_iteration="
            f"{config.prompts.per_iteration}, processes={world_size}. Change one of them."
        )
    groups, iterations, r, t = config.prompts.per_iteration, config.run.iterations, config.rollout, config.train
    places = [i for i in r.window_places if i < iterations]
    costs = [cost_of(config, i) for i in places]
    first, stays = costs[0], places[1] if len(places) > 1 else iterations

    def over_the_run(each: Callable[[PromptCost], int]) -> int:
        return Cycle([each(one) for one in costs], stays).total(iterations)

    candidates = 0 if r.explore is None else groups * r.explore.candidates
    o = config.objective
    noised = r.redrawn * o.levels_per_sample
    trained = over_the_run(lambda one: noised + one.trained)
    together = o.visits or (r.redrawn if o.whole_groups else 1)
    dealt = [(noised // together, together), (first.trained, 1)]
    parts = [tuple(size * n for n in even_parts(count, t.updates_per_iteration)) for count, size in dealt if count]
    shares = [sum(share) for share in zip(*parts, strict=True)]
    passes = sum(-(-groups // world_size * n // t.micro_batch) for part in parts for n in part)
    evaluations = config.run.evaluations
    guided, before, matched = (
        config.model.facts.calls_per_step(scale)
        for scale in (r.guidance_scale, config.kl_guidance, config.loss_guidance(o.sample_guidance))
    )
    largest = max((one.rollout_size for one in costs), key=lambda one: one.stored).times(groups, world_size)
    activations = activations_of(config)
    nodes = groups * first.origins // world_size
    memory, notes = estimate_memory(config, largest, nodes, world_size, activations)
    free = int(o.knows_on_policy)  # an iteration's first update; see `Config.retakes_densities`
    twice = over_the_run(lambda one: sum(even_parts(one.origins, t.updates_per_iteration)[free:]))
    retaken = twice if config.retakes_densities else 0
    referred = noised * iterations if noised else trained
    per_iteration = {
        "explore": over_the_run(lambda one: one.explore),
        "rollout": over_the_run(lambda one: one.rollout),
        "values": over_the_run(lambda one: one.values),
        "old": (noised * iterations if o.needs_old_velocity(config.old_is_policy) else 0) + retaken,
        "group": noised * iterations if o.needs_group_pass(config.old_is_policy) else 0,
        "update": trained,
        "reference": referred if o.needs_reference else 0,
    }
    looked_at = min(config.track.trees.prompts if config.track.trees else 0, groups // world_size)
    shown = config.tree_iterations * looked_at * max(one.starts for one in costs) * 2 * guided  # before and after
    generated = 0 if o.trains_pairs else r.redrawn
    pictures = Cycle([groups * (generated + one.inner) + candidates for one in costs], stays)
    audits = partial(audits_before, r.draw)
    again = world_size * r.tree.samples  # images of an audit
    scored = sum(
        pictures.total(end) - pictures.total(start) + again * (audits(end) - audits(start))
        for reward in config.rewards
        for start, end, asked in phases(iterations, reward.corners, reward.asked)
        if asked
    )
    return Plan(
        iterations=iterations,
        world_size=world_size,
        groups=groups,
        candidates=candidates,
        samples=groups * r.samples,
        stochastic_steps=r.steps_at(0),
        edges=groups * first.edges,
        examples=groups * (noised + first.trained),
        updates=iterations * t.updates_per_iteration,
        examples_per_update=tuple(groups * share for share in shares),
        micro_batches=passes,
        evaluations=evaluations,
        network_evaluations={
            **{name: guided * groups * count for name, count in per_iteration.items()},
            "audit": guided * world_size * audits(iterations) * first.audit,
            "old": groups * (matched * (per_iteration["old"] - retaken) + guided * retaken),
            "group": matched * groups * per_iteration["group"],
            "update": groups * (guided * (trained - noised * iterations) + matched * noised * iterations),
            "reference": before * groups * per_iteration["reference"],
            "gate": guided * groups * first.origins,
            "evaluation": evaluations * (_held_out_calls(config) + matched * _pair_velocities(config)),
        },
        decodes=pictures.total(iterations) + again * audits(iterations) + evaluations * config.eval.samples,
        reward_calls=scored + evaluations * config.eval.samples * len(config.eval.rewards),
        exact=r.explore is None or not r.tree.splits,
        checkpointing=t.gradient_checkpointing,
        memory=memory,
        flops=None if activations[0] is None else activations[0].flops,
        tree_evaluations=shown,
        explorers=len(r.explorers.servers) if r.explorers else 0,
        overlap=r.explorers is not None and r.explorers.overlap,
        velocities={name: groups * count for name, count in per_iteration.items()}
        | {"audit": world_size * audits(iterations) * first.audit},
        notes=(
            *notes,
            *unused_keys(config),
            *tree_notes(config, shown),
            *recovery_notes(config),
            *explorer_notes(config, memory),
        ),
    )


def _held_out_calls(config: Config) -> int:
    """Return network evaluations by which the samples of a held-out evaluation are drawn."""
    e = config.eval
    return e.samples * e.steps * config.model.facts.calls_per_step(e.guidance_scale)


def _pair_velocities(config: Config) -> int:
    """Return velocities by which an evaluation judges its pairs: of policy and reference, of both images.

    Of a list that is on the hub all prompts are taken for pairs.
    """
    if not config.objective.needs_reference or not config.objective.trains_pairs:
        return 0
    listed = held_out_prompts(config)
    pairs = sum(prompt.pair is not None for prompt in listed) if listed else config.eval.samples
    return 2 * 2 * config.objective.levels_per_sample * pairs


def tree_notes(config: Config, evaluations: int) -> list[str]:
    """Say what keeping trees to look at takes beside the plan's sums."""
    if not config.tree_iterations:
        return []
    asked = f" asks the network for up to {evaluations:,} evaluations more and" if evaluations else ""
    return [
        f"Left out: in {config.tree_iterations:,} iterations the first process keeps trees to look at (track.trees). "
        f"It{asked} decodes what is predicted at their nodes, while other processes wait."
    ]


def explorer_notes(config: Config, memory: Memory | None) -> list[str]:
    """Say what is taken for granted of other processes that draw."""
    explorers = config.rollout.explorers
    if explorers is None:
        return []
    sent = "" if memory is None else f" ({size_text(4 * memory.trained_parameters)} to each of them)"
    when = "while the run trains, by weights one update older" if explorers.overlap else "while the run waits"
    return [
        f"Explorers: {len(explorers.servers)} draw the rollout {when}; hours take them for one more GPU each, of the "
        f"same kind. Sending weights{sent} and samples in every iteration is left out."
    ]


def recovery_notes(config: Config) -> list[str]:
    """Say how much of the plan's training may be lost, which going back to a healthy checkpoint does not do again."""
    recover, run = config.guards.recover, config.run
    if recover is None or run.eval_every is None:
        return []
    apart = run.checkpoint_every - math.gcd(run.checkpoint_every, run.eval_every)  # an evaluation from a checkpoint
    each = config.guards.reward_hacking.patience * run.eval_every + apart
    lost = min(run.iterations, recover.times * each)
    return [
        f"guards.recover may discard the training of up to {lost:,} of the {run.iterations:,} iterations: "
        f"{recover.times} times up to {each:,}. The plan's sums are of all iterations either way."
    ]


def even_parts(total: int, parts: int) -> tuple[int, ...]:
    """Return `total` in parts that differ by one at most, the larger ones first."""
    small, larger = divmod(total, parts)
    return (small + 1,) * larger + (small,) * (parts - larger)


def plan_json(plan: Plan, more: Mapping[str, Any] | None = None) -> str:
    """Return the plan as JSON, with the sum of its network evaluations, and their operations."""
    sums = {"total_network_evaluations": plan.total_network_evaluations, "run_flops": plan.run_flops}
    return json.dumps({**asdict(plan), **sums, **(more or {})}, indent=2)


def plan_text(plan: Plan, more: Sequence[tuple[str, str]] = (), notes: Sequence[str] = ()) -> str:
    """Return the plan as aligned text, with `more` rows at its end and the sentences of `notes` below."""
    steps = ", ".join(map(str, plan.stochastic_steps)) or "none"
    most = "" if plan.exact else "at most "
    rows: list[tuple[str, str]] = [
        ("Each iteration", ""),
        ("  prompts (groups)", f"{plan.groups:,}"),
        *([("  candidates", f"{plan.candidates:,}")] if plan.candidates else []),
        ("  samples", f"{plan.samples:,}"),
        ("  stochastic steps", f"{len(plan.stochastic_steps)}  (at first: {steps})"),
        ("  edges", f"{most}{plan.edges:,}"),
        ("  trained evaluations", f"{most}{plan.examples:,}"),
        ("  updates", f"{len(plan.examples_per_update)}  of {most}{max(plan.examples_per_update):,} evaluations"),
        ("  micro-batches, per process", f"{plan.micro_batches:,}"),
        ("The run", f"{plan.iterations:,} iterations on {plan.world_size} process{'es' * (plan.world_size > 1)}"),
        ("  optimiser updates", f"{plan.updates:,}"),
        ("  held-out evaluations", f"{plan.evaluations:,}"),
        ("  samples decoded", f"{plan.decodes:,}"),
        ("  samples scored, all rewards", f"{plan.reward_calls:,}"),
        ("Network evaluations", f"{most}{plan.total_network_evaluations:,}"),
        *((f"  {name}", f"{count:,}") for name, count in plan.network_evaluations.items() if count),
        (
            "Training cost",
            f"{most}{plan.training_cost:,}  (trained evaluations {plan.trained_times}; evaluation and gate left out)",
        ),
    ]
    if plan.flops is not None and plan.run_flops is not None:
        rows += [
            ("FLOPs, of the network alone", f"{most}{plan.run_flops:.3g}"),
            ("  of an iteration", f"{most}{plan.flops * plan.iteration_cost:.3g}"),
            ("  of an evaluation, forward", f"{plan.flops:.3g}"),
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
        rows += [
            (f"Scorers on {device}", size_text(size)) for device, size in memory.scorers.items() if device != "cpu"
        ]
        rows += _host_rows(memory, plan.world_size)
    rows += more
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([f"{name:<{width}}{value}".rstrip() for name, value in rows] + [*plan.notes, *notes])


def _host_rows(memory: Memory, world_size: int) -> list[tuple[str, str]]:
    """Return rows of `plan_text` on the computer's memory."""
    host, processes = memory.host, processes_here(world_size)
    largest = max(host.passing, key=lambda name: host.passing[name])
    rows = [("Computer's memory, per process (rough)", size_text(host.each))]
    rows += [(f"  {name}", size_text(size)) for name, size in host.kept.items() if size]
    if host.passing[largest]:
        rows.append((f"  passing, most in {largest}", size_text(host.passing[largest])))
    if processes > 1:
        rows.append((f"  of {processes} processes on a machine", size_text(processes * host.each)))
    if host.mapped:
        rows.append(("  beside it, files mapped once a machine", size_text(host.mapped)))
    return [*rows, ("  with the model on the CPU too", size_text(memory.needed("cpu")))]


def size_text(size: int) -> str:
    """Return bytes in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
