"""Which keys make a run fit a smaller GPU: what costs least first, until the plan's memory fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from diffrl.config.schema import Config
from diffrl.cost.gpus import GPUS, Gpu
from diffrl.cost.host_limits import GIB
from diffrl.cost.memory import Memory
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import offer_of, shortages
from diffrl.cost.scorers import weights_of
from diffrl.errors import ConfigError
from diffrl.precision.formats import PRECISIONS

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Fit:
    """How a run fits a GPU."""

    gpu: Gpu  # that it fits: the one asked for, or the smallest that it fits with everything
    overrides: Overrides  # keys to set, with their values; none where it fits as it is
    costs: tuple[str, ...]  # what each step of them costs
    memory: Memory  # of the plan with them


def steps_down(config: Config) -> Iterator[tuple[str, Overrides]]:
    """Yield what a step towards less memory costs, and its keys: first what changes nothing that is learned."""
    m, r, t = config.model, config.rollout, config.train
    yield "the update computes a third more", {"train.gradient_checkpointing": True}
    yield (
        "text encoders and decoder move to the GPU when they are asked",
        {
            "model.offload": sorted({*m.offload, "text_encoders", "vae"}),
            "model.vae_slicing": True,
        },
    )
    sampling = {"rollout.micro_batch": min(r.micro_batch, 4), "rollout.decode_batch": min(r.decode_batch, 2)}
    sampling = {} if config.objective.trains_pairs else sampling
    held_out = {"eval.batch": min(config.eval.batch, 4)}
    batches = {"train.micro_batch": min(t.micro_batch, 2), **sampling, **held_out}
    yield "smaller batches, more of them", batches
    yield "the optimiser's state in 8 bits (bitsandbytes)", {"train.optimizer": "adamw_8bit"}
    lists = {"rewards": config.rewards, "eval.rewards": config.eval.rewards}
    heavy = {f"{at}.{n}": one.name for at, all_ in lists.items() for n, one in enumerate(all_) if weights_of(one) != {}}
    inner = {"video_mean": "options.reward_options."}  # whose inner reward has a dtype
    dtypes = {f"{one}.{inner.get(name, '')}dtype": "bfloat16" for one, name in heavy.items()}
    yield "rewards compute in bfloat16, and scores change by rounding", dtypes
    yield "rewards are computed by the CPU", {f"{one}.device": "cpu" for one in heavy}
    copy = r.policy_copy
    if copy is not None and PRECISIONS[copy.precision].low:
        without: Overrides = {"rollout.draw": None} if r.draw else {"rollout.explore.precision": "training"}
        yield "no low-precision copy: the policy samples everything itself", without
    yield "one sample a batch", dict.fromkeys(batches, 1)
    if m.lora is not None and m.base_precision is None:
        yield "the frozen base in int8", {"model.base_precision": "int8"}
        yield "the frozen base in nf4", {"model.base_precision": "nf4"}


def find_fit(config: Config, with_keys: Callable[[Overrides], Config], gpu: Gpu, processes: int) -> Fit:
    """Return how a run fits a GPU, with no step that it does not need; or the smallest GPU that it fits with all.

    Args:
        config: of the run.
        with_keys: returns it with other values; raises ConfigError where they do not go together.
        gpu: to fit.
        processes: of the run.

    Raises:
        ConfigError: memory cannot be estimated, or no GPU of the table is large enough.
    """
    steps: list[tuple[str, Overrides]] = []
    for cost, keys in steps_down(config):
        changed = {key: value for key, value in keys.items() if _value(config, key) != value}
        with suppress(ConfigError):
            if changed and with_keys(_joined([*steps, (cost, changed)])):
                steps.append((cost, changed))

    @cache
    def memory_of(chosen: tuple[int, ...]) -> Memory:
        memory = make_plan(with_keys(_joined([steps[n] for n in chosen])), processes).memory
        if memory is None:
            raise ConfigError(
                f"--fit needs a plan of memory. Got model.path {config.model.path}, which is neither here nor known. "
                "Fetch it, or name a published pipeline."
            )
        return memory

    def fits(chosen: tuple[int, ...], card: Gpu) -> bool:
        return not shortages(memory_of(chosen), offer_of(card), processes)

    every = tuple(range(len(steps)))
    if not fits(every, gpu):
        larger = sorted((one for one in GPUS.values() if fits(every, one)), key=lambda one: one.memory)
        if not larger:
            raise ConfigError(
                f"No GPU that --fit knows holds this run. Got {memory_of(every).needed('cuda') / GIB:.1f} GiB with "
                "everything that saves. Train a LoRA or smaller images, or shard the model (docs/scale.md)."
            )
        gpu = larger[0]
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(every[:middle], gpu) else (middle + 1, high)
    chosen = every[:low]
    for number in reversed(chosen[:-1]):
        without = tuple(n for n in chosen if n != number)
        with suppress(ConfigError):  # others may stand on it
            chosen = without if fits(without, gpu) else chosen
    taken = [steps[n] for n in chosen]
    costs = {next(iter(keys)): cost for cost, keys in taken}  # a further step on the same key stands for both
    return Fit(gpu, _joined(taken), tuple(costs.values()), memory_of(chosen))


def _joined(steps: Sequence[tuple[str, Overrides]]) -> Overrides:
    return {key: value for _, keys in steps for key, value in keys.items()}


def override_words(overrides: Overrides) -> Sequence[str]:
    """Return overrides as a command takes them."""
    return [f"{key}={_word(value)}" for key, value in overrides.items()]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def fit_lines(fit: Fit, asked: Gpu, command: str) -> Iterator[str]:
    """Yield what to tell of a fit; `command` runs it."""
    if fit.gpu is not asked:
        yield f"It does not fit an {asked.title} ({asked.memory / GIB:.1f} GiB). The smallest GPU that holds it:"
    needed, host = (size / GIB for size in (fit.memory.needed("cuda"), fit.memory.needed_by_host("cuda")))
    how = "with these keys:" if fit.overrides else "as it is:"
    of = f"{needed:.1f} of {fit.gpu.memory / GIB:.1f} GiB"
    yield f"{fit.gpu.title}: {of}, and {host:.1f} GiB of the computer's memory, {how}"
    yield f"  {command}"
    for cost in fit.costs:
        yield f"    {cost}"


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[int(part)] if part.isdecimal() else getattr(value, part, None)
    return sorted(value) if isinstance(value, tuple | frozenset | set) else value
