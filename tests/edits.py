"""Prompts as families take them: with images to edit for those that do so."""

import json

import numpy as np
import torch
from PIL import Image

from diffrl.functional.dynamics import ode_step
from diffrl.models.adapter import EditingAdapter
from diffrl.models.families import FAMILIES

WORDS = ("make it red", "make it blue", "remove the circle")
LONG = 'a red circle "' + "a red circle " * 30 + '"'
"""A prompt that fills every place that an encoding has: of words, and of what stands in quotation marks."""


def write_edits(folder, images=3, side=32, **beside):
    """A .jsonl list of `WORDS` for each of some images of noise, in a folder beside it; `beside` is in every line."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(images):
        name = f"images/{number}.png"
        image(number, side, side).save(folder / name)
        lines += [json.dumps({"prompt": words, "source": name, **beside}) for words in WORDS]
    path = folder / "edits.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def image(seed, height=32, width=48):
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def euler(adapter, latents, conditioning, guidance_scale, steps):
    """Latents at the end of the ODE, by Euler's steps."""
    sigmas = adapter.sigmas(steps)
    for s, n in zip(sigmas, sigmas[1:], strict=False):
        v = adapter.velocity(latents, s.expand(len(latents)), conditioning, guidance_scale)
        latents = ode_step(latents, v, s, n).mean
    return latents


def prompts_of(family, folder):
    """Where the prompts come from that a tiny pipeline of a family trains on, and those that are held out."""
    if not FAMILIES[family].edits:
        return {"train": "shapes:train", "eval": "shapes:tune"}
    path = write_edits(folder)
    return {"train": path, "eval": path, "eval_on_train": True}


def encoded(adapter, prompts):
    """The conditioning of prompts, with a grey image of the size that is drawn each where the adapter edits."""
    if not isinstance(adapter, EditingAdapter):
        return adapter.encode_prompts(prompts)
    grey = torch.full((3, adapter.height, adapter.width), 128, dtype=torch.uint8)
    return adapter.encode_edits(prompts, [grey] * len(prompts))
