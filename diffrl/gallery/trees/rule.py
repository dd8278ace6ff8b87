"""How credit was given, key by key, each with what it means; and which prompt of the update a tree is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diffrl.credit.rules import OWN, reward_rule
from diffrl.gallery.numbers import finite
from diffrl.gallery.trees.numbers import factor, number
from diffrl.gallery.trees.sums import weights_text
from diffrl.gallery.trees.view import TreeView
from diffrl.registry import CREDIT_RULES
from diffrl.trees.record import TreeRecord

Gloss = Mapping[Any, str] | Callable[[float], str]
VALUE = {
    "leaves": "a node is worth the mean reward of its images",
    "ode": "a node is worth the reward of the image that follows without more noise",
    "predicted_x0": "a node is worth the reward of the image predicted there",
}
"""What a node is worth, by the estimator."""
RULE: Mapping[str, Gloss] = {
    "reward": {name: reward_rule(name).meaning for name in CREDIT_RULES},
    "value": VALUE,
    "fusion": {
        "uniform": "all images weigh the same in such a mean",
        "path_probability": "images of likelier paths weigh more in such a mean",
    },
    "constraint": {
        True: "a turn counts only if the path goes on in its direction",
        False: "a turn counts whatever follows it",
    },
    "balance": {True: "as many turns up as down count", False: "all turns count"},
    "normalise": {
        "group": "compared with all others of the prompt",
        "depth": "compared with the prompt's other steps at the same noise level",
        "siblings": "compared with the node that the step leaves",
    },
    "baseline": {"mean": "the mean of those is subtracted", "median": "the median of those is subtracted"},
    "std": {
        "group": "and the rest divided by the prompt's own deviation",
        "batch": "and the rest divided by the deviation of all prompts",
        "mad": "and the rest divided by the median deviation of those",
    },
    "combine": {
        "sum": "rewards are added up, then compared",
        "gdpo": "each reward is compared on its own, then they are added up",
    },
    "clamp": lambda value: f"no advantage is larger than {factor(value)}",
    "objective": {
        "nft": "DiffusionNFT, which trains finished images",
        "awm": "AWM, which trains finished images",
        "dgpo": "DGPO, which trains finished images",
        "crd": "CRD, which trains finished images",
        "art": "DiffusionART, which trains the way to finished images",
        "grpo": "GRPO, which trains steps",
        "tilt": "tree tilt, which trains the splits",
    },
    "edges": {True: "steps train", False: "steps do not train"},
    "samples": {True: "finished images train, by contrast", False: "finished images do not train themselves"},
    "nodes": {
        True: "splits train, along the covariance of advantage and image between the branches below them",
        False: "splits do not train",
    },
    "kl": lambda value: "weight of the pull to the starting model" if value else "nothing pulls to the starting model",
    "prune": {True: "some steps are taken out of the gradient", False: "no step is taken out of the gradient"},
    "clip": lambda value: f"a step's push ends once it is {_percent(value)} less likely, per dimension",
    "clip_high": lambda value: f"and once it is {_percent(value)} more likely",
    "prompts": lambda value: "prompts that the iteration trains on",
    "updates": lambda value: "updates that the iteration makes of them",
    "skipped": lambda value: "updates that a guard left out",
    "learning_rate": lambda value: "size of the last update's step",
    "dimensions": lambda value: "numbers that a step changes at once",
    "dtype": lambda value: "numbers that the network computes with",
}
SAMPLES_BY: Mapping[str, str] = {
    "nft": "DiffusionNFT's contrast (nft)",
    "awm": "advantage-weighted matching (awm)",
    "dgpo": "group preferences (dgpo)",
    "crd": "centred reward distillation (crd)",
    "art": "DiffusionART's regression (art)",
}
"""What trains finished images, by the name of the objective."""
EXPLORED: Mapping[str, Gloss] = {
    "precision": lambda value: "numbers that the exploring stage computes with",
    "engine": lambda value: "how it computes with them",
    "steps": lambda value: "steps of a candidate",
    "select": lambda value: "how candidates are chosen to be regenerated",
    "candidates": lambda value: "candidates explored",
    "keep": lambda value: "candidates regenerated to train",
    "audit": lambda value: "regenerated at random, only to check the ranking",
}
DRAWN: Mapping[str, Gloss] = {
    "precision": lambda value: "numbers that the copy that drew the images computes with",
    "engine": lambda value: "how it computes with them",
    "age": lambda value: "iterations since it was given the policy's weights",
}


def rules(view: TreeView) -> list[tuple[str, str]]:
    """Return keys and values with what they mean, in the order in which credit comes about; unknown keys come last."""
    record = view.record
    lines = [("reward =", text)] if (text := weights_text(view)) else []
    lines += [(key, text + _idle_clip(record.rule) * (key == "clip")) for key, text in _glossed(record.rule, RULE)]
    lines += [(f"explored: {key}", text) for key, text in _glossed(record.explored or {}, EXPLORED)]
    lines += [(f"drawn: {key}", text) for key, text in _glossed(record.sampled_by or {}, DRAWN)]
    return [*lines, ("seed", str(record.seed))]


def _idle_clip(rule: Mapping[str, Any]) -> str:
    """Return that the clip cannot act where the first update, before which nothing moved, is the only one.

    Beside nft the policy that draws may lag behind the one that trains, which records do not tell.
    """
    if number(rule.get("updates")) != 1:
        return ""
    unless = " unless the policy that samples lags behind (old_decay_max above 0)"
    return f"; with one update an iteration it has no effect{unless * (rule.get('objective') == 'nft')}"


def which_prompt(record: TreeRecord) -> str:
    """Return which prompt of the iteration it is: "prompt 1 of 8"; of older records "group 0"."""
    prompts = round(number(record.rule.get("prompts")))
    return f"prompt {record.group + 1} of {prompts}" if record.group < prompts else f"group {record.group}"


def _glossed(named: Mapping[str, Any], glosses: Mapping[str, Gloss]) -> list[tuple[str, str]]:
    keys = [*(key for key in glosses if key in named), *(key for key in named if key not in glosses)]
    return [(key, _said(named[key], glosses.get(key))) for key in keys]


def _said(value: Any, gloss: Gloss | None) -> str:
    """Return a value as people write it, and what it means where that is known."""
    size = finite(value)
    text = {True: "yes", False: "no", None: "–"}.get(value, str(value)) if size is None else _number(size)
    if value is None or gloss is None:
        return text
    if callable(gloss):
        return f"{text}: {gloss(size or 0.0)}"
    if value in gloss:
        return f"{text}: {gloss[value]}"
    return f"{text}: {OWN.meaning}" if gloss is RULE["reward"] and ":" in text else text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else factor(value)


def _percent(value: float) -> str:
    return f"{factor(100 * value)} %"
