"""Batches of lines: read as RapidOCR reads each by itself."""

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.media import from_pil, to_pil
from reward_models.text import lines, ocr

rapidocr = pytest.importorskip("rapidocr")
TEXTS = ("HELLO", "music", "Zebra 7", "a", "jazz", "WORLD", "42", "")


def drawn(text, width=149, height=53):
    image = Image.new("RGB", (width, height), (250, 230, 90))
    ImageDraw.Draw(image).text((width / 2, height / 2), text, (20, 30, 160), ImageFont.load_default(30), anchor="mm")
    return from_pil(image)


@pytest.fixture(scope="module")
def reader():
    return lines.LineReader(threads=1)


@pytest.fixture(scope="module")
def pictures():
    return torch.stack([drawn(text) for text in TEXTS])


def test_a_batch_is_read_as_rapidocr_reads_one(reader, pictures):
    """The public call without detection; by default it pads narrow lines to 320 pixels, which moves the confidence."""
    engine = rapidocr.RapidOCR(params={"Global.log_level": "error", "Rec.rec_img_shape": [3, 48, 48]})
    found = [engine(to_pil(picture), use_det=False, use_cls=False) for picture in pictures]
    read = reader(pictures)
    assert [line.text for line in read] == [one.txts[0] for one in found] == list(TEXTS)
    assert [line.confidence for line in read] == pytest.approx([one.scores[0] for one in found], abs=1e-4)


def test_what_was_read_is_not_read_again(reader, pictures, monkeypatch):
    first, calls = reader(pictures), []
    monkeypatch.setattr(reader, "_recognise", lambda asked: calls.append(asked) or pytest.fail("read again"))
    assert reader(pictures.flip(0)) == first[::-1] and calls == []


def test_it_forgets_what_is_long_past(reader, pictures, monkeypatch):
    monkeypatch.setattr(lines, "REMEMBERED", 3)
    assert [line.text for line in reader(pictures)] == list(TEXTS)
    assert len(reader._known) == 3


@pytest.mark.parametrize(("asked", "used"), [(0, torch.get_num_threads()), (1, 1)])
def test_it_computes_with_as_many_threads_as_asked_or_as_torch(asked, used):
    engine = lines.LineReader(asked)._recognise.session.session
    assert engine.get_session_options().intra_op_num_threads == used


def test_two_rewards_share_a_reader_and_score_alike(pictures):
    partial, exact = (load_reward(name, detect=False, threads=1) for name in ("ocr", "ocr_exact"))
    assert partial.lines is exact.lines
    prompts = ['"hello"', '"MUSIK"', '"zebra"', '"b"', "no target", '"world"', '"4"', '"empty"']
    batch = RewardBatch(pictures, prompts)
    soft, strict = partial(batch), exact(batch)
    assert soft.raw.tolist() == pytest.approx([1, 0.8, 1, 0, float("nan"), 1, 1, 0], nan_ok=True)
    assert strict.raw.tolist() == pytest.approx([1, 0, 0, 0, float("nan"), 1, 0, 0], nan_ok=True)
    assert soft.parts["contained"].tolist() == pytest.approx([1, 0, 1, 0, float("nan"), 1, 1, 0], nan_ok=True)
    assert torch.equal(soft.parts["exact"].nan_to_num(7), strict.raw.nan_to_num(7))
    assert soft.ok.tolist() == [i != 4 for i in range(8)] and "'no target'" in soft.errors[4]


def test_a_reader_that_fails_is_no_zero(pictures, monkeypatch):
    scorer = load_reward("ocr_exact", detect=False, threads=1)

    def broken(media):
        raise MemoryError("too many")

    monkeypatch.setattr(scorer, "lines", broken)
    output = scorer(RewardBatch(pictures[:2], ['"x"', '"y"']))
    assert output.errors == ["the text could not be read: MemoryError: too many"] * 2 and torch.isnan(output.raw).all()


@pytest.mark.parametrize("options", [{"detect": False, "engine": "tesseract"}, {"detect": "no"}])
def test_refusals(options):
    with pytest.raises(RewardError, match="detect of ocr must be true or false, and true but for rapidocr"):
        load_reward("ocr", **options)


def test_without_the_package_there_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines.line_reader.cache_clear()
    with pytest.raises(RewardError, match=r"needs the package rapidocr. Run: pip install 'diffrl\[ocr\]'"):
        ocr.ExactOcrScorer(detect=False)
