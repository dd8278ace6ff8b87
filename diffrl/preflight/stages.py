"""A run opens in stages, each with a dry half: what can be known of it without loading, or fetching, anything.

`diffrl check` takes the dry halves of the same list that a run opens by, so that nothing is refused by one alone that
the other could know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diffrl.errors import ConfigError, DiffrlError, NotHereError
from diffrl.preflight import machine, model, prompts, rewards
from diffrl.preflight.preview import Opening, Preview
from diffrl.training.session import Session


@dataclass(frozen=True)
class Stage:
    """One part of a run's opening.

    Args:
        label: in the report of `diffrl check`; empty where it goes on with the one before.
        dry: returns what it has found, None where it has nothing to look at; raises what is wrong.
        open: loads it; None where there is nothing to load.
        first: opened before the others, which load what this one has to judge.
    """

    label: str
    dry: Callable[[Preview], str | None]
    open: Callable[[Opening], None] | None = None
    first: bool = False


STAGES = (
    Stage("prompts", prompts.dry_train, prompts.open_prompts),
    Stage("", prompts.dry_held_out),
    Stage("rewards", rewards.dry_rewards, rewards.open_rewards),
    Stage("packages", rewards.dry_packages),
    Stage("model", model.dry_model, model.open_model),
    Stage("lora", model.dry_lora),
    Stage("selection", model.dry_selection),
    Stage("samples", model.dry_samples),
    Stage("begins with", model.dry_start),
    Stage("device", machine.dry_device, machine.open_device, first=True),
    Stage("explorers", machine.dry_explorers),
    Stage("memory", machine.dry_memory, machine.open_memory, first=True),
    Stage("trackers", machine.dry_trackers),
    Stage("run", machine.dry_directory),
)


@dataclass(frozen=True)
class Findings:
    """What the dry halves have found.

    Args:
        lines: for the user.
        not_here: what this machine, or the target, cannot run of a configuration that is right.
    """

    lines: list[str]
    not_here: list[str]


def look(preview: Preview) -> Findings:
    """Take the dry half of every stage.

    Raises:
        DiffrlError: what is wrong with the configuration; of several problems a ConfigError that lists them all.
    """
    preview.offer  # noqa: B018 - before rewards are loaded, which take memory
    lines, not_here = list[str](), list[str]()
    errors: dict[str, DiffrlError] = {}  # prompts are asked for twice
    for stage in STAGES:
        try:
            if (line := stage.dry(preview)) is not None:
                lines.append(f"{stage.label:<12} {line}")
        except NotHereError as error:
            not_here.extend(error.problems)
        except DiffrlError as error:
            errors[str(error)] = error
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        problems = [p for e in errors.values() for p in (e.problems if isinstance(e, ConfigError) else [str(e)])]
        raise ConfigError(list(dict.fromkeys(problems)))
    return Findings(lines, list(dict.fromkeys(not_here)))


def require_look(preview: Preview) -> None:
    """Take the dry half of every stage on the machine that is to train.

    Raises:
        DiffrlError: as `look`.
        NotHereError: this machine cannot run it.
    """
    if not_here := look(preview).not_here:
        raise NotHereError(not_here)


def open_session(preview: Preview, run_dir: Path) -> Session:
    """Load a run in the order of its stages, and prepare its policy for training.

    Args:
        preview: of the run.
        run_dir: its directory.

    Raises:
        ConfigError: anything in the configuration that cannot be had on this machine.
    """
    opening = Opening(preview, run_dir)
    for stage in sorted(STAGES, key=lambda stage: not stage.first):
        if stage.open is not None:
            stage.open(opening)
    assert opening.session is not None
    return opening.session
