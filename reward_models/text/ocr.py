"""Whether a picture shows the text it was asked for: optical character recognition against a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.errors import RewardError
from reward_models.media import from_pil, to_pil
from reward_models.neural import require_package
from reward_models.self_test import SIDE, Contrast, contrast
from reward_models.text.levenshtein import levenshtein
from reward_models.text.quotes import quoted as quoted

ENGINES = ("rapidocr", "tesseract")
PARTS = ("contained", "read")

Reader = Callable[[Tensor], str]


def target_of(prompt: str, metadata: Mapping[str, Any]) -> str:
    """The text that a picture should show: metadata["text"], else the first quoted text of the prompt.

    Raises:
        RewardError: there is none, or nothing is left of it without spaces.
    """
    text = metadata["text"] if "text" in metadata else quoted(prompt)
    if not isinstance(text, str) or not plain(text):
        what = f"the metadata's text {text!r}" if "text" in metadata else f"the prompt {prompt!r}"
        raise RewardError(
            f"the text to look for is the metadata's 'text', or else the first text in quotes of the prompt. "
            f"Got {what}. Put the text into double quotes, or into the metadata"
        )
    return text


def plain(text: str) -> str:
    """What of a text is compared: lower case, without white space."""
    return "".join(text.lower().split())


def similarity(read: str, target: str) -> float:
    """Flow-GRPO's text score in [0, 1] of two texts in plain form, `target` not empty.

    1 - d / len(target), d = 0 if the target stands anywhere in what was read, else min(Levenshtein distance,
    len(target)).
    """
    distance = 0 if target in read else min(levenshtein(read, target), len(target))
    return 1 - distance / len(target)


class OcrScorer(WithoutWeights):
    """Text rendering: 1 minus the normalised edit distance of what is read in the picture to the target.

    raw = 1 - d / len(target); d = 0 if the target is contained in what was read, else min(Levenshtein distance,
    len(target)); both sides in lower case and without white space, lines joined in reading order. That is the reward of
    Flow-GRPO (arXiv:2505.05470), which reads with PaddleOCR and removes only the space character.

    Target: metadata["text"] if there, else the first text of the prompt in double quotes, straight or curly; single
    quotes only where they cannot be apostrophes (`quoted`). A sample with metadata["text"] needs no prompt: "" will do,
    and its line for `diffrl score --prompts` is {"file": "a.png", "prompt": "", "text": "STOP"}; "prompt" may be
    left out, unless the text has quotes in it: it is taken for a caption then. A sample without a target is NaN. A
    picture in which nothing is found is a valid reading of nothing and scores 0; an engine that fails is NaN, never 0.

    Engines:

    - "rapidocr": PP-OCRv6 small through ONNX Runtime on the CPU, with the weights that its wheel carries (nothing is
      downloaded); Latin and Chinese script. No turning of upside-down text, as in Flow-GRPO; pieces of text below
      RapidOCR's confidence of 0.5 are left out. About 0.25 s of one core for a picture with one word, more with more.
    - "tesseract": the program tesseract by pytesseract, English, page segmentation mode 11 (sparse text). The program
      is installed apart (Debian: tesseract-ocr).

    Parts: `contained`, 1 if the whole target was read, else 0; `read`, how many characters were read. Notes: what was
    read.

    Args:
        engine: "rapidocr" or "tesseract".
        threads: how many ONNX Runtime computes with; 0 for one a core. Set it where other work needs the cores.
    """

    spec = ScorerSpec(
        name="ocr",
        description="Share of the quoted text that can be read in the picture: 1 minus the normalised edit distance.",
        range=(0.0, 1.0),
        version="rapidocr 1",
        memory="0.3 GB",
        extra="ocr",
        weights="PP-OCRv6 small, in the wheel of rapidocr",
        weights_license="Apache-2.0",
        citation="https://arxiv.org/abs/2505.05470",
        batch_size=32,
    )

    def __init__(self, engine: str = "rapidocr", threads: int = 0) -> None:
        if engine not in ENGINES:
            raise RewardError(f"engine of ocr must be one of {', '.join(ENGINES)}. Got {engine!r}.")
        if threads < 0 or (threads and engine != "rapidocr"):
            raise RewardError(f"threads of ocr must be >= 0, and 0 but for rapidocr. Got {threads} for {engine}.")
        self.read: Reader = _rapidocr(threads) if engine == "rapidocr" else _tesseract()
        if engine == "tesseract":
            self.spec = replace(
                self.spec, version="tesseract 1", memory=None, extra="tesseract", weights="of the program tesseract"
            )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of pictures, one after the other.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        scored = [self._score(batch.media[i], prompt, batch.meta(i)) for i, prompt in enumerate(batch.prompts)]
        return output_of_rows([row for row, _ in scored], PARTS, [note for _, note in scored])

    def contrasts(self) -> list[Contrast]:
        """A drawn word against another word, and against an empty picture."""
        made = []
        for word, other in (("HELLO", "MUSIC"), ("MUSIC", "")):
            prompt = f'a sign that says "{word}"'
            why = f"the word {word} can be read in it"
            made.append(contrast(written(word), written(other), why, prompt))
        return made

    def _score(
        self, picture: Tensor, prompt: str, metadata: Mapping[str, Any]
    ) -> tuple[tuple[float, dict[str, float], str | None], str | None]:
        """A row for `output_of_rows`, and its note."""
        try:
            target = plain(target_of(prompt, metadata))
        except RewardError as error:
            return (math.nan, {}, str(error)), None
        try:
            read = plain(self.read(picture))
        except Exception as error:  # engines raise what they like, and none of it is a score
            return (math.nan, {}, f"the text could not be read: {type(error).__name__}: {error}"), None
        parts = {"contained": float(target in read), "read": float(len(read))}
        return (similarity(read, target), parts, None), f'read "{read}"'


def written(text: str, side: int = SIDE) -> Tensor:
    """Black text on white, (3, side, side) uint8, in Pillow's own font."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (side, side), "white")
    font = ImageFont.load_default(side // 6)
    ImageDraw.Draw(image).text((side / 2, side / 2), text, "black", font, anchor="mm")
    return from_pil(image)


def _rapidocr(threads: int) -> Reader:
    require_package("rapidocr", "ocr", "ocr")
    require_package("onnxruntime", "ocr", "ocr")
    from rapidocr import RapidOCR

    params = {"Global.log_level": "error", "Global.use_cls": False}
    if threads:
        params["EngineConfig.onnxruntime.intra_op_num_threads"] = threads
    engine: Any = RapidOCR(params=params)

    def read(picture: Tensor) -> str:
        return "".join(engine(to_pil(picture)).txts or ())  # None where nothing is found

    return read


def _tesseract() -> Reader:
    require_package("pytesseract", "tesseract", "ocr")
    import pytesseract  # type: ignore[import-untyped]

    try:
        pytesseract.get_tesseract_version()
    except (pytesseract.TesseractNotFoundError, SystemExit) as error:
        raise RewardError(
            "The engine tesseract of the reward ocr needs the program of this name. It is not on the path. Install it "
            "(Debian: apt install tesseract-ocr), or use engine='rapidocr'."
        ) from error

    def read(picture: Tensor) -> str:
        return str(pytesseract.image_to_string(to_pil(picture), lang="eng", config="--psm 11"))

    return read
