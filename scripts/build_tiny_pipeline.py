"""Train the tiny pipeline of the embedded shapes world and save it as an ordinary diffusers folder.

    python scripts/build_tiny_pipeline.py --seed 0 --out assets/tiny-sd3

About a quarter of an hour on a CPU (`tiny_builder.py` says how it goes). Training stops when `--enough` of the held-out
prompts come out right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from tiny_builder import Log, Recipe, Velocity, World, main, warmup_cosine
from tiny_card import Score, in_turn, means, stack
from torch import Tensor, nn

from diffrl.data.shapes import prompts, render, scene_of
from diffrl.models.families.sd3 import T5_TOKENS, build_tiny_vae
from diffrl.models.tiny import MAX_TOKENS, build_pipeline
from reward_models import RewardBatch, load_reward

STOCK_T5_TOKENS = 256
"""Length of the T5 part when the stock pipeline is called without `max_sequence_length`."""

KINDS: Mapping[str, int] = {
    "count": 1600,
    "pair": 3200,
    "relation": 4800,
    "sized": 4800,
    "relations": 4800,
    "crowd": 4800,
}
"""Training pictures of each kind of prompts."""


class SD3World(World):
    """Pictures, drawn by a Stable Diffusion 3 pipeline."""

    trained = ("transformer", "text_encoder", "text_encoder_2")
    length, stock_share = T5_TOKENS, 0.125
    vae_batch = 64

    def load(self, folder: Path) -> StableDiffusion3Pipeline:
        """Load the saved pipeline."""
        pipeline = StableDiffusion3Pipeline.from_pretrained(str(folder))
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def load_vae(self, folder: Path) -> AutoencoderKL:
        """Load an autoencoder that was kept."""
        return AutoencoderKL.from_pretrained(str(folder)).to(memory_format=torch.channels_last)

    def train_vae(self, vae: AutoencoderKL, pictures: Tensor, recipe: Recipe) -> None:
        """Train by L1 + squared error with a light KL term and a cosine learning rate.

        The squared error leaves the all-grey plateau sooner, and L1 sharpens edges. The posterior starts narrow, since
        unit noise on the untrained latents would drown them.
        """
        generator, log, (steps,) = torch.Generator().manual_seed(recipe.seed), Log("vae"), recipe.vae_steps
        vae.to(memory_format=torch.channels_last)
        with torch.no_grad():
            vae.encoder.conv_out.bias[4:] = -6.0  # log-variance
        optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, 50, steps))
        for step in range(1, steps + 1):
            rows = torch.randint(len(pictures), (self.vae_batch,), generator=generator)
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

    @torch.no_grad()
    def encode(self, vae: AutoencoderKL, pictures: Tensor) -> Tensor:
        """Return latents of uint8 pictures, (N, 4, H / 4, W / 4)."""
        latents = torch.cat([vae.encode(to_unit(chunk, vae.device)).latent_dist.mean for chunk in pictures.split(256)])
        vae.register_to_config(scaling_factor=1 / float(latents.std()), shift_factor=float(latents.mean()))
        return (latents - vae.config.shift_factor) * vae.config.scaling_factor

    def velocity(self, pipeline: Any, model: nn.ModuleDict, texts: Sequence[str]) -> Velocity:
        """Return the prediction for captions of MAX_TOKENS tokens, and one zero token for all of T5's."""
        read = pipeline.tokenizer(texts, padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")
        ids = read.input_ids.to(pipeline.vae.device)
        model["transformer"].set_attn_processor(RepeatedTokenAttention())

        def predict(latents: Tensor, sigma: Tensor, captions: Tensor, stock: Tensor) -> Tensor:
            zero_tokens = torch.where(stock, STOCK_T5_TOKENS, T5_TOKENS)
            return predict_velocity(model, latents, sigma, *encode_captions(model, ids[captions]), zero_tokens)

        return predict

    @torch.no_grad()
    def reconstruct(self, pipeline: StableDiffusion3Pipeline, pictures: Tensor) -> Tensor:
        """Return uint8 pictures through the autoencoder and back."""
        decoded = []
        for chunk in pictures.split(128):
            latents = pipeline.vae.encode(chunk / 127.5 - 1).latent_dist.mean
            decoded += pipeline.image_processor.postprocess(pipeline.vae.decode(latents).sample, output_type="pil")
        return stack(decoded)


class Shapes(SD3World):
    """Coloured shapes on 32 x 32 pixels."""

    name = "tiny-sd3"
    recipe = {"vae_steps": (900,), "steps": 2400, "count": 4800, "samples": 500, "watch": 100, "enough": 0.17}
    tiny = {"vae_steps": (2,), "steps": 2, "count": 12, "samples": 4}
    parts = ("strict", "partial")
    chunk = 125
    wrong = "rendered truth, captions of other pictures"  # half of all away: neighbours in the list differ by little

    def render(self, recipe: Recipe) -> tuple[Tensor, list[str], Tensor]:
        """Render the train split: uint8 (N, 3, 32, 32), at most `count` pictures of a kind."""
        rng = np.random.default_rng(recipe.seed)
        texts, pictures, captions = [], [], []
        for kind, most in KINDS.items():
            known, count = prompts("train", (kind,)), min(most, recipe.count)
            pictures += [render(scene_of(known[i % len(known)]), rng) for i in range(count)]
            captions += [len(texts) + i % len(known) for i in range(count)]
            texts += [prompt.text for prompt in known]
        return stack(pictures), [*texts, ""], torch.tensor(captions)

    def pipeline(self, texts: Sequence[str], seed: int) -> Any:
        """Return the pipeline with random weights."""
        pipeline = build_pipeline("sd3", [word for text in texts for word in text.split()], seed)
        torch.manual_seed(seed)
        pipeline.register_modules(vae=build_tiny_vae())
        return pipeline

    def held_out(self, count: int, tune: bool = False) -> list[str]:
        """Return captions of a held-out split."""
        return in_turn([prompt.text for prompt in prompts("tune" if tune else "report")], count)

    def truth(self, asked: str, rng: np.random.Generator) -> np.ndarray:
        """Render a caption."""
        return render(scene_of(asked), rng)

    def score(self, pictures: Tensor, texts: Sequence[str]) -> Score:
        """Return the mean strict pass and partial credit."""
        output = load_reward("shapes")(RewardBatch(pictures, texts))
        return means({"strict": output.parts["strict"], "partial": output.raw})

    def noise_shape(self, pipeline: Any) -> tuple[int, ...]:
        """Return that of latents of 32 x 32 pixels."""
        return 4, 8, 8

    def settings(self, pipeline: Any) -> Iterator[tuple[str, dict[str, Any], None]]:
        """Yield guidance scales and lengths, diffrl's and the stock call's."""
        for guidance, length in ((1.0, T5_TOKENS), (1.0, 256), (3.0, T5_TOKENS), (7.0, 256)):
            options = {"guidance_scale": guidance, "max_sequence_length": length}
            yield f"generated, guidance_scale={guidance:g}, max_sequence_length={length}", options, None

    def more(self, pipeline: Any, samples: int, seed: int) -> dict[str, Any]:
        """Measure what a method has to tell apart: pictures of the same training prompts, rewarded as in the recipes.

        Returns:
            groups: ties: share of pairs within a group with the same graded reward.
                no_spread: share of groups whose graded rewards are all the same.
                same_verdict: share of groups whose strict verdicts are all the same, so that strict teaches nothing.
                random_top: share of a random choice that is among a group's best sixth; 1/6 without ties.
        """
        groups, size = max(1, samples // 12), 48 if samples > 48 else 6
        texts = [prompt.text for prompt in prompts("train")[:groups] for _ in range(size)]
        output = load_reward("shapes")(RewardBatch(self.generate(pipeline, texts, seed), texts))
        graded, strict = (values.reshape(groups, size) for values in (output.raw, output.parts["strict"]))
        total = (graded + strict) / 2
        tied = (graded[:, :, None] == graded[:, None, :]).sum((1, 2)) - size
        sixth = total.sort(dim=1, descending=True).values[:, size // 6 - 1 : size // 6]
        measured = {
            "ties": round(float(tied.sum()) / (groups * size * (size - 1)), 5),
            "no_spread": round(float((graded.std(1) == 0).float().mean()), 4),
            "same_verdict": round(float((strict.std(1) == 0).float().mean()), 4),
            "random_top": round(float((total >= sixth).float().mean()), 4),
        }
        return {"groups": measured}

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """Return the steps of the autoencoder, and when training stops."""
        return {"vae_steps": recipe.vae_steps[0], "enough": recipe.enough, "train_prompts": len(prompts("train"))}

    def card_values(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the card shows of groups, of two scores, and of the splits."""
        name = "generated, guidance_scale={}, max_sequence_length=" + str(T5_TOKENS)
        return {
            **record["groups"],
            "group_count": max(1, record["samples"] // 12),
            "base": record["scores"][name.format(1)]["strict"],
            "guided": record["scores"][name.format(3)]["strict"],
            "tune_prompts": len(prompts("tune")),
            "report_prompts": len(prompts("report")),
        }


def to_unit(pictures: Tensor, device: torch.device) -> Tensor:
    """Return uint8 to float32 in [-1, 1], channels last: convolutions are faster so."""
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

        image, context = hidden_states, encoder_hidden_states
        query = torch.cat([heads(attn.to_q(image)), heads(attn.add_q_proj(context))], dim=2)
        key = torch.cat([heads(attn.to_k(image)), heads(attn.add_k_proj(context))], dim=2)
        value = torch.cat([heads(attn.to_v(image)), heads(attn.add_v_proj(context))], dim=2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        mixed = mixed.transpose(1, 2).flatten(2)
        image, context = mixed[:, : image.shape[1]], mixed[:, image.shape[1] :]
        return attn.to_out[0](image), context if attn.context_pre_only else attn.to_add_out(context)


def encode_captions(model: nn.ModuleDict, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return token embeddings (B, MAX_TOKENS, 128) and pooled embeddings (B, 128), as the stock pipeline makes them."""
    outputs = [model[name](ids, output_hidden_states=True) for name in ("text_encoder", "text_encoder_2")]
    tokens = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    return tokens, torch.cat([output.text_embeds for output in outputs], dim=-1)


def predict_velocity(
    model: nn.ModuleDict, latents: Tensor, sigma: Tensor, tokens: Tensor, pooled: Tensor, zero_tokens: Tensor
) -> Tensor:
    """Return velocity with `zero_tokens` (B,) zero tokens after the caption, by one token and a bias."""
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


WORLD = Shapes()

if __name__ == "__main__":
    sys.exit(main(WORLD, __doc__))
