"""The objectives that a policy can be trained by, and what each asks of the rest of the program."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from diffrl.config.base import MOST_GUIDANCE, OWN, Section, kind_of, problems, show
from diffrl.config.objective_base import LossSettings, ObjectiveSettings, PulledSettings
from diffrl.config.own_objective import OwnObjectiveSettings


class EdgeLoss(Section):
    """The part of an nft objective that trains stochastic steps by GRPO."""

    weight: float = Field(1.0, ge=1.0e-6, le=1.0e6, description="Factor of its mean loss beside the mean NFT loss.")
    clip: float = Field(1.0e-3, ge=1.0e-6, lt=1, description="The ratio counts within [1 - clip, 1 + clip].")
    clip_high: float | None = Field(
        None, ge=1.0e-6, le=1.0e6, description="Upper range on its own. null = the same as clip."
    )

    @property
    def clips(self) -> tuple[float, float]:
        """How far below and above 1 the ratio of a step counts."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high


class GrpoSettings(PulledSettings):
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
        """See the base class; one, of edges."""
        low, high = self.clips
        return [LossSettings("grpo", 1.0, {"clip_low": low, "clip_high": high, "kl": self.kl, "kl_form": self.kl_form})]

    @property
    def trains_steps(self) -> bool:
        """See the base class; always so here."""
        return True

    @property
    def steps_are_pulled(self) -> bool:
        """See the base class; only with a reference."""
        return self.kl > 0

    @property
    def clips(self) -> tuple[float, float]:
        """How far below and above 1 the ratio of a step counts."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high


class SampleSettings(ObjectiveSettings):
    """What the objectives have in common that train on finished samples, noised again."""

    kind: str
    kl: float = Field(
        1.0e-4,
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2; above 0 each example costs one more evaluation.",
    )
    levels: int = Field(1, ge=1, le=1000, description="Noise levels at which each sample is trained.")
    noise_range: float = Field(
        1.0, ge=1.0e-3, le=1, description="They lie in [1 - noise_range, 1], where 1 is noise alone; 1 = anywhere."
    )
    guidance: float = Field(
        1.0,
        ge=1,
        le=MOST_GUIDANCE,
        description="Classifier-free guidance of the velocity that trains, and of the old and the reference one beside "
        "it. 1 = the conditional velocity, as published; above 1 is another loss, and each costs two evaluations. "
        "Guidance that is the network's own input (FLUX) is always rollout.guidance_scale; where model.true_cfg_scale "
        "is set, this stands in its place.",
    )
    old_decay_rate: float = Field(
        0.001,
        ge=0,
        le=1,
        description="After an iteration the old policy keeps min(old_decay_rate * updates, old_decay_max).",
    )
    old_decay_max: float = Field(
        0.5, ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy."
    )

    @property
    def options(self) -> dict[str, Any]:
        """What every one of them is built with."""
        return {"kl": self.kl, "levels": self.levels, "noise_range": self.noise_range}

    @property
    def sample_guidance(self) -> float | None:
        """See the base class; `guidance`."""
        return self.guidance

    @property
    def trains_samples(self) -> bool:
        """See the base class; always so here."""
        return True

    @property
    def levels_per_sample(self) -> int:
        """See the base class; `levels`."""
        return self.levels

    @property
    def old_policy_is_ema(self) -> bool:
        """See the base class; not where the old policy is always the newest."""
        return self.old_decay_max > 0

    def old_decay(self, updates: int) -> float:
        """See the base class; the rise of DiffusionNFT, arXiv 2509.16117."""
        return min(self.old_decay_rate * updates, self.old_decay_max)


class NftSettings(PulledSettings, SampleSettings):
    """DiffusionNFT: contrast on noised samples, in which neither a path nor a density is needed."""

    kind: Literal["nft"] = Field(description="DiffusionNFT, arXiv 2509.16117.")
    beta: float = Field(
        1.0, ge=1.0e-6, le=1.0e6, description="How far the two contrasted velocities lie from the old one."
    )
    edges: EdgeLoss | None = Field(None, description="Train the stochastic steps too. null = no.")

    @property
    def losses(self) -> list[LossSettings]:
        """See the base class; one of finished samples, and one of edges if asked for."""
        nft = LossSettings("nft", 1.0, {"beta": self.beta, **self.options}, self.guidance)
        if self.edges is None:
            return [nft]
        low, high = self.edges.clips
        return [nft, LossSettings("grpo", self.edges.weight, {"clip_low": low, "clip_high": high})]

    @property
    def trains_steps(self) -> bool:
        """See the base class; only with `edges`."""
        return self.edges is not None

    @property
    def clips(self) -> tuple[float, float] | None:
        """See the base class; those of `edges`."""
        return None if self.edges is None else self.edges.clips


class AwmSettings(PulledSettings, SampleSettings):
    """AWM, advantage-weighted matching: the loss of pretraining on the policy's own samples, weighted by advantages."""

    kind: Literal["awm"] = Field(description="Advantage-weighted matching, arXiv 2509.25050.")
    levels: int = Field(6, ge=1, le=1000, description="Noise levels at which each sample is trained.")
    noise_range: float = Field(
        0.9, ge=1.0e-3, le=1, description="They lie in [1 - noise_range, 1], where 1 is noise alone; 1 = anywhere."
    )
    old_decay_max: float = Field(
        0.0, ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy."
    )
    weighting: Literal["uniform", "sigma", "sigma_squared", "huber", "ghuber", "normalised"] = Field(
        "ghuber",
        description="Weight of the matching error; huber and ghuber damp large ones, normalised is DiffusionNFT's.",
    )
    power: float = Field(0.25, ge=1.0e-3, le=10, description="Power of ghuber. No effect with another weighting.")
    clip: float = Field(1.0, ge=1.0e-6, le=1, description="The ratio counts within [1 - clip, 1 + clip].")

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.weighting != "ghuber" and self.power != 0.25:
            raise problems(
                [
                    f"objective.power must be left at 0.25 with objective.weighting: {self.weighting}, where it has no "
                    f"effect. Got {show(self.power)}. Set weighting: ghuber or remove power."
                ]
            )
        return self

    @property
    def losses(self) -> list[LossSettings]:
        """See the base class; one, of finished samples."""
        own = {"weighting": self.weighting, "power": self.power, "clip": self.clip}
        return [LossSettings("awm", 1.0, {**own, **self.options}, self.guidance)]


class GroupSettings(SampleSettings):
    """What the objectives have in common that compare a prompt's samples with each other in the update."""

    @property
    def whole_groups(self) -> bool:
        """See the base class; always so here."""
        return True


class DgpoSettings(GroupSettings):
    """DGPO, direct group preference optimisation: a group's samples against each other, from the starting model."""

    kind: Literal["dgpo"] = Field(description="Direct group preference optimisation, arXiv 2510.08425.")
    kl: float = Field(1.0e-3, ge=0, le=1.0e6, description="Weight of mean |v - v_ref|^2; costs no evaluation here.")
    levels: int = Field(4, ge=1, le=1000, description="Noise levels at which each group is trained.")
    noise_range: float = Field(
        0.6, ge=1.0e-3, le=1, description="They lie in [1 - noise_range, 1], where 1 is noise alone; 1 = anywhere."
    )
    old_decay_max: float = Field(
        0.3, ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy."
    )
    beta: float = Field(
        10.0, ge=1.0e-6, le=1.0e6, description="How soon a group weighs less once its better samples match better."
    )
    clip: float = Field(
        0.05, ge=1.0e-6, lt=1, description="A sample trains while exp(d_old - d) is within [1 - clip, 1 + clip]."
    )

    @property
    def losses(self) -> list[LossSettings]:
        """See the base class; one, of finished samples."""
        return [LossSettings("dgpo", 1.0, {"beta": self.beta, "clip": self.clip, **self.options}, self.guidance)]

    def asks_group(self, old_is_policy: bool) -> bool:
        """See the base class; always so here."""
        return True

    @property
    def asks_reference(self) -> bool:
        """See the base class; the preference is measured from it."""
        return True


class CrdSettings(PulledSettings, GroupSettings):
    """CRD, centred reward distillation: rewards that the policy implies differ within a group as the given ones do."""

    kind: Literal["crd"] = Field(description="Centred reward distillation, arXiv 2603.14128.")
    kl: float = Field(
        0.1,
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2; above 0 each example costs one more evaluation.",
    )
    levels: int = Field(20, ge=1, le=1000, description="Noise levels at which each sample is trained.")
    noise_range: float = Field(
        0.99, ge=1.0e-3, le=1, description="They lie in [1 - noise_range, 1], where 1 is noise alone; 1 = anywhere."
    )
    old_decay_rate: float = Field(
        0.005,
        ge=0,
        le=1,
        description="After an iteration the old policy keeps min(old_decay_rate * updates, old_decay_max).",
    )
    old_decay_max: float = Field(
        0.999, ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy."
    )
    beta: float = Field(1.0, ge=1.0e-6, le=1.0e6, description="Of the KL leash: implied rewards grow up to R / beta.")

    @property
    def losses(self) -> list[LossSettings]:
        """See the base class; one, of finished samples."""
        return [LossSettings("crd", 1.0, {"beta": self.beta, **self.options}, self.guidance)]

    def asks_group(self, old_is_policy: bool) -> bool:
        """See the base class; not of the policy from which they are measured, where all implied rewards are 0."""
        return not old_is_policy

    @property
    def samples_are_pulled(self) -> bool:
        """See the base class; their implied rewards are to be alike too."""
        return True


class TiltSettings(PulledSettings):
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
        """See the base class; one, of nodes."""
        return [LossSettings("tilt", 1.0, {"kl": self.kl})]

    @property
    def trains_nodes(self) -> bool:
        """See the base class; always so here."""
        return True


Objective = (
    Annotated[GrpoSettings, Tag("grpo")]
    | Annotated[NftSettings, Tag("nft")]
    | Annotated[AwmSettings, Tag("awm")]
    | Annotated[DgpoSettings, Tag("dgpo")]
    | Annotated[CrdSettings, Tag("crd")]
    | Annotated[TiltSettings, Tag("tilt")]
    | Annotated[OwnObjectiveSettings, Tag(OWN)]
)
OneObjective = Annotated[Objective, Discriminator(kind_of)]
