"""Measure a saved tiny video pipeline and write its model card: every number on the card is measured here.

`scripts/build_tiny_video_pipeline.py` calls this after training; the files are loaded back from disk, in fp32.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from tiny_pipeline_card import card_values, facts
from torch import Tensor

from diffrl.data.moving import FRAMES, prompts, render, scene_of
from diffrl.models.families.wan import FLOW_SHIFT, TEXT_TOKENS
from reward_models import RewardBatch, load_reward

Score = dict[str, float]
PARTS = ("strict", "partial", "object", "direction", "smooth")
SIZE = 32
CHUNK = 100


def load(folder: Path) -> WanPipeline:
    """The saved pipeline in fp32 (the default), without a progress bar."""
    pipeline = WanPipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def held_out_sample(count: int) -> list[str]:
    """`count` held-out prompts in turn, so that each occurs about equally often."""
    texts = [prompt.text for prompt in prompts("tune") + prompts("report")]
    return [texts[i % len(texts)] for i in range(count)]


def score(clips: Tensor, texts: Sequence[str]) -> Score:
    """Means of the scorer's parts over uint8 clips (N, F, 3, H, W)."""
    output = load_reward("moving_shapes")(RewardBatch(clips, texts))
    return {name: round(float(output.parts[name].mean()), 4) for name in PARTS}


def to_unit(clips: Tensor) -> Tensor:
    """uint8 clips (N, F, 3, H, W) to what the autoencoder takes: float32 (N, 3, F, H, W) in [-1, 1]."""
    return clips.transpose(1, 2).float() / 127.5 - 1


def to_clips(frames: Any) -> Tensor:
    """A pipeline's "np" output, (N, F, H, W, 3) in [0, 1], as uint8 (N, F, 3, H, W)."""
    return torch.from_numpy(np.asarray(frames)).permute(0, 1, 4, 2, 3).mul(255).round().to(torch.uint8).contiguous()


@torch.no_grad()
def reconstruct(pipeline: WanPipeline, clips: Tensor) -> Tensor:
    """uint8 clips through the VAE and back."""
    decoded = []
    for chunk in clips.split(CHUNK):
        latents = pipeline.vae.encode(to_unit(chunk)).latent_dist.mean
        video = pipeline.vae.decode(latents).sample
        decoded.append(to_clips(pipeline.video_processor.postprocess_video(video, output_type="np")))
    return torch.cat(decoded)


def generate(
    pipeline: WanPipeline,
    texts: Sequence[str],
    seed: int,
    guidance_scale: float = 1.0,
    max_sequence_length: int = TEXT_TOKENS,
    steps: int = 10,
) -> Tensor:
    """uint8 clips (N, 9, 3, 32, 32) by the stock pipeline call; one noise a row, the same for all settings."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((len(texts), pipeline.vae.config.z_dim, 3, 4, 4), generator=generator)
    clips = []
    for start in range(0, len(texts), CHUNK):
        result = pipeline(
            prompt=list(texts[start : start + CHUNK]),
            latents=noise[start : start + CHUNK],
            height=SIZE,
            width=SIZE,
            num_frames=FRAMES,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            max_sequence_length=max_sequence_length,
        )
        clips.append(to_clips(result.frames))
    return torch.cat(clips)


def measure(folder: Path, samples: int, seed: int) -> dict[str, Any]:
    """Scores of truths, reconstructions and generations over the held-out prompts; speed, sizes and versions."""
    pipeline = load(folder)
    texts = held_out_sample(samples)
    rng = np.random.default_rng(seed)
    truths = torch.from_numpy(np.stack([render(scene_of(text), rng) for text in texts])).permute(0, 1, 4, 2, 3)
    shift = 7  # in the list of held-out prompts: another colour and another motion
    scores = {
        "rendered truth": score(truths, texts),
        "rendered truth, captions of other clips": score(truths, texts[shift:] + texts[:shift]),
        "VAE reconstruction": score(reconstruct(pipeline, truths), texts),
    }
    stock = pipeline.scheduler
    euler = FlowMatchEulerDiscreteScheduler(shift=FLOW_SHIFT)
    milliseconds = {}
    settings = (
        ("Euler", euler, 1.0, TEXT_TOKENS),
        ("UniPC", stock, 1.0, TEXT_TOKENS),
        ("UniPC", stock, 1.0, 512),
        ("UniPC", stock, 3.0, TEXT_TOKENS),
        ("UniPC", stock, 5.0, 512),
    )
    for solver, pipeline.scheduler, guidance_scale, length in settings:
        start = time.perf_counter()
        clips = generate(pipeline, texts, seed, guidance_scale, length)
        name = f"{solver}, guidance_scale={guidance_scale:g}, max_sequence_length={length}"
        milliseconds[name] = round(1000 * (time.perf_counter() - start) / samples, 1)
        scores[name] = score(clips, texts)
    return {
        "samples": samples,
        "scores": scores,
        "milliseconds_per_clip": milliseconds,
        **facts(pipeline, folder, ("numpy", "scipy")),
    }


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write `README.md` from what was measured."""
    values = card_values(record, PARTS, record["milliseconds_per_clip"])
    (folder / "README.md").write_text(CARD.format(**values))


CARD = """---
license: apache-2.0
library_name: diffusers
pipeline_tag: text-to-video
---

# tiny-wan: a whole Wan text-to-video pipeline in {megabytes:.1f} MB

An ordinary diffusers `WanPipeline` that makes clips of nine 32x32 frames: one coloured shape that moves or stays. It
exists so that alignment of video models by reinforcement learning can be tried, tested and timed in minutes on a CPU.
It was trained from scratch by `scripts/build_tiny_video_pipeline.py` on clips rendered by `diffrl.data.moving`; no
external data, no external weights.

**It is deliberately under-trained**: without guidance many of the clips of held-out prompts are not entirely right
(first generated row below), which leaves alignment something to do. It is of no use for anything else.

```python
from diffusers import WanPipeline
from diffusers.utils import export_to_gif

pipe = WanPipeline.from_pretrained("assets/tiny-wan")
options = dict(height=32, width=32, num_frames=9, num_inference_steps=10, guidance_scale=1.0, max_sequence_length=8)
clip = pipe("a red circle moving left", output_type="pil", **options)
export_to_gif(clip.frames[0], "circle.gif", fps=8)
```

## Prompts

`a COLOUR SHAPE MOTION`. Colours: red, green, blue, yellow, purple, black. Shapes: circle, square, triangle. Motions:
moving left, moving right, moving up, moving down, staying still. Of the 90 prompts {train_prompts} were trained on; the
others are held out by combination (`diffrl.data.moving`: the splits `tune` and `report`). The tokenizer knows these
words only.

## Parts

The classes and their order are those of Wan: UMT5, a transformer with 3-D rotary positions over (1, 2, 2) patches, a
causal autoencoder (4 times shorter, 8 times smaller; its layers are those of Wan 2.2 5B's, with shortcuts and 2 x 2
pixel patches), UniPC with flow_shift 3. The autoencoder's `latents_mean` and `latents_std` are measured.

Wan does not mask the padding of the prompt, and a plain call pads to 512 tokens. The transformer was trained to work
with that and with 8, which is better and much faster (last column below); `diffrl.json` tells diffrl to use 8, and
the size of the clips. Guidance makes its directions surer and its outlines worse: triangles and squares get hollow
sides, circles grow lumps. Wan's default of 5 is far too strong for it.

## Measured

Of the saved float32 files; {samples} samples in turn over the prompts of `tune` and `report`; stock pipeline, 10 steps.
Strict: the share of clips with everything right. Partial: the mean of object (how well colour, outline and size of the
object fit in each frame, and nothing beside it), direction (how clearly it goes where it should) and smooth (how even
its steps and how constant its size are), each graded. Scorer: `reward_models.load_reward("moving_shapes")`.

| clips | strict | partial | object | direction | smooth | ms a clip, batches of 100 |
|---|---|---|---|---|---|---|
{scores}

Parameters: {parameters}.

Training: `python scripts/build_tiny_video_pipeline.py --seed {seed}`: {clips} clips; VAE {picture_steps}
steps of {picture_batch} pictures and {clip_steps} of {clip_batch} clips, transformer and text encoder {steps} steps of
{batch} clips; {training_seconds} s in all, of which the VAE took {vae_seconds}, on {machine}, other work beside.

{versions}. `build.json` holds the same numbers.

## Licence

Apache-2.0, weights included.
"""
