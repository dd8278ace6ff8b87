"""What a run's rewards take, by the sizes of the published ones; nothing is loaded or fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from diffrl.config.rewards import RewardSettings
from diffrl.config.schema import Config
from diffrl.cost.repositories import BYTES
from diffrl.errors import ConfigError
from diffrl.models.published import reward_facts
from diffrl.sections import show
from reward_models.registry import SCORERS, factory_of

PLACES = ("model", "checkpoint", "clip_model", "architecture", "engine", "pretrained")
"""Options that give a reward other weights than the published ones."""


@dataclass(frozen=True)
class ScorerWeights:
    """Weights of all rewards of a process, those that are held out among them."""

    beside: int  # bytes on the model's own device
    # bytes on other devices, by name (cpu, cuda:1), with those of the largest call there
    other_devices: Mapping[str, int]
    working: int  # bytes that the largest call on the model's own device takes beside the weights; calls take turns
    largest: int  # bytes of the weights that most come with at once, on their way through the computer's memory
    notes: tuple[str, ...]  # what is not counted


def scorer_weights(config: Config) -> ScorerWeights:
    """Add up what rewards and eval.rewards load; of equal weights one copy in each precision on each device."""
    beside = largest = 0
    other_devices: Counter[str] = Counter()
    calls: Counter[str | None] = Counter()
    uncounted: list[str] = []
    held: set[tuple[str, int, str, str | None, str]] = set()
    for where, rewards in (("rewards", config.rewards), ("eval.rewards", config.eval.rewards)):
        for reward in rewards:
            sizes = weights_of(reward)
            if sizes is None:
                uncounted.append(f"{where} {reward.key}")
                continue
            device = None if reward.device == "cuda" else reward.device
            dtype = _dtype(reward)
            calls[device] = max(calls[device], call_bytes(reward))
            largest = max(largest, sum(sizes.values()) * _bytes(dtype))
            for repository, parameters in sizes.items():
                copy = (repository, parameters, dtype, device, _file(reward))
                if copy in held:
                    continue
                held.add(copy)
                if device is None:
                    beside += parameters * _bytes(dtype)
                else:
                    other_devices[str(device)] += parameters * _bytes(dtype)
    notes: list[str] = []
    if uncounted:
        notes.append(f"Memory without the weights of these rewards, whose size is not known: {', '.join(uncounted)}.")
    there = {str(device): other_devices[str(device)] + size for device, size in calls.items() if device is not None}
    others = {device: size for device, size in there.items() if size}
    return ScorerWeights(beside, others, calls[None], largest, tuple(notes))


def call_bytes(reward: RewardSettings) -> int:
    """Return bytes that a call of a reward takes beside its weights; 0 where they are not known."""
    if not weights_of(reward):
        return 0
    name = inner_name(reward)
    samples = reward.batch_size or factory_of(name).spec.batch_size
    return int(reward_facts()[name]["call_bytes"]) * samples * _bytes(_dtype(reward)) // BYTES["float32"]


def weights_of(reward: RewardSettings) -> Mapping[str, int] | None:
    """Return repositories and parameters of a reward's weights; empty if none are here, None if not known."""
    name, options = inner_name(reward), inner_options(reward)
    features = name == "diversity" and options.get("features", "pixels") != "pixels"
    known = _published(name)
    unregistered = name not in SCORERS or name == "video_mean"  # which averages a scorer that is not registered
    places = ("model",) if name == "aesthetic" else PLACES  # whose checkpoint is the small head that is always given
    if name == "preservation" and options.get("features") == "pixels":
        return {}
    if unregistered or features or (known and any(option in options for option in places)):
        return None
    return known


def _published(name: str) -> Mapping[str, int]:
    """Return repositories and parameters of a reward's weights, from the file that ships with the package.

    Only a reward without an entry has its class asked, which imports torch: one without weights needs no entry.

    Raises:
        KeyError: it has weights that the file does not know.
    """
    if (facts := reward_facts().get(name)) is not None:
        weights: Mapping[str, int] = facts["weights"]
        return weights
    if name in SCORERS and factory_of(name).spec.weights is not None:
        raise KeyError(f"{name} loads weights, of which assets/published/rewards.json has no entry. Add one.")
    return {}


def inner_name(reward: RewardSettings) -> str:
    """Return the reward whose weights are asked for: of `video_mean` the one that it averages."""
    inner = reward.options.get("reward") if reward.name == "video_mean" else None
    return inner if isinstance(inner, str) and inner in SCORERS else reward.name


def inner_options(reward: RewardSettings) -> Mapping[str, object]:
    """Return the options of that reward."""
    options = reward.options.get("reward_options", {}) if reward.name == "video_mean" else reward.options
    return options if isinstance(options, Mapping) else {}


def _bytes(dtype: str) -> int:
    """Return bytes of a weight.

    Raises:
        ConfigError: scorers do not compute in it.
    """
    if dtype not in BYTES:
        raise ConfigError(f"A reward's dtype must be one of {', '.join(BYTES)}. Got {show(dtype)}. Change it.")
    return BYTES[dtype]


def _dtype(reward: RewardSettings) -> str:
    return str(reward.dtype or inner_options(reward).get("dtype", "float32"))


def _file(reward: RewardSettings) -> str:
    """Return what says which file of a repository is read, and how: other words load a copy of their own."""
    options = inner_options(reward)
    return repr({name: str(options[name]) for name in ("version", "step", "revision", "positions") if name in options})
