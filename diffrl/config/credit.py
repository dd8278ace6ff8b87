"""How rewards of samples become advantages of steps, and which of them train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from diffrl.credit.rules import OWN, reward_rule, rules_that
from diffrl.functional.steps import stochastic_steps
from diffrl.registry import CREDIT_RULES
from diffrl.sections import MOST_STEPS, Known, Section, problems, show


class TurningPointSettings(Section):
    """How turning points are found (TP-GRPO). No effect on other rewards."""

    constraint: bool = Field(True, description="Ask that the path goes on in the direction of the turn.")
    balance: bool = Field(True, description="Keep as many turns for the better as for the worse.")


class DepthPruning(Section):
    """A window of stochastic steps is not trained; it moves on with the training iterations."""

    start: int = Field(
        0, ge=0, le=MOST_STEPS, description="First step left out, among the stochastic steps, counted from 0."
    )
    size: int = Field(ge=1, le=MOST_STEPS, description="Stochastic steps left out.")
    slide_every: int | None = Field(
        None, ge=1, le=1_000_000_000, description="Iterations after which it moves on. null = it stays."
    )

    def steps_at(self, iteration: int, stochastic: Sequence[int]) -> tuple[int, ...]:
        """Return which of an iteration's stochastic steps, in ascending order, are left out."""
        window = stochastic_steps("window", len(stochastic) + 1, iteration, (), self.start, self.size, self.slide_every)
        return tuple(stochastic[i] for i in window)


class PruneSettings(Section):
    """BranchGRPO's pruning: of gradients only, the samples stay as they are."""

    width: Literal["parent_top1", "extremes"] | None = Field(
        None,
        description="parent_top1 = of each last split the better child; extremes = the paths of the best and the worst "
        "samples of each prompt. null = all.",
    )
    best: int | None = Field(None, ge=1, le=100_000, description="With extremes: samples kept at either end.")
    depth: DepthPruning | None = Field(None, description="Steps that are not trained. null = none.")

    @model_validator(mode="after")
    def _best_goes_with_extremes(self) -> Self:
        if (self.best is not None) != (self.width == "extremes"):
            raise problems(
                "credit.prune.best goes with credit.prune.width: extremes. Got "
                f"best={show(self.best)}, width={show(self.width)}. Give both or neither."
            )
        return self


class CreditSettings(Section):
    """How rewards of samples become advantages of steps."""

    reward: Annotated[str, Known("credit.reward", CREDIT_RULES, arguments=("scored",))] = Field(
        "outcome",
        description="; ".join(f"{name} = {reward_rule(name).help}" for name in CREDIT_RULES) + f"; or {OWN.help}.",
    )
    value: Literal["leaves", "ode", "predicted_x0"] = Field(
        "leaves",
        description="Worth of a node, for incremental, turning_point and rules of your own: "
        "leaves = its samples' rewards; ode = that of its deterministic completion; predicted_x0 = of the image "
        "predicted there.",
    )
    fusion: Literal["uniform", "path_probability"] = Field(
        "uniform", description="How samples weigh in a value: all the same, or by the probability of their path."
    )
    beta: float = Field(
        1.0,
        ge=0,
        le=1.0e6,
        description="With path_probability: weight softmax(beta * sum of dimension-averaged log-probs).",
    )
    turning_points: TurningPointSettings = TurningPointSettings()
    normalise: Literal["group", "depth", "siblings"] = Field(
        "group",
        description="group = compare with the same prompt's others; depth = with those of the same step; siblings = "
        "with the parent, in units of the step's spread.",
    )
    combine: Literal["sum", "gdpo"] = Field(
        "sum", description="Several rewards: weighted sum, or each normalised in its group first (GDPO)."
    )
    baseline: Literal["mean", "median"] = Field(
        "mean", description="What is subtracted; with median an odd group's middle sample trains nothing."
    )
    std: Literal["group", "batch", "mad"] = Field(
        "group",
        description="Divide by a standard deviation, the group's or the iteration's; mad = by the group's median "
        "absolute deviation, with baseline: median (MC-GRPO). It is 0 where more than half are equal: such a group "
        "trains nothing and counts as without spread.",
    )
    clamp: float = Field(
        5.0, ge=1.0e-3, le=1.0e6, description="Advantages are cut to [-clamp, clamp], in units of what std names."
    )
    minimum_samples: int = Field(
        2,
        ge=2,
        le=100_000,
        description="Groups with fewer scored samples are left out of the update, counted, and said so.",
    )
    prune: PruneSettings = PruneSettings()

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        faults = []
        rule = reward_rule(self.reward)
        if rule.of_samples and self.normalise != "group":
            faults.append(
                f"credit.normalise must be group with credit.reward: {self.reward}, whose advantages belong to whole "
                f"samples. Got {show(self.normalise)}. Set normalise: group or reward: fused."
            )
        if self.value != "leaves" and not rule.by_value:
            faults.append(
                f"credit.value must be leaves unless credit.reward is {rules_that('by_value')}, or a rule of your own, "
                f"which alone look at it. Got value={show(self.value)}, reward={show(self.reward)}. Change one of them."
            )
        if self.std == "batch" and not rule.of_samples:
            faults.append(
                "credit.std must be group or mad unless credit.reward is outcome. "
                f"Got std=batch, reward={show(self.reward)}. Set std: group."
            )
        if self.std == "mad" and self.baseline != "median":
            faults.append(
                "credit.std: mad goes with credit.baseline: median, from which it is measured. "
                f"Got baseline={show(self.baseline)}. Set baseline: median or std: group."
            )
        if self.combine == "gdpo" and (not rule.of_samples or self.std != "group" or self.baseline != "mean"):
            faults.append(
                "credit.combine: gdpo gives whole samples finished advantages: it goes with credit.reward: outcome, "
                f"std: group and baseline: mean. Got reward={show(self.reward)}, std={show(self.std)}, "
                f"baseline={show(self.baseline)}. Change them or set combine: sum."
            )
        if self.fusion == "uniform" and self.beta != 1.0:
            faults.append(
                "credit.beta must be left at 1.0 with credit.fusion: uniform, where it has no effect. "
                f"Got {show(self.beta)}. Set fusion: path_probability or remove beta."
            )
        if self.baseline == "median" and self.normalise == "siblings":
            faults.append(
                "credit.baseline must be mean with credit.normalise: siblings, which compares with the parent. "
                "Got median. Set baseline: mean."
            )
        if faults:
            raise problems(faults)
        return self
