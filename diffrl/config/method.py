"""The sections that say how the policy is sampled, rewarded, credited, trained and guarded."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffrl.config.base import ListOf, Section, only, problems, rule, show

CHAINS = "this version trains chains"


class FlowSde(Section):
    """Flow-GRPO's stochastic step, std = noise_level * sqrt(sigma / (1 - sigma)) * sqrt(step length)."""

    kind: Literal["flow_sde"] = Field(description="Flow-GRPO, arXiv 2505.05470.")
    noise_level: float = Field(0.7, gt=0, description="Size of the injected noise; 0.7 in the paper.")


class DanceSde(Section):
    """DanceGRPO's stochastic step, std = eta * sqrt(step length)."""

    kind: Literal["dance_sde"] = Field(description="DanceGRPO, arXiv 2505.07818.")
    eta: float = Field(0.3, gt=0, description="Size of the injected noise, the same at every step; 0.3 in the paper.")


class Cps(Section):
    """Coefficient-preserving sampling, std = next sigma * sin(noise_level * pi / 2)."""

    kind: Literal["cps"] = Field(description="Coefficient-preserving sampling, arXiv 2509.05952.")
    noise_level: float = Field(gt=0, le=1, description="Share of fresh noise in each step's noise, in (0, 1].")


class AllSteps(Section):
    """Every denoising step but the last is stochastic and trained."""

    kind: Literal["all"] = Field(description="Flow-GRPO: every step but the last.")


class Window(Section):
    """Only the steps of a window are stochastic and trained; the others are deterministic."""

    kind: Literal["window"] = Field(description="MixGRPO: a window of steps.")
    start: int = Field(0, ge=0, description="First stochastic step, counted from 0, in the first iteration.")
    size: int = Field(ge=1, description="Number of stochastic steps. start + size must be <= rollout.steps - 1.")
    slide_every: int | None = Field(
        None,
        ge=1,
        description="Training iterations after which the window moves one step on; after the last place where it "
        "fits it goes back to step 0 (MixGRPO). null = it stays.",
    )


class TreeSettings(Section):
    """The paths drawn for one prompt. Without splits these are chains: one path from each root."""

    roots: int = Field(ge=2, description="Initial noises for each prompt; with chains, the samples of a group.")
    branches: Annotated[
        Literal[2], only(2, f"{CHAINS}, where it would have no effect", "Remove the key or set it to 2")
    ] = Field(2, description="Children of a node where the tree splits. No effect without splits.")
    splits: Annotated[ListOf[int], only([], CHAINS, "Remove the splits")] = Field(
        (), max_length=0, description="Steps after which the tree splits. Empty = chains."
    )
    correlation: Annotated[
        float, only(4.0, f"{CHAINS}, where it would have no effect", "Remove the key or set it to 4.0")
    ] = Field(
        4.0, json_schema_extra={"const": 4.0}, description="Noise correlation of siblings. No effect without splits."
    )


class RolloutSettings(Section):
    """How samples are drawn for training."""

    steps: int = Field(ge=2, description="Denoising steps of a sample. The last is always deterministic.")
    guidance_scale: float = Field(
        1.0, ge=1, description="Classifier-free guidance; 1 = none, above 1 every step costs two network evaluations."
    )
    dynamics: Annotated[FlowSde | DanceSde | Cps, Field(discriminator="kind")] = Field(
        description="How a stochastic step draws its noise."
    )
    stochastic: Annotated[AllSteps | Window, Field(discriminator="kind")] = Field(
        AllSteps(kind="all"), description="Which steps are stochastic; these and only these are trained."
    )
    tree: TreeSettings
    explore: Annotated[None, only(None, "this version draws every sample in full precision", "Remove the section")] = (
        Field(None, description="Low-precision search for the samples worth training on. null = off.")
    )
    micro_batch: int = Field(128, ge=1, description="Samples in one network call of the rollout; bounds memory.")
    decode_batch: int = Field(128, ge=1, description="Samples in one call of the picture decoder; bounds memory.")

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        window, trainable = self.stochastic, self.steps - 1
        if not isinstance(window, Window):
            return self
        if window.start + window.size > trainable:
            raise problems(
                [
                    "rollout.stochastic.start + size must be <= rollout.steps - 1, because the last step is always "
                    f"deterministic. Got start={window.start}, size={window.size}, steps={self.steps}. Lower start or "
                    "size, or add steps."
                ]
            )
        if window.slide_every is not None and window.size == trainable:
            raise problems(
                [
                    "rollout.stochastic.slide_every must be null if the window covers every step but the last: there "
                    f"is nowhere to slide. Got slide_every={window.slide_every}, size={window.size}, "
                    f"steps={self.steps}. Remove slide_every or lower size."
                ]
            )
        return self


def _known_scorer(name: str) -> str:
    from reward_models.errors import RewardError
    from reward_models.registry import resolve_scorer

    try:
        resolve_scorer(name)
    except RewardError as error:
        raise rule(f"is not a known reward. {error}") from error
    return name


def _not_zero(scale: float) -> float:
    if scale == 0:
        raise rule("must not be 0: it divides. Got 0. To keep a reward out of the total set its weight to 0.")
    return scale


class RewardSettings(Section):
    """One reward. Its share of the total is weight * (raw - shift) / scale."""

    name: Annotated[str, AfterValidator(_known_scorer)] = Field(
        description="A registered reward, or 'module:Object' of your own."
    )
    weight: float = Field(1.0, description="Factor in the total; negative for a score to be lowered, 0 to only watch.")
    shift: float = Field(0.0, description="Subtracted from the raw score, in the scorer's units.")
    scale: Annotated[float, AfterValidator(_not_zero)] = Field(
        1.0, description="Divides the shifted score, in the scorer's units; not 0."
    )
    options: dict[str, Any] = Field({}, description="Keyword arguments of the scorer.")
    batch_size: int = Field(256, ge=1, description="Samples given to the scorer at once; bounds memory.")


def _distinct_rewards(rewards: tuple[RewardSettings, ...]) -> tuple[RewardSettings, ...]:
    names = [reward.name for reward in rewards]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise rule(f"must name each reward once. Got {show(repeated)} more than once. Add their weights up in one.")
    if rewards and all(reward.weight == 0 for reward in rewards):
        raise rule(f"must have a weight other than 0 somewhere. Got {show(names)}, all 0. Set one weight.")
    return rewards


Rewards = Annotated[ListOf[RewardSettings], Field(min_length=1), AfterValidator(_distinct_rewards)]

_TURNING_POINTS = only(True, "it has no effect with credit.reward: outcome", "Remove the key or set it to true")


class TurningPointSettings(Section):
    """How turning points are found. No effect on outcome rewards, which are all that this version has."""

    constraint: Annotated[Literal[True], _TURNING_POINTS] = Field(
        True, description="Ask that the path goes on in the direction of the turn."
    )
    balance: Annotated[Literal[True], _TURNING_POINTS] = Field(
        True, description="Keep as many turns for the better as for the worse."
    )


class CreditSettings(Section):
    """How rewards of samples become advantages of steps."""

    reward: Literal["outcome"] = Field("outcome", description="outcome = each step gets its sample's reward.")
    value: Literal["leaves"] = Field("leaves", description="Worth of a tree's inner node: its leaves' rewards.")
    fusion: Literal["uniform"] = Field("uniform", description="How leaves weigh in that value: all the same.")
    turning_points: TurningPointSettings = TurningPointSettings()
    normalise: Literal["group"] = Field("group", description="group = compare the samples of one prompt.")
    baseline: Literal["mean", "median"] = Field(
        "mean", description="What is subtracted; with median an odd group's middle sample trains nothing."
    )
    std: Literal["group", "batch"] = Field("group", description="Divide by the group's or the iteration's spread.")
    clamp: float = Field(5.0, gt=0, description="Advantages are cut to [-clamp, clamp], in standard deviations.")
    minimum_samples: int = Field(
        2, ge=2, description="Groups with fewer scored samples are left out of the update, counted, and said so."
    )


class GrpoSettings(Section):
    """Clipped surrogate on log-probs averaged over latent dimensions, hence the small clip."""

    kind: Literal["grpo"] = Field("grpo", description="Group-relative policy optimisation on denoising steps.")
    clip: float = Field(1.0e-3, gt=0, lt=1, description="The ratio counts within [1 - clip, 1 + clip].")
    clip_high: float | None = Field(
        None, gt=0, description="Upper range on its own: 1 + clip_high (DAPO's clip-higher). null = the same as clip."
    )
    kl: float = Field(
        0.0,
        ge=0,
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


class EmaSettings(Section):
    """A moving average of the trained weights; evaluation and export then use it."""

    decay: float = Field(gt=0, lt=1, description="Share of the old average kept at each update, in (0, 1).")


class TrainSettings(Section):
    """The update. Trained weights, gradients and optimiser state are float32 whatever model.dtype is."""

    learning_rate: float = Field(gt=0, description="Peak learning rate.")
    schedule: Literal["constant", "cosine"] = Field("constant", description="Learning rate over the run's updates.")
    warmup_updates: int = Field(0, ge=0, description="Updates of a linear rise, from 1 / warmup_updates of the rate.")
    final_learning_rate: float = Field(
        0.1, ge=0, le=1, description="Where cosine ends, as a fraction of learning_rate. No effect with constant."
    )
    updates_per_iteration: int = Field(
        1, ge=1, description="Optimiser updates into which an iteration's edges are divided; each edge is used once."
    )
    micro_batch: int = Field(128, ge=1, description="Edges in one forward and backward pass; bounds memory.")
    max_grad_norm: float | None = Field(1.0, gt=0, description="Gradients are scaled down to this norm. null = never.")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw", description="adamw_8bit needs CUDA and bitsandbytes, which is checked at the start."
    )
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
                     Field(strict=False)] = Field((0.9, 0.999), description="AdamW's two decay rates.")  # fmt: skip
    epsilon: float = Field(1.0e-8, gt=0, description="AdamW's denominator floor.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay.")
    ema: EmaSettings | None = Field(None, description="Moving average of the trained weights. null = none.")
    gradient_checkpointing: bool = Field(False, description="Compute activations twice: less memory, slower.")

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.schedule == "constant" and self.final_learning_rate != 0.1:
            raise problems(
                [
                    "train.final_learning_rate must be left at 0.1 with train.schedule: constant, where it has no "
                    f"effect. Got {show(self.final_learning_rate)}. Set schedule: cosine or remove it."
                ]
            )
        return self


class CollapsedSpreadGuard(Section):
    """Acts when most groups have equal rewards, so that nothing is left to learn from."""

    action: Literal["warn", "stop"] = Field("warn", description="warn = say so and go on; stop = end the run.")
    fraction: float = Field(0.9, gt=0, le=1, description="Share of an iteration's groups without spread, in (0, 1].")
    patience: int = Field(5, ge=1, description="Iterations in a row before it acts.")


class RatioGuard(Section):
    """Acts when the policy has moved far from the one that drew the samples."""

    action: Literal["warn", "skip", "stop"] = Field(
        "warn", description="skip = leave this update out; stop = end the run."
    )
    limit: float = Field(0.1, gt=0, description="Largest |ratio - 1| over an update's edges.")


class KlGuard(Section):
    """Acts when the estimated divergence from the policy that drew the samples is large."""

    action: Literal["warn", "skip", "stop"] = Field(
        "warn", description="skip = leave this update out; stop = end the run."
    )
    limit: float = Field(1.0e-3, gt=0, description="Mean of ratio - 1 - log(ratio) over an update's edges.")


class FailedSamplesGuard(Section):
    """Stops the run when scoring fails too often to go on."""

    limit: float = Field(0.5, gt=0, le=1, description="Share of an iteration's samples; more failures stop the run.")


class GuardSettings(Section):
    """What happens when something goes wrong. Every action is reported."""

    on_policy_tolerance: float = Field(
        1.0e-5, gt=0, description="Largest |ratio - 1| before the first update; above it the run stops."
    )
    nonfinite_reward: Literal["warn", "skip", "stop"] = Field(
        "warn", description="warn = leave the sample out; skip = leave its group out; stop = end the run."
    )
    nonfinite_loss: Literal["skip", "stop"] = Field("stop", description="skip = leave this update out.")
    nonfinite_gradient: Literal["skip", "stop"] = Field("stop", description="skip = leave this update out.")
    collapsed_spread: CollapsedSpreadGuard = CollapsedSpreadGuard()
    ratio: RatioGuard = RatioGuard()
    kl: KlGuard = KlGuard()
    failed_samples: FailedSamplesGuard = FailedSamplesGuard()
