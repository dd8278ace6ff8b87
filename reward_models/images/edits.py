"""Judges of an edit: whether it kept what it should keep, and whether it went where the words say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.images.clip_towers import TransformersClip, unit
from reward_models.images.diversity import pixel_features
from reward_models.neural import dtype_of, inference
from reward_models.self_test import Contrast, Sample, drawing

CLIP = "openai/clip-vit-large-patch14"
CAPTIONS = ("source_caption", "target_caption")
"""Metadata: what the source shows, and what the edit should show, in words."""

ROUNDING = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 3e-3}
"""Distance of two embeddings of length 1 that is none: what rounding of each in its dtype may add up to."""


def by_image(sources: Sequence[Tensor], features: Callable[[Tensor], Tensor]) -> Tensor:
    """Return features (B, D) of B images of any size, (3, H, W) uint8; equal images are computed once."""
    row_of = {id(source): row for row, source in enumerate({id(source): source for source in sources}.values())}
    known = {id(source): source for source in sources}
    each = torch.cat([features(known[key][None]) for key in row_of])
    return each[[row_of[id(source)] for source in sources]]


class PreservationScorer:
    """Preservation: how much an edit is still the image that it was made of, and a clip's first frame that image.

    - features "clip": the cosine of CLIP's image embeddings of edit and source, in [-1, 1]; the "CLIP image similarity"
      of Brooks et al. 2023. It goes by what is seen rather than by where.
    - features "pixels": 1 - the root-mean-square difference of both reduced to 32 x 32, channels in [0, 1]. It goes by
      layout and colour.

    The source itself is the best edit for it, so it belongs beside a reward for following the words. Equal embeddings
    of another model cannot be compared. Of a clip only the first frame is seen: `video_mean` of this one looks at
    others too, and asks that they stay like it. Not checked against published weights here.

    Args:
        features: "clip" or "pixels".
        model: for "clip", a directory or hub id with a CLIP in transformers' format; default OpenAI's ViT-L/14.
        dtype: of CLIP's weights: "float32", "bfloat16" or "float16".

    Source: Radford et al. 2021, arXiv:2103.00020; Brooks et al. 2023, arXiv:2211.09800.
    """

    spec = ScorerSpec(
        name="preservation",
        description="How much an edit, or a clip's first frame, is its source: by CLIP's embeddings or by pixels.",
        range=(-1.0, 1.0),
        media=("image", "video"),
        uses_prompt=False,
        uses_source=True,
        batch_size=32,
        memory="1.2 GB float32, 0.6 GB in half precision (ViT-L/14's image tower)",
        weights=CLIP,
        weights_license="MIT (OpenAI's repository; the card on the hub names none)",
        citation="Radford et al. 2021, arXiv:2103.00020; Brooks et al. 2023, arXiv:2211.09800",
    )

    def __init__(self, features: str = "clip", model: str | None = None, dtype: str = "float32") -> None:
        if features not in ("clip", "pixels"):
            raise RewardError(f"features of preservation must be 'clip' or 'pixels'. Got {features!r}.")
        self.clip: TransformersClip | None = None
        if features == "clip":
            self.clip = TransformersClip(model or CLIP, self.spec.name, dtype_of(dtype), text=False)
            self.spec = replace(self.spec, weights=model or CLIP)
            return
        if model is not None:
            raise RewardError(
                f"Only features='clip' of preservation take a model. Got features='pixels', model={model!r}."
            )
        self.spec = replace(
            self.spec,
            description="How much an edit, or a clip's first frame, is its source: 1 - their difference at 32 x 32.",
            range=(0.0, 1.0),
            batch_size=ScorerSpec.batch_size,
            memory=None,
            weights=None,
            weights_license=None,
            citation=None,
        )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch."""
        self.spec.require(batch)
        if not len(batch):
            return output_of_scores(torch.zeros(0))
        shown = batch.media
        if batch.kind == "video":
            if not shown.shape[1]:
                return output_of_rows([(math.nan, {}, "the clip has no frames")] * len(batch))
            shown = shown[:, 0]
        if self.clip is None:
            edits = pixel_features(shown)
            sources = by_image(batch.sources, pixel_features).to(edits.device)
            return output_of_scores(1 - (edits - sources).square().mean(1).sqrt())
        with inference(self.clip.device):
            edits, sources = self.clip.images(shown), by_image(batch.sources, self.clip.images)
            return output_of_scores((unit(edits) * unit(sources)).sum(1))

    def to(self, device: str | torch.device) -> PreservationScorer:
        """Move CLIP; without it there is nothing to move."""
        if self.clip is not None:
            self.clip.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return the source as it was, against another image."""
        things = [("red", "circle"), ("blue", "square"), ("green", "triangle")]
        made = []
        for (color, shape), other in zip(things, things[1:] + things[:1], strict=True):
            source, another = drawing(color, shape), drawing(*other)
            good, bad = (Sample(media, "an edit", source=source) for media in (source, another))
            made.append(Contrast(good, bad, f"the {color} {shape} of the source is still there"))
        return made


class EditDirectionScorer:
    """Edit direction: whether an edit changed an image as the words changed.

        score = cos(image(edit) - image(source), text(target) - text(source)),  embeddings of length 1

    CLIP's directional similarity (Gal et al. 2021, StyleGAN-NADA; of edits by instruction Brooks et al. 2023): a
    difference that has nothing to do with the words scores about 0, an edit whose embedding is its source's but for
    rounding (`ROUNDING`) exactly 0: its direction would be chance. It takes two captions beside the instruction, as
    InstructPix2Pix's data has them. Not checked against published weights here.

    Args:
        model: a directory or hub id with a CLIP in transformers' format; default OpenAI's ViT-L/14.
        dtype: of CLIP's weights: "float32", "bfloat16" or "float16".

    Source: Gal et al. 2021, arXiv:2108.00946; Brooks et al. 2023, arXiv:2211.09800.
    """

    spec = ScorerSpec(
        name="edit_direction",
        description="Whether the image changed as its caption did: CLIP's directional similarity.",
        range=(-1.0, 1.0),
        requires=CAPTIONS,
        uses_prompt=False,
        uses_source=True,
        batch_size=32,
        memory="1.7 GB float32, 0.9 GB in half precision (ViT-L/14)",
        weights=CLIP,
        weights_license="MIT (OpenAI's repository; the card on the hub names none)",
        citation="Gal et al. 2021, arXiv:2108.00946; Brooks et al. 2023, arXiv:2211.09800",
    )

    def __init__(self, model: str | None = None, dtype: str = "float32") -> None:
        self.clip = TransformersClip(model or CLIP, self.spec.name, dtype_of(dtype))
        self.least = ROUNDING[dtype]

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch."""
        self.spec.require(batch)
        if not len(batch):
            return output_of_scores(torch.zeros(0))
        captions = [[str(batch.meta(row)[key]) for row in range(len(batch))] for key in CAPTIONS]
        row_of = {text: row for row, text in enumerate(dict.fromkeys([*captions[0], *captions[1]]))}
        before, after = ([row_of[text] for text in column] for column in captions)
        with inference(self.clip.device):
            texts = unit(self.clip.texts(list(row_of)))
            moved = unit(self.clip.images(batch.media)) - unit(by_image(batch.sources, self.clip.images))
            cosine = (unit(moved) * unit(texts[after] - texts[before])).sum(1)
            return output_of_scores(cosine.masked_fill(moved.norm(dim=1) < self.least, 0.0))

    def to(self, device: str | torch.device) -> EditDirectionScorer:
        """Move the model; returns itself."""
        self.clip.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return an edit to what the words say, against one to something else."""
        made = []
        for color, other in (("blue", "green"), ("red", "black")):
            source, good, bad = (drawing(one, "circle") for one in ("yellow", color, other))
            words = dict(zip(CAPTIONS, ("a yellow circle", f"a {color} circle"), strict=True))
            samples = [Sample(media, f"make the circle {color}", words, source) for media in (good, bad)]
            made.append(Contrast(*samples, f"the yellow circle became {color}"))
        return made
