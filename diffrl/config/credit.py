"""How rewards become advantages, and the objectives that they drive."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from diffrl.config.base import Section, problems, show


class TurningPointSettings(Section):
    """How turning points are found (TP-GRPO). No effect on other rewards."""

    constraint: bool = Field(True, description="Ask that the path goes on in the direction of the turn.")
    balance: bool = Field(True, description="Keep as many turns for the better as for the worse.")


class DepthPruning(Section):
    """A window of stochastic steps is not trained; it moves on with the training iterations."""

    start: int = Field(0, ge=0, description="First step left out, among the stochastic steps, counted from 0.")
    size: int = Field(ge=1, description="Stochastic steps left out.")
    slide_every: int | None = Field(
        None, ge=1, le=1_000_000_000, description="Iterations after which it moves on. null = it stays."
    )


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
                [
                    "credit.prune.best goes with credit.prune.width: extremes. Got "
                    f"best={show(self.best)}, width={show(self.width)}. Give both or neither."
                ]
            )
        return self


class CreditSettings(Section):
    """How rewards of samples become advantages of steps."""

    reward: Literal["outcome", "fused", "incremental", "turning_point"] = Field(
        "outcome",
        description="outcome = each step gets the advantage of its samples; fused = the value of the node it leads to; "
        "incremental = what it adds to the value; turning_point = that, with the long-term reward at turns.",
    )
    value: Literal["leaves", "ode", "predicted_x0"] = Field(
        "leaves",
        description="Worth of a node, for incremental and turning_point: leaves = its samples' rewards; ode = that "
        "of its deterministic completion; predicted_x0 = of the picture predicted there.",
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
        "sum",
        description="Several rewards: weighted sum, or each normalised in its group first (GDPO).",
    )
    baseline: Literal["mean", "median"] = Field(
        "mean", description="What is subtracted; with median an odd group's middle sample trains nothing."
    )
    std: Literal["group", "batch"] = Field("group", description="Divide by the group's or the iteration's spread.")
    clamp: float = Field(
        5.0, ge=1.0e-3, le=1.0e6, description="Advantages are cut to [-clamp, clamp], in standard deviations."
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
        found = []
        stepwise = self.reward in ("incremental", "turning_point")
        if self.reward == "outcome" and self.normalise != "group":
            found.append(
                "credit.normalise must be group with credit.reward: outcome, whose advantages belong to whole samples. "
                f"Got {show(self.normalise)}. Set normalise: group or reward: fused."
            )
        if self.value != "leaves" and not stepwise:
            found.append(
                "credit.value must be leaves unless credit.reward is incremental or turning_point, which alone look at "
                f"it. Got value={show(self.value)}, reward={show(self.reward)}. Change one of them."
            )
        if self.std == "batch" and self.reward != "outcome":
            found.append(
                "credit.std must be group unless credit.reward is outcome. "
                f"Got std=batch, reward={show(self.reward)}. Set std: group."
            )
        if self.combine == "gdpo" and (self.reward != "outcome" or self.std != "group" or self.baseline != "mean"):
            found.append(
                "credit.combine: gdpo gives whole samples finished advantages: it goes with credit.reward: outcome, "
                f"std: group and baseline: mean. Got reward={show(self.reward)}, std={show(self.std)}, "
                f"baseline={show(self.baseline)}. Change them or set combine: sum."
            )
        if self.fusion == "uniform" and self.beta != 1.0:
            found.append(
                "credit.beta must be left at 1.0 with credit.fusion: uniform, where it has no effect. "
                f"Got {show(self.beta)}. Set fusion: path_probability or remove beta."
            )
        if self.baseline == "median" and self.normalise == "siblings":
            found.append(
                "credit.baseline must be mean with credit.normalise: siblings, which compares with the parent. "
                "Got median. Set baseline: mean."
            )
        if found:
            raise problems(found)
        return self


class EdgeLoss(Section):
    """The part of an nft objective that trains stochastic steps by GRPO."""

    weight: float = Field(1.0, ge=1.0e-6, le=1.0e6, description="Factor of its mean loss beside the mean NFT loss.")
    clip: float = Field(1.0e-3, ge=1.0e-6, lt=1, description="The ratio counts within [1 - clip, 1 + clip].")
    clip_high: float | None = Field(
        None, ge=1.0e-6, le=1.0e6, description="Upper range on its own. null = the same as clip."
    )

    @property
    def clips(self) -> tuple[float, float]:
        """Below and above 1."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high


class LossSettings(NamedTuple):
    """One of the losses that an update adds up: a registered objective, the factor of its mean, its options."""

    kind: str
    weight: float
    options: dict[str, Any]


class ObjectiveSettings(Section):
    """What the rest of the program asks of an objective's section."""

    @property
    def losses(self) -> list[LossSettings]:
        """What an update adds up."""
        raise NotImplementedError

    @property
    def trains_steps(self) -> bool:
        """Whether stochastic steps train, by their densities."""
        return False

    @property
    def trains_samples(self) -> bool:
        """Whether finished samples train."""
        return False

    @property
    def trains_nodes(self) -> bool:
        """Whether the nodes that split train, on what lies below them."""
        return False

    @property
    def steps_are_pulled(self) -> bool:
        """Whether a reference pulls at every stochastic step that trains, credited or not."""
        return False

    @property
    def levels_per_sample(self) -> int:
        """Noise levels at which each finished sample trains, one network evaluation each."""
        return 0

    @property
    def lags(self) -> bool:
        """Whether the policy that draws the samples is kept apart from the trained one."""
        return False

    def old_decay(self, updates: int) -> float:
        """How much of itself the policy that draws keeps after so many updates; 0 = it is the newest."""
        return 0.0

    @property
    def clips(self) -> tuple[float, float] | None:
        """How far below and above 1 the ratio of a step counts; None without steps."""
        return None


class GrpoSettings(ObjectiveSettings):
    """Clipped surrogate on log-probs averaged over latent dimensions, hence the small clip."""

    kind: Literal["grpo"] = Field(description="Group-relative policy optimisation on denoising steps.")
    clip: float = Field(1.0e-3, ge=1.0e-6, lt=1, description="The ratio counts within [1 - clip, 1 + clip].")
    clip_high: float | None = Field(
        None,
        ge=1.0e-6,
        le=1.0e6,
        description="Upper range on its own: 1 + clip_high (DAPO's clip-higher). null = the same as clip.",
    )
    kl: float = Field(
        0.0,
        ge=0,
        le=1.0e6,
        description="Weight of the distance to the starting model; above 0 each edge costs one more evaluation.",
    )
    kl_form: Literal["velocity", "mean"] = Field(
        "velocity",
        description="Distance: velocity = mean |v - v_ref|^2; mean = squared difference of step means / (2 std^2).",
    )

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.kl == 0 and self.kl_form != "velocity":
            raise problems(
                [
                    "objective.kl_form must be left at velocity while objective.kl is 0, where it has no effect. "
                    f"Got {show(self.kl_form)}. Set kl above 0 or remove kl_form."
                ]
            )
        return self

    @property
    def losses(self) -> list[LossSettings]:
        """One, of edges."""
        low, high = self.clips
        return [LossSettings("grpo", 1.0, {"clip_low": low, "clip_high": high, "kl": self.kl, "kl_form": self.kl_form})]

    @property
    def trains_steps(self) -> bool:
        """Always."""
        return True

    @property
    def steps_are_pulled(self) -> bool:
        """With a reference."""
        return self.kl > 0

    @property
    def clips(self) -> tuple[float, float]:
        """Below and above 1."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high


class NftSettings(ObjectiveSettings):
    """DiffusionNFT: contrast on noised samples, in which neither a path nor a density is needed."""

    kind: Literal["nft"] = Field(description="DiffusionNFT, arXiv 2509.16117.")
    beta: float = Field(
        1.0, ge=1.0e-6, le=1.0e6, description="How far the two contrasted velocities lie from the old one."
    )
    kl: float = Field(
        1.0e-4,
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2; above 0 each example costs one more evaluation.",
    )
    levels: int = Field(1, ge=1, le=1000, description="Noise levels at which each sample is trained.")
    old_slope: float = Field(
        0.001,
        ge=0,
        le=1,
        description="After an iteration the old policy keeps min(old_slope * updates, old_limit).",
    )
    old_limit: float = Field(0.5, ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy.")
    edges: EdgeLoss | None = Field(None, description="Train the stochastic steps too. null = no.")

    @property
    def losses(self) -> list[LossSettings]:
        """Of finished samples, and of edges if asked for."""
        nft = LossSettings("nft", 1.0, {"beta": self.beta, "kl": self.kl, "levels": self.levels})
        if self.edges is None:
            return [nft]
        low, high = self.edges.clips
        return [nft, LossSettings("grpo", self.edges.weight, {"clip_low": low, "clip_high": high})]

    @property
    def trains_steps(self) -> bool:
        """If asked for."""
        return self.edges is not None

    @property
    def trains_samples(self) -> bool:
        """Always."""
        return True

    @property
    def levels_per_sample(self) -> int:
        """As configured."""
        return self.levels

    @property
    def lags(self) -> bool:
        """Unless it is always the newest."""
        return self.old_limit > 0

    def old_decay(self, updates: int) -> float:
        """DiffusionNFT's rise, arXiv 2509.16117."""
        return min(self.old_slope * updates, self.old_limit)

    @property
    def clips(self) -> tuple[float, float] | None:
        """Those of the steps."""
        return None if self.edges is None else self.edges.clips


class TiltSettings(ObjectiveSettings):
    """Tree tilt: the clean prediction at each split moves along the covariance of reward and sample below it."""

    kind: Literal["tilt"] = Field(description="Covariance of advantage and sample below each split.")
    kl: float = Field(
        0.0,
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2 at the splits; above 0 each costs one more evaluation.",
    )

    @property
    def losses(self) -> list[LossSettings]:
        """One, of nodes."""
        return [LossSettings("tilt", 1.0, {"kl": self.kl})]

    @property
    def trains_nodes(self) -> bool:
        """Always."""
        return True


Objective = GrpoSettings | NftSettings | TiltSettings
