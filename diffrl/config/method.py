"""The sections that say how the policy is trained and guarded."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from diffrl.sections import LONGEST_TEXT, MOST_ITERATIONS, MOST_SAMPLES, Section, problems, show


class EmaSettings(Section):
    """A moving average of the trained weights; evaluation and export then use it."""

    decay: float = Field(gt=0, lt=1, description="Share of the old average kept at each update, in (0, 1).")


class TrainSettings(Section):
    """The update. Trained weights, gradients and optimiser state are float32 whatever model.dtype is."""

    learning_rate: float = Field(
        ge=1.0e-9, le=1, description="Peak learning rate. Far below 1e-9 no float32 weight would change."
    )
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="Learning rate over the run's updates, after the warm-up."
    )
    warmup_updates: int = Field(
        0, ge=0, le=MOST_ITERATIONS, description="Updates of a linear rise, from 1 / warmup_updates of the rate."
    )
    final_learning_rate: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Where cosine and linear end, as a fraction of learning_rate. No effect with constant.",
    )
    updates_per_iteration: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Optimiser updates that share what an iteration has to train on; each part of it is used once.",
    )
    micro_batch: int = Field(
        128, ge=1, le=MOST_SAMPLES, description="Samples or steps in one forward and backward pass; bounds memory."
    )
    max_grad_norm: float | None = Field(
        1.0, ge=1.0e-6, le=1.0e12, description="Gradients are scaled down to this norm. null = never."
    )
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit keeps its moments in 8 bits and needs bitsandbytes, which is checked at the start. On "
        "a CPU it takes five times as long as adamw.",
    )
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
                     Field(strict=False)] = Field((0.9, 0.999), description="AdamW's two decay rates.")  # fmt: skip
    epsilon: float = Field(1.0e-8, ge=1.0e-16, le=1, description="AdamW's denominator floor.")
    weight_decay: float = Field(0.0, ge=0, le=100, description="AdamW's decoupled weight decay.")
    ema: EmaSettings | None = Field(None, description="Moving average of the trained weights. null = none.")
    gradient_checkpointing: bool = Field(False, description="Compute activations twice: less memory, slower.")
    sharding: Literal["none", "fsdp"] = Field(
        "none",
        description="With several processes: none = each holds the whole transformer (DDP); fsdp = its weights, "
        "gradients and optimiser state are split over them. One process holds everything either way.",
    )

    @model_validator(mode="after")
    def _whole_states(self) -> Self:
        if self.sharding == "fsdp" and self.optimizer == "adamw_8bit":
            raise problems(
                "train.optimizer must be adamw with train.sharding: fsdp: the 8-bit form cannot be split. Got "
                "adamw_8bit. Use adamw, or sharding: none."
            )
        return self

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.schedule == "constant" and self.final_learning_rate != 0.1:
            raise problems(
                "train.final_learning_rate must be left at 0.1 with train.schedule: constant, where it has no "
                f"effect. Got {show(self.final_learning_rate)}. Set schedule: cosine or linear, or remove it."
            )
        return self


class CollapsedSpreadGuard(Section):
    """Acts when most groups have equal rewards, so that nothing is left to learn from."""

    action: Literal["warn", "stop"] = Field("warn", description="warn = say so and go on; stop = end the run.")
    fraction: float = Field(0.9, gt=0, le=1, description="Share of an iteration's groups without spread, in (0, 1].")
    patience: int = Field(5, ge=1, le=1_000_000_000, description="Iterations in a row before it acts.")


class NothingTrainedGuard(Section):
    """Acts on iterations without an update whose gradient is other than 0. Such a whole run ends as if stopped."""

    action: Literal["warn", "stop"] = Field(
        "stop", description="warn = say so at the first in a row and go on; stop = also end the run, after patience."
    )
    patience: int = Field(20, ge=1, le=1_000_000_000, description="Iterations in a row before it stops the run.")


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


class RewardHackingGuard(Section):
    """Watches what training does not reward while its reward rises; looks at every held-out evaluation."""

    action: Literal["off", "warn", "stop"] = Field(
        "warn", description="off = do not even measure; warn = say so and go on; stop = end the run."
    )
    held_out_drop: float = Field(
        0.2,
        gt=0,
        description="Fall of a held-out reward below its best that is an alarm, in standard deviations of its samples; "
        "four standard errors of the difference (over prompts) in any case, because the best of several evaluations "
        "was also lucky.",
    )
    diversity: float = Field(
        0.5, ge=0, lt=1, description="Alarm when the images of a prompt differ by less than this share of the first."
    )
    sharpness: float = Field(
        3.0, gt=1, description="Alarm when images are this many times sharper, or less sharp, than the first ones."
    )
    patience: int = Field(1, ge=1, le=1_000_000_000, description="Evaluations in a row with an alarm before it acts.")


class SafetySettings(Section):
    """Watches held-out images for what must not be in them; guards.reward_hacking says what an alarm does."""

    reward: str = Field(
        "open_nsfw", min_length=1, max_length=LONGEST_TEXT, description="What judges them: one of eval.rewards."
    )
    limit: float = Field(
        0.8,
        ge=-1.0e9,
        le=1.0e9,
        description="Score from which on an image is unsafe: upwards where less of the reward is better, else "
        "downwards. An image without a score counts as unsafe.",
    )
    share: float = Field(0.0, ge=0, lt=1, description="Alarm when more than this share of an evaluation is unsafe.")


class RecoverySettings(Section):
    """Where guards.reward_hacking would act, trains on from the newest healthy checkpoint, at a lower rate."""

    times: int = Field(2, ge=1, le=100, description="How often; afterwards guards.reward_hacking.action follows.")
    rate: float = Field(
        0.5, ge=1.0e-3, le=1, description="Factor of the learning rate each time, from there to the run's end."
    )


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
    memory: Literal["stop", "warn"] = Field(
        "stop",
        description="When the estimate is more than what is free: stop = do not start; warn = say so and try. The "
        "estimate is within a factor of two at best.",
    )
    collapsed_spread: CollapsedSpreadGuard = CollapsedSpreadGuard()
    nothing_trained: NothingTrainedGuard = NothingTrainedGuard()
    ratio: RatioGuard = RatioGuard()
    kl: KlGuard = KlGuard()
    failed_samples: FailedSamplesGuard = FailedSamplesGuard()
    reward_hacking: RewardHackingGuard = RewardHackingGuard()
    safety: SafetySettings | None = Field(
        None, description="Alarm at unsafe held-out images, whose checkpoint is then not healthy. null = nobody looks."
    )
    recover: RecoverySettings | None = Field(
        None,
        description="Back to the newest healthy checkpoint when reward_hacking would act. A checkpoint is also written "
        "before training. null = never.",
    )

    @model_validator(mode="after")
    def _watched(self) -> Self:
        idle = [f"guards.{name}" for name in ("safety", "recover") if getattr(self, name) is not None]
        if idle and self.reward_hacking.action == "off":
            raise problems(
                [
                    f"{name} needs guards.reward_hacking, which looks at evaluations and acts. Got action: off. Set "
                    f"guards.reward_hacking.action: warn, or remove {name}."
                    for name in idle
                ]
            )
        return self
