"""Train the tiny Wan pipeline of the embedded world of moving shapes and save it as an ordinary diffusers folder.

    python scripts/build_tiny_video_pipeline.py --seed 0 --out assets/tiny-wan

Well under an hour on one CPU core (`tiny_builder.py` says how it goes; `tiny_video_vae.py` has the autoencoder).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from tiny_builder import Log, Recipe, Velocity, World, main
from tiny_card import Score, in_turn, means, stack
from tiny_video_vae import CLIP_BATCH, PICTURE_BATCH, to_unit, train_vae
from torch import Tensor, nn

from diffrl.data.moving import FRAMES, prompts, render, scene_of
from diffrl.models.families.wan import FLOW_SHIFT, TEXT_TOKENS
from diffrl.models.tiny import build_pipeline
from reward_models import RewardBatch, load_reward

STOCK_TEXT_TOKENS = 512
"""Length of the prompt when the stock pipeline is called without `max_sequence_length`."""

PROMPT_TOKENS = 6
"""Tokens of a prompt of the world with its end."""


class Moving(World):
    """Clips of one coloured shape that moves or stays."""

    name = "tiny-wan"
    recipe = {"vae_steps": (800, 1000), "steps": 1200, "count": 100, "samples": 300}
    tiny = {"vae_steps": (2, 2), "steps": 2, "count": 1, "samples": 2}
    trained = ("transformer", "text_encoder")
    horizon, stock_share, time_shift = 6000, 0.25, 0.5
    parts = ("strict", "partial", "object", "direction", "smooth")
    length, chunk, medium = TEXT_TOKENS, 100, "clip"
    wrong, shift = "rendered truth, captions of other clips", 7  # another colour and another motion
    size = {"height": 32, "width": 32, "frames": FRAMES}

    def render(self, recipe: Recipe) -> tuple[Tensor, list[str], Tensor]:
        """Render the train split: uint8 (N, 9, 3, 32, 32), `count` clips of each prompt."""
        rng, train = np.random.default_rng(recipe.seed), prompts("train")
        clips = stack([render(scene_of(prompt), rng) for prompt in train for _ in range(recipe.count)])
        captions = torch.arange(len(train)).repeat_interleave(recipe.count)
        return clips, [prompt.text for prompt in train] + [""], captions

    def pipeline(self, texts: Sequence[str], seed: int) -> Any:
        """Return the pipeline with random weights."""
        return build_pipeline("wan", [word for text in texts for word in text.split()], seed)

    def load(self, folder: Path) -> WanPipeline:
        """Load the saved pipeline."""
        pipeline = WanPipeline.from_pretrained(str(folder))
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def load_vae(self, folder: Path) -> AutoencoderKLWan:
        """Load an autoencoder that was kept."""
        return AutoencoderKLWan.from_pretrained(str(folder))

    def train_vae(self, vae: AutoencoderKLWan, clips: Tensor, recipe: Recipe) -> None:
        """Train on pictures, then on clips."""
        pictures, moving = recipe.vae_steps
        train_vae(vae, clips, (pictures, moving), recipe.seed, Log("vae"))

    @torch.no_grad()
    def encode(self, vae: AutoencoderKLWan, clips: Tensor) -> Tensor:
        """Return latents of uint8 clips, (N, 8, 3, 4, 4), each channel normalised."""
        latents = torch.cat([vae.encode(to_unit(part).to(vae.device)).latent_dist.mean for part in clips.split(100)])
        mean, std = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
        vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
        return (latents - mean[:, None, None, None]) / std[:, None, None, None]

    def velocity(self, pipeline: Any, model: nn.ModuleDict, texts: Sequence[str]) -> Velocity:
        """Return the prediction for captions of PROMPT_TOKENS tokens, and one zero token for all behind."""
        read = pipeline.tokenizer(texts, padding="max_length", max_length=PROMPT_TOKENS, return_tensors="pt")
        ids, mask = read.input_ids.to(pipeline.vae.device), read.attention_mask.to(pipeline.vae.device)
        processor = with_repeated_tokens(model["transformer"])

        def predict(latents: Tensor, sigma: Tensor, captions: Tensor, stock: Tensor) -> Tensor:
            text = encode_captions(model["text_encoder"], ids[captions], mask[captions])
            length = torch.where(stock, STOCK_TEXT_TOKENS, TEXT_TOKENS)
            return predict_velocity(model["transformer"], processor, latents, sigma, text, length)

        return predict

    def held_out(self, count: int, tune: bool = False) -> list[str]:
        """Return held-out captions; of `tune` and `report` together, since a split of this world is small."""
        return in_turn([prompt.text for prompt in prompts("tune") + prompts("report")], count)

    def truth(self, asked: str, rng: np.random.Generator) -> np.ndarray:
        """Render a caption."""
        return render(scene_of(asked), rng)

    def score(self, clips: Tensor, texts: Sequence[str]) -> Score:
        """Return the means of the scorer's parts."""
        output = load_reward("moving_shapes")(RewardBatch(clips, texts))
        return means({name: output.parts[name] for name in self.parts})

    @torch.no_grad()
    def reconstruct(self, pipeline: WanPipeline, clips: Tensor) -> Tensor:
        """Return uint8 clips through the autoencoder and back."""
        decoded = []
        for chunk in clips.split(self.chunk):
            video = pipeline.vae.decode(pipeline.vae.encode(to_unit(chunk)).latent_dist.mean).sample
            decoded.append(to_clips(pipeline.video_processor.postprocess_video(video, output_type="np")))
        return torch.cat(decoded)

    def noise_shape(self, pipeline: WanPipeline) -> tuple[int, ...]:
        """Return that of a clip's latents."""
        return pipeline.vae.config.z_dim, 3, 4, 4

    def media_of(self, output: Any) -> Tensor:
        """Return a call's frames as clips."""
        return to_clips(output.frames)

    def settings(self, pipeline: WanPipeline) -> Iterator[tuple[str, dict[str, Any], None]]:
        """Yield solvers, guidance scales and lengths; the pipeline has each solver in turn."""
        stock = pipeline.scheduler
        for solver, guidance, length in (
            ("Euler", 1.0, TEXT_TOKENS),
            ("UniPC", 1.0, TEXT_TOKENS),
            ("UniPC", 1.0, STOCK_TEXT_TOKENS),
            ("UniPC", 3.0, TEXT_TOKENS),
            ("UniPC", 5.0, STOCK_TEXT_TOKENS),
        ):
            pipeline.scheduler = stock if solver == "UniPC" else FlowMatchEulerDiscreteScheduler(shift=FLOW_SHIFT)
            options = {"guidance_scale": guidance, "max_sequence_length": length}
            yield f"{solver}, guidance_scale={guidance:g}, max_sequence_length={length}", options, None

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """Return batches and steps of the autoencoder."""
        pictures, clips = recipe.vae_steps
        batches = {"picture_batch": PICTURE_BATCH, "clip_batch": CLIP_BATCH}
        return {"picture_steps": pictures, "clip_steps": clips, **batches, "train_prompts": len(prompts("train"))}


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
    """Return text embeddings (B, PROMPT_TOKENS, 64), zero after each prompt's end as the stock pipeline makes them."""
    return text_encoder(ids, mask).last_hidden_state * mask[..., None]


def predict_velocity(
    transformer: nn.Module,
    processor: RepeatedTokenAttention,
    latents: Tensor,
    sigma: Tensor,
    tokens: Tensor,
    length: Tensor,
) -> Tensor:
    """Return velocity with `tokens` padded by zeros to `length` (B,), by one token and a bias."""
    bias = torch.zeros(len(latents), 1, 1, tokens.shape[1] + 1, device=latents.device)
    bias[:, 0, 0, -1] = (length - tokens.shape[1]).float().log()
    processor.bias = bias
    return transformer(
        hidden_states=latents, timestep=sigma * 1000, encoder_hidden_states=F.pad(tokens, (0, 0, 0, 1))
    ).sample


def to_clips(frames: Any) -> Tensor:
    """Return a pipeline's "np" output, (N, F, H, W, 3) in [0, 1], as uint8 (N, F, 3, H, W)."""
    return torch.from_numpy(np.asarray(frames)).permute(0, 1, 4, 2, 3).mul(255).round().to(torch.uint8).contiguous()


WORLD = Moving()

if __name__ == "__main__":
    sys.exit(main(WORLD, __doc__))
