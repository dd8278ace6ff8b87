"""What steps earn: one record a rule, with its words, what goes with it and the function itself.

Configuration and pages read the records, so nothing heavy is imported here. A rule is a record in a file and a line in
`registry.CREDIT_RULES`, or a function of the user's own (`credit.own`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffrl.registry import CREDIT_RULES, resolve

if TYPE_CHECKING:
    from diffrl.credit.assign import CreditRule, Scored, StepCredit


@dataclass(frozen=True, kw_only=True)
class RewardRule:
    """One way in which steps earn something.

    Args:
        help: for the configuration, to go on after "NAME = ".
        meaning: a sentence for pages.
        of_samples: whether a step gets its samples' advantages, which are compared as wholes.
        by_value: whether it looks at a node's worth, whatever estimates it; else at samples' rewards alone.
        differences: whether a step earns what it adds to a node's worth: nothing where all are worth the same.
        by_turns: whether it looks for turning points.
        needs_splits: whether it gives nothing on chains.
        earn: from a scored forest and the settings to what steps deserve.
    """

    help: str
    meaning: str
    of_samples: bool
    by_value: bool
    differences: bool
    by_turns: bool
    needs_splits: bool
    earn: Callable[[Scored, CreditRule], StepCredit]


def reward_rule(name: str) -> RewardRule:
    """Return the record of a registered rule; `OWN` for "module:function".

    Raises:
        ConfigError: there is no such rule.
    """
    rule: RewardRule = OWN if ":" in name else resolve("credit.reward", CREDIT_RULES, name)
    return rule


def recorded_rule(name: object) -> RewardRule:
    """Return the record of a rule that a tree names; `OWN` for one that is not registered, or not any more."""
    return reward_rule(str(name)) if name in CREDIT_RULES else OWN


def rules_that(fact: str) -> str:
    """Return the names of the registered rules of which a fact is true, in words."""
    *names, last = (name for name in CREDIT_RULES if getattr(reward_rule(name), fact))
    return " or ".join([", ".join(names), last] if names else [last])


def _outcome(scored: Scored, rule: CreditRule) -> StepCredit:
    from diffrl.credit.assign import StepCredit, at_leaves
    from diffrl.functional.tree_values import fuse

    outcome = at_leaves(scored.forest, scored.outcome, scored.usable)
    return StepCredit(fuse(scored.forest.parent, outcome, scored.leaf_weight))


OUTCOME = RewardRule(
    help="each step gets the advantage of its samples",
    meaning="a step shares the advantages of its images",
    of_samples=True,
    by_value=False,
    differences=False,
    by_turns=False,
    needs_splits=False,
    earn=_outcome,
)


def _fused(scored: Scored, rule: CreditRule) -> StepCredit:
    """Return a step earns the fused value of the node in which it ends (BranchGRPO)."""
    from diffrl.credit.assign import compared

    return compared(scored, rule, scored.fused, scored.fused)


FUSED = RewardRule(
    help="the value of the node it leads to",
    meaning="a step counts as what the node in which it ends is worth",
    of_samples=False,
    by_value=False,
    differences=False,
    by_turns=False,
    needs_splits=True,
    earn=_fused,
)


def _incremental(scored: Scored, rule: CreditRule) -> StepCredit:
    import torch

    from diffrl.credit.assign import compared
    from diffrl.functional.tree_values import step_rewards

    reward = step_rewards(scored.value, scored.forest.parent)
    return compared(scored, rule, reward.where(~scored.adds_nothing, torch.nan))


INCREMENTAL = RewardRule(
    help="what it adds to the value",
    meaning="a step counts as what it adds to the worth of its node",
    of_samples=False,
    by_value=True,
    differences=True,
    by_turns=False,
    needs_splits=False,
    earn=_incremental,
)


def _turning_point(scored: Scored, rule: CreditRule) -> StepCredit:
    """Return the same, but the long-term reward where a path turns (TP-GRPO)."""
    import torch

    from diffrl.credit.assign import compared
    from diffrl.functional.turning_points import find_turning_points

    forest, weight = scored.forest, scored.leaf_weight
    points, turns = find_turning_points(
        values=scored.value,
        leaf_reward=scored.leaf_reward,
        parent=forest.parent,
        constraint=rule.constraint,
        balance=rule.balance,
        leaf_weight=weight,
        group=forest.prompt,
    )
    return compared(scored, rule, points.rewards.where(~scored.adds_nothing, torch.nan))._replace(turns=turns)


TURNING_POINT = RewardRule(
    help="what it adds, but the long-term reward at turns",
    meaning="a step counts as what it adds to the worth of its node, and as the whole way to the end where a path "
    "turns",
    of_samples=False,
    by_value=True,
    differences=True,
    by_turns=True,
    needs_splits=False,
    earn=_turning_point,
)


def _own(scored: Scored, rule: CreditRule) -> StepCredit:
    from diffrl.credit.assign import compared
    from diffrl.credit.own import own_step_rewards

    return compared(scored, rule, own_step_rewards(rule.reward, scored))


OWN = RewardRule(
    help="'module:function' of your own (docs/python.md)",
    meaning="a step counts as what this function of your own says",
    of_samples=False,
    by_value=True,
    differences=False,
    by_turns=False,
    needs_splits=False,
    earn=_own,
)
