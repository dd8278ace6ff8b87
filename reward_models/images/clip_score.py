"""CLIPScore: how well an image fits its prompt, by any CLIP model."""

from __future__ import annotations

import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.images.clip_towers import Towers, load_clip, load_open_clip, similarity
from reward_models.neural import dtype_of

DEFAULTS = {
    "transformers": ("openai/clip-vit-large-patch14", None),
    "open_clip": ("ViT-L-14-quickgelu", "openai"),
}
"""Of each engine its model and tag: both are OpenAI's ViT-L/14."""


class ClipScorer:
    """Cosine of the CLIP embeddings of image and prompt.

        score = <image, text> / (|image| |text|)

    The raw cosine, between -1 and 1; users report about 0.15 to 0.35. Others report multiples of it: torchmetrics
    100 max(cos, 0), Hessel et al. 2.5 max(cos, 0) (ViT-B/32, and with "A photo depicts " before the caption),
    transformers' `logits_per_image` exp(logit_scale) cos, about 100 cos. `scale: 0.01` in the configuration gives
    100 cos. Scores of different CLIP models cannot be compared.

    Preprocessing is the model's own, on each image by PIL: shorter side to 224 (or what the model takes), bicubic;
    centre crop; mean and spread. Prompts are cut at the model's 77 tokens, the last of which stays the end token.

    Source: Radford et al. 2021, arXiv:2103.00020; Hessel et al. 2021, arXiv:2104.08718.
    Licences: transformers Apache-2.0, open_clip MIT; OpenAI's weights MIT as their repository is, their card on the
    hub names none. Not checked against published weights here: only the arithmetic, on small random ones.

    Args:
        engine: "transformers" or "open_clip" (which needs the extra `clip`).
        model: a directory or hub id of a transformers CLIPModel with its tokenizer and preprocessor_config.json; or
            a model of open_clip, also "hf-hub:OWNER/NAME" or "local-dir:PATH".
        pretrained: the weights of an open_clip model: its tag, or a file. A file trained with QuickGELU needs a
            model whose name ends in -quickgelu; for tags this is checked.
        dtype: "float32", "bfloat16" or "float16" inside the towers; the cosine itself is float32.

    Raises:
        RewardError: unknown options, or weights that cannot be had or do not fit.
    """

    spec = ScorerSpec(
        name="clip_score",
        description="How well the image fits the prompt: the cosine of their CLIP embeddings.",
        range=(-1.0, 1.0),
        memory="1.7 GB float32, 0.9 GB in half precision (ViT-L/14)",
        weights=DEFAULTS["transformers"][0],
        code_license="Apache-2.0 (transformers), MIT (open_clip)",
        weights_license="MIT (OpenAI's repository; the card on the hub names none)",
        citation="Radford et al. 2021, arXiv:2103.00020; Hessel et al. 2021, arXiv:2104.08718",
        batch_size=32,
    )

    def __init__(
        self,
        *,
        engine: str = "transformers",
        model: str | None = None,
        pretrained: str | None = None,
        dtype: str = "float32",
    ) -> None:
        if engine not in DEFAULTS:
            raise RewardError(f"engine must be one of {', '.join(DEFAULTS)}. Got {engine!r}.")
        if engine == "transformers" and pretrained is not None:
            raise RewardError(
                f"pretrained is for engine='open_clip'. Got {pretrained!r} with engine='transformers', whose weights "
                "are in the directory or hub id `model`."
            )
        kind = dtype_of(dtype)
        name, tag = (
            (model, pretrained) if model is not None else (DEFAULTS[engine][0], pretrained or DEFAULTS[engine][1])
        )
        self.towers: Towers = (
            load_clip(str(name), "clip_score", kind)
            if engine == "transformers"
            else load_open_clip(str(name), tag, "clip_score", kind)
        )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Cosines of the batch."""
        self.spec.require(batch)
        return output_of_scores(similarity(self.towers, batch))

    def to(self, device: str | torch.device) -> ClipScorer:
        """Move the model; returns itself."""
        self.towers.to(device)
        return self
