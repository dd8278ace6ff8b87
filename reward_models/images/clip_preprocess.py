"""Images as the CLIP family wants them: small squares, normalised by the mean and spread of CLIP's training data.

Images are resized one by one with PIL, because that is what the published scorers did: on uint8, rounded back to
uint8, with PIL's bicubic filter. The result is theirs to the last bit. Resizing whole batches as tensors would be
faster; on noise it is off by one grey level, and by two where it enlarges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from reward_models.common.errors import RewardError
from reward_models.media import from_pil, to_pil
from reward_models.neural import pretrained

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
SIDE = 224


def normalise(images: Tensor, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD) -> Tensor:
    """Return (x - mean) / std of images (B, 3, H, W) in [0, 1]."""
    shape = (1, 3, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


@dataclass(frozen=True)
class CenterCrop:
    """Resize the shorter side, cut out the centre, scale to [0, 1], normalise.

    The longer side becomes int(side * longer / shorter). Exactly PIL's resize, torchvision's on PIL images and that
    of transformers' PIL processors.

    Args:
        side: of the square, in pixels.
        mean: of the channels, in [0, 1].
        std: of the channels, in [0, 1].
        offset: where the crop begins if an odd number of pixels is cut off: "even" rounds half a pixel to the even
            neighbour, as torchvision does (so OpenAI's CLIP, ImageReward), "down" as transformers does.
    """

    side: int = SIDE
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    offset: Literal["even", "down"] = "even"

    def __call__(self, media: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) to float32 (B, 3, side, side), on the CPU."""
        squares = torch.stack([from_pil(self._square(to_pil(image))) for image in media])
        return normalise(squares.float() / 255, self.mean, self.std)

    def _square(self, image: Image.Image) -> Image.Image:
        width, height = (
            self.side if length == min(image.size) else int(self.side * length / min(image.size))
            for length in image.size
        )
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (
            round((length - self.side) / 2) if self.offset == "even" else (length - self.side) // 2
            for length in (width, height)
        )
        return image.crop((left, top, left + self.side, top + self.side))


def center_crop_of(source: str, reward: str) -> CenterCrop:
    """Return what a transformers processor's configuration asks for.

    Args:
        source: directory or hub id with a preprocessor_config.json.
        reward: for the message.

    Raises:
        RewardError: it cannot be loaded, or asks for something else than CLIP's preprocessing.
    """
    from transformers.image_processing_base import ImageProcessingMixin

    config = pretrained(ImageProcessingMixin, source, reward)
    shorter, crop = _side(getattr(config, "size", SIDE)), _side(getattr(config, "crop_size", SIDE))
    steps = all(getattr(config, f"do_{step}", True) for step in ("resize", "center_crop", "normalize"))
    if shorter is None or shorter != crop or getattr(config, "resample", 3) != 3 or not steps:
        raise RewardError(
            f"The reward {reward} resizes the shorter side bicubically and crops to the same size, as CLIP does. The "
            f"preprocessor_config.json of {source} asks for something else (size {getattr(config, 'size', None)}, "
            f"crop_size {getattr(config, 'crop_size', None)}, resample {getattr(config, 'resample', None)}). Use a "
            "CLIP model, or engine='open_clip'."
        )
    mean, std = getattr(config, "image_mean", MEAN), getattr(config, "image_std", STD)
    return CenterCrop(shorter, tuple(mean), tuple(std), "down")


def _side(size: int | Mapping[str, Any]) -> int | None:
    """Return the side of a size: 224, {"shortest_edge": 224} or {"height": 224, "width": 224}; None for others."""
    if isinstance(size, int):
        return size
    sides = {value for key, value in size.items() if key in ("shortest_edge", "height", "width") and value}
    return int(sides.pop()) if len(sides) == 1 else None


def pad_to_square(media: Tensor, side: int = SIDE, antialias: bool = True) -> Tensor:
    """Scale to [0, 1], resize the longer side as float, pad to a square with black, normalise.

    Args:
        media: uint8 (B, 3, H, W).
        side: of the square, in pixels. Lengths are round(length * side / longer).
        antialias: filter before sampling. Resizing floats knows no clamping: values may leave [0, 1] a little.

    Returns:
        float32 (B, 3, side, side) on the device of `media`; an odd pixel of padding goes right or below.
    """
    images = media.float() / 255
    height, width = images.shape[-2:]
    scale = side / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    if size != (height, width):
        images = functional.interpolate(images, size, mode="bicubic", align_corners=False, antialias=antialias)
    rows, columns = side - size[0], side - size[1]
    around = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    return normalise(functional.pad(images, around))
