"""What a comparison is going to train: configurations at equal budget, written down so that it never changes.

The budget becomes a number of iterations before anything is trained. So every run is deterministic, and its learning
rate schedule ends exactly with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffrl.config import Config
from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.cost.prices import Prices, prices_of
from diffrl.errors import ConfigError
from diffrl.files import write_json
from diffrl.run.directory import LOCK
from diffrl.run.inputs import MEASURED_WITH, TRAINED_WITH, require_inputs
from diffrl.studies.compare.arguments import DECIDED, Budget, Candidate
from diffrl.studies.compare.results import STATE, read_state
from diffrl.studies.compare.shapes import Plan, require_shape
from diffrl.training.inputs import Inputs


@dataclass(frozen=True)
class Planned:
    """A configuration with its length fixed.

    Args:
        candidate: what was asked for.
        config: as it will be trained, but for seed, name and place.
        iteration_cost: evaluations of one iteration, priced.
        iteration_seconds: of one iteration, measured; None if the budget is in evaluations.
    """

    candidate: Candidate
    config: Config
    iteration_cost: float
    iteration_seconds: float | None

    def of_seed(self, number: int, out: Path) -> Config:
        """The run of one seed."""
        settings = {"seed": self.config.run.seed + number, "name": f"seed-{number}"}
        return changed(self.config, run={**settings, "dir": str(out / self.candidate.folder)})

    def entry(self) -> dict[str, Any]:
        """What state.json keeps of it."""
        return {
            "label": self.candidate.label,
            "folder": self.candidate.folder,
            "path": self.candidate.path,
            "overrides": list(self.candidate.overrides),
            "iteration_cost": self.iteration_cost,
            "iteration_seconds": self.iteration_seconds,
            "iterations": self.config.run.iterations,
            "eval_every": self.config.run.eval_every,
            "config": plain(self.config),
        }


def plan_candidate(
    candidate: Candidate,
    config: Config,
    budget: Budget,
    evals: int,
    prices: Prices,
    iteration_seconds: float | None,
) -> Planned:
    """Fix how long a configuration is trained and how often it is evaluated.

    Args:
        candidate: what was asked for.
        config: its configuration.
        budget: of each run.
        evals: evaluations after the one before training, at most.
        prices: of evaluations.
        iteration_seconds: measured, for a budget in seconds.

    Raises:
        ConfigError: the budget does not pay for one iteration, the configuration does not allow so short a run, or
            the table has no price for what it explores in.
    """
    explore = config.rollout.explore
    precision = None if explore is None else explore.precision
    counts = make_plan(config).network_evaluations
    cost = prices.cost(counts, precision, config.train.gradient_checkpointing) / config.run.iterations
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
    return Planned(candidate, fixed, cost, iteration_seconds)


@dataclass
class Record:
    """state.json: what a comparison keeps to, so that going on with it means the same.

    Args:
        budget: of each run.
        evals: evaluations after the one before training, at most.
        seeds: of each configuration.
        prices: of evaluations.
        planned: by label.
        inputs: of each configuration, digests of what it names; by label.
        input_changes: what was said where it went on with other inputs.
    """

    budget: Budget
    evals: int
    seeds: int
    prices: Prices
    planned: dict[str, Planned]
    inputs: dict[str, Inputs] = field(default_factory=dict)
    input_changes: list[str] = field(default_factory=list)

    def save(self, out: Path) -> None:
        """Write state.json."""
        content = {
            "budget": {"kind": self.budget.kind, "amount": self.budget.amount},
            "evals": self.evals,
            "seeds": self.seeds,
            "prices": self.prices.to_json(),
            "inputs": self.inputs,
            "input_changes": self.input_changes,
            "configurations": [planned.entry() for planned in self.planned.values()],
        }
        write_json(out / STATE, content)

    @classmethod
    def read(cls, out: Path) -> Record:
        """Read it back.

        Raises:
            DiffrlError: there is none, or it is damaged.
        """
        return cls.of_state(read_state(out), str(out / STATE))

    @classmethod
    def of_state(cls, state: dict[str, Any], where: str) -> Record:
        """Make it of what `save` wrote.

        Args:
            state: the content.
            where: it was read from, to begin a message with.

        Raises:
            DiffrlError: it is damaged, or a configuration is not what this version reads.
        """
        require_shape(Plan, state, where)
        planned = {
            entry["label"]: Planned(
                Candidate(entry["label"], entry["path"], tuple(entry["overrides"])),
                make_config(entry["config"], f"{where}, {entry['label']}"),
                entry["iteration_cost"],
                entry["iteration_seconds"],
            )
            for entry in state["configurations"]
        }
        prices = prices_of(state.get("prices"))
        return cls(Budget(**state["budget"]), state["evals"], state["seeds"], prices, planned)


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
    before, lines = read_state(out).get("inputs") or {}, []
    for label, digests in now.items():
        if label in before or not before:
            kinds = (*TRAINED_WITH, *MEASURED_WITH)
            lines += require_inputs(before.get(label), digests, accept, f"{label} in {out}", kinds)
    return lines


def earlier_changes(out: Path) -> list[str]:
    """Return what was said where a comparison went on with other inputs; nothing of a new one."""
    return list(read_state(out).get("input_changes") or []) if (out / STATE).is_file() else []


def earlier_plan(
    out: Path,
    candidates: Sequence[Candidate],
    configs: Sequence[Config],
    budget: Budget,
    evals: int,
    prices: Prices,
    seeds: int,
) -> dict[str, Planned]:
    """What was planned in this directory before; it may grow by configurations and seeds, and changes in nothing else.

    Raises:
        ConfigError: it would change, or the directory is used for something else.
    """
    if not out.exists() or (out.is_dir() and all(entry.name == LOCK for entry in out.iterdir())):
        return {}
    if not (out / STATE).is_file():
        raise ConfigError(f"--out must be a new directory, or a comparison's. Got {out}. Choose another.")
    before = Record.read(out)
    if not before.planned:  # nothing was trained: every configuration failed before it could be timed
        return {}
    problems = [
        f"{name} was {old} when this comparison began. Got {new}."
        for name, old, new in (
            ("--budget", f"{before.budget.kind}={before.budget.amount:g}", f"{budget.kind}={budget.amount:g}"),
            ("--evals", before.evals, evals),
            ("--prices", before.prices.name, prices.name),
        )
        if old != new
    ]
    if seeds < before.seeds:
        problems.append(f"--seeds was {before.seeds} when this comparison began. Got {seeds}. It can only grow.")
    now = dict(zip((candidate.label for candidate in candidates), configs, strict=True))
    for label, planned in before.planned.items():
        if label not in now:
            problems.append(f"{label!r} belongs to this comparison and is missing. Name it too.")
        elif _essence(now[label]) != _essence(planned.config):
            problems.append(f"{label!r} is not what it was when this comparison began: {_difference(now, planned)}.")
    if problems:
        advice = "Go on with what it was, or compare in a new directory."
        raise ConfigError([*problems[:-1], f"{problems[-1]} {advice}"], str(out))
    return before.planned


def _difference(by_label: dict[str, Config], planned: Planned) -> str:
    """The keys that differ, as "a.b was 1 and is 2"."""
    old, new = _flat(_essence(planned.config)), _flat(_essence(by_label[planned.candidate.label]))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} was {json.dumps(old.get(key))} and is {json.dumps(new.get(key))}" for key in keys)


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.items():
        values |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def _essence(config: Config) -> dict[str, Any]:
    """What a user decides: all but the keys that a comparison sets."""
    data = plain(config)
    return data | {"run": {key: value for key, value in data["run"].items() if key not in DECIDED}}


def same_run(one: Config, other: Config) -> bool:
    """Whether two configurations train the same, wherever they are kept."""
    return changed(one, run={"dir": "-"}) == changed(other, run={"dir": "-"})


def plain(config: Config) -> dict[str, Any]:
    """A configuration as JSON has it."""
    return config.model_dump(mode="json")


def changed(config: Config, **sections: dict[str, Any]) -> Config:
    """A configuration with other values in some sections, checked again.

    Raises:
        ConfigError: the values do not fit.
    """
    data = plain(config)
    return make_config(data | {name: data[name] | values for name, values in sections.items()})
