"""Text drawn with another font than the self-test's, read by the real engines."""

import shutil
import socket
from functools import lru_cache
from pathlib import Path

import matplotlib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.media import from_pil
from reward_models.self_test import self_test
from reward_models.text.levenshtein import levenshtein
from reward_models.text.ocr import plain, quoted, similarity, target_of

FONT = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="the program tesseract is not installed")


def drawn(text, width=320, height=96):
    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.truetype(str(FONT), 40)
    ImageDraw.Draw(image).text((12, height / 2), text, "black", font, anchor="lm")
    return from_pil(image)


def recursive(first, second):
    """Levenshtein's definition, literally."""

    @lru_cache(None)
    def distance(i, j):
        if min(i, j) == 0:
            return max(i, j)
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (first[i - 1] != second[j - 1]),
        )

    return distance(len(first), len(second))


letters = st.text("abc", max_size=9)


@given(letters, letters)
def test_levenshtein_is_its_definition(first, second):
    assert levenshtein(first, second) == recursive(first, second)


@given(letters, letters.filter(bool))
def test_score_against_a_second_writing(read, target):
    distance = 0 if target in read else min(recursive(read, target), len(target))
    assert similarity(read, target) == 1 - distance / len(target)
    assert 0 <= similarity(read, target) <= 1


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ('a sign with "Hello World" on it', "Hello World"),
        ('"one" and "two"', "one"),
        ("a poster: “Grand Opening”, lit", "Grand Opening"),
        ("\"it's 'ok'\" they said", "it's 'ok'"),
        ("a mug that says 'STOP'", "STOP"),
        ("don't forget: 'it's fine' on a wall", "it's fine"),
        ("a mug that says ‘Tea’.", "Tea"),
        ("the dogs' sign says 'rex'", None),  # three marks: which two?
        ("'open", None),
        ("no quotes at all", None),
        ('one " only', None),
        ('a ruler 5\' 3" long with "MAX"', "MAX"),  # inches open nothing
        ('a 3" pipe and a 5" pipe', None),
        ("a man of 6' with a cap that says 'GO'", "GO"),
        ('a sign "" under a sign "GO"', "GO"),
        ('a mug "5\'3\\""', "5'3\""),
        ("ein Schild „HALT“", "HALT"),
        ("看板「停」", "停"),
        ("a sign ``STOP''", "STOP"),
    ],
)
def test_quoted(prompt, expected):
    assert quoted(prompt) == expected


def test_target():
    assert target_of('say "no"', {"text": "Yes"}) == "Yes"
    assert target_of('say "no"', {}) == "no"
    assert plain(" Hello \n World\t") == "helloworld"
    for prompt, metadata in (("nothing", {}), ('""', {}), ('"  "', {}), ('say "x"', {"text": ""}), ("a", {"text": 3})):
        with pytest.raises(RewardError, match="into double quotes, or into the metadata"):
            target_of(prompt, metadata)


@pytest.mark.long
def test_rapidocr_reads_scores_and_fails_per_sample_and_downloads_nothing(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    pytest.importorskip("rapidocr")
    media = torch.stack([drawn("Hello World"), drawn("Hello World"), drawn(""), drawn("Hello World")])
    prompts = ['a "hello world" sign', 'a "jello world" sign', 'a "hello" sign', "a sign"]
    output = load_reward("ocr", threads=1)(RewardBatch(media, prompts))
    assert output.raw[:3].tolist() == pytest.approx([1.0, 0.9, 0.0])  # an empty reading is a reading
    assert output.ok.tolist() == [True, True, True, False] and torch.isnan(output.raw[3])
    assert "'a sign'" in output.errors[3]
    assert output.parts["contained"][:3].tolist() == [1, 0, 0] and output.parts["read"][:3].tolist() == [10, 10, 0]


def test_an_engine_that_fails_is_no_zero():
    pytest.importorskip("rapidocr")
    scorer = load_reward("ocr")

    def broken(picture):
        raise ValueError("out of ink")

    scorer.read = broken
    output = scorer(RewardBatch(drawn("x")[None], ['"x"']))
    assert torch.isnan(output.raw).all() and not output.ok.any()
    assert output.errors == ["the text could not be read: ValueError: out of ink"]


@needs_tesseract
def test_tesseract():
    pytest.importorskip("pytesseract")
    scorer = load_reward("ocr", engine="tesseract")
    output = scorer(RewardBatch(torch.stack([drawn("Hello World"), drawn("")]), ['"hello world"', '"hello"']))
    assert output.raw.tolist() == [1.0, 0.0]
    assert self_test(scorer).passed
    assert scorer.spec.extra == "tesseract"


def test_tesseract_without_its_program(monkeypatch):
    pytest.importorskip("pytesseract")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RewardError, match="not on the path"):
        load_reward("ocr", engine="tesseract")


def test_refusals():
    with pytest.raises(RewardError, match="must be one of rapidocr, tesseract"):
        load_reward("ocr", engine="eyes")
    with pytest.raises(RewardError, match="threads of ocr must be"):
        load_reward("ocr", engine="tesseract", threads=2)
