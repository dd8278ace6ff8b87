"""Train the tiny Wan pipeline of the embedded world of moving shapes and save it as an ordinary diffusers folder.

    python scripts/build_tiny_video_pipeline.py --seed 0 --out assets/tiny-wan

    python scripts/build_tiny_video_pipeline.py --measure-only --out assets/tiny-wan   trains nothing

Well under an hour on one CPU core; a CUDA device is used if there is one. Phases: render the train split, train an
`AutoencoderKLWan`, encode once, train a `WanTransformer3DModel` together with its UMT5 text encoder by rectified flow,
save the moving average, measure the saved files and write the model card. Training stops early on purpose: the pipeline
is meant to be a policy that alignment can still improve. With `--vae` the trained autoencoder is kept in that folder,
and taken from it by a later run with the same seed, which then gives the same pipeline.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from build_tiny_pipeline import Log, warmup_cosine
from diffusers import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from tiny_pipeline_card import builder_options, describe_machine, measure_again
from tiny_video_pipeline_card import generate, held_out_sample, measure, score, to_unit, write_card
from tiny_video_vae import CLIP_BATCH, PICTURE_BATCH, train_vae
from torch import Tensor, nn

from diffrl.data.moving import prompts, render, scene_of
from diffrl.models.families.wan import TEXT_TOKENS
from diffrl.models.tiny import build_pipeline, save_pipeline

STOCK_TEXT_TOKENS = 512
"""Length of the prompt when the stock pipeline is called without `max_sequence_length`."""

STOCK_SHARE = 0.25
"""Share of training samples that see the stock length, so that a plain call works as well as diffrl's short one."""

PROMPT_TOKENS = 6
"""Tokens of a prompt of the world with its end."""

TRAINED = ("transformer", "text_encoder")
"""Components that the flow trains; the VAE is trained before."""

CAPTION_DROPOUT = 0.1
EMA_DECAY = 0.995
BATCH = 64
HORIZON = 6000
"""Steps over which the learning rate of the transformer would decay to zero; training stops before on purpose."""


@dataclass(frozen=True)
class Recipe:
    """What the command line decides."""

    seed: int
    out: Path
    picture_steps: int
    clip_steps: int
    steps: int
    vae_folder: Path | None = None
    clips_per_prompt: int = 100
    samples: int = 300
    watch: int = 0


def render_train_split(recipe: Recipe) -> tuple[Tensor, list[str], Tensor]:
    """Clips of the train split.

    Returns:
        uint8 clips (N, 9, 3, 32, 32), the distinct captions (the last one is ""), and each clip's caption (N,).
    """
    rng = np.random.default_rng(recipe.seed)
    train = prompts("train")
    clips = np.stack([render(scene_of(prompt), rng) for prompt in train for _ in range(recipe.clips_per_prompt)])
    captions = torch.arange(len(train)).repeat_interleave(recipe.clips_per_prompt)
    return torch.from_numpy(clips).permute(0, 1, 4, 2, 3).contiguous(), [p.text for p in train] + [""], captions


@torch.no_grad()
def encode(vae: AutoencoderKLWan, clips: Tensor) -> Tensor:
    """Latents of uint8 clips, (N, 8, 3, 4, 4); sets the config's mean and deviation of each channel."""
    means = torch.cat([vae.encode(to_unit(part).to(vae.device)).latent_dist.mean for part in clips.split(100)])
    mean, std = means.mean((0, 2, 3, 4)), means.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    return (means - mean[:, None, None, None]) / std[:, None, None, None]


class RepeatedTokenAttention(WanAttnProcessor):
    """Cross-attention with a bias on the keys, for training only.

    Text keys have no positions, and a softmax over n equal keys is a softmax over one of them with log(n) added to its
    logit. So one zero token with this bias is exactly the stock pipeline's run of n zero tokens, at a fraction of the
    cost. The blocks hand no mask down; it is set here before each call of the transformer.
    """

    bias: Tensor | None = None

    def __call__(self, attn: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Attend; `bias` (B, 1, 1, text tokens) is added to the logits."""
        context = args[0] if args else kwargs["encoder_hidden_states"]
        return super().__call__(attn, hidden_states, context, self.bias, None)


def with_repeated_tokens(transformer: nn.Module) -> RepeatedTokenAttention:
    """Give all cross-attentions one processor of this kind and return it."""
    processor = RepeatedTokenAttention()
    for block in transformer.blocks:
        block.attn2.set_processor(processor)
    return processor


def encode_captions(text_encoder: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Text embeddings (B, PROMPT_TOKENS, 64), zero after each prompt's end as the stock pipeline makes them."""
    return text_encoder(ids, mask).last_hidden_state * mask[..., None]


def predict_velocity(
    transformer: nn.Module,
    processor: RepeatedTokenAttention,
    latents: Tensor,
    sigma: Tensor,
    tokens: Tensor,
    length: Tensor,
) -> Tensor:
    """Velocity with `tokens` padded by zeros to `length` (B,), by one token and a bias."""
    bias = torch.zeros(len(latents), 1, 1, tokens.shape[1] + 1, device=latents.device)
    bias[:, 0, 0, -1] = (length - tokens.shape[1]).float().log()
    processor.bias = bias
    return transformer(
        hidden_states=latents, timestep=sigma * 1000, encoder_hidden_states=F.pad(tokens, (0, 0, 0, 1))
    ).sample


def train_flow(
    model: nn.ModuleDict,
    latents: Tensor,
    captions: Tensor,
    tokens: dict[str, Tensor],
    steps: int,
    generator: torch.Generator,
    log: Log,
    on_step: Callable[[int, nn.ModuleDict], None] = lambda step, average: None,
) -> nn.ModuleDict:
    """Rectified flow with logit-normal times; returns the moving average of the weights.

    Args:
        model: "transformer" and "text_encoder", trained in place.
        latents: (N, 8, 3, 4, 4), zero mean and unit variance.
        captions: (N,) row of each clip's caption in `tokens`.
        tokens: "input_ids" and "attention_mask", (captions, PROMPT_TOKENS); the last row is the empty caption.
        steps: optimiser steps of `BATCH` clips.
        generator: CPU generator of all randomness.
        log: receives step, steps and loss.
        on_step: receives the step and the moving average after it.
    """
    average = copy.deepcopy(model).requires_grad_(False)
    processor = with_repeated_tokens(model["transformer"])
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, 100, HORIZON))
    empty = len(tokens["input_ids"]) - 1
    for step in range(1, steps + 1):
        rows = torch.randint(len(latents), (BATCH,), generator=generator)
        clean = latents[rows]
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        sigma = (torch.randn(len(rows), generator=generator) + 0.5).sigmoid().to(clean.device)
        dropped = torch.rand(len(rows), generator=generator) < CAPTION_DROPOUT
        caption = torch.where(dropped, empty, captions[rows])
        stock = torch.rand(len(rows), generator=generator) < STOCK_SHARE
        length = torch.where(stock, STOCK_TEXT_TOKENS, TEXT_TOKENS).to(clean.device)

        text = encode_captions(model["text_encoder"], tokens["input_ids"][caption], tokens["attention_mask"][caption])
        noisy = torch.lerp(clean, noise, sigma[:, None, None, None, None])
        velocity = predict_velocity(model["transformer"], processor, noisy, sigma, text, length)
        loss = F.mse_loss(velocity, noise - clean)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(EMA_DECAY, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        log(step, steps, loss)
        on_step(step, average)
    return average.eval()


def trained_vae(pipeline: Any, clips: Tensor, recipe: Recipe, device: torch.device) -> tuple[Any, float]:
    """The pipeline's autoencoder, trained or taken from the recipe's folder, and the seconds that training took."""
    kept = recipe.vae_folder
    if kept is not None and (kept / "seconds.json").is_file():
        vae = AutoencoderKLWan.from_pretrained(str(kept)).to(device).eval().requires_grad_(False)
        return vae, float(json.loads((kept / "seconds.json").read_text()))
    start = time.perf_counter()
    vae = pipeline.vae.to(device)
    train_vae(vae, clips, (recipe.picture_steps, recipe.clip_steps), recipe.seed, Log("vae"))
    seconds = time.perf_counter() - start
    if kept is not None:
        vae.save_pretrained(kept)
        (kept / "seconds.json").write_text(json.dumps(seconds))
    return vae, seconds


def build(recipe: Recipe) -> dict[str, object]:
    """Train, save, measure and describe; returns what `build.json` holds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clips, texts, captions = render_train_split(recipe)
    print(f"rendered {len(clips)} clips of {len(texts) - 1} prompts", flush=True)
    pipeline = build_pipeline("wan", [word for text in texts for word in text.split()], recipe.seed)
    pipeline.set_progress_bar_config(disable=True)
    vae, vae_seconds = trained_vae(pipeline, clips, recipe, device)
    start = time.perf_counter()
    latents = encode(vae, clips)
    pipeline.register_modules(vae=vae)
    model = nn.ModuleDict({name: getattr(pipeline, name) for name in TRAINED}).to(device)
    read = pipeline.tokenizer(texts, padding="max_length", max_length=PROMPT_TOKENS, return_tensors="pt")
    tokens = {name: read[name].to(device) for name in ("input_ids", "attention_mask")}

    def watch(step: int, average: nn.ModuleDict) -> None:
        if recipe.watch and step % recipe.watch == 0:
            use(pipeline, average)
            held_out = held_out_sample(recipe.samples)
            print("held out", step, score(generate(pipeline, held_out, recipe.seed + 1), held_out), flush=True)

    generator = torch.Generator().manual_seed(recipe.seed + 1)
    average = train_flow(model, latents, captions, tokens, recipe.steps, generator, Log("flow"), watch)
    use(pipeline, average)
    save_pipeline(pipeline.to("cpu"), recipe.out)
    seconds = vae_seconds + time.perf_counter() - start
    print(f"saved {recipe.out} after {seconds:.0f} s; measuring", flush=True)
    record = {
        "seed": recipe.seed,
        "picture_steps": recipe.picture_steps,
        "picture_batch": PICTURE_BATCH,
        "clip_steps": recipe.clip_steps,
        "clip_batch": CLIP_BATCH,
        "steps": recipe.steps,
        "batch": BATCH,
        "clips": len(clips),
        "train_prompts": len(texts) - 1,
        "machine": describe_machine(device, torch.get_num_threads()),
        "vae_seconds": round(vae_seconds),
        "training_seconds": round(seconds),
        **measure(recipe.out, recipe.samples, seed=recipe.seed + 1),
    }
    (recipe.out / "build.json").write_text(json.dumps(record, indent=2) + "\n")
    write_card(recipe.out, record)
    return record


def use(pipeline: Any, average: nn.ModuleDict) -> None:
    """Put the averaged modules into the pipeline."""
    pipeline.register_modules(**{name: average[name].eval() for name in TRAINED})


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = builder_options(__doc__, "assets/tiny-wan")
    parser.add_argument("--vae", type=Path, help="folder to keep the trained autoencoder in, or to take it from")
    parser.add_argument("--picture-steps", type=int, default=800, help=f"VAE steps of {PICTURE_BATCH} pictures")
    parser.add_argument("--clip-steps", type=int, default=1000, help=f"VAE steps of {CLIP_BATCH} clips")
    parser.add_argument("--steps", type=int, default=1200, help=f"transformer steps of {BATCH} clips")
    parser.add_argument("--watch", type=int, default=0, help="print held-out scores every so many transformer steps")
    parser.add_argument("--measure-only", action="store_true", help="score what is in --out and rewrite its card")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.measure_only:
        print(
            json.dumps(measure_again(options.out, 2 if options.tiny else Recipe.samples, measure, write_card), indent=2)
        )
        return 0
    steps = (options.picture_steps, options.clip_steps, options.steps)
    recipe = Recipe(options.seed, options.out, *steps, options.vae, watch=options.watch)
    if options.tiny:
        recipe = Recipe(options.seed, options.out, 2, 2, 2, clips_per_prompt=1, samples=2)
    print(json.dumps(build(recipe), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
