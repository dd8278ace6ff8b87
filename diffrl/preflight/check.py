"""Everything about a configuration that can be known without loading the model, or fetching anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from diffrl.bundled import comes_with_diffrl, pipeline_folder
from diffrl.config import Config
from diffrl.config.idle import unused_keys
from diffrl.config.rewards import RewardSettings
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import Offer, fit_text, offer_here, offer_of
from diffrl.data.prompts import load_prompts, read_prompts
from diffrl.data.sources import read_sources, require_sources
from diffrl.errors import ConfigError, DiffrlError, NotHereError
from diffrl.models.architecture import describe_pipeline
from diffrl.models.distilled import refuse_distilled
from diffrl.models.dry import dry_adapter
from diffrl.models.hub import local_folder
from diffrl.models.loading import DTYPES, check_pipeline_directory, choose_device
from diffrl.models.placement import try_attention
from diffrl.models.targets import names_layer
from diffrl.models.weights import weight_notes
from diffrl.precision.backends import find_backend
from diffrl.precision.facts import speed_notes
from diffrl.preflight.check_prompts import look_at_prompts
from diffrl.preflight.downloads import downloads, is_away, require_reader, told, weights_away
from diffrl.preflight.placeholders import missing_package, unloaded
from diffrl.preflight.probe_rewards import try_rewards
from diffrl.preflight.target_machine import Elsewhere, runs_on
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer
from diffrl.rollout.select import own_selection
from diffrl.run.directory import new_run_dir
from diffrl.run.initial import begins_elsewhere, pin_initial
from diffrl.run.lora_start import check_start
from diffrl.training.optim import make_optimizer
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs
from diffrl.training.session import check_trackers, make_losses, memory_notes, open_rounded, rollout_sigmas

NOT_HERE = "not here yet: fetched from the hub at the first start"


def check_config(
    config: Config, processes: int = 1, elsewhere: Elsewhere | None = None, ask_rewards: bool = True
) -> list[str]:
    """Look at everything that a configuration names, for a run of so many processes.

    Args:
        config: the run.
        processes: that will share it.
        elsewhere: a machine that is not this one; memory and arithmetic are judged for it.
        ask_rewards: score a picture of noise with every reward that is here.

    Returns:
        Lines that say what was found. The last ones say what this machine, or that one, cannot run: a configuration
        may be right all the same.

    Raises:
        ConfigError: lists all problems.
    """
    problems: list[str] = []
    found: list[str] = []
    not_here: list[str] = []
    for label, look in _Checks(config, processes, elsewhere, ask_rewards, _offer(config, elsewhere)).all():
        try:
            found.append(f"{label:<12} {look()}")
        except NotHereError as error:
            not_here.extend(error.problems)
        except ConfigError as error:
            problems.extend(error.problems)
        except DiffrlError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # prompts are asked for twice
    fetched = downloads(config)
    verdict = "The configuration is fine but for what is not here yet." if fetched else "The configuration is fine."
    if not_here:
        machine = "this machine" if elsewhere is None else elsewhere.name
        verdict = f"The configuration is valid, and cannot run on {machine}:"
    return [
        *found,
        *unused_keys(config),
        *(f"{'' if number else 'to fetch':<12} {line}" for number, line in enumerate(told(fetched))),
        verdict,
        *(f"  - {reason}" for reason in dict.fromkeys(not_here)),
    ]


@dataclass(frozen=True)
class _Checks:
    """What is looked at: each look gives what was found, or raises what is wrong."""

    config: Config
    processes: int
    elsewhere: Elsewhere | None
    ask_rewards: bool
    offer: Offer | None

    def all(self) -> list[tuple[str, Callable[[], str]]]:
        return [
            ("prompts", self.prompts),
            ("", self.held_out),
            ("rewards", self.rewards),
            *([("packages", self.packages)] if any(map(missing_package, self.every_reward)) else []),
            ("model", self.model),
            ("lora", self.lora),
            *([("selection", self.selection)] if _own_selection(self.config) else []),
            *([("samples", self.samples)] if judged_by_model(self.config) else []),
            *([("begins with", self.begins_with)] if begins_elsewhere(self.config) else []),
            ("device", self.device),
            ("memory", self.memory),
            ("trackers", lambda: ", ".join(["metrics.jsonl", *check_trackers(self.config)])),
            ("run", lambda: f"{new_run_dir(self.config)} is free"),
        ]

    def prompts(self) -> str:
        source = self.config.prompts.train
        if self.elsewhere is None:
            require_reader(source)
        if is_away(source):
            return f"{source} {NOT_HERE}"
        listed, notes = read_prompts(source)
        self.sources(listed, "prompts.train")
        return _lines(f"{len(listed):,} to train on{_images(listed, 'prompts.train')}", notes)

    def held_out(self) -> str:
        source = self.config.prompts.held_out
        if self.elsewhere is None:
            require_reader(source)
        if is_away(source):
            return f"{source} {NOT_HERE}"
        held_out, notes = read_prompts(source)
        shown = held_out[: self.config.eval.samples]
        self.sources(shown, "prompts.eval")
        said = [] if source == self.config.prompts.train else notes
        return _lines(f"{len(held_out):,} held out{_images(shown, 'prompts.eval')}", said)

    def sources(self, prompts: Sequence[Prompt], where: str) -> None:
        """Refuse prompts that do not fit the family, and images of another shape where the configuration has one."""
        m = self.config.model
        size = None if m.height is None or m.width is None else (m.height, m.width)
        require_sources(prompts, where, m.family, m.facts.edits, size)

    def rewards(self) -> str:
        config, train = self.config, self.config.prompts.train
        here, away = _scorers(config.rewards, "rewards")
        here_too, away_too = _scorers(config.eval.rewards, "eval.rewards")
        scorers, held_out = [*here, *away], [*here_too, *away_too]
        require_media(config.model.facts, [*scorers, *held_out])
        if not is_away(train):
            require_metadata(scorers, load_prompts(train), "prompts.train")
        if not is_away(config.prompts.held_out):
            shown = load_prompts(config.prompts.held_out)[: config.eval.samples]
            require_metadata(held_out, shown, "prompts.eval")
            require_pairs(held_out, config.eval.samples, len(shown))
        report = look_at_prompts(config, {"prompts.train": scorers, "prompts.eval": held_out})
        report.require()
        names = f"{_names(config.rewards)}; held out: {_names(config.eval.rewards)}"
        if not self.ask_rewards or is_away(train) or not (here or here_too):
            return _lines(f"{names}; not asked", report.notes)
        refused = try_rewards(config, [*here, *here_too], load_prompts(train)[0])
        asked = "each was asked once" if not (away or away_too) else "those that are here were asked once"
        return _lines(f"{names}; {asked}", [*report.notes, *refused])

    @property
    def every_reward(self) -> list[RewardSettings]:
        return [*self.config.rewards, *self.config.eval.rewards]

    def packages(self) -> str:
        """What rewards need and this machine has not: nothing is wrong with the configuration."""
        lacking = {reward.name: missing_package(reward) for reward in self.every_reward}
        needs = {
            name: f"The reward {name} needs packages not installed here" for name, extra in lacking.items() if extra
        }
        if self.elsewhere is None:
            raise NotHereError([f"{text}. Run: pip install '{lacking[name]}'." for name, text in needs.items()])
        return "; ".join(f"{name}: pip install '{lacking[name]}'" for name in needs)

    def model(self) -> str:
        m = self.config.model
        check_pipeline_directory(m.facts, m.path, m.variant)
        refuse_distilled(m.facts, m.path, m.allow_distilled)
        where = f"{m.path} ({' or '.join(m.facts.pipelines)}), {whereabouts(m.path)}"
        return "\n".join([where, *(f"{'':<12} {note}" for note in weight_notes(pipeline_folder(m.path), m.variant))])

    def lora(self) -> str:
        m = self.config.model
        if m.lora is None:
            return "none: the whole transformer is trained"
        found = describe_pipeline(m.path)
        shapes = found.shapes["transformer"] if found is not None else {}
        layers = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2}
        missing = [t for t in m.lora_targets if not any(names_layer(t, layer) for layer in layers)]
        if layers and missing:
            raise ConfigError(f"model.lora.targets must name linear layers of the transformer. Got {missing}.")
        return f"rank {m.lora.rank} on {', '.join(m.lora_targets)}"

    def selection(self) -> str:
        """An own selection, tried once on candidates with rewards from -1 to 1, of which one could not be scored."""
        e = self.config.rollout.explore
        assert e is not None
        rewards = torch.linspace(-1, 1, e.candidates)
        if e.candidates > e.keep:
            rewards[0] = float("nan")
        own_selection(e.select, rewards, e.keep)
        return f"{e.select}, tried once"

    def samples(self) -> str:
        """What only the pipeline's sizes and noise levels can judge, without its weights."""
        m, r = self.config.model, self.config.rollout
        adapter = dry_adapter(m.family, m.facts, m.path, true_cfg_scale=m.true_cfg_scale, **m.options)
        if adapter is None:
            return "their size is judged once the pipeline is loaded"
        sigmas = rollout_sigmas(adapter, self.config)
        make_losses(self.config, open_rounded(self.config, sigmas))
        return f"latents of {' x '.join(map(str, adapter.latent_shape))}, in {r.steps} steps"

    def begins_with(self) -> str:
        begun = pin_initial(self.config).model.init_from
        if begun is None:
            return check_start(self.config.model)
        return f"the weights of {begun.run} after iteration {begun.step}"

    def device(self) -> str:
        m, e, t = self.config.model, self.config.rollout.explore, self.config.train
        precision = None if e is None else e.precision
        if self.elsewhere is not None:
            return _lines(runs_on(self.config, self.elsewhere), speed_notes(m.dtype, precision, "cuda"))
        device = choose_device(m.device)
        if t.optimizer != "adamw":  # which torch has everywhere, and whose first one imports torch's compiler
            make_optimizer([torch.nn.Parameter(torch.zeros(1))], t.optimizer, 1.0, t.betas, t.epsilon, t.weight_decay)
        if m.attention is not None:
            try_attention(m.attention, device, DTYPES[m.dtype])
        named = str(device)
        if e is not None and e.precision != "training":
            named += f", exploring in {e.precision} by {find_backend(e.precision, e.engine, device).name}"
        return _lines(named, speed_notes(m.dtype, precision, device.type))

    def memory(self) -> str:
        plan = make_plan(self.config, self.processes)
        if plan.memory is None:
            return "cannot be estimated before the pipeline is here"
        offer = self.offer or offer_here(choose_device(self.config.model.device))  # which raises
        notes = memory_notes(self.config, plan, offer)
        return _lines(fit_text(plan.memory, offer, plan.world_size), notes)


def _offer(config: Config, elsewhere: Elsewhere | None) -> Offer | None:
    """Return what the machine offers before anything is looked at, for rewards take memory; None without the device."""
    if elsewhere is not None:
        return offer_of(elsewhere.memory)
    with suppress(NotHereError):
        return offer_here(choose_device(config.model.device))
    return None


def _lines(first: str, more: Sequence[str]) -> str:
    """What a look found, and further lines below it."""
    return "\n".join([first, *(f"{'':<12} {line}" for line in more)])


def _own_selection(config: Config) -> bool:
    e = config.rollout.explore
    return e is not None and ":" in e.select


def judged_by_model(config: Config) -> bool:
    """Whether something is set that the pipeline itself may refuse: not so of one that comes with diffrl, as it is."""
    m, r = config.model, config.rollout
    own = ":" in config.objective.kind or (r.dynamics is not None and ":" in r.dynamics.kind)
    asked = any(value is not None for value in m.options.values())
    folder = pipeline_folder(m.path)
    others = folder.is_dir() and not comes_with_diffrl(folder)
    return own or asked or others or r.latents_dtype != "float32"


def _images(prompts: Sequence[Prompt], where: str) -> str:
    """How many of the images to edit were opened, as training will."""
    read = read_sources(prompts, where)
    return f", with images: {read}" if read else ""


def _scorers(settings: Sequence[RewardSettings], where: str) -> tuple[list[WeightedScorer], list[WeightedScorer]]:
    """Those whose weights and packages are here, and stand-ins for the others."""
    away = [reward for reward in settings if weights_away(reward) or missing_package(reward)]
    return make_scorers([reward for reward in settings if reward not in away], where), unloaded(away, where)


def _names(rewards: Sequence[RewardSettings]) -> str:
    return ", ".join(f"{reward.key}{_lacks(reward)}" for reward in rewards)


def _lacks(reward: RewardSettings) -> str:
    """What of a reward is not here, to go on after its name."""
    if missing_package(reward):
        return " (its package is not here)"
    return " (weights not here yet)" if weights_away(reward) else ""


def whereabouts(path: str) -> str:
    """Where a pipeline is, without asking the network."""
    folder = pipeline_folder(path)
    if folder.exists():
        return "here" if folder == Path(path) else f"which comes with diffrl: {folder}"
    return NOT_HERE if local_folder(path) is None else "in the hub's cache"
