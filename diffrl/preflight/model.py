"""The model of a run: its pipeline's files, LoRA and noise levels by its architecture alone, then its weights."""

from __future__ import annotations

from pathlib import Path

import torch

from diffrl.bundled import comes_with_diffrl, pipeline_folder
from diffrl.config import Config
from diffrl.cost.meter import CostMeter
from diffrl.distributed.sharding import make_mesh
from diffrl.errors import ConfigError
from diffrl.models.architecture import describe_pipeline
from diffrl.models.distilled import refuse_distilled
from diffrl.models.dry import dry_adapter
from diffrl.models.hub import local_folder
from diffrl.models.loading import check_pipeline_directory
from diffrl.models.targets import names_layer
from diffrl.models.weights import weight_notes
from diffrl.preflight.downloads import NOT_HERE
from diffrl.preflight.preview import EVAL, TRAIN, Opening, Preview, below
from diffrl.rollout.select import own_selection
from diffrl.rollout.tree import plan_forest
from diffrl.run.start_weights import begins_elsewhere, check_start
from diffrl.training.optim import make_optimizer
from diffrl.training.pairs import read_pairs
from diffrl.training.policy import Policy
from diffrl.training.prompt_report import add_encoders
from diffrl.training.scorers import require_sources
from diffrl.training.session import (
    Session,
    encoders_of,
    make_losses,
    open_adapter,
    open_copy,
    open_rounded,
    rollout_sigmas,
)


def dry_model(preview: Preview) -> str:
    """Look at the files of the pipeline, or where it will be fetched from."""
    m = preview.config.model
    check_pipeline_directory(m.facts, m.path, m.variant)
    refuse_distilled(m.facts, m.path, m.allow_distilled)
    m.facts.require_masks(m.attention)
    where = f"{m.path} ({' or '.join(m.facts.pipelines)}), {whereabouts(m.path)}"
    return below(where, weight_notes(pipeline_folder(m.path), m.variant))


def dry_lora(preview: Preview) -> str:
    """Look for the layers that the LoRA names."""
    m = preview.config.model
    if m.lora is None:
        return "none: the whole transformer is trained"
    pipeline = describe_pipeline(m.path)
    shapes = pipeline.shapes["transformer"] if pipeline is not None else {}
    layers = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2}
    missing = [t for t in m.lora_targets if not any(names_layer(t, layer) for layer in layers)]
    if layers and missing:
        raise ConfigError(f"model.lora.targets must name linear layers of the transformer. Got {missing}.")
    return f"rank {m.lora.rank} on {', '.join(m.lora_targets)}"


def dry_selection(preview: Preview) -> str | None:
    """Try a selection of the user's own on candidates with rewards from -1 to 1, of which one could not be scored."""
    e = preview.config.rollout.explore
    if e is None or ":" not in e.select:
        return None
    rewards = torch.linspace(-1, 1, e.candidates)
    if e.candidates > e.keep:
        rewards[0] = float("nan")
    r = preview.config.rollout
    forest = plan_forest(1, r.trees, r.branching_at(0))
    own_selection(e.select, rewards, e.keep, forest.parent, forest.leaf)
    return f"{e.select}, tried once"


def dry_samples(preview: Preview) -> str | None:
    """Look at what only the pipeline's sizes and noise levels can judge, without its weights."""
    config = preview.config
    if not judged_by_model(config):
        return None
    m = config.model
    adapter = dry_adapter(m.family, m.facts, m.path, true_cfg_scale=m.true_cfg_scale, **m.options)
    if adapter is None:
        return "their size is judged once the pipeline is loaded"
    make_losses(config, open_rounded(config, rollout_sigmas(adapter, config)))
    return f"latents of {' x '.join(map(str, adapter.latent_shape))}, in {config.rollout.steps} steps"


def dry_start(preview: Preview) -> str | None:
    """Look at the weights that the run begins with, where these are not its pipeline's own.

    A run that has a checkpoint needs them no more, and is asked again where it has none (`restore_initial`).
    """
    if preview.resumes or not begins_elsewhere(preview.config):
        return None
    start = preview.pinned.model.init_from
    if start is None:
        return check_start(preview.config.model)
    return f"the weights of {start.run} after iteration {start.step}"


def open_model(opening: Opening) -> None:
    """Load the model and make everything that trains it.

    Raises:
        ConfigError: anything in the configuration that cannot be had on this machine.
        PrecisionError: the copy that explores does not compute what was asked for.
    """
    config, ranks, preview = opening.config, opening.ranks, opening.preview
    world = ranks.world
    adapter = open_adapter(config, ranks.device)
    require_sources(config.model.family, adapter, opening.prompts)
    if config.objective.trains_pairs and not preview.resumes:
        read_pairs(adapter, opening.prompts)
    report, (encoders, complete) = opening.report, preview.encoder_report
    if complete:
        report = report.joined(encoders)
    else:
        add_encoders(report, config.prompts, opening.prompts, encoders_of(adapter), config.model.negative_prompt)
    if not preview.resumes:
        report.require()
    sharded = config.train.sharding == "fsdp" and world > 1
    policy = Policy(
        adapter,
        config.model.adapters,
        config.run.seed,
        keep_reference=config.objective.needs_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
        to_be_sharded=sharded,
    )
    meter = CostMeter()
    meter.watch(policy.networks(), config.model.dtype)
    copy = open_copy(config, policy, ranks.device)
    if copy is not None:
        meter.watch([copy.module], copy.report.precision)
    ranks.wait()  # one may have downloaded or compiled for long; what follows is the backend's
    if sharded:
        ranks.keep_in_step(policy.shard(make_mesh(ranks)))
    t = config.train
    parameters = list(policy.parameters.values())
    optimizer = make_optimizer(parameters, t.optimizer, t.learning_rate, t.betas, t.epsilon, t.weight_decay)
    if world > 1 and not sharded and not policy.alternates:  # DDP waits for gradients of every weight in every pass
        adapter.transformer = ranks.prepare(adapter.transformer)
    sigmas = rollout_sigmas(adapter, config)
    transition = open_rounded(config, sigmas)
    listing = tuple(dict.fromkeys([*opening.listing, *report.notes, *report.problems]))
    opening.session = Session(
        config=config,
        ranks=ranks,
        plan=preview.plan,
        adapter=adapter,
        policy=policy,
        copy=copy,
        meter=meter,
        transition=transition,
        losses=make_losses(config, transition),
        optimizer=optimizer,
        scorers=opening.scorers[TRAIN],
        eval_scorers=opening.scorers[EVAL],
        prompts=opening.prompts[TRAIN],
        eval_prompts=opening.prompts[EVAL],
        sigmas=sigmas,
        notes=(*opening.notes, *listing),
        prompt_notes=listing,
    )


def judged_by_model(config: Config) -> bool:
    """Return whether something is set that the pipeline itself may refuse; one of diffrl's own refuses nothing."""
    m, r = config.model, config.rollout
    own_code = ":" in config.objective.kind or (r.dynamics is not None and ":" in r.dynamics.kind)
    has_options = any(value is not None for value in m.options.values())
    folder = pipeline_folder(m.path)
    others = folder.is_dir() and not comes_with_diffrl(folder)
    return own_code or has_options or others or r.latents_dtype != "float32"


def whereabouts(path: str) -> str:
    """Return where a pipeline is, without asking the network."""
    folder = pipeline_folder(path)
    if folder.exists():
        return "here" if folder == Path(path) else f"which comes with diffrl: {folder}"
    return NOT_HERE if local_folder(path) is None else "in the hub's cache"
