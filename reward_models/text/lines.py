"""Reading images that are one line of text each: RapidOCR's recogniser without its detector, in batches.

Finding lines costs ten times as much as reading one. Where the whole image is the line there is nothing to find.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reward_models.neural import require_package

LINE_HEIGHT = 48
"""Pixels that the recogniser wants."""

BATCH = 16
"""Images in one call of the network; more are no faster on a CPU."""

REMEMBERED = 4096
"""Readings that are kept, so that a second reward need not read the same images again."""


class Line(NamedTuple):
    """What was read, and the mean probability of its characters (0 where nothing was read)."""

    text: str
    confidence: float


class LineReader:
    """RapidOCR's recogniser; the same pixels are read once.

    An image is scaled to a height of 48 pixels, its width in proportion but at least 48, by RapidOCR's own code.
    RapidOCR alone would pad narrow lines to 320 pixels, at three times the cost; it reads the same.

    Args:
        threads: how many ONNX Runtime computes with; 0 for as many as torch.

    Raises:
        RewardError: a package is missing.
    """

    def __init__(self, threads: int = 0) -> None:
        narrow = {"Rec.rec_img_shape": [3, LINE_HEIGHT, LINE_HEIGHT], "Rec.rec_batch_num": BATCH}
        engine = make_engine(threads, narrow)
        engine(
            np.zeros((LINE_HEIGHT, LINE_HEIGHT, 3), np.uint8), use_det=False
        )  # loads the recogniser, and nothing else
        self._recognise, self._lock = engine.text_rec, Lock()
        self._known: OrderedDict[bytes, Line] = OrderedDict()

    def __call__(self, images: Tensor) -> list[Line]:
        """Read uint8 RGB images (B, 3, H, W), a line each."""
        from rapidocr.ch_ppocr_rec import TextRecInput

        pixels = images.detach().cpu().permute(0, 2, 3, 1).flip(-1).contiguous().numpy()  # BGR, as RapidOCR has it
        keys = [hashlib.sha256(repr(one.shape).encode() + one.tobytes()).digest() for one in pixels]
        with self._lock:  # rewards may be computed in threads of their own
            new = {key: one for key, one in zip(keys, pixels, strict=True) if key not in self._known}
            if new:
                lines = self._recognise(TextRecInput(img=list(new.values()), return_word_box=False))
                self._known.update(zip(new, map(Line, lines.txts, lines.scores), strict=True))
            read = [self._known[key] for key in keys]
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return read


@lru_cache
def line_reader(threads: int) -> LineReader:
    """Return the one reader of all rewards with so many threads."""
    return LineReader(threads)


def make_engine(threads: int, options: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return a `RapidOCR` with the weights of its wheel that logs errors only and turns nothing.

    Args:
        threads: how many ONNX Runtime computes with; 0 for as many as torch.
        options: further settings of RapidOCR, by their dotted names.

    Raises:
        RewardError: a package is missing.
    """
    require_package("rapidocr", "ocr", "ocr")
    require_package("onnxruntime", "ocr", "ocr")
    from rapidocr import RapidOCR

    params = {"Global.log_level": "error", "Global.use_cls": False, **options}
    # Left alone it takes every core, whatever OMP_NUM_THREADS says, and two runs beside each other wait in its loops.
    params["EngineConfig.onnxruntime.intra_op_num_threads"] = threads or torch.get_num_threads()
    return RapidOCR(params=params)
