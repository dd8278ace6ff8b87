"""What a comparison is going to train: configurations at equal budget, written down so that it never changes.

The budget becomes a number of iterations before anything is trained. So every run is deterministic, and its learning
rate schedule ends exactly with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from diffrl.config import Config
from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.cost.prices import EQUAL, Prices
from diffrl.errors import ConfigError
from diffrl.files import write_json
from diffrl.run.directory import LOCK
from diffrl.run.inputs import MEASURED_WITH, TRAINED_WITH, require_inputs
from diffrl.run.journal import flatten
from diffrl.studies.compare.arguments import DECIDED, Budget, Candidate
from diffrl.studies.compare.selected import average_cost
from diffrl.studies.compare.stored import STATE, Count, Folder, Number, Stored, StoredConfig, read_stored
from diffrl.training.inputs import Inputs


class Planned(Stored):
    """A configuration with its length fixed, as state.json keeps it."""

    label: str  # its name in table and figure
    folder: Folder  # of its runs, within the comparison's
    path: str  # of the YAML file
    overrides: tuple[str, ...]  # "a.b=c" each
    iteration_cost: Number  # evaluations of one iteration, priced
    iteration_seconds: Number | None  # of one iteration, measured; None if the budget is in evaluations
    iterations: Count  # of each run
    eval_every: Annotated[int, Field(ge=1)]  # iterations between its evaluations
    config: StoredConfig  # as it will be trained, but for seed, name and directory
    # whether each seed is evaluated on noise of its own, so that intervals hold the images' error, too
    own_noise: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Return the configuration as JSON has it."""
        return self.config.model_dump(exclude_unset=True)

    def settings_of(self, number: int) -> dict[str, Any]:
        """Return the configuration as JSON has it, with the held-out noise of a seed."""
        settings = self.settings
        if self.own_noise:
            settings["eval"]["seed"] += number
        return settings

    def resolve(self, where: Path) -> Config:
        """Make the configuration of it.

        Args:
            where: the file that it was read from, for the message.

        Raises:
            ConfigError: it is not what this version reads.
        """
        return make_config(self.settings, f"{where}, {self.label}")

    def of_seed(self, number: int, out: Path) -> Config:
        """Return the run of one seed; raises as `resolve` does."""
        config = make_config(self.settings_of(number), f"{out / STATE}, {self.label}")
        run = {"seed": config.run.seed + number, "name": f"seed-{number}", "dir": str(out / self.folder)}
        return changed(config, run=run)


def plan_candidate(
    candidate: Candidate,
    config: Config,
    budget: Budget,
    evals: int,
    prices: Prices,
    iteration_seconds: float | None,
    own_noise: bool = False,
) -> Planned:
    """Fix how long a configuration is trained and how often it is evaluated.

    Args:
        candidate: what was asked for.
        config: its configuration.
        budget: of each run.
        evals: evaluations after the one before training, at most.
        prices: of evaluations.
        iteration_seconds: measured, for a budget in seconds.
        own_noise: whether each seed is evaluated on noise of its own.

    Raises:
        ConfigError: the budget does not pay for one iteration, the configuration does not allow so short a run, or
            the table has no price for what it explores in.
    """
    counts = make_plan(config, cost_of=average_cost).network_evaluations
    cost = (
        prices.cost(counts, config.rollout.low_precision, config.train.gradient_checkpointing) / config.run.iterations
    )
    unit = cost if iteration_seconds is None else iteration_seconds
    iterations = budget.iterations(unit)
    if iterations < 1:
        raise ConfigError(
            f"{candidate.label}: the budget must pay for one iteration, {unit:,g} {budget.kind}. Got "
            f"{budget.amount:,g}. Raise it to --budget {budget.kind}={math.ceil(unit)} or more."
        )
    run = {"iterations": iterations, "eval_every": -(-iterations // evals)}
    try:
        fixed = changed(config, run=run)
    except ConfigError as error:
        raise ConfigError(
            [f"{candidate.label}, with {iterations} iterations of its budget: {p}" for p in error.problems]
        ) from error
    return Planned(
        label=candidate.label,
        folder=candidate.folder,
        path=candidate.path,
        overrides=candidate.overrides,
        iteration_cost=cost,
        iteration_seconds=iteration_seconds,
        iterations=iterations,
        eval_every=run["eval_every"],
        config=StoredConfig.model_validate(plain(fixed)),
        **({"own_noise": True} if own_noise else {}),
    )


class Record(Stored):
    """state.json: what a comparison keeps to, so that going on with it means the same."""

    budget: Budget  # of each run
    evals: int = Field(ge=1, le=10**9)  # evaluations after the one before training, at most
    seeds: int = Field(ge=1, le=100_000)  # of each configuration
    prices: Prices = EQUAL  # of evaluations
    inputs: dict[str, Inputs | None] | None = None  # of each configuration, digests of what it names; by label
    input_changes: list[str] | None = None  # the messages where it went on with other inputs
    configurations: list[Planned]  # what is trained

    def save(self, out: Path) -> None:
        """Write state.json."""
        write_json(out / STATE, self.model_dump(mode="json", exclude_unset=True))

    @classmethod
    def read(cls, out: Path) -> Record:
        """Read it back.

        Raises:
            DiffrlError: there is none, or it is damaged.
        """
        try:
            return read_stored(out / STATE, cls)
        except FileNotFoundError as error:
            raise ConfigError(
                f"A comparison is a directory with a {STATE} that `diffrl compare` made. Got {str(out)!r}."
            ) from error


def require_inputs_alike(out: Path, now: dict[str, Inputs], accept: bool) -> list[str]:
    """Refuse to go on with prompts, bases or rewards of other contents than the comparison began with, or name them.

    Args:
        out: its directory, as `earlier_plan` let it pass.
        now: digests, by label.
        accept: the user says that other ones are meant.

    Returns:
        What the user should know.

    Raises:
        ConfigError: names what differs.
    """
    if not (out / STATE).is_file():
        return []
    before, lines = Record.read(out).inputs or {}, list[str]()
    for label, digests in now.items():
        if label in before or not before:
            kinds = (*TRAINED_WITH, *MEASURED_WITH)
            lines += require_inputs(before.get(label), digests, accept, f"{label} in {out}", kinds)
    return lines


def earlier_changes(out: Path) -> list[str]:
    """Return what was said where a comparison went on with other inputs; nothing of a new one."""
    return list(Record.read(out).input_changes or []) if (out / STATE).is_file() else []


def earlier_plan(
    out: Path,
    candidates: Sequence[Candidate],
    configs: Sequence[Config],
    budget: Budget,
    evals: int,
    prices: Prices,
    seeds: int,
    own_noise: bool = False,
) -> list[Planned]:
    """Return what was planned in this directory before: it may grow by configurations and seeds, no more.

    Raises:
        ConfigError: it would change, or the directory is used for something else.
    """
    if not out.exists() or (out.is_dir() and all(entry.name == LOCK for entry in out.iterdir())):
        return []
    if not (out / STATE).is_file():
        raise ConfigError(f"--out must be a new directory, or a comparison's. Got {out}. Choose another.")
    before = Record.read(out)
    if not before.configurations:  # nothing was trained: every configuration failed before it could be timed
        return []
    problems = [
        f"{name} was {old} when this comparison began. Got {new}."
        for name, old, new in (
            ("--budget", f"{before.budget.kind}={before.budget.amount:g}", f"{budget.kind}={budget.amount:g}"),
            ("--evals", before.evals, evals),
            ("--prices", before.prices.name, prices.name),
            ("--own-noise", before.configurations[0].own_noise, own_noise),
        )
        if old != new
    ]
    if seeds < before.seeds:
        problems.append(f"--seeds was {before.seeds} when this comparison began. Got {seeds}. It can only grow.")
    now = dict(zip((candidate.label for candidate in candidates), configs, strict=True))
    for planned in before.configurations:
        label, earlier = planned.label, planned.resolve(out / STATE)
        if label not in now:
            problems.append(f"{label!r} belongs to this comparison and is missing. Name it too.")
        elif changes := _differences(earlier, now[label]):
            problems.append(f"{label!r} is not what it was when this comparison began: {', '.join(changes)}.")
    if problems:
        advice = "Go on with what it was, or compare in a new directory."
        raise ConfigError([*problems[:-1], f"{problems[-1]} {advice}"], str(out))
    return before.configurations


def _differences(before: Config, now: Config) -> list[str]:
    """Return the keys of what a user decides that differ, as "a.b was 1 and is 2"."""
    old, new = flatten(_essence(before)), flatten(_essence(now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [f"{key} was {json.dumps(old.get(key))} and is {json.dumps(new.get(key))}" for key in keys]


def _essence(config: Config) -> dict[str, Any]:
    """Return what a user decides: all but the keys that a comparison sets."""
    data = plain(config)
    return data | {"run": {key: value for key, value in data["run"].items() if key not in DECIDED}}


def same_run(one: Config, other: Config) -> bool:
    """Return whether two configurations train the same, wherever they are kept."""
    return changed(one, run={"dir": "-"}) == changed(other, run={"dir": "-"})


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration as JSON has it."""
    return config.model_dump(mode="json")


def changed(config: Config, **sections: dict[str, Any]) -> Config:
    """Return a configuration with other values in some sections, checked again.

    Raises:
        ConfigError: the values do not fit.
    """
    data = plain(config)
    return make_config(data | {name: data[name] | values for name, values in sections.items()})
