"""The two models that GenEval looks with: a detector of COCO's classes, and CLIP to name an object's colour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from reward_models.images.clip_towers import load_clip, unit
from reward_models.images.geneval_rules import COLORS, Detection, class_name
from reward_models.neural import inference, pretrained, shared

GREY = 153
"""Of all channels behind a cut-out object: #999, as in GenEval."""


class Detector:
    """Mask2Former on COCO's instances, in transformers' format, run as mmdet runs it for GenEval.

    Images are resized (bilinear) to a shorter side of 800 pixels, the longer one at most 1333, then to multiples of
    32, where mmdet pads, and normalised by ImageNet's mean and standard deviation, as the checkpoint's processor says.
    Of all pairs of a query and a class the likeliest, as many as there are queries, are objects (see `instances`).

    Args:
        model: directory or hub id of a Mask2FormerForUniversalSegmentation.
        dtype: of the weights.
        reward: for messages.
        side: the shorter side in pixels. It is not read from the checkpoint, whose processor may say another size than
            the one that the benchmark uses.
    """

    def __init__(self, model: str, dtype: torch.dtype, reward: str, side: int = 800) -> None:
        from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor

        self.processor = pretrained(Mask2FormerImageProcessor, model, reward)
        self.size = {"shortest_edge": side, "longest_edge": side * 1333 // 800}
        self.model = shared(
            ("mask2former", str(model), dtype),
            lambda: pretrained(Mask2FormerForUniversalSegmentation, model, reward, dtype=dtype).eval(),
        )
        self.labels: dict[int, str] = dict(self.model.config.id2label)
        self.classes = {class_name(label) for label in self.labels.values()}

    def __call__(self, pictures: Tensor, threshold: float) -> list[list[Detection]]:
        """Return the colour, of `COLORS`, of each object of class `name` in an image (3, H, W) uint8."""
        inputs = self.processor(images=list(pictures.cpu()), size=self.size, return_tensors="pt")["pixel_values"]
        device = self.model.device
        with inference(device):
            outputs = self.model(pixel_values=inputs.to(device, self.model.dtype))
            sizes = tuple(inputs.shape[-2:]), tuple(pictures.shape[-2:])
            return [
                [self._detection(*instance) for instance in instances(classes.float(), masks.float(), sizes, threshold)]
                for classes, masks in zip(outputs.class_queries_logits, outputs.masks_queries_logits, strict=True)
            ]

    def _detection(self, label: int, score: float, inside: Tensor) -> Detection:
        mask = inside.cpu().numpy()
        columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        return Detection(self.labels[label], score, box, mask)


def instances(
    classes: Tensor, masks: Tensor, sizes: Sequence[tuple[int, ...]], threshold: float
) -> list[tuple[int, float, Tensor]]:
    """Return objects of one image from Mask2Former's outputs, as mmdet's instance post-processing finds them.

    Of the probabilities of all classes but "no object" of all queries the largest N are taken. A query's mask is where
    its logits, resized bilinearly, are positive; the confidence is the probability times the mean of the mask's
    sigmoids inside it.

    Args:
        classes: logits (N, classes + 1), float32.
        masks: logits (N, h, w), float32.
        sizes: (H, W) that masks are resized to, one after the other: the model's input, then the image.
        threshold: confidences must exceed it.

    Returns:
        (class, confidence, mask (H, W) bool) of each object; none has an empty mask.
    """
    probabilities = classes.softmax(-1)[:, :-1]
    chosen, places = probabilities.flatten().topk(len(classes))
    likely = chosen > threshold  # the mask's factor is at most 1
    chosen, places = chosen[likely], places[likely]
    found_instances = []
    for probability, at in zip(chosen, places.tolist(), strict=True):
        query, label = divmod(at, probabilities.shape[1])
        logits = masks[query][None, None]
        for size in sizes:
            logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        inside = logits[0, 0] > 0
        score = float(probability * (logits[0, 0].sigmoid() * inside).sum() / (inside.sum() + 1e-6))
        if score > threshold:  # never of an empty mask, whose score is 0
            found_instances.append((label, score, inside))
    return found_instances


class ColorClassifier:
    """Names the colour of objects by zero-shot CLIP, as GenEval does.

    An object's image is the image with everything but its mask painted #999, cut to its box, preprocessed as the
    checkpoint says (published: 224 pixels, bicubic, cut to the centre). A colour's embedding is the normalised mean of
    the normalised embeddings of its `color_texts`; the colour with the largest cosine wins.

    Args:
        model: directory or hub id of a CLIPModel.
        dtype: of the weights; cosines are in float32.
        reward: for messages.
    """

    def __init__(self, model: str, dtype: torch.dtype, reward: str) -> None:
        self.towers = load_clip(model, reward, dtype)
        self._known: dict[str, Tensor] = {}

    def __call__(self, image: Tensor, objects: Sequence[Detection], name: str) -> list[str]:
        """Return the colour, of `COLORS`, of each object of class `name` in an image (3, H, W) uint8."""
        with inference(self.towers.device):
            if name not in self._known:
                self._known[name] = self._embeddings(name)
            images = unit(torch.cat([self.towers.images(cut_out(image, item)[None]) for item in objects]))
            likeness = images @ self._known[name].to(images.device).T
        return [COLORS[index] for index in likeness.argmax(-1).tolist()]

    def _embeddings(self, name: str) -> Tensor:
        """Return embeddings (10, D) of each colour of `COLORS` on objects of a class."""
        texts = [text for color in COLORS for text in color_texts(color, name)]
        embeddings = unit(self.towers.texts(texts)).reshape(len(COLORS), len(texts) // len(COLORS), -1)
        return unit(embeddings.mean(1))


def color_texts(color: str, name: str) -> tuple[str, ...]:
    """Return what CLIP is told of a colour on objects of a class."""
    return f"a photo of a {color} {name}", f"a photo of a {color}-colored {name}", f"a photo of a {color} object"


def cut_out(image: Tensor, item: Detection) -> Tensor:
    """Return an object of an image (3, H, W) on grey, cut to its box; without a mask, only cut."""
    x0, y0, x1, y1 = (round(edge) for edge in item.box)
    piece = image[:, y0:y1, x0:x1]
    if item.mask is None:
        return piece
    inside = torch.from_numpy(item.mask[y0:y1, x0:x1]).to(image.device)
    return torch.where(inside, piece, GREY)
