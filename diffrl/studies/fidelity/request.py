"""What `diffrl fidelity` is asked for, and whether it fits the configuration and this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.functional.steps import least_steps
from diffrl.precision.choice import find_backend
from diffrl.precision.facts import AUTO, EMULATED, TRAINING
from diffrl.precision.formats import PRECISIONS
from diffrl.records import Prompt
from diffrl.run.directory import open_run_dir
from diffrl.studies.requests import FidelityRequest

CANDIDATES = 32


@dataclass(frozen=True)
class Wanted:
    """A precision of the command line, `precision` or `precision:engine`."""

    text: str
    precision: str
    engine: str


def default_steps(config: Config) -> tuple[int, ...]:
    """Return the step counts that are compared if none are asked for."""
    e = config.rollout.explore
    return (config.rollout.steps,) if e is None or e.steps is None else (e.steps, config.rollout.steps)


def wanted_pools(config: Config, request: FidelityRequest) -> list[Wanted]:
    """Return the precisions that are compared, each with its engine."""
    e = config.rollout.explore
    texts = request.precision or ("bfloat16" if e is None else e.precision,)
    pools = []
    for text in dict.fromkeys(texts):
        precision, colon, engine = text.partition(":")
        default = e.engine if e is not None and e.precision == precision != TRAINING else AUTO
        pools.append(Wanted(text, precision, engine if colon else default))
    return pools


def request_problems(
    config: Config, request: FidelityRequest, prompts: Sequence[Prompt], candidates: int, steps: Sequence[int]
) -> list[str]:
    """Return what of the request does not fit the configuration."""
    r, problems = config.rollout, []
    branching = r.branching_at(0)
    least, leaves = least_steps(list(branching), r.steps), r.tree.leaves_per_root
    problems += [
        f"--steps must be from {least} to {r.steps}: rollout.steps is the full grid, and every stochastic step must "
        f"stay as it is. Got {count}. Choose one in between, or make fewer steps stochastic (rollout.stochastic)."
        for count in steps
        if not least <= count <= r.steps
    ]
    if candidates < 2 or candidates % leaves:
        problems.append(
            f"--candidates must be at least 2 and a multiple of the leaves of a tree. Got {candidates}, with {leaves} "
            "leaves (rollout.tree). Round it."
        )
    if not 1 <= request.k <= candidates:
        problems.append(
            f"--k must be from 1 to the candidates of a prompt. Got k={request.k}, candidates={candidates}. "
            "Lower --k or add --candidates."
        )
    if not 1 <= request.prompts <= len(prompts):
        problems.append(f"--prompts must be from 1 to the prompts there are. Got {request.prompts} of {len(prompts)}.")
    if request.run is not None:
        of_run, other = (
            c.model.model_dump(exclude={"device": True, "init_from": True, "lora": {"start"}})
            for c in (open_run_dir(request.run)[1], config)
        )
        if odd := [f"model.{key}" for key, value in of_run.items() if value != other[key]]:
            problems.append(
                f"The model section must be that of --run. Got another {', '.join(odd)}. "
                f"Use {request.run / 'config.yaml'}, with overrides of the other sections."
            )
    return problems


def missing_precision(wanted: Wanted, device: torch.device) -> list[str]:
    """Return why this machine cannot run a precision, in the words of the copy."""
    names = (TRAINING, *PRECISIONS)
    if wanted.precision not in names:
        return [f"--precision must be one of {', '.join(names)}, or precision:engine. Got {wanted.text!r}."]
    if wanted.precision == TRAINING:
        return [] if wanted.engine == AUTO else [f"--precision {TRAINING} takes no engine. Got {wanted.text!r}."]
    try:
        find_backend(wanted.precision, wanted.engine, device)
    except ConfigError as error:
        emulated = wanted.engine == AUTO and EMULATED in PRECISIONS[wanted.precision].runners
        way_out = f" Here: --precision {wanted.precision}:emulated." if emulated else ""
        return [f"--precision {wanted.text}: {problem}{way_out}" for problem in error.problems]
    return []
