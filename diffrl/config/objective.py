"""The objectives that a policy can be trained by, and what each asks of the rest of the program."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from diffrl.config.base import Section, problems, show


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
        """See the base class; one of finished samples, and one of edges if asked for."""
        nft = LossSettings("nft", 1.0, {"beta": self.beta, "kl": self.kl, "levels": self.levels})
        if self.edges is None:
            return [nft]
        low, high = self.edges.clips
        return [nft, LossSettings("grpo", self.edges.weight, {"clip_low": low, "clip_high": high})]

    @property
    def trains_steps(self) -> bool:
        """See the base class; only with `edges`."""
        return self.edges is not None

    @property
    def trains_samples(self) -> bool:
        """See the base class; always so here."""
        return True

    @property
    def levels_per_sample(self) -> int:
        """See the base class; `levels`."""
        return self.levels

    @property
    def lags(self) -> bool:
        """See the base class; not where the old policy is always the newest."""
        return self.old_limit > 0

    def old_decay(self, updates: int) -> float:
        """See the base class; the rise of DiffusionNFT, arXiv 2509.16117."""
        return min(self.old_slope * updates, self.old_limit)

    @property
    def clips(self) -> tuple[float, float] | None:
        """See the base class; those of `edges`."""
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
        """See the base class; one, of nodes."""
        return [LossSettings("tilt", 1.0, {"kl": self.kl})]

    @property
    def trains_nodes(self) -> bool:
        """See the base class; always so here."""
        return True


Objective = GrpoSettings | NftSettings | TiltSettings
