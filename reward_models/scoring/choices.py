"""Which rewards are wanted, with which options: from the command line, or from a training recipe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from reward_models.common.errors import RewardError
from reward_models.common.messages import quote
from reward_models.common.reading import Unreadable, read_text
from reward_models.common.sections import first_problem
from reward_models.common.yaml12 import MOST_CHARACTERS, read_yaml
from reward_models.registry import factory_of, load_reward, move, require_itself
from reward_models.settings import RewardSettings

if TYPE_CHECKING:
    from reward_models.base import Scorer


@dataclass(frozen=True)
class Loaded:
    """A reward that is ready to score."""

    settings: RewardSettings
    scorer: Scorer
    batch_size: int

    @property
    def label(self) -> str:
        """What it is called in tables and files."""
        return self.settings.key


def choose(rewards: Sequence[str], options: Sequence[str], config: Path | None = None) -> list[RewardSettings]:
    """Read `--reward [LABEL=]NAME`, `--option [LABEL.]KEY=VALUE` and `--config FILE`.

    Returns:
        Their settings; those that are named by `--reward` have a weight of 0, so that they are in no total.

    Raises:
        RewardError: no reward, an unknown one, two of the same label, or an option that belongs to none.
    """
    chosen = _of_recipe(config) if config is not None else []
    for text in rewards:
        label, separator, name = text.partition("=")
        values = {"name": name, "label": label} if separator else {"name": text}
        chosen.append(_settings({**values, "weight": 0.0}, f"--reward {quote(text)}"))
    if not chosen:
        raise RewardError("At least one reward is needed. Give --reward NAME; diffrl rewards list shows all.")
    labels = [settings.key for settings in chosen]
    if "total" in labels:
        raise RewardError("The label 'total' is that of the weighted sum. Give another: --reward LABEL=NAME.")
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        first, second, *_ = (settings.name for settings in chosen if settings.key == repeated[0])
        raise RewardError(
            f"Two rewards cannot have the same label. Got {', '.join(repeated)} more than once. Give each its own: "
            f"--reward first={first} --reward second={second}; in a file of --config it is the key `label`."
        )
    for text in options:
        number, key, value = _option(text, labels)
        chosen[number] = _with_options(chosen[number], {**chosen[number].options, key: value})
    return chosen


def _settings(values: Any, where: str) -> RewardSettings:
    try:
        return RewardSettings.model_validate(values)
    except ValidationError as error:
        raise RewardError(f"{where}: {first_problem(error, RewardSettings)}") from None


def _with_options(settings: RewardSettings, options: Mapping[str, Any]) -> RewardSettings:
    return settings.model_copy(update={"options": dict(options)})


def _option(text: str, labels: Sequence[str]) -> tuple[int, str, Any]:
    """Return the number of the reward that an option belongs to, its key and its value."""
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


def _of_recipe(path: Path) -> list[RewardSettings]:
    """Return the rewards of a YAML file: a list of them, or a training configuration with `rewards:`."""
    try:
        content = read_yaml(read_text(path, 4 * MOST_CHARACTERS, "utf-8-sig"), str(path))
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path given to --config.") from None
    except Unreadable as error:
        raise RewardError(f"{path} {error}.") from error
    rewards = content.get("rewards") if isinstance(content, Mapping) else content
    if not isinstance(rewards, list) or not rewards:
        raise RewardError(f"--config takes a YAML list of rewards, or a mapping with `rewards:`. {path} has neither.")
    return [_settings(entry, f"rewards.{number} of {path}") for number, entry in enumerate(rewards)]


def load(
    chosen: Sequence[RewardSettings],
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    examined: bool = False,
) -> list[Loaded]:
    """Make the scorers.

    Args:
        chosen: what is wanted.
        device: auto, cpu, cuda or cuda:1, in place of what the settings say.
        dtype: of the weights of those that have some, in place of what the settings say.
        batch_size: in place of what the settings say; where nobody says one it is that of the scorer's spec.
        examined: what breaks the contract is let pass here, because the contract's checks will tell it.

    Raises:
        RewardError: one of them cannot be loaded, or none of them has a dtype although one is wanted.
    """
    taking = [takes(settings.name, "dtype") for settings in chosen]
    if dtype is not None and not any(taking):
        raise RewardError(
            f"--dtype is for rewards with weights. None of {', '.join(s.key for s in chosen)} takes one. Remove it."
        )
    made = []
    for settings, has_dtype in zip(chosen, taking, strict=True):
        wanted = dtype if dtype is not None and has_dtype else settings.dtype
        if wanted is not None:
            settings = _with_options(settings, {"dtype": wanted, **settings.options})
        target = device_of(device or settings.device or "auto")
        scorer = load_reward(settings.name, **settings.options)
        moved = move(settings.name, scorer, target)
        if not examined:
            require_itself(settings.name, scorer, moved)
        made.append(Loaded(settings, scorer, batch_size or settings.batch_size or scorer.spec.batch_size))
    return made


def takes(name: str, option: str) -> bool:
    """Return whether a scorer's constructor names this option."""
    factory = factory_of(name)
    try:
        return option in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return False


def device_of(name: str) -> str:
    """Return the torch device that a name stands for; "auto" is cuda if there is one, else cpu.

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
