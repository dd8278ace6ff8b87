"""Where a run's numbers and images go, beside metrics.jsonl."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from diffrl.sections import LONGEST_TEXT, MOST_ITERATIONS, MOST_SAMPLES, ListOf, Section, rule, show


class WandbSettings(Section):
    """Weights & Biases."""

    project: str = Field(min_length=1, max_length=LONGEST_TEXT, description="Project that the run is logged to.")
    entity: str | None = Field(None, max_length=LONGEST_TEXT, description="Team or user; null = your default.")
    group: str | None = Field(None, max_length=LONGEST_TEXT, description="Of runs that belong together, as seeds do.")
    tags: ListOf[Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]] = Field((), description="Of the run.")
    mode: Literal["online", "offline"] = Field("online", description="offline = written to the run, sent by you later.")


class TreeRecordSettings(Section):
    """Rollouts kept as trees to look at, in trees/: of the first iteration, of every n-th and of the last."""

    every: int | None = Field(
        None,
        ge=1,
        le=MOST_ITERATIONS,
        description="n. null = run.eval_every, so that what is kept is of the policy that was just evaluated.",
    )
    prompts: int = Field(
        2, ge=1, le=MOST_SAMPLES, description="At most this many prompts are kept, the first ones of the first process."
    )
    pictures: int | None = Field(
        None,
        ge=0,
        le=MOST_SAMPLES,
        description="At most this many predicted images are kept of a prompt (three of a split that tilt trains), "
        "and as many of its candidates'. Finished samples are all kept. null = 96, and 16 of clips, which cost more.",
    )


OTHER_TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio")
"""Those that accelerate knows beside TensorBoard and W&B."""
SECRET, LOGIN = re.compile("key|token|secret|passw", re.IGNORECASE), re.compile("://[^/]*:[^/]*@")
"""Names of options that hold secrets, and addresses with a password."""


def _known_trackers(others: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if unknown := sorted(others.keys() - set(OTHER_TRACKERS)):
        raise rule(f"must name trackers of accelerate: {', '.join(OTHER_TRACKERS)}. Got {show(unknown)}.")
    for name, options in others.items():
        if secret := sorted(_secrets(options)):
            raise rule(
                f"must hold no secret: a run's configuration is quoted in its model card. Got {name} with "
                f"{', '.join(secret)}. Set the tracker's own environment variable, or log in to it."
            )
    return others


def _secrets(options: Any) -> set[str]:
    """Return the keys of options, however deep, that name a secret or hold an address with a password."""
    if isinstance(options, list):
        return {key for one in options for key in _secrets(one)}
    if not isinstance(options, dict):
        return set()
    named = {str(key) for key, value in options.items() if SECRET.search(str(key)) or LOGIN.search(str(value))}
    return named.union(*map(_secrets, options.values()))


class TrackSettings(Section):
    """Where numbers and images go. metrics.jsonl is always written."""

    tensorboard: bool = Field(False, description="Also write TensorBoard files.")
    wandb: WandbSettings | None = Field(None, description="Also log to Weights & Biases. null = no.")
    others: Annotated[dict[str, dict[str, Any]], AfterValidator(_known_trackers)] = Field(
        {},
        description=f"Other trackers ({', '.join(OTHER_TRACKERS)}), each with the options of its class in accelerate, "
        "such as {mlflow: {run_name: first}}. They log to the project track.wandb.project, else to diffrl. All get the "
        "numbers, SwanLab and ClearML the held-out images too. Their environment variables take keys and passwords.",
    )
    pictures_per_iteration: int = Field(
        8, ge=0, le=MOST_SAMPLES, description="At most this many training images are kept."
    )
    pictures_per_evaluation: int = Field(
        32,
        ge=0,
        le=MOST_SAMPLES,
        description="At most this many held-out images are kept at each evaluation, spread over the prompts, and as "
        "many again of the samples that lost and gained most since the first one, which keeps a small image of each "
        "(up to 2,000). 0 = none. Scores are kept of every sample.",
    )
    trees: TreeRecordSettings | None = Field(
        TreeRecordSettings(),
        description="Rollouts kept as trees, with the images predicted at their nodes. null = none.",
    )
