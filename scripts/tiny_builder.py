"""Train a tiny pipeline of an embedded world and save it as an ordinary diffusers folder, with its model card.

Phases: render the train split, train an autoencoder, encode once, train a transformer together with its text encoders
by rectified flow, save the moving average, measure the saved files and write the card. Training stops early on purpose:
a tiny pipeline is meant to be a policy that alignment can still improve. A CUDA device is used if there is one.

What a world is, and what its pipeline, is a `World`; `build_tiny_pipeline.py` and its like have one each.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from tiny_card import batches, describe_machine, facts, in_turn, measure_again, stack, write_record
from torch import Tensor, nn

from diffrl.models.tiny import save_pipeline

CAPTION_DROPOUT = 0.1
EMA_DECAY = 0.995

Velocity = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From noisy latents, sigma (B,), rows of captions (B,), and which samples see the stock pipeline's length (B,)."""


@dataclass(frozen=True)
class Recipe:
    """What the command line decides."""

    seed: int  # of everything
    out: Path  # folder to write
    vae_steps: tuple[int, ...]  # optimiser steps of the autoencoder, by its phases
    steps: int  # optimiser steps of the transformer, at most
    count: int  # how much is rendered to train on, as the world counts it
    samples: int  # generated to measure
    watch: int = 0  # steps between two looks at held-out scores; 0 for none
    enough: float = math.inf  # first score of a look at which training stops
    vae_folder: Path | None = None  # where the trained autoencoder is kept, or taken from


class World:
    """A world, the pipeline that is trained on it, and how that is measured.

    A subclass has, beside the attributes below,

    - `render(recipe)`: uint8 media (N, ...), the distinct captions (the last is ""), and each one's caption (N,);
    - `pipeline(texts, seed)` with random weights; `load(folder)` and `load_vae(folder)`, in fp32;
    - `train_vae(vae, media, recipe)`, in place; `encode(vae, media)`: normalised latents, with the config set alike;
    - `velocity(pipeline, model, texts)`: how the model predicts it for captions, of which `texts` are all;
    - `held_out(count, tune=False)`: prompts to measure on, or to look at while training;
    - `truth(asked, rng)`: a rendered prompt; `score(media, asked)`: means of the scorer's parts;
    - `reconstruct(pipeline, media)`: uint8 media through the autoencoder;
    - `noise_shape(pipeline)`: of a sample's latents;
    - `settings(pipeline)`: names, options of `generate` and prompts (None: held out) of what is measured.
    """

    name: ClassVar[str]
    """Of the folder in assets/, and of the card."""
    recipe: ClassVar[Mapping[str, Any]]
    """Defaults of the command line."""
    tiny: ClassVar[Mapping[str, Any]]
    """In place of them, of a build that checks the code and learns nothing."""
    trained: ClassVar[tuple[str, ...]]
    """Components that the flow trains; the autoencoder is trained before."""
    batch: ClassVar[int] = 64
    horizon: ClassVar[int] = 4000
    """Steps over which the learning rate would decay to zero; training stops before."""
    stock_share: ClassVar[float]
    """Share of training samples that see the stock length, so that a plain call works as well as diffrl's short one."""
    time_shift: ClassVar[float] = 0.0
    """Mean of the logit of the times that are trained."""
    length: ClassVar[int]
    """`max_sequence_length` as diffrl uses the pipeline."""
    chunk: ClassVar[int]
    """Samples that are generated at once."""
    parts: ClassVar[tuple[str, ...]]
    """Of a score, in the card's order."""
    wrong: ClassVar[str]
    """Name of the score of truths with wrong prompts."""
    shift: ClassVar[int | None] = None
    """How far those stand from the right ones; None for half of all."""
    medium: ClassVar[str] = "picture"
    packages: ClassVar[tuple[str, ...]] = ("numpy", "scipy")
    """Whose versions matter."""
    size: ClassVar[Mapping[str, int] | None] = None
    """Options of every call and of diffrl.json."""

    def media_of(self, output: Any) -> Tensor:
        """Return what a pipeline's call gives as uint8 media."""
        return stack(output.images)

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """Return what `build.json` says of this world's training beside what it says of all."""
        return {}

    def more(self, pipeline: Any, samples: int, seed: int) -> dict[str, Any]:
        """Return further measurements."""
        return {}

    def card_values(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the card shows beside the record."""
        return {}

    def generate(
        self,
        pipeline: Any,
        asked: Sequence[Any],
        seed: int,
        guidance_scale: float = 1.0,
        max_sequence_length: int | None = None,
        steps: int = 10,
    ) -> Tensor:
        """Return uint8 media by the stock pipeline's call; one noise a row, the same for all settings."""
        size = {{"frames": "num_frames"}.get(name, name): value for name, value in (self.size or {}).items()}
        shape = (len(asked), *self.noise_shape(pipeline))
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        length = self.length if max_sequence_length is None else max_sequence_length
        options = {"guidance_scale": guidance_scale, "max_sequence_length": length, **size}
        texts = [getattr(one, "text", one) for one in asked]
        outputs = batches(noise, texts, self.chunk, pipeline, num_inference_steps=steps, **options)
        return torch.cat([self.media_of(output) for output in outputs])

    def measure(self, folder: Path, samples: int, seed: int) -> dict[str, Any]:
        """Score truths, reconstructions and generations over the held-out prompts; with speed, sizes and versions."""
        pipeline, asked, rng = self.load(folder), self.held_out(samples), np.random.default_rng(seed)
        truths = stack([self.truth(one, rng) for one in asked])
        self.score(truths[:1], asked[:1])  # loads the scorer
        start = time.perf_counter()
        right = self.score(truths, asked)
        speed = {"reading": round(1000 * (time.perf_counter() - start) / samples, 1)}
        texts = {getattr(one, "text", one) for one in asked}
        shift = len(texts) // 2 if self.shift is None else self.shift
        scores = {
            "rendered truth": right,
            self.wrong: self.score(truths, asked[shift:] + asked[:shift]),
            "VAE reconstruction": self.score(self.reconstruct(pipeline, truths), asked),
        }
        for name, options, prompts in self.settings(pipeline):
            sample = asked if prompts is None else in_turn(prompts, samples)
            start = time.perf_counter()
            media = self.generate(pipeline, sample, seed, **options)
            speed[name] = round(1000 * (time.perf_counter() - start) / samples, 1)
            scores[name] = self.score(media, sample)
        return {
            "samples": samples,
            "scores": scores,
            f"milliseconds_per_{self.medium}": speed,
            **self.more(pipeline, samples, seed),
            **facts(pipeline, folder, self.packages),
        }


class Log:
    """Prints a phase's progress about twenty times."""

    def __init__(self, phase: str):
        self.phase, self.start = phase, time.perf_counter()

    def __call__(self, step: int, steps: int, loss: Tensor) -> None:
        """Print if this step is one of the twenty."""
        if step % max(1, steps // 20) == 0:
            seconds = time.perf_counter() - self.start
            print(f"{self.phase} {step}/{steps}  loss {float(loss.detach()):.4f}  {seconds:.0f} s", flush=True)


def warmup_cosine(step: int, warmup: int, horizon: int) -> float:
    """Return the learning rate's factor: linear over `warmup` steps, times a cosine that ends at 0 after `horizon`."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))


def train_flow(
    world: World,
    model: nn.ModuleDict,
    average: nn.ModuleDict,
    latents: Tensor,
    captions: Tensor,
    velocity: Velocity,
    recipe: Recipe,
    on_step: Callable[[int], bool],
) -> int:
    """Train by rectified flow with logit-normal times; return the steps that were made.

    Args:
        world: batch, horizon, and how times and the stock length are drawn.
        model: trained in place.
        average: of its weights, updated in place.
        latents: (N, ...), zero mean and unit variance.
        captions: (N,) row of each one's caption; the row of the empty caption is the one behind the last.
        velocity: what the model predicts.
        recipe: seed and steps.
        on_step: receives the step when it is made, and says whether to stop there.
    """
    generator, log = torch.Generator().manual_seed(recipe.seed + 1), Log("flow")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, 100, world.horizon))
    step = 0
    for step in range(1, recipe.steps + 1):
        rows = torch.randint(len(latents), (world.batch,), generator=generator)
        clean = latents[rows]
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        sigma = (torch.randn(len(rows), generator=generator) + world.time_shift).sigmoid().to(clean.device)
        dropped = torch.rand(len(rows), generator=generator) < CAPTION_DROPOUT
        caption = torch.where(dropped, -1, captions[rows])
        stock = torch.rand(len(rows), generator=generator) < world.stock_share

        noisy = torch.lerp(clean, noise, sigma.view(-1, *[1] * (clean.ndim - 1)))
        loss = F.mse_loss(velocity(noisy, sigma, caption, stock.to(clean.device)), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(EMA_DECAY, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        log(step, recipe.steps, loss)
        if on_step(step):
            break
    return step


def trained_vae(world: World, pipeline: Any, media: Tensor, recipe: Recipe, device: torch.device) -> tuple[Any, float]:
    """Return the pipeline's autoencoder, trained or taken from the recipe's folder, and the seconds that it took."""
    kept = recipe.vae_folder
    if kept is not None and (kept / "seconds.json").is_file():
        vae = world.load_vae(kept).to(device).eval().requires_grad_(False)
        return vae, float(json.loads((kept / "seconds.json").read_text(encoding="utf-8")))
    start = time.perf_counter()
    vae = pipeline.vae.to(device)
    world.train_vae(vae, media, recipe)
    vae.eval().requires_grad_(False)
    seconds = time.perf_counter() - start
    if kept is not None:
        vae.save_pretrained(str(kept))
        (kept / "seconds.json").write_text(json.dumps(seconds) + "\n", encoding="utf-8")
    return vae, seconds


def build(world: World, recipe: Recipe) -> dict[str, Any]:
    """Train, save, measure and describe; return what `build.json` holds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    media, texts, captions = world.render(recipe)
    print(f"rendered {len(media)} {world.medium}s of {len(texts) - 1} prompts", flush=True)
    pipeline = world.pipeline(texts, recipe.seed)
    pipeline.set_progress_bar_config(disable=True)
    vae, vae_seconds = trained_vae(world, pipeline, media, recipe, device)
    start = time.perf_counter()
    latents = world.encode(vae, media)
    pipeline.register_modules(vae=vae)
    model = nn.ModuleDict({name: getattr(pipeline, name) for name in world.trained}).to(device)

    average = copy.deepcopy(model).requires_grad_(False)
    velocity = world.velocity(pipeline, model, texts)

    def use_average() -> None:
        pipeline.register_modules(**{name: average[name].eval() for name in world.trained})

    def look(step: int) -> bool:
        if not recipe.watch or step % recipe.watch:
            return False
        use_average()
        asked = world.held_out(recipe.samples // 2, tune=True)
        score = world.score(world.generate(pipeline, asked, recipe.seed + 1), asked)
        print("tune", step, score, flush=True)
        return score[world.parts[0]] >= recipe.enough

    steps = train_flow(world, model, average, latents, captions, velocity, recipe, look)
    use_average()
    save_pipeline(pipeline.to("cpu"), recipe.out, world.size)
    seconds = vae_seconds + time.perf_counter() - start
    print(f"saved {recipe.out} after {seconds:.0f} s; measuring", flush=True)
    record = {
        "seed": recipe.seed,
        "steps": steps,
        "batch": world.batch,
        f"{world.medium}s": len(media),
        **world.record(recipe),
        "machine": describe_machine(device, torch.get_num_threads()),
        "vae_seconds": round(vae_seconds),
        "training_seconds": round(seconds),
        **world.measure(recipe.out, recipe.samples, seed=recipe.seed + 1),
    }
    write_record(recipe.out, record, world)
    return record


def main(world: World, description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run a builder's command line."""
    defaults = Recipe(seed=0, out=Path("assets", world.name), **world.recipe)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=defaults.out)
    parser.add_argument("--threads", type=int, default=1, help="more than one hardly helps at this size")
    parser.add_argument("--vae-steps", type=int, nargs="+", default=defaults.vae_steps, help="of its phases")
    parser.add_argument("--vae", type=Path, help="folder to keep the trained autoencoder in, or to take it from")
    parser.add_argument("--steps", type=int, default=defaults.steps, help=f"at most, of {world.batch} {world.medium}s")
    parser.add_argument("--watch", type=int, default=defaults.watch, help="steps between two looks at the split tune")
    parser.add_argument("--enough", type=float, default=defaults.enough, help="first score of a look to stop at")
    parser.add_argument("--tiny", action="store_true", help="seconds, not minutes: checks the code, learns nothing")
    parser.add_argument("--measure-only", action="store_true", help="score what is in --out and rewrite its card")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = replace(
        defaults,
        seed=options.seed,
        out=options.out,
        vae_steps=tuple(options.vae_steps),
        steps=options.steps,
        watch=options.watch,
        enough=options.enough,
        vae_folder=options.vae,
    )
    recipe = replace(recipe, **world.tiny) if options.tiny else recipe
    done = measure_again(recipe.out, recipe.samples, world) if options.measure_only else build(world, recipe)
    print(json.dumps(done, indent=2))
    return 0
