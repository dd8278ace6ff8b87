"""Measure a saved tiny pipeline and write its model card: every number on the card is measured here.

`scripts/build_tiny_pipeline.py` calls this after training; the files are loaded back from disk, in fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from diffrl.data.shapes import prompts, render, scene_of
from diffrl.data.worlds import Split
from diffrl.models.families.sd3 import T5_TOKENS
from reward_models import RewardBatch, load_reward

Score = dict[str, float]

BASE = f"generated, guidance_scale=1, max_sequence_length={T5_TOKENS}"
GUIDED = f"generated, guidance_scale=3, max_sequence_length={T5_TOKENS}"


def load(folder: Path) -> StableDiffusion3Pipeline:
    """The saved pipeline in fp32 (the default), without a progress bar."""
    pipeline = StableDiffusion3Pipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def held_out_sample(count: int, split: Split = "report") -> list[str]:
    """`count` prompts of a held-out split in turn, so that each occurs about equally often."""
    texts = [prompt.text for prompt in prompts(split)]
    return [texts[i % len(texts)] for i in range(count)]


def score(pictures: Tensor, texts: Sequence[str]) -> Score:
    """Mean strict pass and partial credit of uint8 pictures (N, 3, H, W)."""
    output = load_reward("shapes")(RewardBatch(pictures, texts))
    return {
        "strict": round(float(output.parts["strict"].mean()), 4),
        "partial": round(float(output.raw.mean()), 4),
    }


def stack(pictures: Sequence[Any]) -> Tensor:
    """PIL or numpy pictures as uint8 (N, 3, H, W)."""
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def reconstruct(pipeline: StableDiffusion3Pipeline, pictures: Tensor) -> Tensor:
    """uint8 pictures through the VAE and back."""
    decoded = []
    for chunk in pictures.split(128):
        latents = pipeline.vae.encode(chunk / 127.5 - 1).latent_dist.mean
        decoded += pipeline.image_processor.postprocess(pipeline.vae.decode(latents).sample, output_type="pil")
    return stack(decoded)


def generate(
    pipeline: StableDiffusion3Pipeline,
    texts: Sequence[str],
    seed: int,
    guidance_scale: float = 1.0,
    max_sequence_length: int = T5_TOKENS,
    steps: int = 10,
) -> Tensor:
    """uint8 pictures (N, 3, 32, 32) by the stock pipeline call; one noise a row, the same for all settings."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((len(texts), 4, 8, 8), generator=generator)
    pictures = []
    for start in range(0, len(texts), 125):
        pictures += pipeline(
            prompt=list(texts[start : start + 125]),
            latents=noise[start : start + 125],
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            max_sequence_length=max_sequence_length,
        ).images
    return stack(pictures)


def measure_groups(pipeline: StableDiffusion3Pipeline, groups: int, size: int, seed: int) -> dict[str, float]:
    """What a method has to tell apart: `size` pictures each of `groups` training prompts, reward as in the recipes.

    Returns:
        ties: share of pairs within a group with the same graded reward.
        no_spread: share of groups whose graded rewards are all the same.
        same_verdict: share of groups whose strict verdicts are all the same, so that strict alone teaches nothing.
        random_top: share of a random choice that is among a group's best sixth (8 of 48); 1/6 without ties.
    """
    texts = [prompt.text for prompt in prompts("train")[:groups] for _ in range(size)]
    output = load_reward("shapes")(RewardBatch(generate(pipeline, texts, seed), texts))
    graded, strict = (values.reshape(groups, size) for values in (output.raw, output.parts["strict"]))
    total = (graded + strict) / 2
    tied = (graded[:, :, None] == graded[:, None, :]).sum((1, 2)) - size
    eighth = total.sort(dim=1, descending=True).values[:, size // 6 - 1 : size // 6]
    return {
        "ties": round(float(tied.sum()) / (groups * size * (size - 1)), 5),
        "no_spread": round(float((graded.std(1) == 0).float().mean()), 4),
        "same_verdict": round(float((strict.std(1) == 0).float().mean()), 4),
        "random_top": round(float((total >= eighth).float().mean()), 4),
    }


def measure(folder: Path, samples: int, seed: int) -> dict[str, Any]:
    """Scores of truths, reconstructions and generations over the held-out prompts; speed, sizes and versions."""
    pipeline = load(folder)
    texts = held_out_sample(samples)
    rng = np.random.default_rng(seed)
    truths = stack([render(scene_of(text), rng) for text in texts])
    shift = len(set(texts)) // 2  # neighbours in the list differ by little
    scores = {
        "rendered truth": score(truths, texts),
        "rendered truth, captions of other pictures": score(truths, texts[shift:] + texts[:shift]),
        "VAE reconstruction": score(reconstruct(pipeline, truths), texts),
    }
    milliseconds = {}
    for guidance_scale, t5_tokens in ((1.0, T5_TOKENS), (1.0, 256), (3.0, T5_TOKENS), (7.0, 256)):
        start = time.perf_counter()
        pictures = generate(pipeline, texts, seed, guidance_scale, t5_tokens)
        name = f"generated, guidance_scale={guidance_scale:g}, max_sequence_length={t5_tokens}"
        milliseconds[name] = round(1000 * (time.perf_counter() - start) / samples, 1)
        scores[name] = score(pictures, texts)
    return {
        "samples": samples,
        "scores": scores,
        "milliseconds_per_picture": milliseconds,
        "groups": measure_groups(pipeline, max(1, samples // 12), 48 if samples > 48 else 6, seed),
        **facts(pipeline, folder, ("numpy", "scipy")),
    }


def facts(pipeline: Any, folder: Path, packages: Sequence[str]) -> dict[str, Any]:
    """How large a saved pipeline is, and what it was measured with.

    Args:
        pipeline: whose networks are counted, the placeholder for T5 apart.
        folder: its files.
        packages: whose versions matter, beside torch, diffusers and transformers.
    """
    networks = (name for name in ("transformer", "vae", "text_encoder", "text_encoder_2") if hasattr(pipeline, name))
    return {
        "parameters": {name: sum(p.numel() for p in getattr(pipeline, name).parameters()) for name in networks},
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers", *packages)},
    }


def measure_again(
    folder: Path,
    samples: int,
    measure: Callable[..., Mapping[str, Any]],
    write_card: Callable[[Path, Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Score a saved pipeline by today's scorer and rewrite its card; what training took is kept as it is recorded.

    Returns:
        What `build.json` holds now.

    Raises:
        FileNotFoundError: the folder has no `build.json`.
    """
    path = folder / "build.json"
    record = json.loads(path.read_text())
    record |= measure(folder, samples, seed=record["seed"] + 1)
    path.write_text(json.dumps(record, indent=2) + "\n")
    write_card(folder, record)
    return dict(record)


def describe_machine(device: torch.device, threads: int) -> str:
    """In words, without names of hosts."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a {os.cpu_count()}-core {platform.machine()} CPU, {threads} threads"


def card_values(record: Mapping[str, Any], parts: Sequence[str], speed: Mapping[str, float]) -> dict[str, Any]:
    """Return a record with what its card shows as text: rows of scores, parameters, versions, and the megabytes."""
    rows = ((name, *(f"{score[part]:.3f}" for part in parts), speed.get(name, "")) for name, score in
            record["scores"].items())  # fmt: skip
    return {
        **record,
        "scores": "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows),
        "parameters": ", ".join(f"{name} {count / 1e6:.2f} M" for name, count in record["parameters"].items()),
        "versions": ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "megabytes": record["bytes"] / 1e6,
    }


def builder_options(description: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every builder has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--threads", type=int, default=1, help="more than one hardly helps at this size")
    parser.add_argument("--tiny", action="store_true", help="seconds, not minutes: checks the code, learns nothing")
    return parser


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write `README.md` from what was measured."""
    values = {
        **card_values(record, ("strict", "partial"), record["milliseconds_per_picture"]),
        **record["groups"],
        "group_count": max(1, record["samples"] // 12),
        "base": record["scores"][BASE]["strict"],
        "guided": record["scores"][GUIDED]["strict"],
        "tune_prompts": len(prompts("tune")),
        "report_prompts": len(prompts("report")),
    }
    (folder / "README.md").write_text(CARD.format(**values))


CARD = """---
license: apache-2.0
library_name: diffusers
pipeline_tag: text-to-image
---

# tiny-sd3: a whole Stable Diffusion 3 pipeline in {megabytes:.1f} MB

An ordinary diffusers `StableDiffusion3Pipeline` that draws 32x32 pictures of coloured shapes. It exists so that
alignment by reinforcement learning can be tried, tested and timed in minutes on a CPU. It was trained from scratch by
`scripts/build_tiny_pipeline.py` on pictures rendered by `diffrl.data.shapes`; no external data, no external weights.

**It is deliberately under-trained**: without guidance {base:.0%} of the held-out prompts come out entirely right, with
classifier-free guidance of 3 {guided:.0%}, which leaves alignment something to do. It is of no use for anything else.

```python
from diffusers import StableDiffusion3Pipeline

pipe = StableDiffusion3Pipeline.from_pretrained("assets/tiny-sd3")
pipe("a red circle left of a blue square", num_inference_steps=10, guidance_scale=3.0).images[0].save("shapes.png")
```

## Prompts

Up to four things: `NUMBER [SIZE] COLOUR SHAPE[s]`, several of these joined by `and`, or `a [SIZE] COLOUR SHAPE RELATION
a [SIZE] COLOUR SHAPE` and once more `and RELATION a COLOUR SHAPE`; kinds of things differ in colour. Numbers: a, two,
three, four. Sizes: small, large, or none. Colours: red, green, blue, yellow, purple, black, orange. Shapes: circle,
square, triangle. Relations: left of, right of, above, below. {train_prompts:,} prompts were trained on; the splits
`tune` ({tune_prompts}) and `report` ({report_prompts}) hold combinations that no other split has
(`diffrl.data.shapes`).

## `max_sequence_length`

The third text encoder is a placeholder: a T5 whose output is zero, because `from_pretrained` wants one. Its length is
`max_sequence_length`, 256 in a plain call. The transformer was trained to work with that and with 1, which is several
times faster (last column below); `diffrl.json` tells diffrl to use 1.

## Measured

Of the saved float32 files; {samples} samples in turn over the prompts of the report split; stock pipeline, Euler, 10
steps. Strict: the share of pictures with everything right (count, colours, outlines, sizes, relations, background).
Graded: mean reward of `reward_models.load_reward("shapes")`.

| pictures | strict | graded | ms a picture, batches of 125 |
|---|---|---|---|
{scores}

Of 48 pictures each of {group_count} training prompts, without guidance: {ties:.2%} of the pairs tie in the graded
reward, {no_spread:.1%} of the groups have no spread in it, {same_verdict:.1%} have one strict verdict throughout; a
random choice holds {random_top:.3f} of the best 8 of 48 (.167 if nothing ties; half graded, half strict, as the
recipes train).

Parameters: {parameters}.

Training: `python scripts/build_tiny_pipeline.py --seed {seed}`: {pictures} pictures, VAE {vae_steps} steps of 64,
transformer and text encoders {steps} steps of {batch}, where strict on `tune` had passed {enough};
{training_seconds} s in all, on {machine}. `--measure-only` measures
what is there again.

{versions}. `build.json` holds the same numbers.

## Licence

Apache-2.0, weights included.
"""
