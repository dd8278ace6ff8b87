"""Whether an image shows the text it was asked for: optical character recognition against a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.media import from_pil, to_pil
from reward_models.neural import require_package
from reward_models.self_test import SIDE, Contrast, contrast
from reward_models.text.levenshtein import levenshtein
from reward_models.text.lines import line_reader, make_engine
from reward_models.text.quotes import quoted as quoted

ENGINES = ("rapidocr", "tesseract")
PARTS = ("contained", "exact", "read")

Reader = Callable[[Tensor], str]


def target_of(prompt: str, metadata: Mapping[str, Any]) -> str:
    """Return the text that an image should show: metadata["text"], else the first quoted text of the prompt.

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
    """Return what of a text is compared: lower case, without white space."""
    return "".join(text.lower().split())


def similarity(read: str, target: str) -> float:
    """Return Flow-GRPO's text score in [0, 1] of two texts in plain form, `target` not empty.

    1 - d / len(target), d = 0 if the target stands anywhere in what was read, else min(Levenshtein distance,
    len(target)).
    """
    distance = 0 if target in read else min(levenshtein(read, target), len(target))
    return 1 - distance / len(target)


class OcrScorer(WithoutWeights):
    """Text rendering: 1 minus the normalised edit distance of what is read in the image to the target.

    raw = 1 - d / len(target); d = 0 if the target is contained in what was read, else min(Levenshtein distance,
    len(target)); both sides in lower case and without white space, lines joined in reading order. That is the reward of
    Flow-GRPO (arXiv:2505.05470), which reads with PaddleOCR and removes only the space character.

    Target: metadata["text"] if there, else the first text of the prompt in double quotes, straight or curly; single
    quotes only where they cannot be apostrophes (`quoted`). A sample with metadata["text"] needs no prompt: "" will do,
    and its line for `diffrl score --prompts` is {"file": "a.png", "prompt": "", "text": "STOP"}; "prompt" may be
    left out, unless the text has quotes in it: it is taken for a caption then. A sample without a target is NaN. A
    image in which nothing is found is a valid reading of nothing and scores 0; an engine that fails is NaN, never 0.

    Engines:

    - "rapidocr": PP-OCRv6 small through ONNX Runtime on the CPU, with the weights that its wheel carries (nothing is
      downloaded); Latin and Chinese script. No turning of upside-down text, as in Flow-GRPO; pieces of text below
      RapidOCR's confidence of 0.5 are left out. About 0.25 s of one core for an image with one word, more with more.
      `detect=False` takes every image for one line of text and reads the batch together, without looking for where
      text is: about 12 ms for an image twice as wide as high, more for a wider one. Confidence plays no part then, and
      rewards with as many threads share what they read.
    - "tesseract": the program tesseract by pytesseract, English, page segmentation mode 11 (sparse text). The program
      is installed apart (Debian: tesseract-ocr).

    Parts: `contained`, 1 if the whole target was read, else 0; `exact`, 1 if nothing but the target was read; `read`,
    how many characters were read. Notes: what was read.

    Args:
        engine: "rapidocr" or "tesseract".
        detect: False where each image is one line of text; only for rapidocr.
        threads: how many ONNX Runtime computes with; 0 for as many as torch (OMP_NUM_THREADS sets both).
    """

    spec = ScorerSpec(
        name="ocr",
        description="Share of the quoted text that can be read in the image: 1 minus the normalised edit distance.",
        range=(0.0, 1.0),
        version="rapidocr 2",
        memory="0.3 GB",
        extra="ocr",
        weights="PP-OCRv6 small, in the wheel of rapidocr",
        weights_license="Apache-2.0",
        citation="https://arxiv.org/abs/2505.05470",
        batch_size=32,
    )

    part: str | None = None
    """What of the parts is the score, if it is not the similarity."""

    def __init__(self, engine: str = "rapidocr", threads: int = 0, detect: bool = True) -> None:
        if engine not in ENGINES:
            raise RewardError(f"engine of ocr must be one of {', '.join(ENGINES)}. Got {engine!r}.")
        if threads < 0 or (threads and engine != "rapidocr"):
            raise RewardError(f"threads of ocr must be >= 0, and 0 but for rapidocr. Got {threads} for {engine}.")
        if not isinstance(detect, bool) or not (detect or engine == "rapidocr"):
            raise RewardError(
                f"detect of ocr must be true or false, and true but for rapidocr. Got {detect!r} for {engine}."
            )
        self.lines = None if detect else line_reader(threads)
        if detect:
            self.read: Reader = _rapidocr(threads) if engine == "rapidocr" else _tesseract()
        if engine == "tesseract":
            self.spec = replace(
                self.spec, version="tesseract 2", memory=None, extra="tesseract", weights="of the program tesseract"
            )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images; without `detect` they are read together, else one after the other.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        targets = [_target_or_error(prompt, batch.meta(i)) for i, prompt in enumerate(batch.prompts)]
        wanted = [i for i, target in enumerate(targets) if isinstance(target, str)]
        texts = dict(zip(wanted, self._read_all(batch.media[wanted]), strict=True))
        notes = [
            f'read "{plain(text)}"' if isinstance(text := texts.get(i), str) else None for i in range(len(targets))
        ]
        return output_of_rows([self._score(texts.get(i), target) for i, target in enumerate(targets)], PARTS, notes)

    def contrasts(self) -> list[Contrast]:
        """Return a drawn word against another word, and against an empty image."""
        made = []
        for word, other in (("HELLO", "MUSIC"), ("MUSIC", "")):
            prompt = f'a sign that says "{word}"'
            why = f"the word {word} can be read in it"
            made.append(contrast(written(word), written(other), why, prompt))
        return made

    @staticmethod
    def asks(prompt: str, metadata: Mapping[str, Any]) -> str:
        """Return the text that is looked for, in quotes; see `prompt_checks`."""
        return f'"{target_of(prompt, metadata)}"'

    def _read_all(self, images: Tensor) -> list[str | Exception]:
        """Return what stands in each image, or why that is not known: engines raise what they like."""
        if self.lines is None:
            return [_attempt(self.read, image) for image in images]
        lines = _attempt(self.lines, images)
        return [lines] * len(images) if isinstance(lines, Exception) else [line.text for line in lines]

    def _score(
        self, text: str | Exception | None, target: str | RewardError
    ) -> tuple[float, dict[str, float], str | None]:
        if isinstance(target, RewardError):
            return math.nan, {}, str(target)
        if not isinstance(text, str):
            return math.nan, {}, f"the text could not be read: {type(text).__name__}: {text}"
        read = plain(text)
        parts = {"contained": float(target in read), "exact": float(read == target), "read": float(len(read))}
        return similarity(read, target) if self.part is None else parts[self.part], parts, None


class ExactOcrScorer(OcrScorer):
    """1 if what is read in the image is the target and nothing else, else 0.

    As `ocr` in all else: both sides in lower case and without white space.

    Args:
        engine: "rapidocr" or "tesseract".
        detect: False where each image is one line of text; only for rapidocr.
        threads: how many ONNX Runtime computes with; 0 for as many as torch.
    """

    spec = replace(
        OcrScorer.spec, name="ocr_exact", description="1 if exactly the quoted text is read in the image, else 0."
    )
    part = "exact"


def _target_or_error(prompt: str, metadata: Mapping[str, Any]) -> str | RewardError:
    try:
        return plain(target_of(prompt, metadata))
    except RewardError as error:
        return error


def _attempt(read: Callable[[Tensor], Any], images: Tensor) -> Any:
    try:
        return read(images)
    except Exception as error:
        return error


def written(text: str, side: int = SIDE) -> Tensor:
    """Return black text on white, (3, side, side) uint8, in Pillow's own font."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (side, side), "white")
    font = ImageFont.load_default(side // 6)
    ImageDraw.Draw(image).text((side / 2, side / 2), text, "black", font, anchor="mm")
    return from_pil(image)


def _rapidocr(threads: int) -> Reader:
    engine = make_engine(threads)

    def read(image: Tensor) -> str:
        return "".join(engine(to_pil(image)).txts or ())  # None where nothing is found

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

    def read(image: Tensor) -> str:
        return str(pytesseract.image_to_string(to_pil(image), lang="eng", config="--psm 11"))

    return read
