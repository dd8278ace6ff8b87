"""Human Preference Score v2 and v2.1."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.images.clip_preprocess import pad_to_square
from reward_models.images.clip_towers import OpenClip, similarity
from reward_models.neural import dtype_of, find_file, load_strict, read_state, require_package, shared

FILES = {"2.0": "HPS_v2_compressed.pt", "2.1": "HPS_v2.1_compressed.pt"}


class HPSv2Scorer:
    """CLIP ViT-H/14, finetuned on human rankings of images of one prompt (HPD v2).

        score = <image, text> / (|image| |text|)

    The cosine without the logit scale, about 0.2 to 0.4; benchmark tables show 100 times that. Scores of the two
    versions, or of different prompts, cannot be compared.

    Preprocessing differs from CLIP's: scale to [0, 1]; resize the *longer* side to 224 as float, bicubic, without
    clamping; pad to a square with black, in the middle; CLIP's mean and spread. An image of exactly 224 pixels is
    padded too, where the original leaves it oblong and fails. Whether resizing filters first (antialias) was left to
    torchvision's default, which has been on since 0.17 and was off when the paper's numbers were made: say
    antialias=False to compare with those. Prompts are cut at 77 tokens, the last of which stays the end token.
    The original computes under float16 autocast, where a step is 0.0002 at 0.3; here the cosine is float32.

    Source: Wu et al. 2023, arXiv:2306.09341; github.com/tgxs002/HPSv2.
    Licences: HPSv2's code and weights Apache-2.0; this runs on open_clip, MIT. The published weights were not
    available here: checked is the arithmetic, on small random weights in their layout.

    Args:
        version: "2.1" or "2.0"; which file is looked for.
        checkpoint: the file, the directory it is in, or the hub repository.
        architecture: the open_clip model whose weights the file has.
        antialias: filter when resizing.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        RewardError: unknown options, open_clip is missing, or the weights cannot be had or do not fit.
    """

    spec = ScorerSpec(
        name="hpsv2",
        description="Human preference among images of one prompt, learnt from the rankings in HPD v2.",
        range=(-1.0, 1.0),
        memory="3.9 GB float32, 2.0 GB in half precision",
        extra="clip",
        weights="xswu/HPSv2",
        code_license="Apache-2.0 (HPSv2), MIT (open_clip)",
        weights_license="Apache-2.0",
        citation="Wu et al. 2023, arXiv:2306.09341",
        batch_size=32,
    )

    def __init__(
        self,
        *,
        version: str = "2.1",
        checkpoint: str = "xswu/HPSv2",
        architecture: str = "ViT-H-14",
        antialias: bool = True,
        dtype: str = "float32",
    ) -> None:
        # YAML reads 2.0 as a number.
        if str(version) not in FILES:
            raise RewardError(f"version must be one of {', '.join(FILES)}. Got {version!r}.")
        kind = dtype_of(dtype)
        require_package("open_clip", "clip", "hpsv2")
        path = find_file(checkpoint, FILES[str(version)], "hpsv2")
        model, tokenizer = shared(("hpsv2", str(path), architecture, kind), lambda: _loaded(architecture, path))
        transform = partial(pad_to_square, side=_side(model), antialias=antialias)
        self.towers = OpenClip(model, tokenizer, transform, kind)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Scores of the batch."""
        self.spec.require(batch)
        return output_of_scores(similarity(self.towers, batch))

    def to(self, device: str | torch.device) -> HPSv2Scorer:
        """Move the model; returns itself."""
        self.towers.to(device)
        return self


def _loaded(architecture: str, path: Path) -> tuple[Any, Any]:
    """Return the architecture with a file's weights, and its tokenizer."""
    model, tokenizer = _empty(architecture)
    load_strict(model, read_state(path, "hpsv2"), "hpsv2", source=str(path))
    return model, tokenizer


def _empty(architecture: str) -> tuple[Any, Any]:
    """Return the architecture without weights, and its tokenizer."""
    import open_clip  # type: ignore[import-untyped]

    config = open_clip.get_model_config(architecture)
    if config is None:
        raise RewardError(
            f"architecture must be a model of open_clip; that of HPSv2 is ViT-H-14. Got {architecture!r}."
        )
    return open_clip.CLIP(**config), open_clip.get_tokenizer(architecture)


def _side(model: Any) -> int:
    size = model.visual.image_size
    return int(size if isinstance(size, int) else size[0])
