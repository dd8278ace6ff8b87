"""What makes runs of one seed a pair, and which split each of their numbers is of.

Prompts and their order follow from run.seed, the list and prompts.per_iteration (`data.sampler`); noise from run.seed
and its address (`rollout.address`); held-out pictures from prompts, eval.seed and how they are drawn. Where
configurations agree in these, runs of the same seed differ by nothing but what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffrl.data.worlds import Split, other_split

SHARED = (
    "run.seed",
    "prompts.train",
    "prompts.per_iteration",
    "model.family",
    "model.path",
    "model.revision",
    "model.variant",
    "model.height",
    "model.width",
    "model.frames",
    "eval.samples",
    "eval.steps",
    "eval.solver",
    "eval.guidance_scale",
    "eval.seed",
)
"""Keys in which all configurations of a comparison agree, as they do in their held-out prompts and the metric."""

HOW_IT_MEASURES = ("name", "options", "dtype")
"""Of a reward's settings."""


def unpaired(configs: Mapping[str, Mapping[str, Any]], metric: str) -> list[str]:
    """Return what keeps runs of one seed from being pairs: a sentence for each key in which two configurations differ.

    Args:
        configs: label -> a configuration as JSON has it.
        metric: held-out reward that is compared, "shapes" or "shapes/strict".
    """
    traits = {label: _traits(config, metric) for label, config in configs.items()}
    first = next(iter(traits), "")
    return [
        f"{key} must be the same in all configurations, so that runs of one seed are pairs. Got "
        f"{traits[first][key]!r} in {first!r} and {trait[key]!r} in {label!r}. {_mended(key, traits[first][key])}"
        for label, trait in traits.items()
        for key in trait
        if trait[key] != traits[first][key]
    ]


def _mended(key: str, value: Any) -> str:
    """Return how a configuration gets another's value: one word after its path, inside the quotes."""
    if value is None or key.startswith("eval.rewards"):
        return f"Set {key} alike."
    return f'Set {key} alike, for example "CONFIG {key}={value}".'


def _traits(config: Mapping[str, Any], metric: str) -> dict[str, Any]:
    traits: dict[str, Any] = {}
    for key in SHARED:
        section, _, name = key.partition(".")
        traits[key] = config.get(section, {}).get(name)
    name = metric.partition("/")[0]
    reward: Mapping[str, Any] = next(
        (r for r in config["eval"]["rewards"] if (r.get("label") or r["name"]) == name), {}
    )
    measured = {key: reward.get(key) for key in HOW_IT_MEASURES}
    return traits | {"prompts.eval": held_out(config), f"eval.rewards, {name}": measured}


def held_out(config: Mapping[str, Any]) -> str | None:
    """Return source of the prompts of a configuration's curve; None where it tells of no prompts."""
    prompts: Mapping[str, str | None] = config.get("prompts", {})
    train, held = prompts.get("train"), prompts.get("eval")
    return f"{train.partition(':')[0]}:tune" if held is None and train is not None else held


def report_source(config: Mapping[str, Any]) -> str | None:
    """Return source of the prompts of a configuration's final number: the report split of its held-out prompts.

    Returns:
        None where they have no splits: neither an embedded world nor a part (`@tune`) of a file or dataset.
    """
    return other_split(held_out(config) or "", "report")


def misused_splits(config: Mapping[str, Any]) -> list[str]:
    """Return sentences on prompts that belong to the final number alone and are used before."""
    problems = []
    uses: tuple[tuple[str, str | None, Split], ...] = (
        ("prompts.train", config["prompts"]["train"], "train"),
        ("prompts.eval", held_out(config), "tune"),
    )
    for key, source, use in uses:
        if source and source == other_split(source, "report"):
            problems.append(
                f"{key} must not be the split report, which is kept for the final number of a comparison. Got "
                f"{source}. Write {key}={other_split(source, use)}."
            )
    return problems
