"""Train the tiny pipeline of the embedded shapes world and save it as an ordinary diffusers folder.

    python scripts/build_tiny_pipeline.py --seed 0 --out assets/tiny-sd3

About a quarter of an hour on a CPU; a CUDA device is used if there is one. Phases: render the train split, train an
`AutoencoderKL`, encode once, train an `SD3Transformer2DModel` together with its two CLIP text encoders by rectified
flow, save the moving average, measure the saved files and write the model card. Training stops early on purpose, when
`--enough` of the held-out prompts come out right: the pipeline is meant to be a policy that alignment can still
improve.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from tiny_pipeline_card import (
    builder_options,
    describe_machine,
    generate,
    held_out_sample,
    measure,
    measure_again,
    score,
    write_card,
)
from torch import Tensor, nn

from diffrl.data.shapes import prompts, render, scene_of
from diffrl.models.families.sd3 import T5_TOKENS, build_tiny_vae
from diffrl.models.tiny import MAX_TOKENS, build_pipeline, save_pipeline

STOCK_T5_TOKENS = 256
"""Length of the T5 part when the stock pipeline is called without `max_sequence_length`."""

STOCK_SHARE = 0.125
"""Share of training samples that see the stock length, so that a plain call works as well as diffrl's short one."""

TRAINED = ("transformer", "text_encoder", "text_encoder_2")
"""Components that the flow trains; the VAE is trained before."""

CAPTION_DROPOUT = 0.1
EMA_DECAY = 0.995
BATCH = 64
HORIZON = 4000
"""Steps over which the learning rate of the transformer would decay to zero; training stops before on purpose."""

WATCH = 100
"""Steps from one look at the split `tune` to the next."""


PICTURES: Mapping[str, int] = {
    "count": 1600,
    "pair": 3200,
    "relation": 4800,
    "sized": 4800,
    "relations": 4800,
    "crowd": 4800,
}
"""Training pictures of each kind of prompts."""


@dataclass(frozen=True)
class Recipe:
    """What the command line decides."""

    seed: int
    out: Path
    vae_steps: int
    steps: int
    pictures: Mapping[str, int] = field(default_factory=lambda: PICTURES)
    samples: int = 500
    enough: float = 0.17


def render_train_split(recipe: Recipe) -> tuple[Tensor, list[str], Tensor]:
    """Pictures of the train split.

    Returns:
        uint8 pictures (N, 3, 32, 32), the distinct captions (the last one is ""), and each picture's caption (N,).
    """
    rng = np.random.default_rng(recipe.seed)
    texts, pictures, captions = [], [], []
    for kind, count in recipe.pictures.items():
        known = prompts("train", (kind,))
        pictures += [render(scene_of(known[i % len(known)]), rng) for i in range(count)]
        captions += [len(texts) + i % len(known) for i in range(count)]
        texts += [prompt.text for prompt in known]
    stacked = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return stacked, [*texts, ""], torch.tensor(captions)


def warmup_cosine(step: int, warmup: int, horizon: int) -> float:
    """Factor of the learning rate: linear rise over `warmup` steps times a cosine that ends at 0 after `horizon`."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))


def train_vae(
    vae: AutoencoderKL, pictures: Tensor, steps: int, generator: torch.Generator, log: Log, batch: int = BATCH
) -> None:
    """L1 + squared error with a light KL term, cosine learning rate.

    The squared error leaves the all-grey plateau sooner, and L1 sharpens edges. The posterior starts narrow, since unit
    noise on the untrained latents would drown them.
    """
    with torch.no_grad():
        vae.encoder.conv_out.bias[4:] = -6.0  # log-variance
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, 50, steps))
    for step in range(1, steps + 1):
        rows = torch.randint(len(pictures), (batch,), generator=generator)
        images = to_unit(pictures[rows], vae.device)
        posterior = vae.encode(images).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator).to(vae.device)
        decoded = vae.decode(posterior.mean + posterior.std * noise).sample
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = F.l1_loss(decoded, images) + F.mse_loss(decoded, images) + 2e-5 * kl
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        log(step, steps, loss)
    vae.eval().requires_grad_(False)


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Latents of uint8 pictures, (N, 4, 8, 8); sets the config's shift and scale so that they are normalised."""
    means = torch.cat([vae.encode(to_unit(chunk, vae.device)).latent_dist.mean for chunk in pictures.split(256)])
    vae.register_to_config(scaling_factor=1 / float(means.std()), shift_factor=float(means.mean()))
    return (means - vae.config.shift_factor) * vae.config.scaling_factor


def to_unit(pictures: Tensor, device: torch.device) -> Tensor:
    """uint8 to float32 in [-1, 1], channels last: convolutions are faster so."""
    return pictures.to(device, memory_format=torch.channels_last).float() / 127.5 - 1


class RepeatedTokenAttention(JointAttnProcessor2_0):
    """Joint attention with a bias on the keys, for training only.

    n equal tokens stay equal through all blocks (context has no positions), and a softmax over n equal keys is a
    softmax over one of them with log(n) added to its logit. So one zero token with this bias is exactly the stock
    pipeline's run of n zero tokens, at a fraction of the cost.
    """

    def __call__(
        self, attn: Attention, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend; `attention_mask` (B, 1, 1, picture + context tokens) is added to the logits."""

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (attn.heads, -1)).transpose(1, 2)

        picture, context = hidden_states, encoder_hidden_states
        query = torch.cat([heads(attn.to_q(picture)), heads(attn.add_q_proj(context))], dim=2)
        key = torch.cat([heads(attn.to_k(picture)), heads(attn.add_k_proj(context))], dim=2)
        value = torch.cat([heads(attn.to_v(picture)), heads(attn.add_v_proj(context))], dim=2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        mixed = mixed.transpose(1, 2).flatten(2)
        picture, context = mixed[:, : picture.shape[1]], mixed[:, picture.shape[1] :]
        return attn.to_out[0](picture), context if attn.context_pre_only else attn.to_add_out(context)


def encode_captions(model: nn.ModuleDict, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Token embeddings (B, MAX_TOKENS, 128) and pooled embeddings (B, 128), as the stock pipeline makes them."""
    outputs = [model[name](ids, output_hidden_states=True) for name in ("text_encoder", "text_encoder_2")]
    tokens = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    return tokens, torch.cat([output.text_embeds for output in outputs], dim=-1)


def predict_velocity(
    model: nn.ModuleDict, latents: Tensor, sigma: Tensor, tokens: Tensor, pooled: Tensor, zero_tokens: Tensor
) -> Tensor:
    """Velocity with `zero_tokens` (B,) zero tokens after the caption, by one token and a bias."""
    patch = model["transformer"].config.patch_size
    picture_tokens = (latents.shape[-2] // patch) * (latents.shape[-1] // patch)
    bias = torch.zeros(len(latents), 1, 1, picture_tokens + tokens.shape[1] + 1, device=latents.device)
    bias[:, 0, 0, -1] = zero_tokens.float().log()
    return model["transformer"](
        hidden_states=latents,
        encoder_hidden_states=F.pad(tokens, (0, 0, 0, 1)),
        pooled_projections=pooled,
        timestep=sigma * 1000,
        joint_attention_kwargs={"attention_mask": bias},
    ).sample


def train_flow(
    model: nn.ModuleDict,
    latents: Tensor,
    captions: Tensor,
    token_ids: Tensor,
    steps: int,
    generator: torch.Generator,
    log: Log,
    on_step: Callable[[int, nn.ModuleDict], bool] = lambda step, average: False,
    batch: int = BATCH,
) -> nn.ModuleDict:
    """Rectified flow with logit-normal times; returns the moving average of the weights.

    Args:
        model: "transformer", "text_encoder" and "text_encoder_2", trained in place.
        latents: (N, 4, 8, 8), zero mean and unit variance.
        captions: (N,) row of each picture's caption in `token_ids`.
        token_ids: (captions, MAX_TOKENS); the last row is the empty caption.
        steps: optimiser steps of `batch` pictures.
        generator: CPU generator of all randomness.
        log: receives step, steps and loss.
        on_step: receives the step and the moving average after it, and says whether to stop there.
        batch: pictures of a step.
    """
    average = copy.deepcopy(model).requires_grad_(False)
    model["transformer"].set_attn_processor(RepeatedTokenAttention())
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, 100, HORIZON))
    for step in range(1, steps + 1):
        rows = torch.randint(len(latents), (batch,), generator=generator)
        clean = latents[rows]
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        sigma = torch.randn(len(rows), generator=generator).sigmoid().to(clean.device)
        dropped = torch.rand(len(rows), generator=generator) < CAPTION_DROPOUT
        caption = torch.where(dropped, len(token_ids) - 1, captions[rows])
        stock = torch.rand(len(rows), generator=generator) < STOCK_SHARE
        zero_tokens = torch.where(stock, STOCK_T5_TOKENS, T5_TOKENS).to(clean.device)

        tokens, pooled = encode_captions(model, token_ids[caption])
        noisy = torch.lerp(clean, noise, sigma[:, None, None, None])
        loss = F.mse_loss(predict_velocity(model, noisy, sigma, tokens, pooled, zero_tokens), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(EMA_DECAY, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        log(step, steps, loss)
        if on_step(step, average):
            break
    return average.eval()


class Log:
    """Prints a phase's progress about twenty times."""

    def __init__(self, phase: str):
        self.phase, self.start = phase, time.perf_counter()

    def __call__(self, step: int, steps: int, loss: Tensor) -> None:
        """Print if this step is one of the twenty."""
        if step % max(1, steps // 20) == 0:
            seconds = time.perf_counter() - self.start
            print(f"{self.phase} {step}/{steps}  loss {float(loss.detach()):.4f}  {seconds:.0f} s", flush=True)


def build(recipe: Recipe) -> dict[str, object]:
    """Train, save, measure and describe; returns what `build.json` holds."""
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures, texts, captions = render_train_split(recipe)
    print(f"rendered {len(pictures)} pictures of {len(texts) - 1} prompts", flush=True)

    pipeline = build_pipeline("sd3", [word for text in texts for word in text.split()], recipe.seed)
    pipeline.set_progress_bar_config(disable=True)
    torch.manual_seed(recipe.seed)
    vae = build_tiny_vae().to(device, memory_format=torch.channels_last)
    train_vae(vae, pictures, recipe.vae_steps, torch.Generator().manual_seed(recipe.seed), Log("vae"))
    latents = encode(vae, pictures)
    pipeline.register_modules(vae=vae)

    model = nn.ModuleDict({name: getattr(pipeline, name) for name in TRAINED}).to(device)
    tokens = pipeline.tokenizer(texts, padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")

    steps = 0

    def enough(step: int, average: nn.ModuleDict) -> bool:
        nonlocal steps
        steps = step
        if step % WATCH:
            return False
        use(pipeline, average)
        held_out = held_out_sample(recipe.samples // 2, "tune")
        scores = score(generate(pipeline, held_out, recipe.seed + 1), held_out)
        print("tune", step, scores, flush=True)
        return scores["strict"] >= recipe.enough

    ids, generator = tokens.input_ids.to(device), torch.Generator().manual_seed(recipe.seed + 1)
    average = train_flow(model, latents, captions, ids, recipe.steps, generator, Log("flow"), enough)
    use(pipeline, average)
    save_pipeline(pipeline.to("cpu"), recipe.out)
    trained = time.perf_counter() - start
    print(f"saved {recipe.out} after {trained:.0f} s; measuring", flush=True)

    record = {
        "seed": recipe.seed,
        "vae_steps": recipe.vae_steps,
        "steps": steps,
        "enough": recipe.enough,
        "batch": BATCH,
        "pictures": len(pictures),
        "train_prompts": len(texts) - 1,
        "machine": describe_machine(device, torch.get_num_threads()),
        "training_seconds": round(trained),
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
    parser = builder_options(__doc__, "assets/tiny-sd3")
    parser.add_argument("--vae-steps", type=int, default=900, help="optimiser steps of 64 pictures")
    parser.add_argument("--steps", type=int, default=2400, help=f"at most: transformer steps of {BATCH} pictures")
    parser.add_argument("--enough", type=float, default=Recipe.enough, help="strict on the split tune to stop at")
    parser.add_argument("--measure-only", action="store_true", help="score what is in --out and rewrite its card")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.measure_only:
        print(
            json.dumps(measure_again(options.out, 4 if options.tiny else Recipe.samples, measure, write_card), indent=2)
        )
        return 0
    recipe = Recipe(options.seed, options.out, options.vae_steps, options.steps, enough=options.enough)
    if options.tiny:
        recipe = Recipe(options.seed, options.out, 2, 2, dict.fromkeys(PICTURES, 12), samples=4)
    record = build(recipe)
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
