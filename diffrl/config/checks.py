"""Rules between sections of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from diffrl.config.credit import CreditSettings
from diffrl.config.explore import SOL_RL
from diffrl.config.method import GuardSettings, TrainSettings
from diffrl.config.objective import ObjectiveSettings
from diffrl.config.phases import phases
from diffrl.config.rewards import Rewards, RewardSettings
from diffrl.config.rollout import NoSteps, RolloutSettings
from diffrl.credit.rules import reward_rule
from diffrl.functional.steps import least_steps
from diffrl.functional.tree_counts import origins_per_tree, trained_nodes
from diffrl.sections import show


def _enough_to_train(rollout: RolloutSettings, train: TrainSettings, objective: ObjectiveSettings) -> str | None:
    counts = {}
    if objective.visits:
        counts["its samples"] = rollout.samples
    elif objective.trains_samples:
        counts["a prompt's samples * objective.levels"] = rollout.samples * objective.levels_per_sample
    if objective.trains_steps:
        branchings = [rollout.branching_at(i) for i in rollout.window_places]
        origins = min(sum(origins_per_tree(branching).values()) for branching in branchings)
        if rollout.explore is not None:  # the chosen samples may share all but their last step
            origins = min(map(len, branchings))
        counts["the nodes that stochastic steps start from"] = origins * (1 if rollout.explore else rollout.tree.roots)
    if objective.trains_nodes:
        nodes = _split_nodes(rollout)
        sure = nodes if rollout.explore is None else min(1, nodes)  # what is chosen may all lie below one of them
        counts["the nodes that split and are kept"] = trained_nodes(objective.nodes_kept, sure)
    if not counts or min(counts.values()) == 0:  # the latter has a sentence of its own
        return None
    what, examples = min(counts.items(), key=lambda count: count[1])
    if train.updates_per_iteration <= examples:
        return None
    return (
        f"train.updates_per_iteration must be <= what one prompt has to train on, {what}. Got "
        f"updates_per_iteration={train.updates_per_iteration}, with {examples} of them. Lower updates_per_iteration or "
        "add roots."
    )


def _groups_train_whole(train: TrainSettings, objective: ObjectiveSettings) -> str | None:
    if not objective.whole_groups or train.updates_per_iteration <= objective.levels_per_sample:
        return None
    return (
        f"train.updates_per_iteration must be <= objective.levels with objective.kind: {objective.kind}, of which an "
        f"update trains whole groups, a noise level at least. Got {train.updates_per_iteration}, with levels="
        f"{objective.levels_per_sample}. Lower updates_per_iteration or add levels."
    )


def _something_stochastic(rollout: RolloutSettings, objective: ObjectiveSettings) -> str | None:
    if not isinstance(rollout.stochastic, NoSteps):
        return None
    if objective.trains_steps and objective.steps_key is None:
        return (
            f"rollout.stochastic.kind must not be none with objective.kind: {objective.kind}, which trains stochastic "
            "steps. Got none. Choose all, window or splits, or objective.kind: nft."
        )
    if objective.trains_steps:
        return (
            f"{objective.steps_key} must be null with rollout.stochastic.kind: none: there are no stochastic steps to "
            "train. Remove it, or add splits."
        )
    return None


def _visits_are_of_chains(rollout: RolloutSettings, objective: ObjectiveSettings) -> str | None:
    if not objective.visits:
        return None
    if not isinstance(rollout.stochastic, NoSteps):
        return (
            f"rollout.stochastic.kind must be none with objective.kind: {objective.kind}, which trains at the states "
            f"of independent chains without noise. Got {rollout.stochastic.kind}. Set it to none, or use "
            "objective.kind: tilt."
        )
    if rollout.draw is not None:
        return (
            f"rollout.draw must be null with objective.kind: {objective.kind}, whose targets are the trained policy's "
            f"own predictions as it draws. Got precision={rollout.draw.precision}. Remove rollout.draw, or use "
            "objective.kind: tilt."
        )
    if objective.visits > rollout.steps:
        return (
            f"objective.levels must be <= rollout.steps with objective.kind: {objective.kind}, which trains at a "
            f"rollout's own steps. Got levels={objective.visits}, steps={rollout.steps}. Lower levels."
        )
    return None


def _groups_can_be_full(rollout: RolloutSettings, credit: CreditSettings) -> str | None:
    if credit.minimum_samples <= rollout.samples:
        return None
    return (
        "credit.minimum_samples must be <= the samples of a prompt, or no group could ever train. Got "
        f"minimum_samples={credit.minimum_samples}, samples={rollout.samples}. Lower minimum_samples or "
        f"{'add roots' if rollout.explore is None else 'raise rollout.explore.keep'}."
    )


def _credit_has_its_tree(rollout: RolloutSettings, credit: CreditSettings) -> str | None:
    chains, rule = not rollout.tree.splits, reward_rule(credit.reward)
    if chains and rule.needs_splits:
        return (
            f"credit.reward must not be {credit.reward} without rollout.tree.splits: a chain has one reward to fuse. "
            "Set outcome, or add splits."
        )
    if chains and rule.differences and credit.value == "leaves":
        return (
            "credit.value must be ode or predicted_x0 for steps of chains: with leaves every node of a chain is worth "
            f"the same and nothing would train. Got value=leaves, reward={show(credit.reward)}. Set value: ode, or add "
            "splits."
        )
    if chains and credit.normalise == "siblings":
        return (
            "credit.normalise must be group or depth without rollout.tree.splits: a chain's steps have no siblings. "
            "Got siblings. Set depth, or add splits."
        )
    if chains and credit.prune.width == "parent_top1":
        return "credit.prune.width: parent_top1 needs rollout.tree.splits. Got splits=[]. Add splits or remove the key."
    return None


def _splits_train(rollout: RolloutSettings, credit: CreditSettings, objective: ObjectiveSettings) -> str | None:
    if not objective.trains_nodes:
        return None
    if not rollout.tree.splits:
        return (
            "rollout.tree.splits must not be empty with objective.kind: tilt, which trains the nodes that split. "
            "Got []. Add splits, such as [0, 2], or choose another objective."
        )
    for key, value, needed in (
        ("credit.reward", credit.reward, "outcome"),
        ("credit.fusion", credit.fusion, "uniform"),
        ("credit.baseline", credit.baseline, "mean"),
    ):
        if value != needed:
            return (
                f"{key} must be {needed} with objective.kind: tilt, which compares finished samples below each split. "
                f"Got {show(value)}. Set it to {needed}."
            )
    return None


def _split_nodes(rollout: RolloutSettings) -> int:
    """Return a prompt's nodes that split, at all of its trees' splits."""
    starts = rollout.starts_at(0)
    return sum(starts[step] for step in rollout.tree.splits)


def _enough_nodes(rollout: RolloutSettings, objective: ObjectiveSettings) -> str | None:
    keep, nodes = objective.nodes_kept, _split_nodes(rollout)
    if not isinstance(keep, int) or not nodes or keep <= nodes:
        return None
    return (
        "objective.nodes.keep must be <= the nodes of a prompt that split, those of all its trees at all of "
        f"rollout.tree.splits, or a share of them below 1. Got keep={keep}, with {nodes} of them. Lower keep, or set "
        "objective.nodes: null to train all."
    )


def _siblings_differ(rollout: RolloutSettings, credit: CreditSettings, objective: ObjectiveSettings) -> str | None:
    if not objective.trains_nodes:
        return None
    if rollout.tree.correlation == 0:
        return (
            "rollout.tree.correlation must be above 0 with objective.kind: tilt: equal siblings leave nothing to "
            "compare. Got 0. Raise it, or set null for independent siblings."
        )
    if credit.prune.width == "parent_top1":
        return (
            "credit.prune.width must not be parent_top1 with objective.kind: tilt: it leaves one child at every last "
            "split, and nothing to compare. Got parent_top1. Set extremes or null."
        )
    depth = credit.prune.depth
    if depth is not None and depth.size >= len(rollout.tree.splits):
        return (
            "credit.prune.depth.size must be < the number of rollout.tree.splits with objective.kind: tilt, which "
            f"trains the nodes that split. Got size={depth.size}, splits={show(list(rollout.tree.splits))}. Lower size."
        )
    return None


def _credit_is_used(rollout: RolloutSettings, credit: CreditSettings, objective: ObjectiveSettings) -> str | None:
    if objective.trains_steps or objective.trains_nodes:
        return None
    if credit.reward == "outcome" and credit.prune.width is None and credit.prune.depth is None:
        return None
    edges, instead = "", ", or choose another objective"
    if key := objective.steps_key:
        edges, instead = f" and no {key}", f", or add {key}"
    return (
        f"credit.reward must be outcome, and credit.prune empty, with objective.kind: {objective.kind}{edges}: it "
        f"trains whole samples, not steps. Got reward={show(credit.reward)}. Set them so{instead}."
    )


def _pruning_fits(rollout: RolloutSettings, credit: CreditSettings) -> str | None:
    depth = credit.prune.depth
    if depth is None:
        return None
    steps = min(len(rollout.steps_at(i)) for i in rollout.window_places)
    if depth.start + depth.size <= steps and depth.size < steps:
        splits, differences = rollout.tree.splits, reward_rule(credit.reward).differences and credit.value == "leaves"
        left = [depth.steps_at(i, rollout.steps_at(i)) for i in rollout.window_places]
        if depth.slide_every or not differences or not all(set(splits) <= set(window) for window in left):
            return None
        return (
            f"credit.prune.depth must leave a split to train: with credit.reward: {credit.reward} and value: leaves no "
            f"other step is credited. Got start={depth.start}, size={depth.size}, which leave out all of the splits "
            f"{show(list(splits))}. Lower size, or set slide_every."
        )
    return (
        "credit.prune.depth.start + size must be <= the stochastic steps, and size less than all of them. Got "
        f"start={depth.start}, size={depth.size}, stochastic steps={steps}. Lower start or size."
    )


def _guidance_is_of_the_loss(model: Any, objective: ObjectiveSettings) -> str | None:
    guidance = objective.sample_guidance
    if guidance is None or guidance == 1 or model.facts.guidance == "classifier_free":
        return None
    return (
        f"objective.guidance must be left at 1 with the family {model.family}, whose guidance is an input of the "
        f"network: it is rollout.guidance_scale in the loss too. Got {show(guidance)}. Remove it."
    )


def _gdpo_has_several(credit: CreditSettings, rewards: Rewards) -> str | None:
    if credit.combine == "sum" or len([reward for reward in rewards if reward.weight != 0]) > 1:
        return None
    return "credit.combine must be sum with a single weighted reward. Got gdpo. Add rewards or set sum."


def _coarse_grid_holds_the_noise(rollout: RolloutSettings) -> str | None:
    e = rollout.explore
    if e is None or e.steps is None:
        return None
    least = max(least_steps(rollout.steps_at(i), rollout.steps) for i in rollout.window_places)
    if e.steps >= least:
        return None
    return (
        "rollout.explore.steps must leave every stochastic step as it is, or noise would enter at another place. Got "
        f"explore.steps={e.steps}, at least {least} are needed. Raise it, or make fewer steps stochastic."
    )


def _copy_has_a_whole_base(model: Any, rollout: RolloutSettings) -> str | None:
    if model.base_precision is None or rollout.policy_copy is None:
        return None
    key, precision = rollout.policy_copy_key, rollout.policy_copy.precision
    must = f"{key} must be null" if rollout.draw is not None else f"{key}.precision must be training"
    return (
        f"{must} with model.base_precision: a second copy of the weights would undo the saving. Got "
        f"precision={precision}, base_precision={model.base_precision}. Change either."
    )


def _drawn_needs_no_density(rollout: RolloutSettings, objective: ObjectiveSettings) -> str | None:
    if rollout.draw is None or not objective.needs_densities:
        return None
    return (
        f"rollout.draw must be null with objective.kind: {objective.kind}, whose ratio needs the density of the "
        f"trained policy, and a copy would draw the steps. Got precision={rollout.draw.precision}. Use "
        "rollout.explore, which draws what trains again in the training precision, or an objective without a ratio, "
        "such as tilt."
    )


def _explorers_draw_what_trains(
    rollout: RolloutSettings, objective: ObjectiveSettings, credit: CreditSettings, model: Any, train: TrainSettings
) -> str | None:
    if rollout.explorers is None:
        return None
    without = {
        f"objective.kind: {objective.kind}, which trains on the states of chains": objective.visits > 0,
        f"credit.value: {credit.value}, for which this process makes further images": credit.value != "leaves",
        f"model.family: {model.family}, whose images to edit only this process has": model.facts.edits,
        f"train.sharding: {train.sharding}, where no process holds all weights to send": train.sharding != "none",
    }
    for what, wrong in without.items():
        if wrong:
            return f"rollout.explorers must be null with {what}. Got both. Change either."
    if rollout.explorers.overlap and objective.needs_densities:
        return (
            f"rollout.explorers.overlap must be false with objective.kind: {objective.kind}, whose ratio needs samples "
            "of the weights that train. Got true. Set it to false, or use an objective without a ratio, such as tilt."
        )
    return None


def _layers_are_published(model: Any, rollout: RolloutSettings) -> str | None:
    e = rollout.policy_copy
    if e is None or e.exclude is None or SOL_RL not in e.exclude or model.facts.sol_rl_exclude:
        return None
    return (
        f"{rollout.policy_copy_key}.exclude: [{SOL_RL}] must have a model whose layers Sol-RL's code lists. Got "
        f"model.family {model.family}, for which it has no list. Set exclude: null, or name layers."
    )


def _sharding_fits(model: Any, train: TrainSettings) -> str | None:
    if train.sharding == "none":
        return None
    idle = {"model.base_precision": model.base_precision, "model.compile": model.compile or None}
    for key, value in idle.items():
        if value is not None:
            return (
                f"train.sharding must be none with {key}: FSDP2 splits plain weights and wraps the blocks itself. Got "
                f"sharding=fsdp, {key}={show(value)}. Change either."
            )
    return None


def _warmup_ends(run: Any, train: TrainSettings) -> str | None:
    updates = run.iterations * train.updates_per_iteration
    if train.warmup_updates < updates:
        return None
    return (
        "train.warmup_updates must be < the run's updates, run.iterations * train.updates_per_iteration. Got "
        f"warmup_updates={train.warmup_updates}, iterations={run.iterations}, "
        f"updates_per_iteration={train.updates_per_iteration}. Lower warmup_updates or add iterations."
    )


def _some_reward_counts(run: Any, rewards: Rewards, objective: ObjectiveSettings) -> str | None:
    if objective.trains_pairs:
        return None

    def counts(reward: RewardSettings, iteration: int) -> bool:
        return reward.weight_at(iteration) != 0

    stretches_of = (phases(run.iterations, reward.corners, partial(counts, reward)) for reward in rewards)
    for iteration in sorted({start for stretches in stretches_of for start, _, _ in stretches}):
        if not any(counts(reward, iteration) for reward in rewards):
            return (
                "rewards must leave one with a weight other than 0 in every iteration. Got schedules that are all 0 in "
                f"iteration {iteration}. Change one."
            )
    return None


def _safety_is_measured(settings: Any, guards: GuardSettings) -> str | None:
    names = [reward.key for reward in settings.rewards]
    if guards.safety is None or guards.safety.reward in names:
        return None
    return (
        f"guards.safety.reward must be one of eval.rewards. Got {show(guards.safety.reward)}; eval.rewards has "
        f"{', '.join(names)}. Add it there."
    )


_CHECKS: tuple[tuple[tuple[str, ...], Callable[..., str | None]], ...] = (
    (("rollout", "objective"), _something_stochastic),
    (("rollout", "train", "objective"), _enough_to_train),
    (("train", "objective"), _groups_train_whole),
    (("rollout", "credit"), _groups_can_be_full),
    (("rollout", "credit"), _credit_has_its_tree),
    (("rollout", "credit", "objective"), _splits_train),
    (("rollout", "objective"), _enough_nodes),
    (("rollout", "credit", "objective"), _siblings_differ),
    (("rollout", "credit", "objective"), _credit_is_used),
    (("rollout", "credit"), _pruning_fits),
    (("model", "objective"), _guidance_is_of_the_loss),
    (("credit", "rewards"), _gdpo_has_several),
    (("run", "rewards", "objective"), _some_reward_counts),
    (("rollout",), _coarse_grid_holds_the_noise),
    (("model", "train"), _sharding_fits),
    (("model", "rollout"), _copy_has_a_whole_base),
    (("rollout", "objective"), _drawn_needs_no_density),
    (("rollout", "objective", "credit", "model", "train"), _explorers_draw_what_trains),
    (("rollout", "objective"), _visits_are_of_chains),
    (("model", "rollout"), _layers_are_published),
    (("run", "train"), _warmup_ends),
    (("eval", "guards"), _safety_is_measured),
)


def cross_section_problems(sections: Mapping[str, Any]) -> list[str]:
    """Return problems between sections, of those checks whose sections are all given (the others could not be read).

    The first problem of the stochastic steps hides those that follow from it.
    """
    problems = []
    for names, check in _CHECKS:
        if sections.keys() >= set(names):
            problem = check(*(sections[name] for name in names))
            if problem is not None:
                problems.append(problem)
                if check is _something_stochastic:
                    return problems
    return problems
