"""Measure the saved tiny pipeline of the world of words and write its model card: every number on it is measured here.

`scripts/build_tiny_words.py` calls this after training; the files are loaded back from disk, in fp32.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from tiny_pipeline_card import card_values, facts, load, reconstruct, stack
from torch import Tensor

from diffrl.data.words import HEIGHT, WIDTH, parse_prompt, prompts, render
from diffrl.models.families.sd3 import T5_TOKENS
from diffrl.records import Prompt
from reward_models import RewardBatch, Scorer, load_reward

Score = dict[str, float]


def held_out_sample(split: str, count: int) -> list[Prompt]:
    """`count` prompts of a split in turn, so that each word occurs about equally often."""
    every = prompts(split)
    return [every[i % len(every)] for i in range(count)]


@lru_cache
def reader() -> Scorer:
    """The scorer: every picture is one line of text."""
    return load_reward("ocr", detect=False, threads=1)


def read(pictures: Tensor, asked: Sequence[Prompt]) -> Score:
    """Share of uint8 pictures (N, 3, H, W) on which exactly the word is read, and the mean of 1 - distance / length."""
    output = reader()(RewardBatch(pictures, [one.text for one in asked], [one.metadata for one in asked]))
    return {
        "exact": round(float(output.parts["exact"].mean()), 4),
        "partial": round(float(output.raw.mean()), 4),
    }


def generate(
    pipeline: StableDiffusion3Pipeline,
    asked: Sequence[Prompt],
    seed: int,
    guidance_scale: float = 1.0,
    max_sequence_length: int = T5_TOKENS,
    steps: int = 10,
) -> Tensor:
    """uint8 pictures (N, 3, HEIGHT, WIDTH) by the stock pipeline call; one noise a row, the same for all settings."""
    noise = torch.randn((len(asked), 4, HEIGHT // 4, WIDTH // 4), generator=torch.Generator().manual_seed(seed))
    pictures = []
    for start in range(0, len(asked), 120):
        pictures += pipeline(
            prompt=[one.text for one in asked[start : start + 120]],
            latents=noise[start : start + 120],
            height=HEIGHT,
            width=WIDTH,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            max_sequence_length=max_sequence_length,
        ).images
    return stack(pictures)


def measure(folder: Path, samples: int, seed: int) -> dict[str, Any]:
    """Scores of truths, reconstructions and generations over held-out words; speed, sizes and versions."""
    pipeline = load(folder)
    asked = held_out_sample("report", samples)
    rng = np.random.default_rng(seed)
    truths = stack([render(parse_prompt(one.text), rng) for one in asked])
    reader()
    start = time.perf_counter()
    scores = {"rendered truth": read(truths, asked)}
    milliseconds = {"reading": round(1000 * (time.perf_counter() - start) / samples, 1)}
    scores["rendered truth, prompts of other pictures"] = read(truths, asked[1:] + asked[:1])
    scores["VAE reconstruction"] = read(reconstruct(pipeline, truths), asked)
    for words, guidance_scale, t5_tokens in (
        ("trained", 1.0, T5_TOKENS),
        ("held-out", 1.0, T5_TOKENS),
        ("held-out", 1.0, 256),
        ("held-out", 3.0, T5_TOKENS),
    ):
        sample = asked if words == "held-out" else held_out_sample("train", samples)
        start = time.perf_counter()
        pictures = generate(pipeline, sample, seed, guidance_scale, t5_tokens)
        name = f"generated, {words} words, guidance_scale={guidance_scale:g}, max_sequence_length={t5_tokens}"
        milliseconds[name] = round(1000 * (time.perf_counter() - start) / samples, 1)
        scores[name] = read(pictures, sample)
    return {
        "samples": samples,
        "scores": scores,
        "milliseconds_per_picture": milliseconds,
        **facts(pipeline, folder, ("rapidocr", "onnxruntime", "matplotlib", "pillow")),
    }


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write `README.md` from what was measured."""
    speed = record["milliseconds_per_picture"]
    values = card_values(record, ("exact", "partial"), speed)
    values |= {"height": HEIGHT, "width": WIDTH, "reading": speed["reading"]}
    values |= {"tune_words": record["held_out_words"]["tune"], "report_words": record["held_out_words"]["report"]}
    (folder / "README.md").write_text(CARD.format(**values))


CARD = """---
license: apache-2.0
library_name: diffusers
pipeline_tag: text-to-image
---

# tiny-words: a whole Stable Diffusion 3 pipeline that spells, in {megabytes:.1f} MB

An ordinary diffusers `StableDiffusion3Pipeline` that draws one short word, in capitals, on {width}x{height} pixels. It
exists so that alignment by a published neural reward, a text recogniser, can be tried, tested and timed in minutes on
a CPU. It was trained from scratch by `scripts/build_tiny_words.py` on pictures rendered by `diffrl.data.words`; no
external data, no external weights.

**It is deliberately under-trained**: without guidance most held-out words come out misspelled (below), which leaves
alignment something to do. It is of no use for anything else.

```python
from diffusers import StableDiffusion3Pipeline

pipe = StableDiffusion3Pipeline.from_pretrained("assets/tiny-words")
size = {{"height": {height}, "width": {width}}}
pipe('the word "cat" in red on white', num_inference_steps=10, guidance_scale=3.0, **size).images[0].save("cat.png")
```

**Give `height={height}, width={width}`**: a plain call makes a square, which the pipeline has never seen. `diffrl.json`
tells diffrl the size.

## Prompts

`the word "WORD" in COLOUR on COLOUR`: one colour of black, red, blue, green, the other of white, yellow; WORD has three
to five letters. The tokenizer knows the other words as one token each and spells WORD letter by letter, so that any
word can be asked for. Half of the training pictures show {train_words} English words, half strings of random letters;
neither has any of the {tune_words} words of `diffrl.data.words.prompts("tune")` or the {report_words} of
`prompts("report")`.

## `max_sequence_length`

The third text encoder is a placeholder: a T5 whose output is zero, because `from_pretrained` wants one. Its length is
`max_sequence_length`, 256 in a plain call. The transformer was trained to work with that and with 1, which is faster
(last column below); `diffrl.json` tells diffrl to use 1.

## Measured

Of the saved float32 files; {samples} samples in turn over the words of "report" (of "train" where it says trained);
stock pipeline, Euler, 10 steps. Exact: the share of pictures in which RapidOCR's recogniser reads the word and nothing
else. Partial: mean of 1 - edit distance / length. Scorer: `reward_models.load_reward("ocr", detect=False)`; reading
takes {reading} ms a picture on one thread.

| pictures | exact | partial | ms a picture to draw, batches of 120 |
|---|---|---|---|
{scores}

Parameters: {parameters}.

Training: `python scripts/build_tiny_words.py --seed {seed}`: {pictures} pictures, VAE {vae_steps} steps of {vae_batch},
transformer and text encoders {steps} steps of {batch}, {training_seconds} s in all, on {machine}, other work beside.

{versions}. `build.json` holds the same numbers.

## Licence

Apache-2.0, weights included. The training pictures were drawn with DejaVu Sans Mono Bold and Bold Oblique, which
matplotlib's package ships (Bitstream Vera and Arev licences; DejaVu's changes are in the public domain); no font is in
this folder.
"""
