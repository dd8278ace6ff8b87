"""GenEval: are the objects there that the prompt asks for, as many, in these colours, and where they should be?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.images.geneval_rules import KINDS, Conditions, Detection, class_name, judge, kept, read_conditions
from reward_models.images.geneval_vision import ColorClassifier, Detector
from reward_models.media import from_pil
from reward_models.neural import dtype_of
from reward_models.self_test import SIDE, Contrast, Sample

DETECTOR = "facebook/mask2former-swin-small-coco-instance"
CLIP = "openai/clip-vit-large-patch14"
PARTS = (*KINDS, "partial", "strict")


class GenEvalScorer:
    """GenEval with partial credit: the share of a prompt's conditions that hold.

    Metadata as in GenEval's evaluation_metadata.jsonl (see `geneval_rules`): `include`, a list of {class, count} with
    color or position where asked; `exclude` and `tag` where there are any. A prompt's conditions are one for the count
    of each include entry, one for its colour, one for its position, and one for each exclude entry; raw = how many of
    them hold / how many there are, so 1 exactly where `geneval_strict` is 1. The conditions are judged by GenEval's
    published rules (Ghosh et al. 2023, arXiv:2310.11513): objects above a confidence of 0.3, or 0.9 where the tag is
    "counting", at most 16 a class, overlapping ones kept. "At least" as many is right for include.

    The share is this library's. Flow-GRPO's partial reward grades a count by 1 - |found - asked| / asked and wants
    exactly as many everywhere.

    GenEval looks with mmdet's Mask2Former (Swin-S), which does not run beside this library; here it is the same
    architecture with the weights that Mask2Former's authors published, in transformers' format, run at mmdet's sizes
    and read out as mmdet does (`geneval_vision`). Scores near those of the benchmark are to be expected and equal ones
    are not; agreement was not measured here.

    Parts: `count`, `colour`, `position`, `exclude`: shares of these kinds of conditions, NaN where none was asked;
    `partial`, `strict`. Metadata out of format, or a class that the detector does not know, is NaN for its sample.

    Args:
        model: directory or hub id of the detector, a transformers Mask2FormerForUniversalSegmentation.
        clip_model: directory or hub id of the CLIP that names colours.
        dtype: of both: "float32", "bfloat16" or "float16".
        side: the shorter side in pixels that images are resized to for the detector, as in mmdet 800; its time and
            memory grow with the square of it.
        threshold: least confidence of objects.
        counting_threshold: the same where the tag is "counting".
        max_objects: most objects of a class that are kept.
        position_threshold: by which share of both sizes an offset is shortened (see `geneval_rules.relations`).
    """

    spec = ScorerSpec(
        name="geneval",
        description="Share of the prompt's conditions (objects, counts, colours, positions) that a detector finds met.",
        range=(0.0, 1.0),
        requires=("include",),
        memory="2.0 GB float32, 1.0 GB in half precision",
        weights=f"{DETECTOR} and {CLIP}",
        weights_license="detector: 'other' on its card (its repository is MIT); CLIP: MIT",
        citation="https://arxiv.org/abs/2310.11513",
        batch_size=8,
    )
    summary = "partial"

    def __init__(
        self,
        model: str = DETECTOR,
        clip_model: str = CLIP,
        dtype: str = "float32",
        side: int = 800,
        threshold: float = 0.3,
        counting_threshold: float = 0.9,
        max_objects: int = 16,
        position_threshold: float = 0.1,
    ) -> None:
        for name, value in (("threshold", threshold), ("counting_threshold", counting_threshold)):
            if not 0 < value < 1:
                raise RewardError(f"{name} of {self.spec.name} must be between 0 and 1. Got {value}.")
        if max_objects < 1:
            raise RewardError(f"max_objects of {self.spec.name} must be at least 1. Got {max_objects}.")
        if side < 32:
            raise RewardError(f"side of {self.spec.name} must be at least 32 pixels. Got {side}.")
        if position_threshold < 0:
            raise RewardError(f"position_threshold of {self.spec.name} must be >= 0. Got {position_threshold}.")
        self.thresholds = {False: threshold, True: counting_threshold}
        self.max_objects = max_objects
        self.slack = position_threshold
        self.detector = Detector(model, dtype_of(dtype), self.spec.name, side)
        self.colors = ColorClassifier(clip_model, dtype_of(dtype), self.spec.name)
        self.spec = replace(self.spec, weights=f"{model} and {clip_model}")

    @staticmethod
    def asks(prompt: str, metadata: Mapping[str, Any]) -> None:
        """Refuse metadata that is no list of conditions; see `prompt_checks`."""
        read_conditions(metadata)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images.

        Raises:
            RewardError: the media are videos, or metadata have no `include`.
        """
        self.spec.require(batch)
        if not len(batch):
            return output_of_rows([], PARTS)
        detected = self.detector(batch.media, min(self.thresholds.values()))
        rows: list[tuple[float, dict[str, float], str | None]] = []
        for index, (image, objects) in enumerate(zip(batch.media, detected, strict=True)):
            try:
                conditions = read_conditions(batch.meta(index))
                self._check_classes(conditions)
            except RewardError as error:
                rows.append((math.nan, {}, str(error)))
                continue
            chosen = kept(objects, self.thresholds[conditions.counting], self.max_objects)
            parts = judge(conditions, chosen, partial(self._colors, image), self.slack)
            rows.append((parts[self.summary], parts, None))
        return output_of_rows(rows, PARTS)

    def to(self, device: str | torch.device) -> GenEvalScorer:
        """Move both models."""
        self.detector.model.to(device)
        self.colors.towers.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return drawings of things that COCO has, against an empty image and against each other."""
        pairs = (("clock", clock(), stop_sign()), ("stop sign", stop_sign(), torch.full((3, SIDE, SIDE), 153).byte()))
        return [
            Contrast(_asking_for(name, good), _asking_for(name, bad), f"there is a {name} in it")
            for name, good, bad in pairs
        ]

    def _colors(self, image: Tensor, objects: Sequence[Detection], name: str) -> list[str]:
        return self.colors(image, objects, name)

    def _check_classes(self, conditions: Conditions) -> None:
        for clause in (*conditions.include, *conditions.exclude):
            if class_name(clause.name) not in self.detector.classes:
                raise RewardError(
                    f"The detector must know every class. Got {clause.name!r}, which is none of its "
                    f"{len(self.detector.classes)}. Use COCO's names."
                )


class StrictGenEvalScorer(GenEvalScorer):
    """GenEval as published: 1 if every condition of the prompt holds, else 0.

    The same as `GenEvalScorer` (see there for metadata, models and what differs from the benchmark's), but raw is
    GenEval's `correct`.
    """

    spec = replace(
        GenEvalScorer.spec,
        name="geneval_strict",
        description="1 if a detector finds all the prompt's objects, counts, colours and positions right, else 0.",
    )
    summary = "strict"


def clock() -> Tensor:
    """Return a drawn clock, (3, SIDE, SIDE) uint8."""
    image, draw, unit = _canvas("#d8c8a8")
    middle = SIDE / 2
    draw.ellipse([0.12 * SIDE, 0.12 * SIDE, 0.88 * SIDE, 0.88 * SIDE], "white", "black", round(10 * unit))
    for hour in range(1, 13):
        x, y = (middle + 0.3 * SIDE * turn(math.pi * hour / 6) for turn in (math.sin, lambda a: -math.cos(a)))
        draw.text((x, y), str(hour), "black", ImageFont.load_default(round(24 * unit)), anchor="mm")
    draw.line([middle, middle, middle + 0.11 * SIDE, middle - 0.12 * SIDE], "black", round(9 * unit))
    draw.line([middle, middle, middle - 0.2 * SIDE, middle - 0.12 * SIDE], "black", round(5 * unit))
    return from_pil(image)


def stop_sign() -> Tensor:
    """Return a drawn stop sign on a post, (3, SIDE, SIDE) uint8."""
    image, draw, unit = _canvas("#a8c8e8")
    draw.rectangle([0.48 * SIDE, 0.5 * SIDE, 0.52 * SIDE, SIDE], "#808080")
    for radius, colour in ((0.36, "white"), (0.33, "#b01020")):
        corners = [math.pi * (2 * k + 1) / 8 for k in range(8)]
        draw.polygon(
            [(SIDE * (0.5 + radius * math.cos(a)), SIDE * (0.42 + radius * math.sin(a))) for a in corners], colour
        )
    draw.text((0.5 * SIDE, 0.42 * SIDE), "STOP", "white", ImageFont.load_default(round(58 * unit)), anchor="mm")
    return from_pil(image)


def _canvas(colour: str) -> tuple[Image.Image, ImageDraw.ImageDraw, float]:
    image = Image.new("RGB", (SIDE, SIDE), colour)
    return image, ImageDraw.Draw(image), SIDE / 256


def _asking_for(name: str, image: Tensor) -> Sample:
    metadata = {"tag": "single_object", "include": [{"class": name, "count": 1}]}
    return Sample(image, f"a photo of a {name}", metadata)
