"""A run's weights in the formats that diffusers reads, with a model card."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from safetensors.torch import save_file
from torch import nn

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import SOURCES
from diffrl.errors import ConfigError
from diffrl.export.comfyui import comfyui_files, model_spec, require_comfyui
from diffrl.export.hub import front_matter
from diffrl.files import follow_umask, require_empty
from diffrl.models.adapter import EditingAdapter
from diffrl.models.files import read_object
from diffrl.models.loading import DTYPES
from diffrl.models.lora import ADAPTER_NAME, lora_layers, lora_metadata, save_adapter
from diffrl.models.lora_file import FIRST_LORA, PEFT_FOLDER, SECOND_LORA, SECOND_PEFT_FOLDER, lora_loader
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.shipped import SETTINGS_FILE, shipped_settings
from diffrl.run.checkpoints import HEALTHY, AlignedModel, Choice, load_aligned
from diffrl.run.directory import open_run_dir
from diffrl.run.summary import held_out_change
from diffrl.tracking.health import METRICS, read_health
from diffrl.tracking.metrics import read_metrics

CARD = jinja2.Environment(
    loader=jinja2.PackageLoader("diffrl.export", ""),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
CARD.filters["repr"] = repr


def export_run(run: Path, out: Path, choice: Choice = HEALTHY, comfyui: bool = False, peft: bool = False) -> list[str]:
    """Write a LoRA (`pytorch_lora_weights.safetensors`) or, after full fine-tuning, the whole pipeline; and a card.

    Args:
        run: a run's directory.
        out: new or empty.
        choice: of the run's checkpoints.
        comfyui: whether the LoRA is also written with ComfyUI's keys.
        peft: whether it is also written as peft writes it, into a folder of its own.

    Returns:
        Lines for the user.

    Raises:
        ConfigError: no such run, or `out` is not empty, or ComfyUI cannot have it.
        CheckpointError: the run has no checkpoint that can be used.
    """
    require_empty(out, "--out")
    config = open_run_dir(run)[1]
    if (comfyui or peft) and config.model.lora is None:
        raise ConfigError(
            f"{'--comfyui' if comfyui else '--peft'} needs a run with model.lora. Got one of full fine-tuning, whose "
            "export is a whole pipeline. Leave it out."
        )
    if comfyui:
        require_comfyui(config)
    model = load_aligned(run, torch.device("cpu"), choice)
    pipeline: Any = model.adapter.pipeline  # type: ignore[attr-defined]
    files = comfyui_files(model) if comfyui else {}
    out.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        save_file(tensors, out / name, model_spec(model))
    if model.config.model.lora is not None:
        for name, module in model.adapter.trainable_modules().items():
            lora_loader(type(pipeline)).save_lora_weights(
                str(out),
                transformer_lora_layers=lora_layers(module),
                transformer_lora_adapter_metadata=lora_metadata(module),
                weight_name=SECOND_LORA if name == "transformer_2" else None,
                safe_serialization=True,
            )
            if name == "transformer":  # for readers of adapter_config.json; diffusers reads it in the file itself
                module.peft_config[ADAPTER_NAME].save_pretrained(str(out))
            if peft:
                save_adapter(module, out / (PEFT_FOLDER if name == "transformer" else SECOND_PEFT_FOLDER))
        what = "LoRA"
    else:
        for module in model.adapter.trainable_modules().values():
            nn.Module.to(module, DTYPES[model.config.model.dtype])  # one precision, or a plain load would mix two
        pipeline.save_pretrained(str(out), safe_serialization=True)
        settings = pipeline_folder(model.config.model.path) / SETTINGS_FILE
        if settings.is_file():
            (out / SETTINGS_FILE).write_bytes(settings.read_bytes())
        what = "pipeline"
    (out / "README.md").write_text(model_card(model, out, tuple(files)), encoding="utf-8")
    follow_umask(out)
    message = f"{what} of iteration {model.checkpoint.step} written to {out}, with a model card."
    lines = [*model.messages, message, *([f"For ComfyUI: {' and '.join(files)}."] if files else [])]
    return [*lines, f"For peft: {' and '.join(sorted(f.name for f in out.glob('peft*')))}."] if peft else lines


def model_card(model: AlignedModel, out: Path, comfyui: Sequence[str] = ()) -> str:
    """Write the card: what was trained on what, its gain, its use; `comfyui` names the files for ComfyUI."""
    config, held_out = model.config, model.config.prompts.held_out
    lines, arguments = _stock_call(model)
    return CARD.get_template("card.md.jinja").render(
        config=config,
        metadata=front_matter(config),
        picture=_picture(model, out),
        facts=config.model.facts,
        lora=config.model.lora,
        method=_method(config.objective.kind),
        rewards=", ".join(f"{reward.key} (weight {reward.weight:g})" for reward in config.rewards) or "given pairs",
        step=model.checkpoint.step,
        origin=_origin(config),
        ema="ema" in model.checkpoint.tensors,
        gains=_gains(model),
        ailment=_ailment(model),
        prompt_notes=_prompt_notes(model.run_dir),
        pipeline=type(model.adapter.pipeline).__name__,  # type: ignore[attr-defined]
        base=str(pipeline_folder(config.model.path)),
        out=str(out),
        dtype="" if config.model.dtype == "float32" else f", dtype=torch.{config.model.dtype}",
        first_lora=FIRST_LORA,
        second_lora=SECOND_LORA if "transformer_2" in model.adapter.trainable_modules() else None,
        prompt=load_prompts(held_out)[0].text if held_out in SOURCES else "a prompt",
        lines=lines,
        arguments=arguments,
        comfyui=comfyui,
        yaml=(model.run_dir / "config.yaml").read_text(encoding="utf-8").strip(),
    )


def _picture(model: AlignedModel, out: Path) -> str | None:
    """Copy the run's picture of samples before and after beside the card, where it is of these weights; its name."""
    name = "before_after.png"
    if model.checkpoint.step != model.config.run.iterations or not (model.run_dir / name).is_file():
        return None
    shutil.copyfile(model.run_dir / name, out / name)
    return name


def _stock_call(model: AlignedModel) -> tuple[list[str], str]:
    """Return what a stock call that draws what the run drew wants: lines before it, and its arguments."""
    config, adapter, facts = model.config, model.adapter, model.config.model.facts
    explicit = {name: value for name, value in config.model.options.items() if value is not None}
    options: dict[str, Any] = {
        facts.guidance_argument: config.eval.guidance_scale + facts.guidance_offset,
        **shipped_settings(pipeline_folder(config.model.path)),
        **explicit,
        **dict(facts.stock_options),
    }
    lines = [line.format(options.pop(name)) for name, line in facts.stock_lines if name in options]
    lines = [line for line in lines if line]
    names = {"frames": "num_frames"}
    image = ""
    if isinstance(adapter, EditingAdapter):
        image = f', image=load_image("image.png").resize({(adapter.width, adapter.height)})'
        options |= adapter.stock_call()
    if isinstance(adapter, PipelineAdapter):
        lines += adapter.stock_preparation().strip().splitlines()
    return lines, image + "".join(f", {names.get(name, name)}={value!r}" for name, value in options.items())


def _method(kind: str) -> str:
    """Return what an objective is called: by its name, or where it is one's own by its path."""
    if kind == "tilt":
        return "tree tilt"
    return f"`{kind}`" if ":" in kind else kind.upper()


def _origin(config: Config) -> str:
    """Return what the run began with, where that was not the base itself."""
    begun, start = config.model.init_from, config.model.lora_start
    if start is not None:
        return f" from the LoRA {start.path}"
    return "" if begun is None else f" from the weights of the run {begun.run} after its iteration {begun.step}"


def _prompt_notes(run_dir: Path) -> list[str]:
    """Quote the run's record of its prompts: cut, trained on and evaluated, or beyond what a reward can score."""
    try:
        noted = read_object(run_dir / "environment.json", missing={}).get("prompts")
    except ConfigError:  # a damaged record takes no weights from anybody
        noted = None
    return noted if isinstance(noted, list) else []


def _ailment(model: AlignedModel) -> str:
    """Return what the exported iteration's evaluation found wrong; empty where nothing is known to be."""
    known = (model.run_dir / METRICS).is_file()
    return read_health(model.run_dir, model.config.eval.rewards[0].key).ailment(model.checkpoint.step) if known else ""


def _gains(model: AlignedModel) -> list[tuple[str, float, float]] | None:
    """Return name, before and after of each held-out reward; None where the exported iteration was not evaluated."""
    path, step = model.run_dir / METRICS, model.checkpoint.step
    rows = [row for row in read_metrics(path) if row.get("iteration", 0) <= step] if path.is_file() else []
    if not any(row.get("iteration") == step and any(key.startswith("held_out/") for key in row) for row in rows):
        return None
    change = held_out_change(rows, [reward.key for reward in model.config.eval.rewards])
    names = [key.removesuffix("_before") for key in change if key.endswith("_before")]
    values = [(name, change[f"{name}_before"], change[f"{name}_after"]) for name in names]
    return [(name, before, after) for name, before, after in values if before is not None and after is not None]
