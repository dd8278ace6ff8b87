"""Rewards of samples to advantages of samples and of the steps that led to them.

What steps earn is a rule of `credit.rules`; a comparison is a function from what steps earn to their advantages, and a
line in `COMPARISONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from diffrl.credit.rules import reward_rule, rules_that
from diffrl.functional.advantages import Comparison, compare, origin_value, population_std
from diffrl.functional.groups import group_table, joint_ids, layout
from diffrl.functional.tree_values import fuse, levels, path_weights, sum_below
from diffrl.functional.turning_points import Turns
from diffrl.records import Credit, CreditDetail, Forest
from diffrl.registry import CREDIT_RULES

NO_TURNS = Turns(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))


@dataclass(frozen=True)
class CreditRule:
    """How rewards become advantages.

    Args:
        reward: what a step is credited with: a name of `registry.CREDIT_RULES`, or "module:function" of the user's own.
        fusion: how samples weigh in a node's value: all the same, or by the probability of their path.
        beta: with `path_probability`, softmax(beta * sum of dimension-averaged log-probs).
        constraint: of turning points, see `turning_point_rewards`.
        balance: likewise.
        normalise: what steps are compared with, one of `COMPARISONS`.
        baseline: mean or median; `siblings` has its own for steps.
        std: spread of what is compared: `group` and `mad` of itself, `batch` of the whole batch's samples. `batch` goes
            with `outcome` alone, `mad` with the median.
        clamp: bound on the size of an advantage.
        minimum: fewest usable samples of a prompt that trains.

    Raises:
        ValueError: an option is unknown, or two of them exclude each other.
    """

    reward: str
    fusion: Literal["uniform", "path_probability"] = "uniform"
    beta: float = 0.0
    constraint: bool = True
    balance: bool = True
    normalise: str = "group"
    baseline: Literal["mean", "median"] = "mean"
    std: Literal["group", "batch", "mad"] = "group"
    clamp: float = 5.0
    minimum: int = 2

    def __post_init__(self) -> None:
        for name, table in {"reward": CREDIT_RULES, "normalise": COMPARISONS}.items():
            if getattr(self, name) not in table and not (name == "reward" and ":" in self.reward):
                raise ValueError(f"{name} must be one of {', '.join(table)}. Got {getattr(self, name)!r}.")
        of_samples = reward_rule(self.reward).of_samples
        if of_samples and self.normalise != "group":
            raise ValueError(f"normalise must be 'group' with reward {self.reward!r}. Got {self.normalise!r}.")
        if not of_samples and self.std == "batch":
            raise ValueError(f"std 'batch' goes with reward 'outcome'. Got it with {self.reward!r}.")
        if self.std == "mad" and (self.baseline != "median" or self.normalise == "siblings"):
            raise ValueError(
                "std 'mad' goes with baseline 'median' and without normalise 'siblings'. "
                f"Got {self.baseline!r} and {self.normalise!r}."
            )
        if self.fusion == "uniform" and self.beta != 0:
            raise ValueError(f"beta must be 0 with fusion 'uniform'. Got {self.beta}.")


class Scored(NamedTuple):
    """What a rule may use of a forest whose samples are scored.

    Args:
        forest: how the samples were drawn.
        usable: (S,) bool, scored and meant to train.
        outcome: (S,) advantages of the samples.
        leaf_reward: (N,) rewards of the usable samples at the nodes that they grow from, NaN elsewhere.
        leaf_weight: (N,) how they weigh in values; None means all the same.
        fused: (N,) weighted mean of the usable rewards below each node.
        values: (N,) value of each node by another estimator; None means `fused`.
    """

    forest: Forest
    usable: Tensor
    outcome: Tensor
    leaf_reward: Tensor
    leaf_weight: Tensor | None
    fused: Tensor
    values: Tensor | None

    @property
    def value(self) -> Tensor:
        """(N,) value of each node by whichever estimator there is."""
        return self.fused if self.values is None else self.values

    @property
    def adds_nothing(self) -> Tensor:
        """(N,) bool, steps that cannot change `value`: it rests on the leaves below, and no sibling leads to any."""
        if self.values is not None:
            return torch.zeros_like(self.forest.parent, dtype=torch.bool)
        return _lone(self.forest, self.usable)


class StepCredit(NamedTuple):
    """What steps deserve, by the nodes in which they end.

    Args:
        advantage: (N,) before what does not train is set to 0.
        reward: (N,) of which the advantages were made; None where they are those of samples.
        compared: with what; None likewise.
        turns: turning points; None where none are looked for.
    """

    advantage: Tensor
    reward: Tensor | None = None
    compared: Comparison | None = None
    turns: Turns | None = None


def with_prompt(reward: Tensor, forest: Forest, centre: Tensor | None, rule: CreditRule) -> Comparison:
    """Return steps compared with all steps of their prompt."""
    return compare(reward, forest.prompt, None, rule.baseline, rule.std, clamp=rule.clamp)


def with_depth(reward: Tensor, forest: Forest, centre: Tensor | None, rule: CreditRule) -> Comparison:
    """Return steps compared with those of their prompt that end at the same step of the grid; see `depth_advantage`."""
    return compare(reward, joint_ids(forest.prompt, forest.step), None, rule.baseline, rule.std, clamp=rule.clamp)


def with_origin(reward: Tensor, forest: Forest, centre: Tensor | None, rule: CreditRule) -> Comparison:
    """Compare steps with the nodes that they leave, in units of the spread at their depth: `sibling_advantage`."""
    groups, start = joint_ids(forest.prompt, forest.step), origin_value(forest.parent, centre)
    return compare(reward, groups, forest.parent >= 0, clamp=rule.clamp, centre=start)


COMPARISONS: Mapping[str, Callable[[Tensor, Forest, Tensor | None, CreditRule], Comparison]] = {
    "group": with_prompt,
    "depth": with_depth,
    "siblings": with_origin,
}
"""What steps are compared with: (N,) what they earn; their forest; (N,) the worth of the nodes that they leave, None
where they earn differences already; the rule."""


def assign_credit(
    forest: Forest,
    reward: Tensor,
    usable: Tensor,
    rule: CreditRule,
    *,
    values: Tensor | None = None,
    log_prob: Tensor | None = None,
    batch: tuple[Tensor, Tensor] | None = None,
    finished: Tensor | None = None,
) -> Credit:
    """Return advantages of a rank's samples and of the steps of their forest.

    A sample's own advantage is GRPO's, from the rewards of its prompt's samples. Those of steps follow the rule; on
    chains, `outcome` gives every step its sample's advantage (Flow-GRPO, arXiv 2505.05470).

    Steps get 0 if no usable sample lies below them, if their prompt is dropped, or if its usable rewards are all equal:
    equal rewards fuse to exactly equal values. But an outside estimator's values may differ on the way to them, so with
    `values` the steps of such a prompt keep their credit, though it counts as without spread and its outcomes are 0.
    With std `mad` a comparison has no spread where more than half of what it compares is equal, samples and steps each
    for themselves; what is counted are groups of samples.

    Args:
        forest: how the samples were drawn.
        reward: (S,) float32, NaN where scoring failed.
        usable: (S,) bool, False for samples that enter nothing: failed, or drawn to check a ranking.
        rule: how.
        values: (N,) value of each node by an estimator other than the samples below it, NaN where it failed. At nodes
            that samples grow from, the samples' rewards replace it, so that step rewards add up to the final reward.
        log_prob: (N,) density of the step that ends in each node, for `path_probability`; ignored at roots.
        batch: rewards and usable, (S_all,) each, of all ranks' samples, for std `batch`; None means that the samples at
            hand are all.
        finished: (S,) advantages of the samples that were normalised already, such as GDPO's; for `outcome` alone.

    Returns:
        Credit. Its values are those that steps were credited by, and the fused ones with `outcome`.

    Raises:
        ValueError: `values` or `log_prob` is given to a rule that has no use for it, or log_prob is missing.
        DiffrlError: a rule of the user's own does not say what each step earns.
    """
    if values is not None and not reward_rule(rule.reward).by_value:
        raise ValueError(f"values go with reward {rules_that('by_value')}. Got them with {rule.reward!r}.")
    if (log_prob is not None) != (rule.fusion == "path_probability"):
        got = "none" if log_prob is None else "one"
        raise ValueError(f"log_prob goes with fusion 'path_probability'. Got {got} with {rule.fusion!r}.")
    usable = usable & reward.isfinite()
    spread = population_std(*(batch or (reward, usable))) if rule.std == "batch" else None
    samples = compare(
        reward,
        forest.sample_prompt,
        usable,
        rule.baseline,
        rule.std,
        clamp=rule.clamp,
        minimum=rule.minimum,
        spread=spread,
    )
    trained = usable & ~_dropped(forest, reward, usable, rule.minimum)
    advantage = samples.group.advantage if finished is None else finished.where(trained, 0.0)

    weight = None if log_prob is None else path_weights(forest.parent, log_prob, rule.beta)
    leaf_reward = at_leaves(forest, reward, usable)
    if values is not None:
        values = values.index_put((forest.leaf,), leaf_reward[forest.leaf].to(values.dtype))
    fused_values = fuse(forest.parent, leaf_reward, weight)
    scored = Scored(
        forest=forest,
        usable=usable,
        outcome=advantage,
        leaf_reward=leaf_reward,
        leaf_weight=weight,
        fused=fused_values,
        values=values,
    )
    steps = reward_rule(rule.reward).earn(scored, rule)

    trains = (forest.parent >= 0) & _on_the_way(forest, trained)
    turning = torch.zeros_like(trains)
    if steps.turns is not None:
        turning[steps.turns.node[steps.turns.kept]] = True
    return Credit(
        advantage=steps.advantage.where(trains, 0.0),
        outcome=advantage,
        used=trained,
        values=scored.value,
        step_reward=torch.full_like(scored.value, torch.nan) if steps.reward is None else steps.reward,
        turning=turning & trains,
        zero_spread_groups=samples.group.zero_spread,
        dropped_groups=samples.group.dropped,
        detail=CreditDetail(
            *_quotient(steps.compared, trains),
            *_quotient(samples if finished is None else None, trained),
            *(steps.turns or NO_TURNS),
        ),
    )


def _quotient(compared: Comparison | None, trains: Tensor) -> tuple[Tensor, Tensor]:
    """Return centre and spread, float32, NaN where nothing was compared or nothing trains."""
    if compared is None:
        absent = torch.full(trains.shape, torch.nan)
        return absent, absent
    return compared.centre.float().where(trains, torch.nan), compared.spread.float().where(trains, torch.nan)


def kept_edges(
    forest: Forest,
    reward: Tensor,
    usable: Tensor,
    *,
    width: Literal["parent_top1", "extremes"] | None = None,
    best: int = 1,
    skipped_steps: Collection[int] = (),
) -> Tensor:
    """Return which steps still train after BranchGRPO's pruning (arXiv 2509.06040), of gradients only.

    `parent_top1` keeps of each parent at the last split the child that is worth most, uniformly fused, the first of
    equals; its siblings go, and all that grows from them (the published code keeps them). Steps before the last split
    stay. `extremes` keeps the paths to the best and the worst samples of each prompt.

    Args:
        forest: how the samples were drawn.
        reward: (S,) float32, NaN where scoring failed.
        usable: (S,) bool.
        width: which branches are left out; None leaves all in.
        best: with `extremes`, samples kept at either end of each prompt; all, where a prompt has fewer than twice that.
        skipped_steps: steps of the grid that are left out at every node.

    Returns:
        (N,) bool, for the step that ends in each node; False at roots.

    Raises:
        ValueError: `best` is below 1.
    """
    if best < 1:
        raise ValueError(f"best must be at least 1. Got {best}.")
    usable = usable & reward.isfinite()
    kept = forest.parent >= 0
    if width == "parent_top1":
        kept &= _below_better_children(forest, fuse(forest.parent, at_leaves(forest, reward, usable)))
    elif width == "extremes":
        kept &= _towards_extremes(forest, reward, usable, best)
    return kept & ~torch.isin(forest.step, forest.step.new_tensor(sorted(skipped_steps)))


def compared(scored: Scored, rule: CreditRule, reward: Tensor, centre: Tensor | None = None) -> StepCredit:
    """Return advantages of steps that earn `reward` (N,); `centre` (N,) is the worth of nodes in the same unit."""
    reward = reward.where(scored.fused.isfinite() & (scored.forest.parent >= 0), torch.nan)
    compared = COMPARISONS[rule.normalise](reward, scored.forest, centre, rule)
    return StepCredit(compared.group.advantage, reward, compared)


def at_leaves(forest: Forest, amount: Tensor, usable: Tensor) -> Tensor:
    """Return (N,) what each usable sample (S,) brings, at the node it grows from; NaN elsewhere."""
    absent = amount.new_full(forest.parent.shape, torch.nan)
    return absent.index_put((forest.leaf,), amount.masked_fill(~usable, torch.nan))


def _lone(forest: Forest, usable: Tensor) -> Tensor:
    """Return (N,) bool, True where no sibling leads to a usable sample: by the leaves such a step adds nothing."""
    alive = _on_the_way(forest, usable) & (forest.parent >= 0)
    children = torch.bincount(forest.parent[alive], minlength=len(forest.parent))
    return alive & (children[forest.parent.clamp_min(0)] == 1)


def _on_the_way(forest: Forest, samples: Tensor) -> Tensor:
    """Return (N,) bool, True for the nodes on the paths to the samples (S,) that are True."""
    ends = torch.zeros_like(forest.parent)
    ends[forest.leaf[samples]] = 1
    return sum_below(forest.parent, ends) > 0


def _dropped(forest: Forest, reward: Tensor, usable: Tensor, minimum: int) -> Tensor:
    """Return (S,) bool, True where too few samples of the sample's prompt are usable."""
    if not len(forest):
        return torch.zeros_like(usable)
    table = group_table(reward, forest.sample_prompt, usable)
    return (table.size < minimum)[table.row]


def _below_better_children(forest: Forest, values: Tensor) -> Tensor:
    """Return (N,) bool, False for the worse children at the last split and for all nodes below them."""
    kept = torch.ones_like(forest.parent, dtype=torch.bool)
    splits = [step for step, children in forest.branching.items() if children > 1]
    if not splits:
        return kept
    nodes = torch.nonzero(forest.step == max(splits)).flatten()
    best_first = torch.argsort(values[nodes].nan_to_num(-torch.inf), descending=True, stable=True)
    kept[nodes[best_first]] = layout(forest.parent[nodes[best_first]])[1] == 0
    for level in levels(forest.parent)[1:]:
        kept[level] &= kept[forest.parent[level]]
    return kept


def _towards_extremes(forest: Forest, reward: Tensor, usable: Tensor, best: int) -> Tensor:
    """Return (N,) bool, True for the nodes on the way to the best and the worst usable samples of each prompt."""
    samples = torch.nonzero(usable).flatten()
    samples = samples[torch.argsort(reward[samples], descending=True, stable=True)]
    prompt = forest.sample_prompt[samples]
    from_best, from_worst = layout(prompt)[1], layout(prompt.flip(0))[1].flip(0)
    chosen = torch.zeros_like(usable)
    chosen[samples[(from_best < best) | (from_worst < best)]] = True
    return _on_the_way(forest, chosen)
