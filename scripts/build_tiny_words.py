"""Train the tiny pipeline of the world of words and save it as an ordinary diffusers folder.

    python scripts/build_tiny_words.py --seed 0 --out assets/tiny-words

Less than half an hour on a busy CPU core (`tiny_builder.py` says how it goes). Pictures show the words of the train
split, and as many strings of random letters, so that every letter is seen in every place; no word that is held out is
among them. The font is in matplotlib's package. Measuring reads with RapidOCR: pip install 'diffrl[ocr]'.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from build_tiny_pipeline import SD3World
from diffusers import AutoencoderKL
from tiny_builder import Recipe, main
from tiny_card import Score, in_turn, means, stack
from torch import Tensor

from diffrl.data.words import COLORS, HEIGHT, PAIRS, WIDTH, Sign, format_prompt, parse_prompt, prompts, render, words
from diffrl.data.worlds import SPLITS
from diffrl.models import tiny
from diffrl.models.families.sd3 import T5_TOKENS, build_tiny_vae
from diffrl.records import Prompt
from reward_models import RewardBatch, Scorer, load_reward

GRAMMAR = ("the", "word", "in", "on", *COLORS)
"""What the tokenizer knows as whole words; all else, above all the word in quotes, is spelled letter by letter."""


class Words(SD3World):
    """One short word on a sign."""

    name = "tiny-words"
    recipe = {"vae_steps": (1500,), "steps": 900, "count": 24_000, "samples": 90}
    tiny = {"vae_steps": (2,), "steps": 2, "count": 40, "samples": 4}
    parts = ("exact", "partial")
    batch, vae_batch, chunk = 32, 16, 120
    wrong, shift = "rendered truth, prompts of other pictures", 1
    packages = ("rapidocr", "onnxruntime", "matplotlib", "pillow")
    size = {"height": HEIGHT, "width": WIDTH}

    def render(self, recipe: Recipe, spread: bool = False) -> tuple[Tensor, list[str], Tensor]:
        """Render words of the train split and, every second one, random letters; `spread` as in `words.render`."""
        rng = np.random.default_rng(recipe.seed)
        known, held_out = words("train"), {word for split in SPLITS[1:] for word in words(split)}
        letters = list(string.ascii_lowercase)
        pictures, rows, captions = [], [], dict[str, int]()
        while len(pictures) < recipe.count:
            spelled = len(pictures) % 2
            word = "".join(rng.choice(letters, rng.integers(3, 6))) if spelled else known[rng.integers(len(known))]
            if word in held_out:
                continue
            sign = Sign(word, *PAIRS[rng.integers(len(PAIRS))])
            pictures.append(render(sign, rng, spread))
            rows.append(captions.setdefault(format_prompt(sign), len(captions)))
        return stack(pictures), [*captions, ""], torch.tensor(rows)

    def pipeline(self, texts: Sequence[str], seed: int) -> Any:
        """Return the pipeline with random weights, for these prompts and pictures."""
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
        return pipeline

    def train_vae(self, vae: AutoencoderKL, pictures: Tensor, recipe: Recipe) -> None:
        """Train on words in all places."""
        super().train_vae(vae, self.render(recipe, spread=True)[0], recipe)

    def held_out(self, count: int, tune: bool = False) -> list[Prompt]:
        """Return prompts of a held-out split."""
        return in_turn(prompts("tune" if tune else "report"), count)

    def truth(self, asked: Prompt, rng: np.random.Generator) -> np.ndarray:
        """Render a prompt."""
        return render(parse_prompt(asked.text), rng)

    @cached_property
    def reader(self) -> Scorer:
        """The scorer: every picture is one line of text."""
        return load_reward("ocr", detect=False, threads=1)

    def score(self, pictures: Tensor, asked: Sequence[Prompt]) -> Score:
        """Return the share on which exactly the word is read, and the mean of 1 - distance / length."""
        output = self.reader(RewardBatch(pictures, [one.text for one in asked], [one.metadata for one in asked]))
        return means({"exact": output.parts["exact"], "partial": output.raw})

    def noise_shape(self, pipeline: Any) -> tuple[int, ...]:
        """Return that of a sign's latents."""
        return 4, HEIGHT // 4, WIDTH // 4

    def settings(self, pipeline: Any) -> Iterator[tuple[str, dict[str, Any], list[Prompt] | None]]:
        """Yield guidance scales and lengths, on trained words too."""
        settings = (("trained", 1.0, T5_TOKENS), ("held-out", 1.0, T5_TOKENS), ("held-out", 1.0, 256))
        for which, guidance, length in (*settings, ("held-out", 3.0, T5_TOKENS)):
            name = f"generated, {which} words, guidance_scale={guidance:g}, max_sequence_length={length}"
            options = {"guidance_scale": guidance, "max_sequence_length": length}
            yield name, options, prompts("train") if which == "trained" else None

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """Return batches and steps of the autoencoder, and the words."""
        return {
            "vae_steps": recipe.vae_steps[0],
            "vae_batch": self.vae_batch,
            "train_words": len(words("train")),
            "held_out_words": {split: len(words(split)) for split in SPLITS[1:]},
            "size": [HEIGHT, WIDTH],
        }

    def card_values(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the card shows of sizes, words and reading."""
        counts = {f"{split}_words": count for split, count in record["held_out_words"].items()}
        return {"height": HEIGHT, "width": WIDTH, "reading": record["milliseconds_per_picture"]["reading"], **counts}


WORLD = Words()

if __name__ == "__main__":
    sys.exit(main(WORLD, __doc__))
