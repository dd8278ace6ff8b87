"""The configuration of a run: every key, its meaning and its bounds. No value is ever adjusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffrl.config.checks import cross_section_problems
from diffrl.config.credit import CreditSettings
from diffrl.config.explore import SOL_RL
from diffrl.config.method import GuardSettings, TrainSettings
from diffrl.config.model import ModelSettings
from diffrl.config.objective import SETTINGS, OneObjective
from diffrl.config.rewards import MayBeNone, Rewards
from diffrl.config.rollout import NoSteps, RolloutSettings
from diffrl.config.track import TrackSettings
from diffrl.config.tree import TreeSettings
from diffrl.data.worlds import FILE_SUFFIXES, SOURCES, SPLITS, WORLDS, column_of, part_of, split_hint
from diffrl.functional.guidance import Embedded
from diffrl.sections import (
    LONGEST_PATH,
    MOST_GUIDANCE,
    MOST_ITERATIONS,
    MOST_SAMPLES,
    MOST_STEPS,
    Section,
    problems,
    rule,
    show,
)
from reward_models.common.messages import closest

FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _folder_name(name: str) -> str:
    if not FOLDER_NAME.fullmatch(name):
        raise rule(
            "must be a plain folder name: letters, digits, '.', '_' and '-', at most 100, beginning with a letter or "
            f"digit. Got {show(name)}. Put folders into run.dir."
        )
    return name


def _folder_path(path: str) -> str:
    if "\0" in path:
        raise rule(f"must be the path of a folder. Got {show(path)}, with a zero byte. Remove it.")
    return path


DATASET = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
"""Names that the hub allows: huggingface_hub.utils.validate_repo_id."""


FOLDERS = ("/", "./", "../")
"""How the name of a dataset begins that is a folder."""


def _prompt_source(source: str) -> str:
    whole, _ = column_of(part_of(source)[0])
    if source in SOURCES or whole.lower().endswith(FILE_SUFFIXES):
        return source
    if whole.startswith("hub:"):
        name = whole.removeprefix("hub:").partition(":")[0]
        if not name.startswith(FOLDERS) and (len(name) > 96 or not DATASET.fullmatch(name)):
            raise rule(
                f"must name a dataset of the hub, OWNER/NAME, or a folder, ./NAME. Got {show(source)}. Correct it."
            )
        return source
    world, _, split = source.partition(":")
    close = f"{source}:train" if source in WORLDS else closest(source, SOURCES)
    if world in WORLDS and split == "held_out":
        hint = split_hint(world, split)
    else:
        name = f"a dataset: hub:{source}" if DATASET.fullmatch(source) and "/" in source else "a dataset"
        hint = f"Did you mean {close!r}?" if close else f"Give the file its ending or name {name}."
    raise rule(
        f"must be a file ({', '.join(FILE_SUFFIXES)}) or hub:<dataset>, either with @{', @'.join(SPLITS)} behind it "
        "for a part, or "
        f"one of {', '.join(WORLDS)} with :{', :'.join(SPLITS)}. Got {show(source)}. {hint}"
    )


PromptSource = Annotated[str, Field(max_length=LONGEST_PATH), AfterValidator(_prompt_source)]


class RunSettings(Section):
    """What the run is called, where it is kept and how long it is."""

    name: Annotated[str, AfterValidator(_folder_name)] = Field("run", description="Folder of the run within dir.")
    dir: Annotated[str, AfterValidator(_folder_path)] = Field(
        "runs",
        min_length=1,
        max_length=LONGEST_PATH,
        description="Folder that holds runs, relative to where diffrl is started.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of everything random in training.")
    iterations: int = Field(ge=1, le=MOST_ITERATIONS, description="Training iterations: rollout, reward, update.")
    checkpoint_every: int = Field(
        20, ge=1, le=MOST_ITERATIONS, description="Iterations between checkpoints; one more at the end."
    )
    keep_checkpoints: int | None = Field(
        3,
        ge=2,
        le=MOST_ITERATIONS,
        description="Newest checkpoints kept, at least 2 so that a torn one has a predecessor; the best and the newest "
        "healthy one stay besides. null = all.",
    )
    eval_every: int | None = Field(
        20,
        ge=1,
        le=MOST_ITERATIONS,
        description="Iterations between held-out evaluations. null = only before and after training.",
    )

    def evaluates_after(self, iteration: int) -> bool:
        """Return whether a held-out evaluation follows so many iterations: before training (0), regularly, last."""
        return iteration in (0, self.iterations) or (self.eval_every is not None and iteration % self.eval_every == 0)

    @property
    def evaluations(self) -> int:
        """Held-out evaluations of the run."""
        return 2 + (len(range(self.eval_every, self.iterations, self.eval_every)) if self.eval_every is not None else 0)


class PromptSettings(Section):
    """Prompts to train on and to evaluate on; train is shuffled anew each epoch, from run.seed."""

    train: PromptSource = Field(
        description="geneval:train or ocr:train, of the toys shapes:train, moving:train or words:train, a .txt (a "
        "prompt a line), .jsonl, .json, .csv, .tsv or .parquet file, or hub:<dataset>[[:<config>]:<split>]; of files "
        "and datasets #<column> behind them names the column, and @train, @tune or @report a part, which has no prompt "
        "of the others."
    )
    eval: PromptSource | None = Field(
        None,
        description="Held-out prompts, in the same forms. null = the tune split of the embedded world that train "
        "names; its report split is kept for final numbers (diffrl evaluate).",
    )
    per_iteration: int = Field(
        ge=1, le=MOST_SAMPLES, description="Prompts of one iteration, over all processes; each is one group."
    )
    eval_on_train: bool = Field(
        False, description="Evaluate even if all prompts of eval are trained on, so that nothing is held out."
    )
    too_long: Literal["warn", "refuse", "cut"] = Field(
        "warn",
        description="What becomes of prompts longer than a text encoder or a reward reads: they are cut there and "
        "counted, refused, or cut without a word.",
    )
    unscored: Literal["refuse", "warn"] = Field(
        "refuse",
        description="What becomes of a list of which a reward cannot score more than a tenth of the prompts, whatever "
        "the image: it is refused, or the prompts are counted.",
    )

    @model_validator(mode="after")
    def _something_is_held_out(self) -> Self:
        world, _, split = self.train.partition(":")
        if self.eval is None and (world not in WORLDS or split != "train"):
            raise problems(
                "prompts.eval must be given unless prompts.train is the train split of an embedded world, whose "
                f"tune split is taken then. Got null, with train={show(self.train)}. Name prompts that are not "
                "trained on."
            )
        return self

    @property
    def held_out(self) -> str:
        """Source of the prompts that training evaluates on."""
        return f"{self.train.partition(':')[0]}:tune" if self.eval is None else self.eval


class EvalSettings(Section):
    """Held-out evaluation with deterministic sampling and the same noise every time."""

    rewards: Rewards = Field(description="What is measured; need not be what is trained on.")
    samples: int = Field(ge=1, le=MOST_SAMPLES, description="Images of one evaluation; prompts are taken in turn.")
    steps: int = Field(ge=1, le=MOST_STEPS, description="Denoising steps, all deterministic.")
    guidance_scale: float = Field(1.0, ge=1, le=MOST_GUIDANCE, description="Classifier-free guidance; 1 = none.")
    seed: int = Field(1234, ge=0, lt=2**63, description="Seed of the evaluation's noise, apart from run.seed.")
    batch: int = Field(128, ge=1, le=MOST_SAMPLES, description="Samples in one network call; bounds memory.")
    solver: Literal["ode", "ab2"] = Field("ode", description="ode = Euler, the stock sampler; ab2 = Adams-Bashforth.")

    @model_validator(mode="after")
    def _schedules_belong_to_training(self) -> Self:
        if scheduled := [reward.key for reward in self.rewards if reward.schedule]:
            raise problems(
                f"eval.rewards must have no schedule: they are measured alike every time. Got one for "
                f"{show(scheduled)}. Remove it."
            )
        return self


OF_PAIRS = RolloutSettings(steps=2, stochastic=NoSteps(kind="none"), tree=TreeSettings(roots=2))
"""Stands for a rollout where none is made: a winner and a loser a prompt."""


LEFT_OUT = (
    "{name} must be left out with objective.kind: {kind}, which trains on given images: none is drawn or scored for "
    "training. Got the section. Remove it."
)


class Config(Section):
    """A whole run."""

    run: RunSettings
    model: ModelSettings
    prompts: PromptSettings
    rollout: RolloutSettings = OF_PAIRS
    rewards: MayBeNone = Field((), description="What the policy is trained on; their weighted sum is the reward.")
    credit: CreditSettings = CreditSettings()
    objective: OneObjective = Field(SETTINGS["grpo"](kind="grpo"), description="The loss.")
    train: TrainSettings
    eval: EvalSettings
    guards: GuardSettings = GuardSettings()
    track: TrackSettings = TrackSettings()

    @model_validator(mode="before")
    @classmethod
    def _draws_nothing(cls, data: Any) -> Any:
        """Refuse a part of a rollout where none is made, before what the part lacks is asked for."""
        sections = data if isinstance(data, Mapping) else {}
        objective, rollout = sections.get("objective"), sections.get("rollout")
        kind = str(objective.get("kind")) if isinstance(objective, Mapping) else ""
        of_pairs = kind in SETTINGS and SETTINGS[kind].trains_pairs
        if of_pairs and isinstance(rollout, Mapping) and not {"steps", "tree"} <= rollout.keys():
            raise problems([LEFT_OUT.format(name="rollout", kind=kind)])
        return data

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        faults = self._needless() or cross_section_problems(
            {name: getattr(self, name) for name in type(self).model_fields}
        )
        if faults:
            raise problems(faults)
        return self

    def _needless(self) -> list[str]:
        """Return problems with the sections that say how samples are drawn and judged: where images are given, none."""
        if not self.objective.trains_pairs:
            rollout = [] if "rollout" in self.model_fields_set else ["rollout is missing. Add it: steps and tree."]
            rewards = [] if self.rewards else ["rewards must have at least 1 entry. Got []. Add one."]
            return rollout + rewards
        nothing = {"rollout": OF_PAIRS, "rewards": (), "credit": CreditSettings()}
        return [
            LEFT_OUT.format(name=name, kind=self.objective.kind)
            for name, section in nothing.items()
            if getattr(self, name) != section
        ]

    @property
    def forward_batch(self) -> int:
        """Samples in a network call of training without gradient."""
        return self.train.micro_batch if self.objective.trains_pairs else self.rollout.micro_batch

    @property
    def decode_batch(self) -> int:
        """Samples in a call of the decoder."""
        return self.eval.batch if self.objective.trains_pairs else self.rollout.decode_batch

    @property
    def copy_exclude(self) -> tuple[str, ...]:
        """Patterns of the layers that low precision leaves as they are: the configured ones, else the family's own."""
        e, facts = self.rollout.policy_copy, self.model.facts
        if e is None or e.exclude is None:
            return facts.exclude
        return tuple(name for part in e.exclude for name in (facts.sol_rl_exclude if part == SOL_RL else (part,)))

    @property
    def keeps_drawing_weights(self) -> bool:
        """Whether the weights that draw are kept apart from the trained ones, because what draws lags behind them."""
        draw, explorers = self.rollout.draw, self.rollout.explorers
        return (draw is not None and draw.sync_every > 1) or (explorers is not None and explorers.overlap)

    @property
    def tree_iterations(self) -> int:
        """How many iterations keep trees to look at: the first, every n-th and the last."""
        if self.track.trees is None or self.objective.trains_pairs:
            return 0
        last, every = self.run.iterations - 1, self.track.trees.every or self.run.eval_every
        return len({0, last}) if every is None else 1 + last // every + (last % every > 0)

    @property
    def records_steps(self) -> bool:
        """Whether anything looks at the rollout's stochastic steps once they are taken."""
        trained = self.objective.trains_steps or self.objective.trains_nodes
        return trained or self.credit.value == "ode" or self.credit.fusion == "path_probability"

    @property
    def kl_guidance(self) -> float:
        """Guidance of the model before alignment, where the objective asks it."""
        override = next((g for loss in self.objective.planned() if (g := loss.kl_guidance) is not None), None)
        return self.loss_guidance(self.objective.sample_guidance) if override is None else override

    def loss_guidance(self, guidance: float | None) -> float:
        """Return guidance of the velocities that a loss is given.

        Guidance that is an input of the network, as FLUX has it, is that of the rollout whatever the loss is; what the
        loss asks for is then the classifier-free guidance beside it. Where images are given, held-out ones have it.

        Args:
            guidance: that the loss asks for; None = that of the rollout.
        """
        scale = self.eval.guidance_scale if self.objective.trains_pairs else self.rollout.guidance_scale
        if guidance is None:
            return scale
        return Embedded(scale, guidance) if self.model.facts.guidance == "embedded" else guidance

    @property
    def retakes_densities(self) -> bool:
        """Whether steps get the densities that the update itself gives them before it changes the policy.

        Below float32 the same weights give other velocities in batches of other sizes, by as much as a clip allows.
        """
        return self.objective.trains_steps and self.model.dtype != "float32"

    @property
    def old_is_policy(self) -> bool:
        """Whether the old policy is the trained one whenever it is asked: nothing of it is kept, one update is made."""
        return not self.objective.old_policy_is_ema and self.train.updates_per_iteration == 1
