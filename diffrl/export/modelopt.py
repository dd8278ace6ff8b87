"""A run's aligned model, quantised by nvidia-modelopt for deployment: calibrated on the run's own prompts.

`diffrl export --format modelopt-fp8 | modelopt-nvfp4`. Calibration looks at numbers only and runs on any device; so
does packing. Running NVFP4 afterwards takes a Blackwell GPU and a server that reads modelopt's checkpoints.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError
from diffrl.export.hub import front_matter
from diffrl.files import follow_umask, require_empty, write_json
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import DTYPES, choose_device
from diffrl.precision.building import choose_layers
from diffrl.precision.choice import machine_of, missing_package
from diffrl.precision.engines.modelopt import quantise_quietly
from diffrl.precision.facts import ENGINES
from diffrl.precision.weights import merged_copy, refuse_quantised
from diffrl.records import Prompt
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.tree import chains
from diffrl.run.checkpoints import HEALTHY, AlignedModel, Choice, load_aligned

CALIBRATION_PROMPTS = 128
STATE_FILE = "modelopt.pth"
LAYERS_FILE = "quantisation.json"
E4M3 = {"num_bits": (4, 3), "axis": None}
E2M1 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
FORMATS: Mapping[str, tuple[Mapping[str, Any], int]] = {"modelopt-fp8": (E4M3, 16), "modelopt-nvfp4": (E2M1, 16)}
"""Quantisers, as in modelopt's FP8_DEFAULT and NVFP4_DEFAULT, and what sizes must be multiples of."""
CARD = """---
{metadata}
---

# {name}, {form}

`{base}`, aligned with diffrl ({step} iterations) and quantised by nvidia-modelopt, calibrated on {prompts} of the run's
own prompts. {count} linear layers are quantised; {kept} stay as they are. Both lists are in `{layers}`.

- `transformer/`: packed weights and scales, in the layout of modelopt's unified checkpoints, for servers that read it.
- `{state}`: weights and quantiser state for PyTorch:

```python
import modelopt.torch.opt as mto
from diffusers import {transformer}

transformer = mto.restore({transformer}.from_config({folder!r}, subfolder="transformer"), "{folder}/{state}")
```

`{state}` is a pickle: restore only files that you trust. It multiplies in high precision what it has rounded (NVFP4 on
CUDA only).
"""


def export_quantised(
    run: Path, out: Path, form: str, prompts: int = CALIBRATION_PROMPTS, choice: Choice = HEALTHY
) -> list[str]:
    """Merge, quantise, calibrate and write.

    Args:
        run: a run's directory.
        out: new or empty.
        form: a key of `FORMATS`.
        prompts: training prompts to calibrate on, at most.
        choice: of the run's checkpoints.

    Returns:
        Lines for the user.

    Raises:
        ConfigError: an unknown format, no modelopt, no such run, or `out` is not empty.
        CheckpointError: the run has no checkpoint that can be used.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format must be one of diffusers, {', '.join(FORMATS)}. Got {form!r}.")
    if reason := missing_package(ENGINES["modelopt"], machine_of(choose_device("auto"))):
        raise ConfigError(f"--format {form}: {reason}.")
    require_empty(out, "--out")
    model = load_aligned(run, choose_device("auto"), choice)
    adapter: Any = model.adapter
    refuse_quantised(model.policy.inner)
    if len(networks := adapter.trainable_modules()) > 1:
        raise ConfigError(f"--format {form} takes pipelines of one network. Got {', '.join(networks)}. Use diffusers.")
    device = next(model.policy.inner.parameters()).device
    network = merged_copy(model.policy.inner, DTYPES[model.config.model.dtype], device)
    adapter.transformer = network
    recipe, multiple = FORMATS[form]
    chosen, kept = choose_layers(network, model.config.copy_exclude, lambda layer: _unfit(layer, multiple))
    listed = load_prompts(model.config.prompts.train)[:prompts]
    texts = [prompt.text for prompt in listed]
    quantised = quantise_quietly(network, quantiser_config(list(chosen), recipe), lambda _: _calibrate(model, listed))
    out.mkdir(parents=True, exist_ok=True)
    _write(model, quantised, out)
    write_json(out / LAYERS_FILE, {"format": form, "quantised": list(chosen), "kept": kept, "calibrated_on": texts})
    (out / "README.md").write_text(_card(model, out, form, len(texts), len(chosen), len(kept)), encoding="utf-8")
    follow_umask(out)
    return [
        *model.messages,
        f"{form} of iteration {model.checkpoint.step} written to {out}: {len(chosen)} linear layers quantised, "
        f"{len(kept)} kept, calibrated on {len(texts)} prompts.",
    ]


def quantiser_config(layers: list[str], recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a modelopt configuration for exactly these layers; modelopt's own lists of exceptions do not apply."""
    on = [
        {"quantizer_name": f"{name}.{side}_quantizer", "cfg": dict(recipe)}
        for name in layers
        for side in ("weight", "input")
    ]
    return {"quant_cfg": [{"quantizer_name": "*", "enable": False}, *on], "algorithm": "max"}


def _unfit(layer: nn.Linear, multiple: int) -> str | None:
    """Say why a layer stays: pointwise convolutions are not for servers' linear kernels, and have no weights."""
    if layer.weight.is_meta:
        return "a convolution"
    sizes = (layer.in_features, layer.out_features)
    return f"{sizes[0]} x {sizes[1]} is no multiple of {multiple}" if any(s % multiple for s in sizes) else None


@torch.no_grad()
def _calibrate(model: AlignedModel, prompts: Sequence[Prompt]) -> None:
    """Draw one sample of each prompt, as the run's evaluation does, from noise of its own."""
    adapter, e = model.adapter, model.config.eval
    sampler = Sampler(
        adapter.sigmas(e.steps),
        solver=e.solver,
        guidance_scale=e.guidance_scale,
        micro_batch=model.config.rollout.micro_batch,
    )
    encode = PromptEncodings(adapter)
    for start in range(0, len(prompts), model.config.rollout.micro_batch):
        piece = prompts[start : start + model.config.rollout.micro_batch]
        addresses = [Address("calibrate", model.config.run.seed, 0, start + i, 0) for i in range(len(piece))]
        denoise(adapter, encode(piece), chains(torch.arange(len(piece))), addresses, sampler)


def _write(model: AlignedModel, quantised: nn.Module, out: Path) -> None:
    """Write the state first: packing for servers changes the network."""
    import modelopt.torch.opt as mto
    from modelopt.torch.export import export_hf_checkpoint

    pipeline: Any = model.adapter.pipeline  # type: ignore[attr-defined]
    pipeline.transformer = quantised
    with contextlib.redirect_stdout(io.StringIO()):
        mto.save(quantised, str(out / STATE_FILE))
        dtype = DTYPES[model.config.model.dtype]
        export_hf_checkpoint(pipeline, dtype=dtype, export_dir=str(out), components=["transformer"])
    for name, component in pipeline.components.items():
        if name != "transformer" and hasattr(component, "save_pretrained"):
            component.save_pretrained(str(out / name))
    pipeline.save_config(str(out))


def _card(model: AlignedModel, out: Path, form: str, prompts: int, count: int, kept: int) -> str:
    config = model.config
    return CARD.format(
        metadata=front_matter(config, quantised=True),
        name=config.run.name,
        base=config.model.path,
        form=form,
        step=model.checkpoint.step,
        prompts=prompts,
        count=count,
        kept=kept,
        layers=LAYERS_FILE,
        state=STATE_FILE,
        folder=str(out),
        transformer=type(model.policy.inner).__name__,
    )
