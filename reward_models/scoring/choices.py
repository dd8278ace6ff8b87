"""Which rewards are wanted, with which options: from the command line, or from a training recipe."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_models.common.errors import RewardError
from reward_models.common.messages import SHOWN, closest, cut, quote, show
from reward_models.common.reading import Unreadable, read_text
from reward_models.common.yaml12 import MOST_CHARACTERS
from reward_models.registry import factory_of, load_reward, move, require_itself, resolve_scorer
from reward_models.scoring.values import read_yaml

if TYPE_CHECKING:
    from reward_models.base import Scorer

NUMBERS = {"weight": 1.0, "shift": 0.0, "scale": 1.0}
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
"""As in a training configuration: labels name metrics, columns and files."""
KEYS = ("name", "label", "options", *NUMBERS, "batch_size", "device", "dtype")
"""What is read of a recipe's reward."""
TRAINING_KEYS = ("schedule", "timeout")
"""What a recipe may say besides; it concerns training only."""


@dataclass(frozen=True)
class Choice:
    """One reward.

    Args:
        name: a registered name or "module:Object".
        label: what it is called in tables and files.
        options: keyword arguments of the scorer.
        weight: of its share in the total, `weight * (raw - shift) / scale`; None where no total is asked for.
        shift: see weight.
        scale: see weight.
        batch_size: samples given to the scorer at once; None: what its spec says.
        device: None: "auto".
        dtype: of the scorer's weights; None: its own default.
    """

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    weight: float | None = None
    shift: float = 0.0
    scale: float = 1.0
    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A reward that is ready to score."""

    choice: Choice
    scorer: Scorer
    batch_size: int

    @property
    def label(self) -> str:
        """What it is called in tables and files."""
        return self.choice.label


def choose(rewards: Sequence[str], options: Sequence[str], config: Path | None = None) -> list[Choice]:
    """Read `--reward [LABEL=]NAME`, `--option [LABEL.]KEY=VALUE` and `--config FILE`.

    Raises:
        RewardError: no reward, an unknown one, two of the same label, or an option that belongs to none.
    """
    choices = _of_recipe(config) if config is not None else []
    for text in rewards:
        label, separator, name = text.partition("=")
        choices.append(Choice(name if separator else text, label))
    if not choices:
        raise RewardError("At least one reward is needed. Give --reward NAME; diffrl rewards list shows all.")
    for choice in choices:
        resolve_scorer(choice.name)
    labels = [choice.label for choice in choices]
    wrong = [label for label in labels if not LABEL.fullmatch(label)]
    if wrong:
        raise RewardError(
            f"A label is letters, digits and _ . : -, and begins with a letter or digit. Got {quote(wrong[0])}. Give "
            "another: --reward LABEL=NAME."
        )
    if "total" in labels:
        raise RewardError("The label 'total' is that of the weighted sum. Give another: --reward LABEL=NAME.")
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        first, second, *_ = (choice.name for choice in choices if choice.label == repeated[0])
        raise RewardError(
            f"Two rewards cannot have the same label. Got {', '.join(repeated)} more than once. Give each its own: "
            f"--reward first={first} --reward second={second}; in a file of --config it is the key `label`."
        )
    for text in options:
        number, key, value = _option(text, labels)
        choices[number] = replace(choices[number], options={**choices[number].options, key: value})
    return choices


def _option(text: str, labels: Sequence[str]) -> tuple[int, str, Any]:
    """The number of the reward that an option belongs to, its key and its value."""
    path, separator, value = text.partition("=")
    owners = [label for label in labels if path.startswith(f"{label}.")]
    owner = max(owners, key=len, default=labels[0] if len(labels) == 1 else None)
    key = path.removeprefix(f"{owner}.")
    if separator and owner is not None and key.isidentifier():
        return labels.index(owner), key, read_yaml(value, f"The value of --option {path}")
    if separator and key.isidentifier():
        raise RewardError(
            f"With several rewards an option says whose it is: --option LABEL.{key}={value}. Labels: "
            f"{', '.join(labels)}."
        )
    raise RewardError(
        f"An option is [LABEL.]KEY=VALUE, such as {labels[0]}.device=cpu. Got {quote(text)}. Labels: "
        f"{', '.join(labels)}."
    )


def _of_recipe(path: Path) -> list[Choice]:
    """The rewards of a YAML file: a list of them, or a training configuration with `rewards:`."""
    try:
        found = read_yaml(read_text(path, 4 * MOST_CHARACTERS, "utf-8-sig"), str(path))
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path given to --config.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
    rewards = found.get("rewards") if isinstance(found, Mapping) else found
    if not isinstance(rewards, list) or not rewards:
        raise RewardError(f"--config takes a YAML list of rewards, or a mapping with `rewards:`. {path} has neither.")
    return [_of_entry(entry, f"rewards.{number} of {path}") for number, entry in enumerate(rewards)]


def _of_entry(entry: Any, where: str) -> Choice:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise RewardError(f"{where} must be a mapping with a `name`. Got {show(entry)}.")
    unknown = [key for key in entry if key not in (*KEYS, *TRAINING_KEYS)]
    if unknown:
        close = closest(unknown[0], KEYS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise RewardError(f"{where} has the unknown key {quote(unknown[0])}.{hint} Known keys: {', '.join(KEYS)}.")
    numbers = {key: entry.get(key, default) for key, default in NUMBERS.items()}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RewardError(f"{key} of {where} must be a number. Got {show(value)}.")
    if numbers["scale"] == 0:
        raise RewardError(f"scale of {where} divides: it must not be 0.")
    options, batch_size = entry.get("options") or {}, entry.get("batch_size")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise RewardError(f"options of {where} must be a mapping of names to values. Got {cut(repr(options), SHOWN)}.")
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise RewardError(f"batch_size of {where} must be a whole number of at least 1. Got {show(batch_size)}.")
    for key in ("label", "device", "dtype"):
        if not isinstance(entry.get(key), str | None):
            example = {"label": "sharp", "device": "cuda:1", "dtype": "bfloat16"}[key]
            raise RewardError(f"{key} of {where} must be text, such as {example}. Got {show(entry[key])}.")
    label = entry.get("label") or entry["name"]
    choice = Choice(entry["name"], label, options, **numbers)
    return replace(choice, batch_size=batch_size, device=entry.get("device"), dtype=entry.get("dtype"))


def load(
    choices: Sequence[Choice],
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    examined: bool = False,
) -> list[Loaded]:
    """Make the scorers.

    Args:
        choices: what is wanted.
        device: auto, cpu, cuda or cuda:1, in place of what the choices say.
        dtype: of the weights of those that have some, in place of what the choices say.
        batch_size: in place of what the choices say; where nobody says one it is that of the scorer's spec.
        examined: what breaks the contract is let pass here, because the contract's checks will tell it.

    Raises:
        RewardError: one of them cannot be loaded, or none of them has a dtype although one is given.
    """
    taking = [takes(choice.name, "dtype") for choice in choices]
    if dtype is not None and not any(taking):
        raise RewardError(
            f"--dtype is for rewards with weights. None of {', '.join(c.label for c in choices)} takes one. Remove it."
        )
    made = []
    for choice, has_dtype in zip(choices, taking, strict=True):
        wanted = dtype if dtype is not None and has_dtype else choice.dtype
        if wanted is not None:
            choice = replace(choice, options={"dtype": wanted, **choice.options})
        place = device_of(device or choice.device or "auto")
        scorer = load_reward(choice.name, **choice.options)
        moved = move(choice.name, scorer, place)
        size: Any = batch_size or choice.batch_size or scorer.spec.batch_size
        if not examined:
            require_itself(choice.name, scorer, moved)
            if not isinstance(size, int) or size < 1:
                raise RewardError(
                    f"A reward's batch_size must be a whole number of at least 1. The spec of {choice.name} has "
                    f"{size!r}. Mend it, or give --batch-size."
                )
        made.append(Loaded(choice, scorer, size))
    return made


def takes(name: str, option: str) -> bool:
    """Whether a scorer's constructor names this option."""
    factory = factory_of(name)
    try:
        return option in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return False


def device_of(name: str) -> str:
    """The torch device that a name stands for; "auto" is cuda if there is one, else cpu.

    Raises:
        RewardError: no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise RewardError(f"--device is auto, cpu, cuda or cuda:NUMBER. Got {name!r}.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise RewardError(f"There is no device {name}: {torch.cuda.device_count()} CUDA devices are seen. Use cpu.")
    return name
