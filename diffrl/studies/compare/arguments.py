"""What a user asks a comparison for: configurations with labels, and a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffrl.config import Config, load_config
from diffrl.errors import ConfigError
from diffrl.run.start_weights import pin_initial
from diffrl.studies.compare.pairing import misused_splits, unpaired
from diffrl.studies.compare.stored import Number

OVERRIDE = re.compile(r"\s+(?=[A-Za-z_][\w.]*=)")
LABEL = re.compile(r"(?!\S*\.ya?ml\s)(?P<label>.*?):\s+(?P<rest>\S.*)", flags=re.DOTALL)
DECIDED = ("iterations", "eval_every", "name", "dir")
"""Keys of run: that a comparison sets itself."""

FOLDER_LENGTH = 80


@dataclass(frozen=True)
class Candidate:
    """A configuration as it was asked for."""

    label: str  # its name in table and figure
    path: str  # of the YAML file
    overrides: tuple[str, ...] = ()  # "a.b=c" each

    @property
    def folder(self) -> str:
        """Return name of the folder of its runs."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.label).strip("-.")[:FOLDER_LENGTH]


@dataclass(frozen=True)
class Budget:
    """What every run may spend on training.

    Args:
        kind: "evaluations" of the network, priced by a table (`diffrl.cost.prices`), or wall "seconds".
        amount: how many.
    """

    kind: Literal["evaluations", "seconds"]
    amount: Number

    def iterations(self, unit: float) -> int:
        """Return how many iterations it pays for, of so many evaluations or seconds each."""
        return math.floor(self.amount / unit)


def parse_candidate(text: str) -> Candidate:
    """Read "[label: ]path [a.b=c ...]".

    Without a label, the file's stem and the overrides are its name. A value may hold spaces, such as {rank: 2}.

    Raises:
        ConfigError: there is no path, or no label that a folder could be called after.
    """
    labelled = LABEL.fullmatch(text.strip())
    label, rest = (labelled["label"].strip(), labelled["rest"]) if labelled else (None, text.strip())
    path, *overrides = OVERRIDE.split(rest)
    if label is None:
        label = " ".join([Path(path).stem, *overrides])
    candidate = Candidate(label, path, tuple(override.strip() for override in overrides))
    if not path or "=" in path.split("/")[-1] or not re.match("[A-Za-z0-9]", candidate.folder):
        raise ConfigError(
            f'A configuration must be "path", "path a.b=c ..." or "label: path a.b=c ...", in quotes. Got {text!r}. '
            'Write for example "no noise: configs/quickstart.yaml rollout.dynamics.noise_level=0.1".'
        )
    return candidate


def parse_candidates(texts: Sequence[str]) -> list[Candidate]:
    """Read all configurations.

    Raises:
        ConfigError: one cannot be read, two have the same label, or one sets what a comparison decides.
    """
    candidates, problems = [], []
    for text in texts:
        try:
            candidates.append(parse_candidate(text))
        except ConfigError as error:
            problems += error.problems
    by_folder: dict[str, str] = {}
    for candidate in candidates:
        folder = candidate.folder.lower()  # some file systems do not tell a from A
        if folder in by_folder:
            problems.append(
                f"Labels must be unique, also as folder names of {FOLDER_LENGTH} letters. Got "
                f'{by_folder[folder]!r} and {candidate.label!r}. Put a label in front: "label: {candidate.path} ...".'
            )
        by_folder.setdefault(folder, candidate.label)
        problems += [
            f"{candidate.label}: {key} is decided by the comparison, from --budget, --evals and --out. Remove it."
            for key in (override.partition("=")[0].strip() for override in candidate.overrides)
            if key in {f"run.{name}" for name in DECIDED}
        ]
    if not texts:
        problems.append("diffrl compare takes at least one configuration. Got none. Name a YAML file.")
    if problems:
        raise ConfigError(problems)
    return candidates


def parse_budget(text: str | None) -> Budget:
    """Read "evaluations=200000" or "seconds=120".

    Raises:
        ConfigError: it is neither.
    """
    kind, _, amount = (text or "").partition("=")
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    match kind.strip():
        case ("evaluations" | "seconds") as known if 0 < number < math.inf:
            return Budget(known, number)
    got = "none" if text is None else repr(text)
    raise ConfigError(
        f"--budget must be evaluations=NUMBER or seconds=NUMBER, above 0. Got {got}. Write for example "
        "--budget evaluations=200000."
    )


def load_candidates(candidates: Sequence[Candidate], metric: str | None) -> list[Config]:
    """Read the configurations of candidates, each with the metric among its held-out rewards.

    Raises:
        ConfigError: every problem of every configuration, a use of the report split among them; or runs of one seed
            would be no pairs.
    """
    configs, problems = [], []
    for candidate in candidates:
        try:
            configs.append(pin_initial(load_config(candidate.path, candidate.overrides)))
        except ConfigError as error:
            problems += [f"{candidate.label}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    metric = metric or configs[0].eval.rewards[0].key
    for candidate, config in zip(candidates, configs, strict=True):
        names = [reward.key for reward in config.eval.rewards]
        if not any(metric == name or metric.startswith(f"{name}/") for name in names):
            problems.append(
                f"{candidate.label}: eval.rewards must hold the metric that is compared, {metric}. Got "
                f"{', '.join(names)}. Add it, or choose another with --metric."
            )
        problems += [f"{candidate.label}: {problem}" for problem in misused_splits(config.model_dump(mode="json"))]
    by_label = {c.label: config.model_dump(mode="json") for c, config in zip(candidates, configs, strict=True)}
    problems = problems or unpaired(by_label, metric)
    if problems:
        raise ConfigError(problems)
    return configs
