"""Train the tiny pipeline of the world of words and save it as an ordinary diffusers folder.

    python scripts/build_tiny_words.py --seed 0 --out assets/tiny-words

Less than half an hour on a busy CPU core; a CUDA device is used if there is one. It goes as `build_tiny_pipeline.py`
does, whose training it uses: render, train an `AutoencoderKL`, encode once, train an `SD3Transformer2DModel` together
with its two CLIP text encoders by rectified flow, save the moving average, measure the saved files and write the model
card. Training stops early on purpose: the pipeline is meant to be a policy that alignment can still improve.

Pictures show the words of the train split, and as many strings of random letters, so that every letter is seen in every
place; no word that is held out is among them. The font is in matplotlib's package. Measuring reads with RapidOCR:
pip install 'diffrl[ocr]'. With `--vae` the trained autoencoder is kept in that folder, and taken from it by a later run
with the same seed, which then gives the same pipeline.
"""

from __future__ import annotations

import json
import string
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from build_tiny_pipeline import TRAINED, Log, encode, train_flow, train_vae, use
from diffusers import AutoencoderKL
from tiny_pipeline_card import builder_options, describe_machine
from tiny_words_card import generate, held_out_sample, measure, read, write_card
from torch import Tensor, nn

from diffrl.data.words import COLORS, HEIGHT, PAIRS, WIDTH, Sign, format_prompt, render, words
from diffrl.data.worlds import SPLITS
from diffrl.models import tiny
from diffrl.models.families.sd3 import build_tiny_vae

GRAMMAR = ("the", "word", "in", "on", *COLORS)
"""What the tokenizer knows as whole words; all else, above all the word in quotes, is spelled letter by letter."""


VAE_BATCH = 16
BATCH = 32


@dataclass(frozen=True)
class Recipe:
    """What the command line decides."""

    seed: int
    out: Path
    vae_steps: int
    steps: int
    pictures: int = 24_000
    samples: int = 90
    watch: int = 0
    vae_folder: Path | None = None


def draw_signs(recipe: Recipe, spread: bool = False) -> tuple[Tensor, list[str], Tensor]:
    """Pictures of words of the train split and, every second one, of random letters; `spread` as in `render`.

    Returns:
        uint8 pictures (N, 3, HEIGHT, WIDTH), the distinct captions (the last one is ""), each picture's caption (N,).
    """
    rng = np.random.default_rng(recipe.seed)
    known, held_out = words("train"), {word for split in SPLITS[1:] for word in words(split)}
    letters = list(string.ascii_lowercase)
    pictures, rows, captions = [], [], dict[str, int]()
    while len(pictures) < recipe.pictures:
        spelled = len(pictures) % 2
        word = "".join(rng.choice(letters, rng.integers(3, 6))) if spelled else known[rng.integers(len(known))]
        if word in held_out:
            continue
        sign = Sign(word, *PAIRS[rng.integers(len(PAIRS))])
        pictures.append(render(sign, rng, spread))
        rows.append(captions.setdefault(format_prompt(sign), len(captions)))
    stacked = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return stacked, [*captions, ""], torch.tensor(rows)


def build_pipeline(seed: int) -> Any:
    """A `StableDiffusion3Pipeline` with random weights for these prompts and pictures."""
    from diffusers import SD3Transformer2DModel
    from transformers import AddedToken

    pipeline = tiny.build_pipeline("sd3", [], seed)
    torch.manual_seed(seed)
    tokenizer = tiny.build_clip_tokenizer([])
    # As added tokens, not as merges: pieces of them would stand in other words too, which then were not spelled.
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in GRAMMAR])
    config = dict(pipeline.transformer.config) | {"sample_size": WIDTH // 4, "pos_embed_max_size": WIDTH // 8}
    pipeline.register_modules(
        transformer=SD3Transformer2DModel.from_config(config),
        vae=build_tiny_vae(),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        text_encoder=tiny.build_clip(tokenizer),
        text_encoder_2=tiny.build_clip(tokenizer),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def trained_vae(recipe: Recipe, vae: AutoencoderKL) -> tuple[AutoencoderKL, float]:
    """This autoencoder trained on words in all places, or the one of the recipe's folder; the seconds that it took."""
    kept = recipe.vae_folder
    if kept is not None and (kept / "seconds.json").is_file():
        found = AutoencoderKL.from_pretrained(str(kept)).to(vae.device, memory_format=torch.channels_last)
        return found.eval().requires_grad_(False), float(json.loads((kept / "seconds.json").read_text()))
    start = time.perf_counter()
    pictures, _, _ = draw_signs(recipe, spread=True)
    train_vae(vae, pictures, recipe.vae_steps, torch.Generator().manual_seed(recipe.seed), Log("vae"), VAE_BATCH)
    seconds = time.perf_counter() - start
    if kept is not None:
        vae.save_pretrained(str(kept))
        (kept / "seconds.json").write_text(json.dumps(seconds) + "\n")
    return vae, seconds


def build(recipe: Recipe) -> dict[str, object]:
    """Train, save, measure and describe; returns what `build.json` holds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures, texts, captions = draw_signs(recipe)
    print(f"rendered {len(pictures)} pictures of {len(texts) - 1} prompts", flush=True)

    pipeline = build_pipeline(recipe.seed)
    vae, seconds = trained_vae(recipe, pipeline.vae.to(device, memory_format=torch.channels_last))
    start = time.perf_counter()
    latents = encode(vae, pictures)
    pipeline.register_modules(vae=vae)

    model = nn.ModuleDict({name: getattr(pipeline, name) for name in TRAINED}).to(device)
    tokens = pipeline.tokenizer(texts, padding="max_length", max_length=tiny.MAX_TOKENS, return_tensors="pt")

    def watch(step: int, average: nn.ModuleDict) -> bool:
        if recipe.watch and step % recipe.watch == 0:
            use(pipeline, average)
            sample = held_out_sample("tune", recipe.samples)
            print("tune", step, read(generate(pipeline, sample, recipe.seed + 1), sample), flush=True)
        return False

    ids, generator = tokens.input_ids.to(device), torch.Generator().manual_seed(recipe.seed + 1)
    average = train_flow(model, latents, captions, ids, recipe.steps, generator, Log("flow"), watch, BATCH)
    use(pipeline, average)
    tiny.save_pipeline(pipeline.to("cpu"), recipe.out, {"height": HEIGHT, "width": WIDTH})
    seconds += time.perf_counter() - start
    print(f"saved {recipe.out} after {seconds:.0f} s; measuring", flush=True)

    record = {
        "seed": recipe.seed,
        "vae_steps": recipe.vae_steps,
        "vae_batch": VAE_BATCH,
        "steps": recipe.steps,
        "batch": BATCH,
        "pictures": len(pictures),
        "train_words": len(words("train")),
        "held_out_words": {split: len(words(split)) for split in SPLITS[1:]},
        "size": [HEIGHT, WIDTH],
        "machine": describe_machine(device, torch.get_num_threads()),
        "training_seconds": round(seconds),
        **measure(recipe.out, recipe.samples, seed=recipe.seed + 1),
    }
    (recipe.out / "build.json").write_text(json.dumps(record, indent=2) + "\n")
    write_card(recipe.out, record)
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = builder_options(__doc__, "assets/tiny-words")
    parser.add_argument("--vae-steps", type=int, default=1500, help=f"optimiser steps of {VAE_BATCH} pictures")
    parser.add_argument("--vae", type=Path, help="keep the trained autoencoder here, or take the one that is here")
    parser.add_argument("--steps", type=int, default=900, help=f"transformer steps of {BATCH} pictures")
    parser.add_argument("--watch", type=int, default=0, help="print held-out scores every so many transformer steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = Recipe(
        options.seed, options.out, options.vae_steps, options.steps, watch=options.watch, vae_folder=options.vae
    )
    if options.tiny:
        recipe = Recipe(options.seed, options.out, 2, 2, pictures=40, samples=4)
    record = build(recipe)
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
